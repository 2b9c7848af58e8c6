package chaos

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/limpet-sh/limpet/gateway/mcp"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// TestMCPIdle: while a client is connected its session is not idle; when it is gone, a
// session that is kept ends by its own time.
func TestMCPIdle(t *testing.T) {
	h := newMCPHost(t)
	kept := h.serve(t, func(c *mcp.Config) { c.Session.Name, c.Session.IdleTTLMS = "kept", 900 })
	c := stdio(t, kept, nil)
	c.ok(params{"command": "true"})
	id := h.sessions(t)["kept"].ID
	time.Sleep(2 * time.Second) // far more than its time without a call
	if s := h.sessions(t)["kept"]; s.ID != id || id == "" {
		t.Errorf("%q became %q", id, s.ID)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, "the end of the idle session", func() bool {
		time.Sleep(2 * time.Second) // to ask for it is a call, too
		_, ok := h.sessions(t)["kept"]
		return !ok
	})
}

// TestMCPClosedSession: a session that somebody closed is opened anew by the next call.
func TestMCPClosedSession(t *testing.T) {
	h := newMCPHost(t)
	c := stdio(t, h.Server, nil)
	for _, next := range []params{{"command": "echo again"}, {"action": "start", "command": "true"}, {"action": "list"}} {
		name := c.ok(params{"action": "list"}).str("session")
		id := c.ok(params{"action": "start", "command": "sleep 1000"}).str("process_id")
		if _, err := h.c.Session(name).Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.ok(next)
		if r := c.call(params{"action": "wait", "process_id": id}); r.code() != string(wire.CodeNotFound) {
			t.Errorf("%v", r.data)
		}
	}
}

// TestMCPServerEnds: a server that is to end answers what is in work, ends the sessions
// that are its own, and leaves those that are kept, with what runs in them.
func TestMCPServerEnds(t *testing.T) {
	h := newMCPHost(t)
	for _, name := range []string{"", "kept"} {
		s := h.serve(t, func(c *mcp.Config) { c.Session.Name = name })
		inR, inW, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		outR, outW, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.ServeStdio(ctx, inR, outW); _ = outW.Close() }() // ends with stop
		c := connectMCP(t, &sdk.IOTransport{Reader: outR, Writer: inW}, nil)
		session := c.ok(params{"action": "list"}).str("session")
		began := filepath.Join(t.TempDir(), "began")
		gone := make(chan error, 1)
		go func() { // ends with the server
			_, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "bash", Arguments: params{"command": "echo $$ > " + began + "; sleep 1000"}})
			gone <- err
		}()
		until(t, "the command", func() bool { return len(tryFile(began)) > 0 })
		at := time.Now()
		stop()
		if err := <-ended; err != nil || time.Since(at) > 20*time.Second {
			t.Errorf("after %v: %v", time.Since(at), err)
		}
		select {
		case <-gone:
		case <-time.After(long):
			t.Error("the call is not answered")
		}
		info, open := h.sessions(t)[session]
		if open != (name != "") || open && info.Live != 1 {
			t.Errorf("session %q: %v %+v", name, open, info)
		}
	}
}

// TestMCPLeavesNothing: what a connection began ends with it.
func TestMCPLeavesNothing(t *testing.T) {
	h := newMCPHost(t)
	s := h.http(t, mcp.HTTPConfig{})
	use := func(c *mcpClient) {
		id := c.ok(params{"action": "start", "command": "sleep 1000"}).str("process_id")
		for _, uri := range []string{"limpet://process/" + id + "/output", "limpet://process/" + id + "/record"} {
			if err := c.Subscribe(t.Context(), &sdk.SubscribeParams{URI: uri}); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	all := func() {
		for _, version := range []string{"2025-11-25", "2026-07-28"} {
			in, out := pipes(t, h.Server)
			use(connectMCP(t, &sdk.IOTransport{Reader: out, Writer: in}, nil, version))
			_ = in.Close()
		}
		use(overHTTP(t, s.URL, nil, nil, "2025-06-18"))
		until(t, "the end of all sessions", func() bool { return len(h.sessions(t)) == 0 })
	}
	all()
	before := 0
	settle := func(most int) bool { runtime.GC(); before = runtime.NumGoroutine(); return before <= most }
	until(t, "rest", func() bool { n := before; settle(0); return n == before })
	rest := before
	for range 5 {
		all()
	}
	until(t, "the end of what the connections began", func() bool { return settle(rest + 8) })
}

// TestMCPSubscriptions: who subscribed hears of output and end, over either transport and
// in either way of subscribing; who unsubscribed does not.
func TestMCPSubscriptions(t *testing.T) {
	h := newMCPHost(t)
	s := h.http(t, mcp.HTTPConfig{Session: "modern"})
	for name, connect := range map[string]func(*sdk.ClientOptions) *mcpClient{
		"stdio, subscribe": func(o *sdk.ClientOptions) *mcpClient { return stdio(t, h.serve(t), o, "2025-11-25") },
		"stdio, listen":    func(o *sdk.ClientOptions) *mcpClient { return stdio(t, h.serve(t), o, "2026-07-28") },
		"http, subscribe":  func(o *sdk.ClientOptions) *mcpClient { return overHTTP(t, s.URL, nil, o, "2025-11-25") },
		"http, listen":     func(o *sdk.ClientOptions) *mcpClient { return overHTTP(t, s.URL, nil, o, "2026-07-28") },
	} {
		t.Run(name, func(t *testing.T) {
			var output, record, other atomic.Int32
			var wantOutput, wantRecord string
			c := connect(&sdk.ClientOptions{ResourceUpdatedHandler: func(_ context.Context, r *sdk.ResourceUpdatedNotificationRequest) {
				switch r.Params.URI {
				case wantOutput:
					output.Add(1)
				case wantRecord:
					record.Add(1)
				default:
					other.Add(1)
				}
			}})
			start := func() string {
				return c.ok(params{"action": "start", "command": "while read x; do echo $x; done; exit 6", "close_stdin": false}).str("process_id")
			}
			id, unheard := start(), start()
			wantOutput, wantRecord = "limpet://process/"+id+"/output", "limpet://process/"+id+"/record"
			for _, uri := range []string{wantOutput, wantRecord, "limpet://process/" + unheard + "/output"} {
				if err := c.Subscribe(t.Context(), &sdk.SubscribeParams{URI: uri}); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.Unsubscribe(t.Context(), &sdk.UnsubscribeParams{URI: "limpet://process/" + unheard + "/output"}); err != nil {
				t.Fatal(err)
			}
			write := func(id string, args params) {
				args["action"], args["process_id"] = "write", id
				c.ok(args)
			}
			until(t, "an update of the output", func() bool {
				write(id, params{"stdin": "line\n", "wait_s": 0.1})
				return output.Load() > 0
			})
			n := output.Load()
			write(unheard, params{"stdin": strings.Repeat("x", 1000) + "\n", "close_stdin": true})
			write(id, params{"close_stdin": true})
			until(t, "an update at the end", func() bool { return record.Load() > 0 && output.Load() > n })
			if other.Load() > 0 {
				t.Errorf("%d updates of what nobody subscribed to", other.Load())
			}
			c.ok(params{"action": "wait", "process_id": unheard})
		})
	}
}
