package chaos

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/limpet-sh/limpet/gateway/mcp"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// noticed are the processes whose end a result tells.
func (r result) noticed() (ids []string) {
	list, _ := r.data["notices"].([]any)
	for _, n := range list {
		ids = append(ids, n.(map[string]any)["process_id"].(string))
	}
	return ids
}

// until calls f until it is true.
func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("%s does not come about", what)
}

// ended waits, beside the connection, for the end of a process.
func (h *mcpHost) ended(t testing.TB, id string) {
	t.Helper()
	if _, err := h.c.WaitEnd(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}

// TestMCPNotices: what an agent left running and has not seen ending is told with the
// next result, once.
func TestMCPNotices(t *testing.T) {
	h := newMCPHost(t)
	c := stdio(t, h.Server, nil)
	told := make(map[string]int)
	var text string
	call := func(args params) string {
		r := c.ok(args)
		for _, id := range r.noticed() {
			told[id]++
		}
		text += r.text + "\n"
		return r.str("process_id")
	}
	started := call(params{"action": "start", "command": "echo some; sleep 0.2; exit 4", "description": "the build"})
	yielded := call(params{"command": "echo a; sleep 0.3; echo b", "yield_s": 0.05})
	silent := call(params{"action": "start", "command": "true", "on_end": "silent"})
	for _, id := range []string{started, yielded, silent} {
		h.ended(t, id)
	}
	for range 3 {
		call(params{"command": "true"})
	}
	if len(told) != 2 || told[started] != 1 || told[yielded] != 1 {
		t.Errorf("told %v of %s, %s", told, started, yielded)
	}
	for _, want := range []string{"[ended: " + started + " (the build)", "exit code 4", "[ended: " + yielded, "2 bytes of output not read"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %s", want, text)
		}
	}

	// Whoever sees the end is not told of it.
	for name, see := range map[string]func(id string) result{
		"wait": func(id string) result { return c.ok(params{"action": "wait", "process_id": id}) },
		"wait_for": func(id string) result {
			return c.ok(params{"action": "wait_for", "process_ids": []string{id}, "for": "end"})
		},
		"terminate": func(id string) result { return c.ok(params{"action": "terminate", "process_id": id}) },
		"read": func(id string) result {
			h.ended(t, id)
			return c.ok(params{"action": "read", "process_id": id, "wait_s": 10})
		},
		"status": func(id string) result { h.ended(t, id); return c.ok(params{"action": "status", "process_id": id}) },
		"list":   func(id string) result { h.ended(t, id); return c.ok(params{"action": "list"}) },
	} {
		id := c.ok(params{"action": "start", "command": "true"}).str("process_id")
		r := see(id)
		after := c.ok(params{"command": "true"})
		if n := append(r.noticed(), after.noticed()...); len(n) > 0 {
			t.Errorf("%s: %v is told of %s", name, n, id)
		}
	}
	// What lives is told too, for as long as it does.
	id := c.ok(params{"action": "start", "command": "sleep 1000", "description": "a server"}).str("process_id")
	if r := c.ok(params{"command": "true"}); !strings.Contains(r.text, "also running: "+id) {
		t.Errorf("%s", r.text)
	}
	if r := c.ok(params{"action": "terminate", "process_id": id}); strings.Contains(r.text, "also running") {
		t.Errorf("%s", r.text)
	}
}

// TestMCPNoticesOfMany tells more ends than it asks for one by one.
func TestMCPNoticesOfMany(t *testing.T) {
	h := newMCPHost(t)
	c := stdio(t, h.Server, nil)
	want := make(map[string]bool)
	for range 25 {
		want[c.ok(params{"action": "start", "command": "read x", "close_stdin": false}).str("process_id")] = true
	}
	r := c.ok(params{"command": "true"})
	if n := strings.Count(r.text, "also running"); n != 8 || !strings.Contains(r.text, "and 17 more running") {
		t.Errorf("%d of those that run are told: %s", n, r.text)
	}
	for id := range want {
		if _, err := h.c.CloseStdin(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		h.ended(t, id)
	}
	for _, id := range c.ok(params{"command": "true"}).noticed() {
		if !want[id] {
			t.Errorf("%s is told twice, or is none of ours", id)
		}
		delete(want, id)
	}
	if len(want) > 0 {
		t.Errorf("%d ends are not told", len(want))
	}
}

// TestMCPKept: a session with a name outlives its connections, and a new one is told of
// what the last left running; a session without ends with its connection.
func TestMCPKept(t *testing.T) {
	h := newMCPHost(t)
	kept := h.serve(t, func(c *mcp.Config) { c.Session.Name = "kept" })
	first := stdio(t, kept, nil)
	id := first.ok(params{"action": "start", "command": "sleep 0.7; echo done"}).str("process_id")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := stdio(t, kept, nil)
	if r := second.ok(params{"command": "true"}); !strings.Contains(r.text, "also running: "+id) {
		t.Errorf("%s", r.text)
	}
	h.ended(t, id)
	if n := second.ok(params{"command": "true"}).noticed(); len(n) != 1 || n[0] != id {
		t.Errorf("%v of %s", n, id)
	}
	if _, ok := h.sessions(t)["kept"]; !ok {
		t.Errorf("%v", h.sessions(t))
	}

	pid := filepath.Join(t.TempDir(), "pid")
	in, out := pipes(t, h.Server)
	own := connectMCP(t, &sdk.IOTransport{Reader: out, Writer: in}, nil)
	r := own.ok(params{"action": "start", "command": "echo $$ > " + pid + "; sleep 1000"})
	name := own.ok(params{"action": "list"}).str("session")
	if _, ok := h.sessions(t)[name]; !ok || name == "" {
		t.Fatalf("%q is none of %v", name, h.sessions(t))
	}
	until(t, "its pid", func() bool { st, err := os.Stat(pid); return err == nil && st.Size() > 1 })
	if err := in.Close(); err != nil { // the client is gone, without a word
		t.Fatal(err)
	}
	h.ended(t, r.str("process_id"))
	until(t, "the end of the session", func() bool { _, ok := h.sessions(t)[name]; return !ok })
	n, err := strconv.Atoi(strings.TrimSpace(readFile(t, pid)))
	if err != nil || syscall.Kill(n, 0) == nil {
		t.Errorf("%d runs on (%v)", n, err)
	}
}

// TestMCPCancel: who cancels a call before it has its handle ends what it began, unless
// the host says otherwise; after that nothing is ended.
func TestMCPCancel(t *testing.T) {
	h := newMCPHost(t)
	for _, policy := range []mcp.OnCancel{mcp.CancelKill, mcp.CancelKeep} {
		c := stdio(t, h.serve(t, func(c *mcp.Config) { c.OnCancel = policy }), nil)
		ctx, cancel := context.WithCancel(t.Context())
		began := filepath.Join(t.TempDir(), "began")
		gone := make(chan error, 1)
		go func() { // ends with cancel
			_, err := c.CallTool(ctx, &sdk.CallToolParams{Name: "bash", Arguments: params{"command": "echo $$ > " + began + "; sleep 1000"}})
			gone <- err
		}()
		until(t, "the command", func() bool { return len(tryFile(began)) > 0 })
		cancel()
		if err := <-gone; err == nil {
			t.Error("a cancelled call has a result")
		}
		list := func() wire.Receipt {
			s := c.ok(params{"action": "list"}).str("session")
			l, err := h.c.Session(s).List(t.Context())
			if err != nil || len(l.Processes) != 1 {
				t.Fatalf("%+v, %v", l, err)
			}
			return l.Processes[0]
		}
		if policy == mcp.CancelKill {
			until(t, "the end of a cancelled command", func() bool { return list().State == wire.StateCancelled })
			continue
		}
		// It goes on: the connection answers, and the command is asked after that.
		if r := list(); r.State != wire.StateRunning {
			t.Errorf("%+v", r)
		}
	}

	// Cancelling a call that only looks ends nothing.
	c := stdio(t, h.Server, nil)
	id := c.ok(params{"action": "start", "command": "sleep 1000"}).str("process_id")
	for _, args := range []params{{"action": "wait", "process_id": id}, {"action": "wait_for", "process_id": id, "for": "quiet", "quiet_s": 500}} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if _, err := c.CallTool(ctx, &sdk.CallToolParams{Name: "bash", Arguments: args}); err == nil {
			t.Error("no end")
		}
		cancel()
	}
	if r := c.ok(params{"action": "status", "process_id": id}); r.str("state") != "running" {
		t.Errorf("%v", r.data)
	}
}

// TestMCPNotify: the end of what was left running is told by a notification, to who
// subscribed to the record, and as a change of the list.
func TestMCPNotify(t *testing.T) {
	h := newMCPHost(t, func(c *mcp.Config) { c.Notices = mcp.NoticesNotify })
	for _, version := range []string{"2024-11-05", "2025-11-25", "2026-07-28"} {
		updated := make(chan string, 100)
		var lists atomic.Int32
		c := stdio(t, h.Server, &sdk.ClientOptions{
			ResourceUpdatedHandler:     func(_ context.Context, r *sdk.ResourceUpdatedNotificationRequest) { updated <- r.Params.URI },
			ResourceListChangedHandler: func(context.Context, *sdk.ResourceListChangedRequest) { lists.Add(1) },
		}, version)
		id := c.ok(params{"action": "start", "command": "read x; echo $x; exit 2", "close_stdin": false}).str("process_id")
		record := fmt.Sprintf("limpet://process/%s/record", id)
		output := fmt.Sprintf("limpet://process/%s/output", id)
		for _, uri := range []string{record, output} {
			if err := c.Subscribe(t.Context(), &sdk.SubscribeParams{URI: uri}); err != nil {
				t.Fatal(err)
			}
		}
		c.ok(params{"action": "write", "process_id": id, "stdin": "go\n", "wait_s": 0})
		seen := make(map[string]int)
		for seen[record] == 0 || seen[output] == 0 {
			select {
			case uri := <-updated:
				seen[uri]++
			case <-time.After(long):
				t.Fatalf("%v is all that was told", seen)
			}
		}
		res, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: record})
		if err != nil || !strings.Contains(res.Contents[0].Text, `"exit_code":2`) {
			t.Errorf("%+v, %v", res, err)
		}
		if r := c.ok(params{"command": "true"}); len(r.noticed()) > 0 {
			t.Errorf("%v is told by a result too", r.noticed())
		}
		if version < "2026-07-28" { // later ones ask for it
			until(t, "a change of the list", func() bool { return lists.Load() > 0 })
		}
	}
}

// TestMCPNotifyOfTheLast: a new connection of a kept session is notified of the end of what
// it found running.
func TestMCPNotifyOfTheLast(t *testing.T) {
	h := newMCPHost(t, func(c *mcp.Config) { c.Session.Name, c.Notices = "kept", mcp.NoticesNotify })
	first := stdio(t, h.Server, nil)
	id := first.ok(params{"action": "start", "command": "read x", "close_stdin": false}).str("process_id")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	var lists atomic.Int32
	second := stdio(t, h.Server, &sdk.ClientOptions{
		ResourceListChangedHandler: func(context.Context, *sdk.ResourceListChangedRequest) { lists.Add(1) },
	}, "2025-11-25")
	second.ok(params{"command": "true"})
	if _, err := h.c.CloseStdin(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	until(t, "a notification", func() bool { return lists.Load() > 0 })
}

// TestMCPLostMidCall: a client that is gone in the middle of a call takes its own session
// with it, and leaves one that is kept as it is.
func TestMCPLostMidCall(t *testing.T) {
	h := newMCPHost(t)
	for _, name := range []string{"", "kept"} {
		s := h.serve(t, func(c *mcp.Config) { c.Session.Name = name })
		l := rawStdio(t, s)
		l.begin("2025-11-25")
		began := filepath.Join(t.TempDir(), "began")
		l.tool(1, params{"command": "echo $$ > " + began + "; sleep 1000 & sleep 1000"})
		until(t, "the command", func() bool { return strings.HasSuffix(tryFile(began), "\n") })
		pid, err := strconv.Atoi(strings.TrimSpace(readFile(t, began)))
		if err != nil {
			t.Fatal(err)
		}
		if err := l.in.Close(); err != nil {
			t.Fatal(err)
		}
		if name == "" {
			until(t, "the end of all sessions", func() bool { return len(h.sessions(t)) == 0 })
			until(t, "the end of all of them", func() bool { return syscall.Kill(-pid, 0) != nil })
			continue
		}
		for l.out.Scan() {
			t.Errorf("an answer to nobody: %s", l.out.Bytes())
		}
		if s := h.sessions(t)["kept"]; s.Live != 1 || syscall.Kill(pid, 0) != nil {
			t.Errorf("%+v", s)
		}
	}
}
