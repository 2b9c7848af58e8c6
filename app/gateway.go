package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/oklog/run"

	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/gateway"
	"github.com/limpet-sh/limpet/subjects/bus"
)

// GatewayOptions of a gateway alone.
type GatewayOptions struct {
	// Bus says how to connect as a gateway.
	Bus bus.Config
	// MCP is served beside the api; nil: it is not.
	MCP    *GatewayMCP
	Logger *slog.Logger
}

// GatewayMCP says how a gateway serves MCP.
type GatewayMCP struct {
	HTTP  MCPHTTP
	Front MCPFront
	// Bus says how to connect as Tenant, whose processes MCP clients start. A gateway of
	// its own host needs neither.
	Bus    bus.Config
	Tenant string
}

// Gateway serves the api until ctx ends, and MCP where that is asked for.
func Gateway(ctx context.Context, o GatewayOptions) error {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.MCP != nil {
		if err := o.MCP.HTTP.validate(); err != nil {
			return err
		}
	}
	o.Bus.Name, o.Bus.Logger = "gateway", o.Logger
	conn, err := bus.Connect(ctx, o.Bus)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	g, err := gateway.New(gateway.Config{Conn: conn, Logger: o.Logger})
	if err != nil {
		return err
	}
	var group run.Group
	{
		// The api outlives MCP, whose sessions are closed through it.
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		group.Add(func() error { return g.Run(ctx) }, func(error) { cancel() })
	}
	ctx, cancel := context.WithCancel(ctx)
	group.Add(func() error { return o.MCP.serve(ctx, o.Logger) }, func(error) { cancel() })
	return group.Run()
}

// serve returns when ctx has ended. Without MCP it does nothing until then.
func (m *GatewayMCP) serve(ctx context.Context, log *slog.Logger) error {
	if m == nil {
		<-ctx.Done()
		return nil
	}
	m.Bus.Name, m.Bus.Logger = "mcp", log
	c, err := client.Connect(ctx, clientOf(m.Bus, m.Tenant))
	if err != nil {
		return fmt.Errorf("connect as tenant %s: %w", m.Tenant, err)
	}
	defer c.Close()
	s, err := m.Front.server(c, log)
	if err != nil {
		return err
	}
	return m.HTTP.serve(ctx, s, log)
}

// EmbeddedOptions of a gateway that brings its host.
type EmbeddedOptions struct {
	Local LocalOptions
	// MCP is served beside the api; nil: it is not.
	MCP    *GatewayMCP
	Logger *slog.Logger
	// OnUp is called when the api is served; it may be nil.
	OnUp func()
}

// Embedded is NATS, worker, keeper and gateway in one process, and MCP where that is
// asked for, until ctx ends. Then MCP ends first, its sessions with it, and then the rest.
func Embedded(ctx context.Context, o EmbeddedOptions) (err error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.MCP != nil {
		if err := o.MCP.HTTP.validate(); err != nil {
			return err
		}
	}
	o.Local.Logger = o.Logger
	local, err := StartLocal(ctx, o.Local)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, local.Stop()) }()
	if o.OnUp != nil {
		o.OnUp()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with ctx
		select {
		case <-local.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	if o.MCP != nil {
		o.MCP.Bus, o.MCP.Tenant = local.Bus("mcp"), Tenant
	}
	return o.MCP.serve(ctx, o.Logger)
}
