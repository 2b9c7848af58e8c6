// Command gateway runs the api service, and MCP over HTTP beside it: against a NATS URL,
// or with NATS and a worker of its own in the same process.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/app"
	"github.com/limpet-sh/limpet/subjects"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "keeper" { // this binary re-executed, for a worker of its own
		os.Exit(keeper.Main(os.Args[2:]))
	}
	if err := run(); err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}

// off is the address of MCP that is not served.
const off = "off"

// flags of the gateway.
type flags struct {
	set      *pflag.FlagSet
	name     string
	embedded bool
	state    string
	nats     app.NATSFlags

	mcp     string
	tenant  string
	mcpNATS app.NATSFlags
	mcpTool app.MCPFlags

	verbose bool
}

func parse(args []string) (*flags, error) {
	host, _ := os.Hostname()
	f := &flags{set: pflag.NewFlagSet("gateway", pflag.ContinueOnError)}
	fs := f.set
	fs.StringVar(&f.name, "name", host, "name of this gateway, with --url")
	fs.BoolVar(&f.embedded, "embedded", false, "run NATS, a worker and its keeper too (default without --url)")
	fs.StringVar(&f.state, "state", "", "state directory of an embedded one (default: private and in memory)")
	f.nats.Add(fs, "")
	fs.StringVar(&f.mcp, "mcp", "", `serve MCP over HTTP at this address; "off": do not (default `+app.DefaultMCP+`, with --url "off")`)
	fs.StringVar(&f.tenant, "mcp-tenant", app.Tenant, "tenant of MCP clients, with --url; "+app.TenantPasswordVariable+" holds its NATS password")
	fs.StringVar(&f.mcpNATS.User, "mcp-user", "", "NATS user of that tenant")
	fs.StringVar(&f.mcpNATS.Creds, "mcp-creds", "", "NATS credentials file of that tenant")
	f.mcpTool.Add(fs, "mcp-")
	fs.BoolVarP(&f.verbose, "verbose", "v", false, "log what goes on")
	if err := app.ParseSettings(fs, "gateway", args); err != nil {
		return nil, err
	}
	if f.embedded && f.nats.URL != "" {
		return nil, fmt.Errorf("--embedded brings a NATS of its own, and --url %s is another; give one of them", f.nats.URL)
	}
	f.embedded = f.nats.URL == ""
	if f.mcp == "" {
		f.mcp = off // a tenant's credentials are wanted for it
		if f.embedded {
			f.mcp = app.DefaultMCP
		}
	}
	if !f.embedded && f.state != "" {
		return nil, errors.New("--state is the directory of an embedded one; with --url there is none")
	}
	return f, nil
}

func run() error {
	app.PassNothingOn()
	f, err := parse(os.Args[1:])
	if err != nil {
		return err
	}
	level := slog.LevelInfo
	if f.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	state := app.State("")
	if f.state != "" {
		if state, err = app.StateDir(f.state); err != nil {
			return err
		}
	}
	m, err := f.front(state)
	if err != nil {
		return err
	}
	if f.embedded {
		app.Modest()
		return app.Embedded(ctx, app.EmbeddedOptions{Local: app.LocalOptions{State: state}, MCP: m, Logger: log})
	}
	b, err := f.nats.Bus(subjects.RoleGateway, f.name, app.PasswordVariable)
	if err != nil {
		return err
	}
	return app.Gateway(ctx, app.GatewayOptions{Bus: b, MCP: m, Logger: log})
}

// front is how MCP is served; nil where it is not.
func (f *flags) front(state app.State) (*app.GatewayMCP, error) {
	if f.mcp == off {
		return nil, nil
	}
	m := &app.GatewayMCP{Tenant: f.tenant}
	var err error
	if m.Front, err = f.mcpTool.Front(); err != nil {
		return nil, err
	}
	if !f.embedded {
		f.mcpNATS.URL = f.nats.URL
		if m.Bus, err = f.mcpNATS.Bus(subjects.RoleTenant, f.tenant, app.TenantPasswordVariable); err != nil {
			return nil, err
		}
	}
	m.HTTP = f.mcpTool.HTTP(f.mcp, state, func(line string) { fmt.Fprintln(os.Stderr, "gateway:", line) })
	return m, nil
}
