package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/limpet-sh/limpet/gateway/mcp"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// TestMCPLife takes one process through all actions, and holds every result against the
// schema that the tool promises.
func TestMCPLife(t *testing.T) {
	h := newMCPHost(t)
	c := stdio(t, h.Server, nil)
	tools, err := c.ListTools(t.Context(), nil)
	if err != nil || len(tools.Tools) != 1 || tools.Tools[0].Name != "bash" {
		t.Fatalf("%+v, %v", tools, err)
	}
	schema := schemaOf(t, tools.Tools[0].OutputSchema)
	do := func(args params) result {
		t.Helper()
		r := c.ok(args)
		if err := schema.Validate(r.raw.StructuredContent); err != nil {
			t.Errorf("%v: %v in %v", args, err, r.data)
		}
		return r
	}

	r := do(params{"command": "echo out; echo err >&2; exit 3"})
	if r.num("exit_code") != 3 || r.str("stdout") != "out\n" || r.str("stderr") != "err\n" || r.str("state") != "failed" || r.raw.IsError {
		t.Errorf("%v", r.data)
	}
	if r.text != "out\n[stderr]\nerr\n[exit code 3]" {
		t.Errorf("%q", r.text)
	}
	if r = do(params{"command": "printf '%s' \"$A$B\"; pwd", "env": params{"A": "x", "B": "<&>"}, "cwd": "/tmp"}); r.str("stdout") != "x<&>/tmp\n" {
		t.Errorf("%v", r.data)
	}
	if r = do(params{"command": "cat", "stdin": "typed"}); r.str("stdout") != "typed" {
		t.Errorf("%v", r.data)
	}

	r = do(params{"action": "start", "command": "read a; echo got $a; read b; echo got $b; exit 5", "close_stdin": false, "description": "asks twice"})
	id := r.str("process_id")
	if id == "" || r.str("state") != "running" || r.str("execution_id") == "" {
		t.Fatalf("%v", r.data)
	}
	if r = do(params{"action": "write", "process_id": id, "stdin": "one\n", "wait_s": 30}); r.str("output") != "got one\n" {
		t.Errorf("after a write %v: %s", r.data, r.text)
	}
	if r = do(params{"action": "status", "process_id": id}); r.str("state") != "running" || r.num("total_bytes") != 8 {
		t.Errorf("%v", r.data)
	}
	if r = do(params{"action": "wait_for", "process_id": id, "pattern": "^got (\\w+)$", "wait_s": 30}); r.data["met"] != true {
		t.Errorf("%v: %s", r.data, r.text)
	}
	if r = do(params{"action": "wait", "process_id": id, "wait_s": 0.05}); r.str("state") != "running" || r.str("output") != "" {
		t.Errorf("a wait that is too short: %v", r.data)
	}
	do(params{"action": "write", "process_id": id, "stdin": "two\n", "close_stdin": true, "wait_s": 0})
	if r = do(params{"action": "wait", "process_id": id}); r.num("exit_code") != 5 || r.num("next_offset") != 16 {
		t.Errorf("%v: %s", r.data, r.text)
	}
	if r = do(params{"action": "read", "process_id": id}); r.str("output") != "got one\ngot two\n" || r.num("next_offset") != 16 {
		t.Errorf("%v", r.data)
	}
	if r = do(params{"action": "read", "process_id": id, "offset": 8}); r.str("output") != "got two\n" {
		t.Errorf("%v", r.data)
	}
	if r = do(params{"action": "search", "process_id": id, "pattern": "TWO", "ignore_case": true, "before_lines": 1}); len(r.data["matches"].([]any)) != 1 || !strings.Contains(r.text, "got two") {
		t.Errorf("%v: %s", r.data, r.text)
	}
	if r = do(params{"action": "list"}); !strings.Contains(r.text, "asks twice") || len(r.data["processes"].([]any)) != 4 {
		t.Errorf("%v: %s", r.data, r.text)
	}

	need(t, "pty")
	r = do(params{"action": "start", "command": "trap 'stty size' WINCH; trap 'echo hup; exit 7' HUP; echo ready; while :; do sleep 0.05; done", "tty": true, "rows": 20, "cols": 70})
	id = r.str("process_id")
	do(params{"action": "wait_for", "process_id": id, "pattern": "ready", "wait_s": 30})
	do(params{"action": "resize", "process_id": id, "rows": 30, "cols": 90})
	if r = do(params{"action": "wait_for", "process_id": id, "pattern": "30 90", "wait_s": 30}); r.data["met"] != true {
		t.Errorf("%v: %s", r.data, r.text)
	}
	do(params{"action": "signal", "process_id": id, "signal": "HUP"})
	if r = do(params{"action": "wait_for", "process_ids": []string{id}, "for": "exit", "wait_s": 30}); r.data["met"] != true || !strings.Contains(fmt.Sprint(r.data["results"]), "exit_code:7") {
		t.Errorf("%v: %s", r.data, r.text)
	}

	id = do(params{"action": "start", "command": "sleep 1000 & sleep 1000"}).str("process_id")
	if r = do(params{"action": "terminate", "process_id": id, "mode": "kill"}); r.str("state") != "cancelled" || r.str("signal") != "KILL" {
		t.Errorf("%v: %s", r.data, r.text)
	}
}

func schemaOf(t testing.TB, v any) *jsonschema.Resolved {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestMCPYields: a call answers before its client gives up, and what runs goes on; all
// of it is there afterwards.
func TestMCPYields(t *testing.T) {
	h := newMCPHost(t, func(c *mcp.Config) { c.YieldMax = time.Second })
	c := stdio(t, h.Server, nil)
	began := time.Now()
	r := c.ok(params{"command": "echo begin; sleep 3; echo end", "yield_s": 500})
	if took := time.Since(began); r.data["yielded"] != true || r.str("stdout") != "begin\n" || took > 20*time.Second {
		t.Fatalf("after %v: %v", took, r.data)
	}
	id := r.str("process_id")
	if !strings.Contains(r.text, "still running: process "+id) || r.str("on_timeout") != "kill" {
		t.Errorf("%s: %v", r.text, r.data)
	}
	for range 100 { // each waits a second at most
		if r = c.ok(params{"action": "wait", "process_id": id, "wait_s": 600}); r.str("state") != "running" {
			break
		}
		if r.num("exit_code") != -1 {
			t.Errorf("%v", r.data)
		}
	}
	if r.num("exit_code") != 0 || r.num("next_offset") != 10 {
		t.Errorf("%v: %s", r.data, r.text)
	}

	r = c.ok(params{"command": "echo so far; sleep 1000", "timeout_s": 0.3})
	if r.str("reason") != "timeout" || r.str("stdout") != "so far\n" || r.str("on_timeout") != "kill" || !strings.Contains(r.text, "timed out after 0.3 s") {
		t.Errorf("%v: %s", r.data, r.text)
	}
	r = c.ok(params{"command": "echo so far; sleep 1000", "timeout_s": 0.3, "on_timeout": "background"})
	if r.data["yielded"] != true || r.str("stdout") != "so far\n" || r.str("on_timeout") != "background" {
		t.Errorf("%v: %s", r.data, r.text)
	}
}

// TestMCPShowsTheEnd: of more output than fits, a wait shows the last, and says where the
// rest is; a run shows both ends.
func TestMCPShowsTheEnd(t *testing.T) {
	h := newMCPHost(t)
	c := stdio(t, h.Server, nil)
	id := c.ok(params{"action": "start", "command": "seq 100000; echo LAST"}).str("process_id")
	r := c.ok(params{"action": "wait", "process_id": id})
	if out := r.str("output"); !strings.HasSuffix(out, "\nLAST\n") || len(out) > 17<<10 {
		t.Errorf("%d bytes, … %q", len(out), out[max(0, len(out)-20):])
	}
	first, _, _ := strings.Cut(r.text, "\n")
	if !strings.Contains(first, "not shown; action read, process_id "+id) {
		t.Errorf("%q", first)
	}
	total := r.num("total_bytes")
	var all strings.Builder
	for offset := 0.0; offset < total; {
		r = c.ok(params{"action": "read", "process_id": id, "offset": offset, "max_bytes": 100_000})
		all.WriteString(r.str("output"))
		if r.num("next_offset") <= offset {
			t.Fatalf("no way on from %v", offset)
		}
		offset = r.num("next_offset")
	}
	if float64(all.Len()) != total || !strings.HasPrefix(all.String(), "1\n2\n3\n") || !strings.HasSuffix(all.String(), "100000\nLAST\n") {
		t.Errorf("%d of %v bytes", all.Len(), total)
	}
	r = c.ok(params{"command": "echo FIRST; seq 100000; echo LAST", "max_bytes": 2000})
	out := r.str("stdout")
	if !strings.HasPrefix(out, "FIRST\n") || !strings.HasSuffix(out, "LAST\n") || len(out) > 2300 || r.num("stdout_omitted_bytes") < 580_000 {
		t.Errorf("%d bytes: %.80q", len(out), out)
	}
	if !strings.Contains(r.text, "action read, process_id "+r.str("process_id")) {
		t.Errorf("how to get the rest is not told: %.500s", r.text)
	}
}

// TestMCPExecutionIDs: who asks again with the same id gets the same process, and nobody
// else's.
func TestMCPExecutionIDs(t *testing.T) {
	h := newMCPHost(t, func(c *mcp.Config) { c.Session.Name = "kept" })
	ran := filepath.Join(t.TempDir(), "ran")
	once := params{"command": "echo x >> " + ran + "; wc -l < " + ran}

	a := rawStdio(t, h.Server)
	a.begin("2025-11-25")
	ask := func(l *rawLines, id any, args params) result {
		t.Helper()
		l.tool(id, args)
		m := l.next()
		if m.Error != nil || fmt.Sprint(m.ID) != fmt.Sprint(id) {
			t.Fatalf("%+v", m)
		}
		return resultOf(t, m.Result)
	}
	first := ask(a, 1, once)
	if again := ask(a, 1, once); again.str("process_id") != first.str("process_id") || again.str("stdout") != "1\n" {
		t.Errorf("the same request ran again: %v", again.data)
	}
	if other := ask(a, "1", once); other.str("process_id") == first.str("process_id") || other.str("stdout") != "2\n" {
		t.Errorf(`the id "1" is taken for 1: %v`, other.data)
	}
	if r := ask(a, 1, params{"command": "true"}); r.code() != string(wire.CodeExecutionConflict) || !r.failed {
		t.Errorf("%v", r.data)
	}
	b := rawStdio(t, h.Server) // the same session, and ids start at 1 again
	b.begin("2025-06-18")
	if r := ask(b, 1, once); r.str("process_id") == first.str("process_id") || r.str("stdout") != "3\n" {
		t.Errorf("another connection got the process of the first: %v", r.data)
	}
	named := params{"command": once["command"], "execution_id": "deploy-7"}
	mine := ask(a, 2, named)
	if r := ask(b, 9, named); r.str("process_id") != mine.str("process_id") {
		t.Errorf("%v", r.data)
	}
	// A new front end, as after a kill of the old one, finds it by the id too.
	c := stdio(t, h.serve(t, func(c *mcp.Config) { c.Session.Name = "kept" }), nil)
	if r := c.ok(named); r.str("process_id") != mine.str("process_id") || r.str("stdout") != "4\n" {
		t.Errorf("%v", r.data)
	}
	if got, err := os.ReadFile(ran); err != nil || string(got) != "x\nx\nx\nx\n" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestMCPNonzero: an exit code is an answer; a host may want it to be an error.
func TestMCPNonzero(t *testing.T) {
	h := newMCPHost(t)
	for _, strict := range []bool{false, true} {
		c := stdio(t, h.serve(t, func(c *mcp.Config) { c.NonzeroIsError = strict }), nil)
		for command, failed := range map[string]bool{"exit 1": strict, "true": false, "kill -9 $$": strict} {
			if r := c.call(params{"command": command}); r.failed != failed || r.code() != "" {
				t.Errorf("strict %v, %s: %v, %v", strict, command, r.failed, r.data)
			}
		}
		if r := c.call(params{"command": "true", "cwd": "/no/such/directory"}); !r.failed || r.code() != string(wire.CodeWorkdirNotFound) {
			t.Errorf("%v", r.data)
		}
	}
}

// TestMCPProgress: a long call says that it is alive, if it was asked to.
func TestMCPProgress(t *testing.T) {
	notShort(t)
	h := newMCPHost(t)
	got := make(chan *sdk.ProgressNotificationParams, 100)
	c := stdio(t, h.Server, &sdk.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) { got <- r.Params },
	})
	p := &sdk.CallToolParams{Name: "bash", Arguments: params{"command": "for i in $(seq 12); do echo line $i; sleep 1; done"}}
	p.SetProgressToken("tick")
	res, err := c.CallTool(t.Context(), p)
	if err != nil || resultOf(t, res).num("exit_code") != 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	last := 0.0
	for range 2 {
		m := <-got
		if m.ProgressToken != "tick" || m.Progress <= last || !strings.Contains(m.Message, "bytes of output: line ") {
			t.Errorf("%+v", m)
		}
		last = m.Progress
	}
}
