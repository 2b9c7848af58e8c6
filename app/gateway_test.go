package app

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/bus/embedded"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// A gateway of a NATS of somebody else serves MCP as a tenant, and ends what MCP clients
// started before it goes itself.
func TestGatewayServesMCP(t *testing.T) {
	t.Parallel()
	server, err := embedded.Start(embedded.Config{Listen: "127.0.0.1:0", Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	as := func(role subjects.Role, name string) bus.Config {
		user, password := server.Credentials(role, name)
		return bus.Config{URL: server.URL(), User: user, Password: password, InboxPrefix: subjects.InboxPrefix(role, name), Logger: quiet()}
	}
	prov, err := bus.Connect(t.Context(), as(subjects.RoleProvisioner, "p"))
	if err != nil {
		t.Fatal(err)
	}
	defer prov.Close()
	if err := prov.EnsureStreams(t.Context(), bus.StreamOptions{Memory: true}); err != nil {
		t.Fatal(err)
	}
	w, err := NewWorker(WorkerOptions{
		Name: "w1", Dir: t.TempDir(), Bus: as(subjects.RoleWorker, "w1"), Logger: quiet(),
		Keeper: KeeperOptions{Exe: "/proc/self/exe", Config: keeper.Config{Window: 0}, End: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	working, stopWorker := context.WithCancel(t.Context())
	worked := make(chan error, 1)
	go func() { worked <- w.Run(working) }() // ended by stopWorker; received below
	defer func() {
		stopWorker()
		if err := <-worked; err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-w.Up():
	case <-time.After(patience):
		t.Fatal("no worker")
	}

	serving, stop := context.WithCancel(t.Context())
	at, ended := make(chan MCPServing, 1), make(chan error, 1)
	m := &GatewayMCP{
		HTTP:  MCPHTTP{Addr: "127.0.0.1:0", OnServing: func(s MCPServing) { at <- s }},
		Front: MCPFront{Session: wire.Open{Cwd: t.TempDir()}}, Bus: as(subjects.RoleTenant, Tenant), Tenant: Tenant,
	}
	go func() {
		ended <- Gateway(serving, GatewayOptions{Bus: as(subjects.RoleGateway, "g1"), MCP: m, Logger: quiet()})
	}() // ended by stop; received below
	var to MCPServing
	select {
	case to = <-at:
	case err := <-ended:
		t.Fatal(err)
	}
	if to.Token == "" || to.From != "" {
		t.Errorf("its token is not its own: %+v", to)
	}
	session := ""
	post := func(body string) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, to.URL, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range map[string]string{
			"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
			"Authorization": "Bearer " + to.Token, "Mcp-Session-Id": session,
		} {
			if v != "" {
				req.Header.Set(k, v)
			}
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if id := res.Header.Get("Mcp-Session-Id"); id != "" {
			session = id
		}
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	post(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if got := post(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"bash","arguments":{"command":"echo from the fleet"}}}`); !strings.Contains(got, `from the fleet\n`) {
		t.Errorf("it answers %s", got)
	}
	post(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"bash","arguments":{"action":"start","command":"sleep 300"}}}`)
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	// The session is closed, and with it what ran: another gateway says so.
	conn, err := bus.Connect(t.Context(), as(subjects.RoleGateway, "g2"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	h := &host{server: server, gatewayConn: conn, log: quiet()}
	if h.inUse(t.Context(), nil) {
		t.Error("a session of the gateway that ended is left")
	}
}
