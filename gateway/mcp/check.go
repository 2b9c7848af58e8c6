package mcp

import (
	"strings"
	"unicode/utf8"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// check finds what is missing, and what does not go together. What it lets through is
// checked again by the messages that are made of it.
func (a *args) check() error {
	switch a.action {
	case actRun, actStart:
		return a.checkCommand()
	case actList:
		return nil
	case actWaitFor:
		if err := a.checkWaitFor(); err != nil {
			return err
		}
	}
	if a.action != actWaitFor || !a.given("process_ids") {
		if !subjects.ValidToken(a.process) {
			return wire.Invalid("process_id", "%s; give one that an answer named", missingOr(a.given("process_id"), a.process))
		}
	}
	return a.checkOne()
}

func missingOr(given bool, s string) string {
	if !given {
		return "missing"
	}
	return "“" + shown(s) + "” is none"
}

// checkOne checks what an action on one process needs.
func (a *args) checkOne() error {
	switch a.action {
	case actWait:
		if a.given("for") && a.until != "end" && a.until != "exit" {
			return wire.Invalid("for", "wait is for end or exit; %s is of wait_for", a.until)
		}
	case actWrite:
		switch {
		case a.stdin == "" && !a.closeStdin:
			return wire.Invalid("stdin", "missing; give text to write, or close_stdin true")
		case len(a.stdin) > wire.MaxInputBytes:
			return wire.Invalid("stdin", "%d bytes; at most %d in one write", len(a.stdin), wire.MaxInputBytes)
		}
	case actResize:
		if !a.given("rows") || !a.given("cols") {
			return wire.Invalid("rows", "give rows and cols, both")
		}
	case actSignal:
		if !a.given("signal") {
			return wire.Invalid("signal", "missing; give a name such as INT")
		}
		if _, err := wire.ParseSignal(a.signal); err != nil {
			return wire.Invalid("signal", "%v", err)
		}
	case actTerminate:
		if m := a.mode; m == "any" || m == "all" {
			return wire.Invalid("mode", "%s is of wait_for; give terminate, kill or interrupt", m)
		}
	case actSearch:
		if a.pattern == "" {
			return wire.Invalid("pattern", "missing; give RE2, or text with literal true")
		}
	}
	return a.checkPage()
}

// checkPage checks the size of a page.
func (a *args) checkPage() error {
	if n := a.maxBytes; a.given("max_bytes") && (n < wire.MinPageBytes || n > wire.MaxPageBytes) {
		return wire.Invalid("max_bytes", "%d is not within %d to %d", n, wire.MinPageBytes, wire.MaxPageBytes)
	}
	return nil
}

func (a *args) checkCommand() error {
	switch {
	case !a.given("command"):
		return wire.Invalid("command", "missing; give the text for the shell")
	case strings.TrimSpace(a.command) == "":
		return wire.Invalid("command", "blank")
	case len(a.command) > wire.MaxArgument:
		return wire.Invalid("command", "%d bytes; at most %d. Write the text to a file, with stdin if need be, and run that",
			len(a.command), wire.MaxArgument)
	case len(a.stdin) > wire.MaxInputBytes:
		return wire.Invalid("stdin", "%d bytes; at most %d. Say close_stdin false and write the rest, or use a file", len(a.stdin), wire.MaxInputBytes)
	case utf8.RuneCountInString(a.description) > wire.MaxDescription:
		return wire.Invalid("description", "%d characters; at most %d", utf8.RuneCountInString(a.description), wire.MaxDescription)
	case a.cwd != "" && a.cwd[0] != '/':
		return wire.Invalid("cwd", "“%s” is relative; give an absolute directory, or cd in the command", shown(a.cwd))
	case !a.tty && (a.given("rows") || a.given("cols")):
		return wire.Invalid("rows", "only with tty true")
	case a.given("rows") != a.given("cols"):
		return wire.Invalid("rows", "give rows and cols, both")
	case a.given("execution_id") && !subjects.ValidToken(a.execution):
		return wire.Invalid("execution_id", "“%s” is none: 1 to 64 letters, digits, '_' or '-'", shown(a.execution))
	}
	n := a.maxBytes
	if a.given("max_bytes") && (n < wire.MinRenderBytes || n > wire.MaxRenderBytes) {
		return wire.Invalid("max_bytes", "%d is not within %d to %d", n, wire.MinRenderBytes, wire.MaxRenderBytes)
	}
	return nil
}

// conditions are the fields that each for of wait_for needs, and that nothing else takes.
var conditions = []struct{ until, needs string }{
	{"pattern", "pattern"}, {"port", "port"}, {"file", "path"}, {"quiet", "quiet_s"},
}

func (a *args) checkWaitFor() error {
	if m := a.mode; m != "" && m != "any" && m != "all" {
		return wire.Invalid("mode", "%s is of terminate; give any or all", m)
	}
	if !a.given("for") { // what it needs says what it is
		for _, c := range conditions {
			if a.given(c.needs) {
				a.until = c.until
			}
		}
	}
	for _, c := range conditions {
		switch {
		case a.until == c.until && !a.given(c.needs):
			return wire.Invalid(c.needs, "missing; for %s needs it", c.until)
		case a.until != c.until && a.given(c.needs):
			return wire.Invalid(c.needs, "only with for %s", c.until)
		}
	}
	switch {
	case a.given("process_ids") && a.given("process_id"):
		return wire.Invalid("process_ids", "process_id is given too; give one of both")
	case a.given("process_ids") && len(a.processes) == 0:
		return wire.Invalid("process_ids", "empty; give 1 to %d", wire.MaxWaitedFor)
	case a.given("mode") && !a.given("process_ids"):
		return wire.Invalid("mode", "only with process_ids")
	case a.given("process_ids") && (a.given("max_bytes") || a.given("view")):
		return wire.Invalid("process_ids", "output is shown of one process only; leave out max_bytes and view")
	}
	return nil
}
