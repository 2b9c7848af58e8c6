package mcp

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// wireCommand is the command of a run or start.
func (a *args) wireCommand() wire.Command {
	c := wire.Command{
		Text: a.command, Cwd: a.cwd, Description: a.about(), GraceMS: a.graceMS,
		TimeoutMS: a.timeoutMS, Input: []byte(a.stdin),
	}
	if a.given("timeout_s") && a.timeoutMS == 0 || a.action == actStart && !a.given("timeout_s") {
		c.TimeoutMS = -1
	}
	for _, name := range slices.Sorted(maps.Keys(a.env)) {
		c.Env = append(c.Env, wire.EnvVar{Name: name, Value: a.env[name]})
	}
	if a.tty {
		c.TTY = &wire.WindowSize{Rows: int(a.rows), Cols: int(a.cols)}
	}
	open := a.tty // a terminal is there to be written to
	if a.given("close_stdin") {
		open = !a.closeStdin
	}
	if open && (!a.tty || len(c.Input) > 0) {
		c.Stdin = wire.StdinPipe
	}
	return c
}

// about is the description, or the name of the program that the command begins with. The
// command itself is not repeated (M31): it may hold secrets, records are kept for days,
// and results go to whoever reads the session.
func (a *args) about() string {
	if a.description != "" {
		return a.description
	}
	return program(a.command)
}

var (
	// plainAssignment has no quote and no expansion that may hold a blank: what follows
	// the blank is then the next word.
	plainAssignment = regexp.MustCompile(`^[A-Za-z_]\w*=[^'"\x60\\$(]*$`)
	plainWord       = regexp.MustCompile(`^[\w.+/-]{1,60}$`)
)

// program is the name of the first program of a text, behind assignments and a “cd …”;
// "" where that is not plain to see.
func program(text string) string {
	const most = 1 << 10 // bytes that are looked at
	words := strings.Fields(text[:min(len(text), most)])
	for len(words) > 0 {
		switch w := words[0]; {
		case plainAssignment.MatchString(w):
			words = words[1:]
		case w == "cd" && len(words) > 3 && words[2] == "&&":
			words = words[3:]
		case w == "cd" && len(words) > 2 && strings.HasSuffix(words[1], ";"):
			words = words[2:]
		case plainWord.MatchString(w):
			return path.Base(w)
		default:
			return ""
		}
	}
	return ""
}

func (a *args) render() wire.Render {
	return wire.Render{MaxBytes: int(a.maxBytes), MaxLines: int(a.maxLines), View: wire.View(a.view)}
}

// page is a read of the process: from the offset given, else from offset.
func (a *args) page(offset int64) wire.Read {
	m := wire.Read{
		Version: wire.Version, ProcessRef: wire.ProcessRef{Process: a.process},
		MaxBytes: int(a.maxBytes), View: wire.View(a.view), Stream: a.stream,
	}
	if m.View == "" {
		m.View = wire.ViewSafe
	}
	m.Offset = &offset
	if a.given("offset") && a.action != actWaitFor {
		m.Offset = &a.offset
	}
	return m
}

func (a *args) waitFor(limit time.Duration) wire.WaitFor {
	m := wire.WaitFor{
		Version: wire.Version, ProcessRef: wire.ProcessRef{Process: a.process}, Processes: a.processes, Mode: a.mode,
		For: a.until, Pattern: a.pattern, Stream: a.stream, Port: int(a.port), Path: a.path, QuietMS: a.quietMS,
		WaitMS: max(1, limit.Milliseconds()),
	}
	if a.given("offset") {
		m.Offset = &a.offset
	}
	return m
}

func (a *args) search() wire.Search {
	m := wire.Search{
		Version: wire.Version, ProcessRef: wire.ProcessRef{Process: a.process},
		Pattern: a.pattern, Literal: a.literal, IgnoreCase: a.ignoreCase, Stream: a.stream,
		MaxMatches: int(a.maxFound), BeforeLines: int(a.beforeLines), AfterLines: int(a.afterLines),
	}
	if a.given("offset") {
		m.Offset = &a.offset
	}
	return m
}

// wait is how long the call waits: what was asked for, else def, never over most.
func (a *args) wait(name string, ms int64, def, most time.Duration) time.Duration {
	d := def
	if a.given(name) {
		d = time.Duration(ms) * time.Millisecond
	}
	return min(d, most)
}
