package mcp

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
)

func TestBadArguments(t *testing.T) {
	long := strings.Repeat("x", wire.MaxArgument+1)
	id := `"process_id":"p"`
	for _, tt := range []struct{ name, args, field, says string }{
		{"nothing", ``, "command", "missing"},
		{"null", `null`, "command", "missing"},
		{"a list", `[]`, "", "by name"},
		{"a text", `"ls"`, "", "by name"},
		{"cut off", `{"command":"ls"`, "", ""},
		{"twice", `{"command":"ls","command":"rm"}`, "command", "twice"},
		{"null only", `{"command":null}`, "command", "missing"},
		{"blank", `{"command":" \n"}`, "command", "blank"},
		{"a number", `{"command":5}`, "command", "5; give text"},
		{"a list of words", `{"command":["ls","-l"]}`, "command", "give text"},
		{"too long", `{"command":"` + long + `"}`, "command", "131071"},
		{"another's name", `{"cmd":"ls"}`, "cmd", "the nearest is command"},
		{"another case", `{"Command":"ls"}`, "Command", "the nearest is command"},
		{"milliseconds by name", `{"command":"ls","timeout_ms":5}`, "timeout_ms", "the nearest is timeout_s, in seconds"},
		{"no unit", `{"command":"ls","timeout":5}`, "timeout", "the nearest is timeout_s"},
		{"milliseconds", `{"command":"ls","timeout_s":30000}`, "timeout_s", "did you mean 30 seconds?"},
		{"milliseconds with a rest", `{"command":"ls","yield_s":2500}`, "yield_s", "did you mean 2.5 seconds?"},
		{"far too much", `{"command":"ls","timeout_s":1e300}`, "timeout_s", "within 0 to 3600"},
		{"infinite", `{"command":"ls","timeout_s":1e999}`, "timeout_s", "out of range"},
		{"negative", `{"command":"ls","timeout_s":-1}`, "timeout_s", "within"},
		{"a boolean for a number", `{"command":"ls","timeout_s":true}`, "timeout_s", "true; give a number of seconds"},
		{"a text for a number", `{"command":"ls","timeout_s":"30"}`, "timeout_s", `the text "30"; give a number`},
		{"a number for a boolean", `{"command":"ls","tty":1}`, "tty", "true or false"},
		{"a fraction of bytes", `{"command":"ls","max_bytes":2000.5}`, "max_bytes", "no whole number"},
		{"too few bytes", `{"command":"ls","max_bytes":10}`, "max_bytes", "1024"},
		{"no object", `{"command":"ls","env":["A=b"]}`, "env", "an object of names"},
		{"a number in env", `{"command":"ls","env":{"A":1}}`, "env", "names and texts"},
		{"a relative directory", `{"command":"ls","cwd":"src"}`, "cwd", "absolute"},
		{"a size without a terminal", `{"command":"ls","rows":24,"cols":80}`, "rows", "tty"},
		{"half a size", `{"command":"ls","tty":true,"rows":24}`, "rows", "both"},
		{"no such word", `{"command":"ls","on_timeout":"keep"}`, "on_timeout", "kill, background, detach"},
		{"a bad id", `{"command":"ls","execution_id":"a b"}`, "execution_id", "64 letters"},
		{"in the background", `{"command":"ls","run_in_background":true}`, "run_in_background", "action start"},
		{"no such field", `{"command":"ls","quux":1}`, "quux", "no such field of run; there are command"},
		{"a long description", `{"command":"ls","description":"` + strings.Repeat("é", 201) + `"}`, "description", "201 characters"},
		{"too much input", `{"command":"cat","stdin":"` + strings.Repeat("x", wire.MaxInputBytes+1) + `"}`, "stdin", "65537"},

		{"no such action", `{"action":"kill"}`, "action", "the nearest is terminate"},
		{"an action misspelt", `{"action":"wait-for"}`, "action", "the nearest is wait_for"},
		{"an action like none", `{"action":"xyzzy"}`, "action", "none of run, start"},
		{"an action that is none", `{"action":7}`, "action", "7; give one of"},

		{"a follow-up with a command", `{"action":"read",` + id + `,"command":"rm -rf /"}`, "command", "not with read"},
		{"a follow-up with a timeout", `{"action":"wait",` + id + `,"timeout_s":5}`, "timeout_s", "belongs to run, start"},
		{"a run with an id", `{"command":"ls",` + id + `}`, "process_id", "not with run"},
		{"a list of one", `{"action":"list",` + id + `}`, "process_id", "not with list"},
		{"no process", `{"action":"read"}`, "process_id", "missing"},
		{"a bad process", `{"action":"read","process_id":"a.b"}`, "process_id", "is none"},
		{"a page too small", `{"action":"read",` + id + `,"max_bytes":1024}`, "max_bytes", "4096"},
		{"a negative offset", `{"action":"read",` + id + `,"offset":-1}`, "offset", "within"},
		{"a wait for a port", `{"action":"wait",` + id + `,"for":"port"}`, "for", "wait_for"},
		{"nothing to write", `{"action":"write",` + id + `}`, "stdin", "missing"},
		{"nothing to close", `{"action":"write",` + id + `,"close_stdin":false}`, "stdin", "missing"},
		{"no size", `{"action":"resize",` + id + `,"rows":5}`, "rows", "both"},
		{"no signal", `{"action":"signal",` + id + `}`, "signal", "missing"},
		{"no such signal", `{"action":"signal",` + id + `,"signal":"NOPE"}`, "signal", "NOPE"},
		{"a mode of another", `{"action":"terminate",` + id + `,"mode":"all"}`, "mode", "wait_for"},
		{"no pattern", `{"action":"search",` + id + `}`, "pattern", "missing"},
		{"a pattern for a port", `{"action":"wait_for",` + id + `,"for":"port","pattern":"x","port":80}`, "pattern", "only with for pattern"},
		{"no port", `{"action":"wait_for",` + id + `,"for":"port"}`, "port", "missing"},
		{"port 0", `{"action":"wait_for",` + id + `,"port":0}`, "port", "within 1"},
		{"one and several", `{"action":"wait_for",` + id + `,"process_ids":["q"]}`, "process_ids", "one of both"},
		{"none of several", `{"action":"wait_for","process_ids":[]}`, "process_ids", "empty"},
		{"a mode for one", `{"action":"wait_for",` + id + `,"mode":"any"}`, "mode", "process_ids"},
		{"long to wait", `{"action":"wait",` + id + `,"wait_s":60000}`, "wait_s", "did you mean 60 seconds?"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parseArgs(json.RawMessage(tt.args))
			if err == nil {
				t.Fatal("accepted")
			}
			e := public(err)
			if e.Code != wire.CodeInvalidArguments && e.Code != wire.CodeUnknownField {
				t.Errorf("code %s: %v", e.Code, err)
			}
			if tt.field != "" && e.Field != tt.field || !strings.Contains(e.Message, tt.says) {
				t.Errorf("%+v; want field %q and %q", e, tt.field, tt.says)
			}
			if len(e.Message) > 600 {
				t.Errorf("%d bytes of message", len(e.Message))
			}
		})
	}
}

func TestGoodArguments(t *testing.T) {
	parse := func(s string) *args {
		t.Helper()
		a, err := parseArgs(json.RawMessage(s))
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		return a
	}
	run := parse(`{"command":"ls","timeout_s":1.5,"env":{"B":"2","A":"1"},"tty":null}`).wireCommand()
	if run.Text != "ls" || run.TimeoutMS != 1500 || len(run.Env) != 2 || run.Env[0].Name != "A" || run.TTY != nil || run.Description != "ls" || run.Stdin != "" {
		t.Errorf("%+v", run)
	}
	for _, tt := range []struct {
		args  string
		limit int64
		stdin wire.StdinMode
	}{
		{`{"command":"x"}`, 0, ""},
		{`{"command":"x","timeout_s":0}`, -1, ""},
		{`{"action":"start","command":"x"}`, -1, ""},
		{`{"action":"start","command":"x","timeout_s":2}`, 2000, ""},
		{`{"command":"x","timeout_s":0.0001}`, 1, ""},
		{`{"command":"x","stdin":"a"}`, 0, ""},
		{`{"command":"x","stdin":"a","close_stdin":false}`, 0, wire.StdinPipe},
		{`{"command":"x","close_stdin":true}`, 0, ""},
	} {
		c := parse(tt.args).wireCommand()
		if c.TimeoutMS != tt.limit || c.Stdin != tt.stdin {
			t.Errorf("%s: %d ms, stdin %q", tt.args, c.TimeoutMS, c.Stdin)
		}
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", tt.args, err)
		}
	}
	if a := parse(`{"action":"wait_for","process_id":"p","port":80}`); a.until != "port" {
		t.Errorf("a port alone is waited for as %q", a.until)
	}
	if m := parse(`{"action":"write","process_id":"p","close_stdin":true}`); !m.closeStdin {
		t.Error("input is not closed")
	}
	parse(`{"action":"wait_for","process_ids":["p","q"],"mode":"all","for":"exit"}`)
	parse(`{"action":"list"}`)
}

func FuzzArguments(f *testing.F) {
	for _, s := range []string{
		`{"command":"ls","timeout_s":1e3}`, `{"action":"wait_for","process_ids":["a"],"for":"quiet","quiet_s":0.5}`,
		`{"action":"write","process_id":"p","stdin":"\ud800"}`, `{"a":{"b":[1,2,{}]}}`, `{"offset":1e17}`, `{"command":"x","env":{"":"\u0000"}}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := parseArgs(json.RawMessage(s))
		if err != nil {
			if e := public(err); e.Message == "" || e.Code == wire.CodeInternal {
				t.Errorf("%+v", e)
			}
			return
		}
		if a.action&commands != 0 {
			c := a.wireCommand()
			if err := c.Validate(); err != nil && public(err).Code == wire.CodeInternal {
				t.Error(err)
			}
		}
	})
}
