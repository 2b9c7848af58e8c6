package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/gateway/mcp"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// mcpEnd bounds the end of an MCP server: by then its sessions are closed, which ends
// their processes with their grace, or it goes without.
const mcpEnd = 20 * time.Second

// MCPOptions of an MCP server for the one user of a host.
type MCPOptions struct {
	// Owner says whose processes they are: of what is up in its state directory, or of an
	// up that is started in the background. Not used with Private.
	Owner EnsureOptions
	// Private runs everything in this process, and in memory.
	Private bool
	Front   MCPFront
	// HTTP serves streamable HTTP; nil serves one client over In and Out.
	HTTP   *MCPHTTP
	In     io.ReadCloser
	Out    io.WriteCloser
	Logger *slog.Logger
}

// MCPFront says what MCP clients get.
type MCPFront struct {
	// Session is how that of a connection is opened. With a name it is shared and kept;
	// without, each connection has one of its own, which ends with it.
	Session wire.Open
	// OnCancel: kill (default) or keep what a cancelled call runs.
	OnCancel string
	// Notices of what ended: inject (default), notify or silent.
	Notices string
	// YieldMax is the longest that a call takes before it answers with a handle; 0 is the
	// default of package mcp.
	YieldMax time.Duration
	// NonzeroIsError marks the result of a command that exited nonzero as an error.
	NonzeroIsError bool
}

func (f *MCPFront) server(c *client.Client, log *slog.Logger) (*mcp.Server, error) {
	return mcp.New(mcp.Config{
		Client: c, Session: f.Session, OnCancel: mcp.OnCancel(f.OnCancel), Notices: mcp.Notices(f.Notices),
		YieldMax: f.YieldMax, NonzeroIsError: f.NonzeroIsError, Version: Version(), Logger: log,
	})
}

// MCP serves until ctx ends, or the client of In has gone: nil then. The sessions that
// are its own have ended when it returns, or mcpEnd has passed.
func MCP(ctx context.Context, o MCPOptions) (err error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.Owner.Logger = o.Logger
	if o.HTTP != nil {
		if err := o.HTTP.validate(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c, end, err := o.connect(ctx, cancel)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	s, err := o.Front.server(c, o.Logger)
	if err != nil {
		return err
	}
	if o.HTTP != nil {
		err = o.HTTP.serve(ctx, s, o.Logger)
	} else {
		err = bounded(ctx, func() error { return s.ServeStdio(ctx, o.In, o.Out) })
	}
	if cause := context.Cause(ctx); errors.Is(cause, errOwner) {
		err = errors.Join(cause, err)
	}
	return err
}

// errOwner: there is no owner of the state directory and cannot be one.
var errOwner = errors.New("limpet up cannot be reached")

// connect connects to the owner, or becomes one. When an owner is gone for good, fail is
// called. The returned function ends what connect started.
func (o *MCPOptions) connect(ctx context.Context, fail context.CancelCauseFunc) (*client.Client, func() error, error) {
	var b bus.Config
	end, tenant := func() error { return nil }, Tenant
	if o.Private {
		local, err := StartLocal(ctx, LocalOptions{Exe: o.Owner.Exe, Cwd: o.Front.Session.Cwd, Logger: o.Logger})
		if err != nil {
			return nil, nil, fmt.Errorf("start a private limpet: %w", err)
		}
		b, end = local.Bus("limpet mcp"), local.Stop
		go func() { // ends with the parts, which end stops
			<-local.Done()
			fail(errOwner)
		}()
	} else {
		if err := o.Owner.validate(); err != nil {
			return nil, nil, err
		}
		d, err := Ensure(ctx, o.Owner)
		if err != nil {
			return nil, nil, err
		}
		b, tenant = d.Bus("limpet mcp"), d.Tenant
		b.Dial = dialOwner(ctx, o.Owner, d, func(err error) { fail(fmt.Errorf("%w: %w", errOwner, err)) })
	}
	c, err := client.Connect(ctx, clientOf(b, tenant))
	if err != nil {
		return nil, nil, errors.Join(err, end())
	}
	return c, func() error { c.Close(); return end() }, nil
}

// clientOf is how a client connects as a tenant.
func clientOf(b bus.Config, tenant string) client.Config {
	return client.Config{
		URL: b.URL, Dial: b.Dial, User: b.User, Password: b.Password, CredsFile: b.CredsFile,
		InboxPrefix: b.InboxPrefix, Tenant: tenant, Logger: b.Logger,
	}
}

// bounded runs f, which ends soon after ctx, or at the end of its input. What has not
// ended mcpEnd after ctx is left to the end of this program.
func bounded(ctx context.Context, f func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- f() }() // ends with f
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	t := time.NewTimer(mcpEnd)
	defer t.Stop()
	select {
	case err := <-ended:
		return err
	case <-t.C:
		return fmt.Errorf("the session did not end within %v", mcpEnd)
	}
}
