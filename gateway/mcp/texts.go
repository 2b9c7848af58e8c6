package mcp

import (
	"fmt"
	"strings"
	"time"

	"github.com/limpet-sh/limpet/actors/output"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// texts are the words of results in terms of the tool.
func texts(others []wire.Receipt) output.TextOptions {
	return output.TextOptions{
		Rest: func(process string, offset int64) string {
			return fmt.Sprintf("action read, process_id %s, offset %d", process, offset)
		},
		Search: func(process string, offset int64) string {
			return fmt.Sprintf("action search, process_id %s, offset %d", process, offset)
		},
		Live: func(string, int64) string {
			return "wait, wait_for or read follow it, terminate ends it"
		},
		Others: others, Now: time.Now(),
	}
}

// noticeText tells the end of what was left running, in one line.
func noticeText(n *notice) string {
	s := fmt.Sprintf("[ended: %s", n.Process)
	if n.Description != "" {
		s += " (" + output.OneLine(n.Description) + ")"
	}
	s += ", " + n.State
	if n.Reason != "" && n.Reason != string(wire.ReasonExit) {
		s += ", " + n.Reason
	}
	if n.ExitCode != nil {
		s += fmt.Sprintf(", exit code %d", *n.ExitCode)
	}
	if n.UnreadBytes > 0 {
		s += fmt.Sprintf("; %d bytes of output not read", n.UnreadBytes)
	}
	return s + "]"
}

// errorText is a failure as a model reads it.
func errorText(e *wire.Error) string { return fmt.Sprintf("[%s: %s]", e.Code, e.Message) }

// join puts lines behind a text.
func join(text string, lines ...string) string {
	for _, l := range lines {
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		text += l
	}
	return text
}
