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

// fleet is a NATS of somebody else, and one worker.
type fleet struct{ server *embedded.Server }

// as is how to connect as a role.
func (f *fleet) as(role subjects.Role, name string) bus.Config {
	user, password := f.server.Credentials(role, name)
	return bus.Config{URL: f.server.URL(), User: user, Password: password, InboxPrefix: subjects.InboxPrefix(role, name), Logger: quiet()}
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	server, err := embedded.Start(embedded.Config{Listen: "127.0.0.1:0", Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	f := &fleet{server}
	prov, err := bus.Connect(t.Context(), f.as(subjects.RoleProvisioner, "p"))
	if err != nil {
		t.Fatal(err)
	}
	defer prov.Close()
	if err := prov.EnsureStreams(t.Context(), bus.StreamOptions{Memory: true}); err != nil {
		t.Fatal(err)
	}
	w, err := NewWorker(WorkerOptions{
		Name: "w1", Dir: t.TempDir(), Bus: f.as(subjects.RoleWorker, "w1"), Logger: quiet(),
		Keeper: KeeperOptions{Exe: "/proc/self/exe", Config: keeper.Config{Window: 0}, End: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }() // ended by stop; received below
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-w.Up():
	case <-time.After(patience):
		t.Fatal("no worker")
	}
	return f
}

// mcpPost is a client of MCP over HTTP that speaks by hand.
type mcpPost struct {
	t       *testing.T
	to      MCPServing
	session string
}

func (p *mcpPost) send(body string) string {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, p.to.URL, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Authorization", "Bearer "+p.to.Token)
	if p.session != "" {
		req.Header.Set("Mcp-Session-Id", p.session)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer res.Body.Close()
	if id := res.Header.Get("Mcp-Session-Id"); id != "" {
		p.session = id
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(b)
}

// A gateway of a NATS of somebody else serves MCP as a tenant, and ends what MCP clients
// started before it goes itself.
func TestGatewayServesMCP(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	at, ended := make(chan MCPServing, 1), make(chan error, 1)
	m := &GatewayMCP{
		HTTP:  MCPHTTP{Addr: "127.0.0.1:0", OnServing: func(s MCPServing) { at <- s }},
		Front: MCPFront{Session: wire.Open{Cwd: t.TempDir()}}, Bus: f.as(subjects.RoleTenant, Tenant), Tenant: Tenant,
	}
	go func() {
		ended <- Gateway(ctx, GatewayOptions{Bus: f.as(subjects.RoleGateway, "g1"), MCP: m, Logger: quiet()})
	}() // ended by stop; received below
	p := &mcpPost{t: t}
	select {
	case p.to = <-at:
	case err := <-ended:
		t.Fatal(err)
	}
	if p.to.Token == "" || p.to.From != "" {
		t.Errorf("its token is not its own: %+v", p.to)
	}
	p.send(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	p.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if got := p.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"bash","arguments":{"command":"echo from the fleet"}}}`); !strings.Contains(got, `from the fleet\n`) {
		t.Errorf("it answers %s", got)
	}
	p.send(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"bash","arguments":{"action":"start","command":"sleep 300"}}}`)
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	// The session is closed, and with it what ran: another gateway says so.
	conn, err := bus.Connect(t.Context(), f.as(subjects.RoleGateway, "g2"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	h := &host{server: f.server, gatewayConn: conn, log: quiet()}
	if h.inUse(t.Context(), nil) {
		t.Error("a session of the gateway that ended is left")
	}
}
