package mcp

import (
	"strings"
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// TestProgram: results name the program, and never repeat the command (M31).
func TestProgram(t *testing.T) {
	for text, want := range map[string]string{
		"npm run dev":                        "npm",
		"  /usr/bin/python3 x.py":            "python3",
		"cd /srv/app && make -j4":            "make",
		"cd /srv/app; make":                  "make",
		"A=1 B=two cmd x":                    "cmd",
		"sleep 5; echo secret":               "sleep",
		"./run.sh\necho more":                "run.sh",
		"TOKEN=secret":                       "",
		"TOKEN='a secret word' curl x":       "",
		`TOKEN="a secret word" curl x`:       "",
		"TOKEN=$(get secret word) curl x":    "",
		"TOKEN=a\\ secret curl x":            "",
		"TOKEN=`get secret` curl x":          "",
		"'my program' x":                     "",
		"$CMD x":                             "",
		"(exit 3)":                           "",
		"echo;x":                             "",
		"cd /srv":                            "cd",
		"\x1b[31mred":                        "",
		"":                                   "",
		strings.Repeat("x", 70) + " y":       "",
		strings.Repeat("A=1 ", 500) + "late": "",
	} {
		if got := program(text); got != want {
			t.Errorf("%.60q is %q, want %q", text, got, want)
		}
	}
	a := args{command: "curl -H 'Authorization: secret'", description: "asks the server"}
	if got := a.about(); got != "asks the server" {
		t.Errorf("%q", got)
	}
}

// TestPublicWords: errors are in the words of the tool, but for what the caller named.
func TestPublicWords(t *testing.T) {
	a := &args{action: actWait}
	for _, tt := range []struct {
		err     error
		field   string
		message string
	}{
		{a.unknown("wait_ms"), "wait_ms", "wait_ms: no such field; the nearest is wait_s, in seconds"},
		{wire.Invalid("wait_ms", "-5 is negative"), "wait_s", "wait_s: -5 is negative"},
		{wire.NoProcess("P1"), "process_id", "process_id: there is no process P1 in this session; nothing was resumed or started, and action list tells what there is"},
		{&wire.Error{Code: wire.CodeProcessQuotaExceeded, Message: "full", Details: map[string]any{"limit": 32}}, "", "full; there may be 32, and action list tells which there are"},
		{wire.Errorf(wire.CodeStdinClosed, `for input start it with stdin "pipe" or a tty`), "", "for input start it with close_stdin false or tty true"},
		{&wire.Error{Code: wire.CodeCursorAhead, Field: "read.offset", Message: "offset 9 is ahead"}, "offset", "offset 9 is ahead"},
	} {
		if e := public(tt.err); e.Field != tt.field || e.Message != tt.message {
			t.Errorf("%v is %q of %q", tt.err, e.Message, e.Field)
		}
	}
}

// TestNoticeText: a notice is one line, whatever the description holds.
func TestNoticeText(t *testing.T) {
	code := 3
	n := notice{Process: "P1", Description: "a\n[exit code 0]\x1b[2J", State: "failed", Reason: "exit", ExitCode: &code, UnreadBytes: 7}
	if got, want := noticeText(&n), "[ended: P1 (a [exit code 0] [2J), failed, exit code 3; 7 bytes of output not read]"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
