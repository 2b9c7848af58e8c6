package wire

import (
	"fmt"
	"regexp/syntax"
	"slices"
)

// Bounds of wait_for and search.
const (
	MaxPattern = 1024 // bytes
	// MaxPatternSteps bounds a regular expression with its repetitions written out, in
	// instructions of Go's regexp/syntax: a{1000} has 1,002.
	MaxPatternSteps = 4000
	MaxWaitedFor    = 32 // processes in one wait_for
	MaxQuietMS      = 600_000
	// DefaultWaitForMS is how long a wait_for waits that says nothing else.
	DefaultWaitForMS = 30_000
	MaxMatches       = 1000
	MaxContext       = 20 // lines before and after a match
)

// Validate checks a wait_for: exactly what the condition needs is given, and nothing
// that belongs to another one.
func (m *WaitFor) Validate() error {
	var c checks
	c.version(m.Version)
	c.waitTargets(m)
	oneOf(&c, "for", m.For, "end", "exit", "pattern", "port", "file", "quiet")
	for _, f := range []struct {
		name, of string
		given    bool
		must     bool
	}{
		{"pattern", "pattern", m.Pattern != "", true},
		{"port", "port", m.Port != 0, true},
		{"path", "file", m.Path != "", true},
		{"quiet_ms", "quiet", m.QuietMS != 0, true},
		{"waited_ms", "quiet", m.WaitedMS != 0, false},
		{"cursor", "pattern", m.Cursor != nil, false},
		{"offset", "pattern", m.Offset != nil, false},
	} {
		switch {
		case f.given && m.For != f.of:
			c.fail(f.name, "only with for: %s", f.of)
		case f.must && !f.given && m.For == f.of:
			c.fail(f.name, "missing; for: %s needs it", f.of)
		}
	}
	if m.Stream != "" && m.For != "pattern" && m.For != "quiet" {
		c.fail("stream", "only with for: pattern and quiet")
	}
	c.stream(m.Stream)
	if m.Pattern != "" {
		c.pattern(m.Pattern, `a backslash takes a special character as text`)
	}
	c.position(m.Cursor, m.Offset)
	c.between("port", int64(m.Port), 0, 65_535)
	c.text("path", m.Path, MaxPath)
	c.limit("quiet_ms", m.QuietMS, 0, MaxQuietMS)
	c.limit("waited_ms", m.WaitedMS, 0, MaxWaitMS)
	c.limit("wait_ms", m.WaitMS, 0, MaxWaitMS)
	return c.result()
}

// waitTargets checks which processes are waited for.
func (c *checks) waitTargets(m *WaitFor) {
	if len(m.Processes) == 0 {
		if m.Mode != "" {
			c.fail("mode", "only with processes")
		}
		c.process(m.ProcessRef)
		return
	}
	if m.Process != "" {
		c.fail("processes", "process is given too; give one of both")
	}
	if len(m.Processes) > MaxWaitedFor {
		c.fail("processes", "%d; at most %d", len(m.Processes), MaxWaitedFor)
	}
	for i, p := range m.Processes {
		c.token(fmt.Sprintf("processes[%d]", i), p, "the id of a process")
		if slices.Contains(m.Processes[:i], p) {
			c.fail(fmt.Sprintf("processes[%d]", i), "%s is there twice", quote(p))
		}
	}
	c.optionalToken("in_session", m.InSession, "the id of a session")
	oneOf(c, "mode", m.Mode, "any", "all")
}

// Validate checks a search.
func (m *Search) Validate() error {
	var c checks
	c.version(m.Version)
	c.process(m.ProcessRef)
	switch {
	case m.Pattern == "":
		c.fail("pattern", "missing; give a regular expression (RE2), or text with literal: true")
	case m.Literal:
		c.text("pattern", m.Pattern, MaxPattern)
	default:
		c.pattern(m.Pattern, "literal: true searches for the text itself")
	}
	c.stream(m.Stream)
	c.position(m.Cursor, m.Offset)
	c.orZero("max_matches", int64(m.MaxMatches), 1, MaxMatches)
	c.between("before_lines", int64(m.BeforeLines), 0, MaxContext)
	c.between("after_lines", int64(m.AfterLines), 0, MaxContext)
	return c.result()
}

// position checks where a look at the output starts.
func (c *checks) position(cursor, offset *int64) {
	if cursor != nil {
		c.between("cursor", *cursor, 0, MaxWhole)
	}
	if offset != nil {
		c.between("offset", *offset, 0, MaxWhole)
	}
	if cursor != nil && offset != nil {
		c.fail("offset", "cursor is given too; give one of both")
	}
}

// pattern checks a regular expression. RE2 takes time linear in the text, times the
// size of the pattern with its repetitions written out, which is therefore bounded.
func (c *checks) pattern(p, hint string) {
	c.text("pattern", p, MaxPattern)
	if len(p) > MaxPattern {
		return
	}
	re, err := syntax.Parse(p, syntax.Perl)
	if err != nil {
		c.fail("pattern", "is no regular expression of RE2 (%v); %s", err, hint)
		return
	}
	prog, err := syntax.Compile(re.Simplify())
	if err != nil {
		c.fail("pattern", "cannot be used (%v)", err)
		return
	}
	if n := len(prog.Inst); n > MaxPatternSteps {
		c.fail("pattern", "has %d steps with its repetitions written out; at most %d", n, MaxPatternSteps)
	}
}

// stream checks the name of a stream.
func (c *checks) stream(s string) {
	if _, ok := ParseStream(s); !ok && s != "" {
		c.fail("stream", "%s is none of stdout, stderr, fd%d to fd%d", quote(s), MinDescriptor, MaxDescriptor)
	}
}
