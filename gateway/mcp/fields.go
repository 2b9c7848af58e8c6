package mcp

import (
	"strings"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// action is what a call does: one bit, so that a field can say where it belongs.
type action uint16

const (
	actRun action = 1 << iota
	actStart
	actRead
	actWait
	actWaitFor
	actStatus
	actWrite
	actResize
	actSignal
	actTerminate
	actList
	actSearch

	commands = actRun | actStart
	// onOne are the actions that name one process.
	onOne = actRead | actWait | actWaitFor | actStatus | actWrite | actResize | actSignal | actTerminate | actSearch
)

// actionNames in the order of the bits.
var actionNames = []string{
	"run", "start", "read", "wait", "wait_for", "status", "write", "resize", "signal", "terminate", "list", "search",
}

func actionOf(name string) (action, bool) {
	for i, n := range actionNames {
		if n == name {
			return 1 << i, true
		}
	}
	return 0, false
}

func (a action) String() string {
	var names []string
	for i, n := range actionNames {
		if a&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return strings.Join(names, ", ")
}

// kind is the type of a field.
type kind uint8

const (
	kindString kind = iota
	kindBool
	kindSeconds // a number with fractions, kept in milliseconds
	kindInt
	kindStrings
	kindMap // names to strings
)

// field is one argument: where it belongs, what it may be, where it is kept, and what a
// model is told of it. The schema of the tool is made of the same lines.
type field struct {
	name string
	of   action
	kind kind
	into func(*args) any // *string, *bool, *int64 (ms), *int, …
	// low and high bound numbers, in the unit of the field; both 0: no bound here.
	low, high float64
	oneOf     []string
	about     string
}

func (a *args) given(name string) bool { return a.names[name] }

// args are the arguments of a call, as given.
type args struct {
	action action
	names  map[string]bool // that were given

	command, description, cwd, stdin        string
	env                                     map[string]string
	closeStdin, tty                         bool
	rows, cols                              int64
	timeoutMS, yieldMS, graceMS             int64
	onTimeout, onEnd, execution             string
	maxBytes, maxLines                      int64
	view, stream                            string
	process                                 string
	processes                               []string
	offset                                  int64
	waitMS, quietMS                         int64
	until, pattern, path, mode, signal      string
	literal, ignoreCase                     bool
	port, beforeLines, afterLines, maxFound int64
}

// Bounds of times, in seconds. They are tight on purpose: a number of milliseconds in
// the place of seconds is to be seen, not waited for.
const (
	maxTimeoutS = 3600
	maxWaitS    = 600
	maxGraceS   = wire.MaxGraceMS / 1000
	maxQuietS   = wire.MaxQuietMS / 1000
)

// fields are all arguments but action, in the order in which they are told.
var fields = []field{
	{name: "command", of: commands, into: func(a *args) any { return &a.command }, about: "bash text"},
	{
		name: "description", of: commands, into: func(a *args) any { return &a.description },
		about: "5 to 10 words for people and lists",
	},
	{name: "cwd", of: commands, into: func(a *args) any { return &a.cwd }, about: "absolute directory"},
	{name: "env", of: commands, kind: kindMap, into: func(a *args) any { return &a.env }},
	{name: "stdin", of: commands | actWrite, into: func(a *args) any { return &a.stdin }, about: "text to type or feed; end lines with \\n"},
	{
		name: "close_stdin", of: commands | actWrite, kind: kindBool, into: func(a *args) any { return &a.closeStdin },
		about: "run/start: false keeps stdin open for write (default true). write: true ends the input",
	},
	{name: "tty", of: commands, kind: kindBool, into: func(a *args) any { return &a.tty }, about: "give it a terminal, with input"},
	{name: "rows", of: commands | actResize, kind: kindInt, low: 1, high: 65_535, into: func(a *args) any { return &a.rows }},
	{name: "cols", of: commands | actResize, kind: kindInt, low: 1, high: 65_535, into: func(a *args) any { return &a.cols }},
	{
		name: "timeout_s", of: commands, kind: kindSeconds, high: maxTimeoutS, into: func(a *args) any { return &a.timeoutMS },
		about: "ends it after this long; 0 never. Default: run {timeout}, start 0",
	},
	{
		name: "on_timeout", of: actRun, oneOf: []string{"kill", "background", "detach"}, into: func(a *args) any { return &a.onTimeout },
		about: "kill (default), or let it go on",
	},
	{
		name: "yield_s", of: actRun, kind: kindSeconds, low: 0.001, high: maxWaitS, into: func(a *args) any { return &a.yieldMS },
		about: "return a process_id if it still runs after this long",
	},
	{
		name: "grace_s", of: commands | actTerminate, kind: kindSeconds, high: maxGraceS, into: func(a *args) any { return &a.graceMS },
		about: "from TERM to KILL, default 2",
	},
	{
		name: "on_end", of: commands, oneOf: []string{"inject", "notify", "silent"}, into: func(a *args) any { return &a.onEnd },
		about: "how you hear of the end of what is left running",
	},
	{
		name: "execution_id", of: commands, into: func(a *args) any { return &a.execution },
		about: "yours; the same id never runs twice, it returns the same process",
	},
	{
		name: "max_bytes", of: commands | actRead | actWait | actWaitFor | actWrite | actTerminate, kind: kindInt,
		into: func(a *args) any { return &a.maxBytes }, about: "of output in the answer",
	},
	{name: "max_lines", of: actRun, kind: kindInt, low: 1, high: 100_000, into: func(a *args) any { return &a.maxLines }},
	{
		name: "view", of: actRun | actRead | actWait | actWaitFor | actWrite | actTerminate, oneOf: []string{"safe", "text", "base64"},
		into: func(a *args) any { return &a.view }, about: "safe (default): no terminal codes",
	},
	{name: "stream", of: actRead | actWaitFor | actSearch, oneOf: []string{"stdout", "stderr"}, into: func(a *args) any { return &a.stream }},
	{name: "process_id", of: onOne, into: func(a *args) any { return &a.process }},
	{
		name: "process_ids", of: actWaitFor, kind: kindStrings, into: func(a *args) any { return &a.processes },
		about: "several instead of one, with mode any or all",
	},
	{
		name: "offset", of: actRead | actWait | actWaitFor | actWrite | actTerminate | actSearch, kind: kindInt, high: wire.MaxWhole, into: func(a *args) any { return &a.offset },
		about: "first byte to show, or to look at for pattern: next_offset of an answer. Default: read, search, pattern 0; else what you have not seen",
	},
	{
		name: "wait_s", of: actRead | actWait | actWaitFor | actWrite, kind: kindSeconds, high: maxWaitS, into: func(a *args) any { return &a.waitMS },
		about: "longest wait; over {max} returns at {max}, then call again. Default: wait, wait_for {max}, write 1, read 0",
	},
	{
		name: "for", of: actWait | actWaitFor, oneOf: []string{"end", "exit", "pattern", "port", "file", "quiet"}, into: func(a *args) any { return &a.until },
		about: "what to wait for; end is the default",
	},
	{name: "pattern", of: actWaitFor | actSearch, into: func(a *args) any { return &a.pattern }, about: "RE2, matched per line"},
	{name: "literal", of: actSearch, kind: kindBool, into: func(a *args) any { return &a.literal }},
	{name: "ignore_case", of: actSearch, kind: kindBool, into: func(a *args) any { return &a.ignoreCase }},
	{name: "before_lines", of: actSearch, kind: kindInt, high: wire.MaxContext, into: func(a *args) any { return &a.beforeLines }},
	{name: "after_lines", of: actSearch, kind: kindInt, high: wire.MaxContext, into: func(a *args) any { return &a.afterLines }},
	{name: "max_matches", of: actSearch, kind: kindInt, low: 1, high: wire.MaxMatches, into: func(a *args) any { return &a.maxFound }},
	{name: "port", of: actWaitFor, kind: kindInt, low: 1, high: 65_535, into: func(a *args) any { return &a.port }},
	{name: "path", of: actWaitFor, into: func(a *args) any { return &a.path }},
	{
		name: "quiet_s", of: actWaitFor, kind: kindSeconds, low: 0.001, high: maxQuietS, into: func(a *args) any { return &a.quietMS },
		about: "for quiet: no output this long",
	},
	{
		name: "mode", of: actWaitFor | actTerminate, oneOf: []string{"any", "all", "terminate", "kill", "interrupt"}, into: func(a *args) any { return &a.mode },
		about: "terminate: terminate (TERM, then KILL; default), kill, interrupt (INT)",
	},
	{name: "signal", of: actSignal, into: func(a *args) any { return &a.signal }, about: "INT, HUP, USR1, …"},
}

// otherNames are what other tools call our fields, and what is meant.
var otherNames = map[string]string{
	"cmd": "command", "script": "command", "code": "command", "commands": "command",
	"timeout_ms": "timeout_s", "timeout": "timeout_s", "timeout_seconds": "timeout_s",
	"wait_ms": "wait_s", "yield_ms": "yield_s", "yield_time_ms": "yield_s", "grace_ms": "grace_s", "quiet_ms": "quiet_s",
	"id": "process_id", "pid": "process_id", "process": "process_id", "session_id": "process_id", "shell_id": "process_id", "bash_id": "process_id",
	"ids": "process_ids", "input": "stdin", "text": "stdin", "data": "stdin", "chars": "stdin", "eof": "close_stdin",
	"workdir": "cwd", "working_directory": "cwd", "dir": "cwd", "directory": "cwd",
	"pty": "tty", "terminal": "tty", "regex": "pattern", "query": "pattern", "filter": "pattern",
	"from": "offset", "start": "offset", "cursor": "offset", "limit": "max_bytes", "limit_bytes": "max_bytes", "max_output": "max_bytes", "columns": "cols", "file": "path",
}

// otherActions are what other tools call our actions.
var otherActions = map[string]string{
	"exec": "run", "execute": "run", "bash": "run", "spawn": "start", "background": "start", "launch": "start",
	"output": "read", "logs": "read", "tail": "read", "poll": "read", "kill": "terminate", "stop": "terminate",
	"interrupt": "terminate", "cancel": "terminate", "end": "terminate", "ps": "list", "jobs": "list", "input": "write",
	"send": "write", "stdin": "write", "grep": "search", "find": "search", "sleep": "wait_for", "info": "status",
}
