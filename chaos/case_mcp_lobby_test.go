package chaos

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/gateway/mcp"
)

// TestMCPNobodysConnection: an initialize that does not come plainly begins no connection
// that all who send one like it would share.
func TestMCPNobodysConnection(t *testing.T) {
	h := newMCPHost(t)
	s := h.http(t, mcp.HTTPConfig{})
	res := post(t, s.URL, nil, "["+initialize+"]")
	if text, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusBadRequest || res.Header.Get("Mcp-Session-Id") != "" {
		t.Errorf("a batch: %d %v: %s", res.StatusCode, res.Header, text)
	}
	// The SDK reads names as they are written, and so do we.
	const twice = `{"jsonrpc":"2.0","id":1,"method":"initialize","Method":"ping","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`
	for range 2 {
		res := post(t, s.URL, nil, twice)
		id := http.Header{"Mcp-Session-Id": {res.Header.Get("Mcp-Session-Id")}}
		post(t, s.URL, id, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		post(t, s.URL, id, callTrue)
	}
	if all := h.sessions(t); len(all) != 2 {
		t.Errorf("two connections have the sessions %v", all)
	}
}

// TestMCPCancelAgain: a call that asks again for a command whose handle was given ends
// nothing when it is cancelled.
func TestMCPCancelAgain(t *testing.T) {
	l := rawStdio(t, newMCPHost(t).Server)
	l.begin("2025-06-18")
	args := params{"command": "sleep 1000", "execution_id": "again", "yield_s": 0.01}
	l.tool(1, args)
	id, _ := l.next().Result.StructuredContent.(map[string]any)["process_id"].(string)
	if id == "" {
		t.Fatal("no handle")
	}
	delete(args, "yield_s")
	l.tool(2, args)
	time.Sleep(300 * time.Millisecond) // it may be cancelled at any time; this is the likely one
	l.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	l.tool(3, params{"action": "wait", "process_id": id, "wait_s": 1})
	for {
		m := l.next()
		if m.ID != float64(3) {
			continue
		}
		if r := resultOf(t, m.Result); r.str("state") != "running" {
			t.Errorf("%v", r.data)
		}
		return
	}
}
