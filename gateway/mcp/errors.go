package mcp

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// ourFields are the names of the fields of messages in the words of the tool.
var ourFields = map[string]string{
	"command.text": "command", "command.cwd": "cwd", "command.input": "stdin", "command.stdin": "close_stdin",
	"command.tty.rows": "rows", "command.tty.cols": "cols", "command.description": "description",
	"command.timeout_ms": "timeout_s", "command.grace_ms": "grace_s",
	"render.max_bytes": "max_bytes", "render.max_lines": "max_lines", "render.view": "view",
	"yield_ms": "yield_s", "wait_ms": "wait_s", "quiet_ms": "quiet_s", "grace_ms": "grace_s",
	"process": "process_id", "processes": "process_ids", "text": "stdin", "data": "stdin",
	"read.offset": "offset", "read.max_bytes": "max_bytes", "read.view": "view", "read.wait_ms": "wait_s",
}

var (
	envField  = regexp.MustCompile(`^command\.env\[\d+\](\.\w+)?$`)
	listField = regexp.MustCompile(`^processes(\[\d+\])$`)
)

// public is what a client sees of a failure: never the text of a crash, and in the
// words of the tool.
func public(err error) *wire.Error {
	if errors.Is(err, context.Canceled) {
		return wire.Errorf(wire.CodeInterrupted, "the call was cancelled")
	}
	e := *wire.AsError(err)
	if e.Code == wire.CodeUnknownField {
		return &e // it names what was given: “wait_ms” is not to become our wait_s
	}
	switch {
	case e.Code == wire.CodeStdinClosed:
		e.Message = strings.Replace(e.Message, `stdin "pipe" or a tty`, "close_stdin false or tty true", 1)
	case e.Code == wire.CodeProcessQuotaExceeded && e.Details["limit"] != nil:
		e.Message += fmt.Sprintf("; there may be %v, and action list tells which there are", e.Details["limit"]) // A48
	case e.Code == wire.CodeNotFound && (e.Field == "process" || listField.MatchString(e.Field)):
		e.Message += " in this session; nothing was resumed or started, and action list tells what there is" // A28
	}
	name := e.Field
	switch {
	case ourFields[name] != "":
		name = ourFields[name]
	case envField.MatchString(name):
		name = "env"
	case listField.MatchString(name):
		name = "process_ids" + listField.FindStringSubmatch(name)[1]
	}
	if name != e.Field {
		if rest, ok := strings.CutPrefix(e.Message, e.Field+": "); ok {
			e.Message = name + ": " + rest
		}
		e.Field = name
	}
	return &e
}
