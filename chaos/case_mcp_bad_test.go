package chaos

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/limpet-sh/limpet/gateway/mcp"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// TestMCPBadInput: what is wrong is said before anything happens, and the connection
// goes on.
func TestMCPBadInput(t *testing.T) {
	h := newMCPHost(t)
	l := rawStdio(t, h.Server)
	l.begin("2025-11-25")
	refusedRPC := func(what string, code int) {
		t.Helper()
		if m := l.next(); m.Error == nil || m.Error.Code != code {
			t.Errorf("%s: %+v; want %d", what, m, code)
		}
	}
	l.send(`{"jsonrpc":"2.0","id":1,`)
	refusedRPC("half a message", -32700)
	l.send(`{"id":1,"method":"tools/list"}`)
	refusedRPC("no JSON-RPC", -32600)
	l.send(`{"jsonrpc":"2.0","id":1,"method":"tools/burn","params":{}}`)
	refusedRPC("an unknown method", -32601)
	l.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"sh","arguments":{"command":"ls"}}}`)
	refusedRPC("an unknown tool", -32602)
	l.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}`)
	refusedRPC("parameters of another kind", -32602)
	l.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`)
	refusedRPC("no parameters", -32600)
	l.send(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"limpet://process/nobody/record"}}`)
	refusedRPC("a resource that is none", -32602)
	l.send(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///etc/passwd"}}`)
	refusedRPC("a file", -32602)
	l.send(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"limpet://process/nobody/output"}}`)
	refusedRPC("a subscription to nothing", -32602)

	for _, tt := range []struct {
		args  any
		code  wire.Code
		field string
	}{
		{`{"command":5}`, wire.CodeInvalidArguments, "command"},
		{`{"command":"touch /x","quux":1}`, wire.CodeUnknownField, "quux"},
		{`{"command":"sleep 5","timeout_s":30000}`, wire.CodeInvalidArguments, "timeout_s"},
		{`{"action":"exterminate"}`, wire.CodeInvalidArguments, "action"},
		{`{"action":"read","process_id":"x","command":"ls"}`, wire.CodeInvalidArguments, "command"},
		{`{"action":"wait_for","process_id":"x","pattern":"("}`, wire.CodeInvalidArguments, "pattern"},
		{`{"command":"ls","env":{"A=B":"x"}}`, wire.CodeInvalidArguments, "env"},
		{`{"command":"ls\u0000"}`, wire.CodeInvalidArguments, "command"},
		{`[1,2]`, wire.CodeInvalidArguments, ""},
		{`{"action":"read","process_id":"nobody"}`, wire.CodeNotFound, ""},
	} {
		l.send(`{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"bash","arguments":%s}}`, tt.args)
		m := l.next()
		if m.Error != nil {
			t.Errorf("%s: %+v", tt.args, m.Error)
			continue
		}
		r := resultOf(t, m.Result)
		if !r.failed || r.code() != string(tt.code) || tt.field != "" && r.field() != tt.field || !strings.Contains(r.text, string(tt.code)) {
			t.Errorf("%s: %v, %s", tt.args, r.data, r.text)
		}
	}
	l.tool(2, params{"action": "list"})
	if m := l.next(); m.Error != nil || len(resultOf(t, m.Result).data["processes"].([]any)) != 0 {
		t.Errorf("something was started: %+v", m)
	}
}

// TestMCPOthersProcesses: an id of another session is as unknown as one that never was.
func TestMCPOthersProcesses(t *testing.T) {
	h := newMCPHost(t)
	a, b := stdio(t, h.Server, nil), stdio(t, h.Server, nil)
	id := a.ok(params{"action": "start", "command": "cat", "close_stdin": false}).str("process_id")
	b.ok(params{"command": "true"})
	for _, args := range []params{
		{"action": "read"},
		{"action": "wait"},
		{"action": "wait_for"},
		{"action": "status"},
		{"action": "write", "stdin": "x\n"},
		{"action": "resize", "rows": 5, "cols": 5},
		{"action": "signal", "signal": "KILL"},
		{"action": "terminate"},
		{"action": "search", "pattern": "x"},
	} {
		args["process_id"] = id
		theirs := b.call(args)
		args["process_id"] = "AAAAAAAAAAAAAAAAAAAAAA"
		nobodys := b.call(args)
		if !theirs.failed || theirs.code() != string(wire.CodeNotFound) ||
			strings.ReplaceAll(theirs.text, id, "ID") != strings.ReplaceAll(nobodys.text, "AAAAAAAAAAAAAAAAAAAAAA", "ID") {
			t.Errorf("%v: %s; that of nobody: %s", args, theirs.text, nobodys.text)
		}
	}
	r := b.ok(params{"action": "wait_for", "process_ids": []string{id}, "for": "exit", "wait_s": 0.1})
	if !strings.Contains(fmt.Sprint(r.data["results"]), string(wire.CodeNotFound)) {
		t.Errorf("%v", r.data)
	}
	for _, what := range []string{"record", "output"} {
		if _, err := b.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "limpet://process/" + id + "/" + what}); err == nil {
			t.Errorf("the %s of another session can be read", what)
		}
	}
	if r := b.ok(params{"action": "list"}); strings.Contains(r.text, id) {
		t.Errorf("%s", r.text)
	}
	if r := a.ok(params{"action": "status", "process_id": id}); r.str("state") != "running" || r.num("total_bytes") != 0 {
		t.Errorf("%v", r.data)
	}
}

// TestMCPHugeArguments: 10 MB do no harm, over either transport.
func TestMCPHugeArguments(t *testing.T) {
	h := newMCPHost(t)
	huge := strings.Repeat("x", 10<<20)
	c := stdio(t, h.Server, nil)
	for _, args := range []params{
		{"command": huge},
		{"command": "cat", "stdin": huge},
		{"command": "ls", "description": huge},
		{"command": "ls", "env": params{"A": huge}},
		{"action": huge},
		{huge: 1, "command": "ls"},
		{"action": "read", "process_id": huge},
		{"command": "ls", "timeout_s": huge},
	} {
		r := c.call(args)
		if !r.failed || r.code() == string(wire.CodeInternal) || len(r.text) > 2000 {
			t.Errorf("%v: %.300s", r.failed, r.text)
		}
	}
	c.ok(params{"command": "true"})

	s := h.http(t, mcp.HTTPConfig{})
	body := `{"jsonrpc":"2.0","id":7,"method":"initialize","params":{"x":"` + huge + `"}}`
	res := post(t, s.URL, nil, body)
	if b, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusRequestEntityTooLarge || !bytes.Contains(b, []byte(`"id":7`)) || !bytes.Contains(b, []byte("1048576 bytes")) {
		t.Errorf("%d: %.300s", res.StatusCode, b)
	}
	w := overHTTP(t, s.URL, nil, nil)
	if r := w.call(params{"command": strings.Repeat("x", 1<<19)}); !r.failed || r.field() != "command" {
		t.Errorf("%.300s", r.text)
	}
	w.ok(params{"command": "true"})
}

func post(t testing.TB, url string, header http.Header, body string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	maps.Copy(r.Header, header)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

// TestMCPManyAtOnce: 500 calls at once are all answered, each with what it asked for or
// with a reason.
func TestMCPManyAtOnce(t *testing.T) {
	notShort(t)
	h := newMCPHost(t)
	c := stdio(t, h.Server, nil)
	const n = 500
	results := make([]result, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			r, err := c.try(params{"command": fmt.Sprintf("echo %d; sleep 0.2", i)})
			if err != nil {
				t.Errorf("%d: %v", i, err)
				return
			}
			results[i] = r
		})
	}
	wg.Wait()
	ran, full := 0, 0
	for i, r := range results {
		switch {
		case !r.failed && r.str("stdout") == fmt.Sprintf("%d\n", i):
			ran++
		case r.failed && r.code() == string(wire.CodeProcessQuotaExceeded):
			full++
		default:
			t.Errorf("%d: %v %s", i, r.data, r.text)
		}
	}
	if t.Logf("%d ran, %d found the session full", ran, full); ran < 32 {
		t.Errorf("%d ran of the 32 that may", ran)
	}
	c.ok(params{"command": "true"})
}

// TestMCPAskFirst: a client that asks 3,000 times before it reads one answer gets all.
func TestMCPAskFirst(t *testing.T) {
	notShort(t)
	h := newMCPHost(t)
	l := rawStdio(t, h.Server)
	l.begin("2025-06-18")
	const n = 3000
	for i := range n {
		l.tool(i, params{"action": "list"})
	}
	seen := make(map[any]bool)
	for range n {
		m := l.next()
		if m.Error != nil || m.Result == nil || m.Result.IsError || seen[m.ID] {
			t.Fatalf("%+v", m)
		}
		seen[m.ID] = true
	}
}
