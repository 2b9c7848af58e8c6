package wire

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/limpet-sh/limpet/subjects"
)

// Limits of messages. All are part of the protocol.
const (
	MaxTimeoutMS   = 86_400_000  // 24 h: timeouts of a command and of a session's default
	MaxIdleTTLMS   = 604_800_000 // 7 d: as long as ids are kept
	MaxGraceMS     = 60_000
	MaxReadWaitMS  = 60_000
	MaxWaitMS      = 600_000
	MinPageBytes   = 4_096
	MaxPageBytes   = 100_000
	MaxInputBytes  = 65_536
	MinRenderBytes = 1_024
	MaxRenderBytes = 1_000_000
	MaxLabels      = 16
	MaxLabelKey    = 63
	MaxLabelValue  = 255
	MaxBy          = 128
	MaxPath        = 4_095 // the kernel's PATH_MAX without its NUL
	MaxProcesses   = 100_000
	// MaxWhole bounds every number that has no tighter bound: 2^53-1, the largest
	// that all JSON readers agree on.
	MaxWhole = 1<<53 - 1
)

// checks collects the first fault. Each method does nothing once there is one, so
// that a Validate reads as a list of what must hold, in the order of the fields.
type checks struct {
	prefix string
	err    *Error
}

func (c *checks) result() error {
	if c.err == nil {
		return nil // a nil *Error would be a non-nil error
	}
	return c.err
}

func (c *checks) fail(name, format string, args ...any) {
	if c.err == nil {
		c.err = Invalid(c.prefix+name, format, args...)
	}
}

// refuse records an error of another code than invalid_arguments.
func (c *checks) refuse(code Code, name, format string, args ...any) {
	if c.err == nil {
		f := c.prefix + name
		c.err = &Error{Code: code, Field: f, Message: f + ": " + fmt.Sprintf(format, args...)}
	}
}

func (c *checks) notBuilt(name string, set bool) {
	if set {
		c.refuse(CodeNotBuilt, name, "not built yet; leave it out")
	}
}

// version: 0 means that it was left out, which is 1; so a person with `nats req`
// need not write it.
func (c *checks) version(v int) {
	if c.err == nil && v != 0 && v != Version {
		c.err = unsupportedVersion(c.prefix+"version", v)
	}
}

func unsupportedVersion(field string, v int) *Error {
	return &Error{
		Code: CodeUnsupportedVersion, Field: field,
		Message: fmt.Sprintf("%s: %d is not known here; this side speaks %d", field, v, Version),
		Details: map[string]any{"supported": []any{Version}},
	}
}

func (c *checks) between(name string, v, low, high int64) {
	if v < low || v > high {
		c.fail(name, "%d is not within %s..%s", v, group(low), group(high))
	}
}

// orZero is between, where 0 stands for the default.
func (c *checks) orZero(name string, v, low, high int64) {
	if v != 0 && (v < low || v > high) {
		c.fail(name, "%d is not within %s..%s (0 is the default)", v, group(low), group(high))
	}
}

// text checks what every string must be: at most n bytes, UTF-8, no NUL.
func (c *checks) text(name, s string, n int) {
	switch {
	case len(s) > n:
		c.fail(name, "%s bytes; at most %s", group(int64(len(s))), group(int64(n)))
	case strings.IndexByte(s, 0) >= 0:
		c.fail(name, "holds a NUL at byte %d", strings.IndexByte(s, 0))
	case !utf8.ValidString(s):
		c.fail(name, "not valid UTF-8")
	}
}

// token checks an id or name that becomes part of a subject.
func (c *checks) token(name, s, what string) {
	switch {
	case s == "":
		c.fail(name, "missing; give %s", what)
	case !subjects.ValidToken(s):
		c.fail(name, "%s is not %s: 1 to 64 letters, digits, '_' or '-'", quote(s), what)
	}
}

func (c *checks) optionalToken(name, s, what string) {
	if s != "" {
		c.token(name, s, what)
	}
}

// oneOf checks an enum; the empty string is the default.
func oneOf[T ~string](c *checks, name string, v T, legal ...T) {
	if v == "" || slices.Contains(legal, v) {
		return
	}
	words := make([]string, len(legal))
	for i, l := range legal {
		words[i] = string(l)
	}
	near := Nearest(string(v), words)
	if near != "" {
		near = "; did you mean " + near + "?"
	}
	c.fail(name, "%s is none of %s%s", quote(string(v)), strings.Join(words, ", "), near)
}

func (c *checks) directory(name, s string) {
	if s == "" {
		return
	}
	c.text(name, s, MaxPath)
	if s[0] != '/' {
		c.fail(name, "%s is not an absolute path", quote(s))
	}
}

func (c *checks) labels(name string, m map[string]string) {
	if len(m) > MaxLabels {
		c.fail(name, "%d labels; at most %d", len(m), MaxLabels)
		return
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if k == "" {
			c.fail(name, "a key is empty")
		}
		c.text(name+"."+clip(k), k, MaxLabelKey)
		c.text(name+"."+clip(k), m[k], MaxLabelValue)
	}
}

// session wants exactly one of id and name.
func (c *checks) session(r SessionRef) {
	switch {
	case r.Session != "" && r.SessionName != "":
		c.fail("session_name", "session is given too; give one of both")
	case r.SessionName != "":
		c.token("session_name", r.SessionName, "a session's name")
	case r.Session == "":
		c.fail("session", "missing; give session (an id that open answered) or session_name")
	default:
		c.token("session", r.Session, "a session id")
	}
}

func (c *checks) process(r ProcessRef) {
	c.token("process", r.Process, "a process id that start answered")
	c.optionalToken("in_session", r.InSession, "the id of a session")
}

// limit checks a milliseconds field against its maximum, and asks whether another
// unit was meant where the number tells: seconds and milliseconds written as
// microseconds or nanoseconds end in zeros.
func (c *checks) limit(name string, v, low, high int64) {
	if v <= high {
		c.between(name, v, low, high)
		return
	}
	hint := ""
	for _, unit := range []struct {
		per   int64
		least int64 // below a second, nanoseconds are less likely than microseconds
		name  string
	}{{1_000_000, 1_000, "nanoseconds"}, {1_000, 1, "microseconds"}} {
		if n := v / unit.per; v%unit.per == 0 && n >= unit.least && n <= high {
			hint = fmt.Sprintf("; the unit is milliseconds, and this looks like %s: did you mean %d?", unit.name, n)
			break
		}
	}
	c.fail(name, "%d is more than %s milliseconds%s", v, group(high), hint)
}

// group writes a number with commas between thousands.
func group(n int64) string {
	s := strconv.FormatInt(n, 10)
	start := 0
	if n < 0 {
		start = 1
	}
	for i := len(s) - 3; i > start; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
