package mcp

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/limpet-sh/limpet/subjects"
)

// Server serves MCP clients over any number of connections.
type Server struct {
	cfg  Config
	tool *sdk.Tool

	mu      sync.Mutex
	closed  bool           // guarded by mu
	conns   map[*conn]bool // guarded by mu; that have not ended
	running sync.WaitGroup // conns; after closed none is added
}

// New makes a server. It connects to nothing.
func New(cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Server{cfg: cfg, tool: cfg.tool(), conns: make(map[*conn]bool)}, nil
}

// newSDK is the SDK's server of one connection: what it tells is the same for all, and
// what it is asked reaches that connection.
func (c *conn) newSDK() *sdk.Server {
	s := sdk.NewServer(
		&sdk.Implementation{Name: "limpet", Title: "Limpet", Version: c.s.cfg.Version},
		&sdk.ServerOptions{
			Logger:           c.quietLog(),
			Capabilities:     &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}, Resources: &sdk.ResourceCapabilities{ListChanged: true, Subscribe: true}},
			SubscribeHandler: c.subscribe, UnsubscribeHandler: c.unsubscribe,
			GetSessionID: func() string { return cmp.Or(c.id, subjects.NewID()) },
			SetCacheable: func(_ context.Context, _ sdk.Request, r *sdk.Cacheable) {
				if r.CacheScope == "" { // what is the same for all as long as the server runs
					r.TTLMs = int(staticTTL.Milliseconds())
				}
			},
		},
	)
	s.AddTool(c.s.tool, c.callTool)
	c.addResources(s)
	s.AddReceivingMiddleware(c.receive)
	return s
}

// staticTTL is how long a client may keep what does not change.
const staticTTL = time.Hour

// receive answers what the SDK would answer from lists of its own.
func (c *conn) receive(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		switch method {
		case "resources/list":
			return c.listResources(ctx)
		case "initialize":
			res, err := next(ctx, method, req)
			if s, ok := req.GetSession().(*sdk.ServerSession); ok && err == nil && c.onInitialize != nil {
				c.onInitialize(s)
			}
			return res, err
		}
		return next(ctx, method, req)
	}
}

func (c *conn) quietLog() *slog.Logger { return slog.New(onlyWarnings{c.log.Handler()}) }

// onlyWarnings drops what the SDK tells of its daily work.
type onlyWarnings struct{ slog.Handler }

func (h onlyWarnings) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && h.Handler.Enabled(ctx, l)
}

// ServeStdio serves one client over lines of JSON, until in ends, ctx ends, or nobody
// reads out any more; then it closes the connection's session, unless that has a configured name, and
// returns nil.
//
// in is read until it ends or is closed; where a read cannot be interrupted, as one of a
// terminal, the goroutine that reads stays until then.
func (s *Server) ServeStdio(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	in, done := pollable(in)
	defer done()
	return s.run(ctx, newLines(in, out))
}

// Run is ServeStdio over any transport of one connection.
func (s *Server) Run(ctx context.Context, t sdk.Transport) error {
	return s.run(ctx, withIDs{t})
}

func (s *Server) run(ctx context.Context, t sdk.Transport) error {
	c, err := s.admit(s.cfg.Session.Name, s.cfg.Session.Name != "", true)
	if err != nil {
		return err
	}
	defer c.end()
	session, err := c.sdk.Connect(ctx, t, nil)
	if err != nil {
		return err
	}
	over := make(chan error, 1)
	go func() { over <- session.Wait() }() // ends with the transport
	select {
	case err := <-over:
		for _, gone := range []error{io.EOF, io.ErrClosedPipe, os.ErrClosed, syscall.EPIPE} {
			if errors.Is(err, gone) {
				return nil // the client is gone, which is its right
			}
		}
		return err
	case <-ctx.Done():
	case <-c.ctx.Done():
	}
	c.cancel(errEnded) // calls in work answer now
	if l, ok := t.(*lines); ok {
		l.stop()
	} else {
		go session.Close() //nolint:errcheck // it waits for a read that may not end
	}
	t2 := time.NewTimer(time.Second)
	defer t2.Stop()
	select {
	case <-over:
	case <-t2.C: // a read that nothing interrupts
	}
	return nil
}

// admit makes a connection, which is to be ended.
func (s *Server) admit(name string, kept, repeats bool) (*conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errEnded
	}
	c := s.newConn(name, kept, repeats)
	s.conns[c] = true
	s.running.Add(1)
	return c, nil
}

// Close ends all connections and the sessions that are theirs, and returns when that is
// done or ctx ends. What comes later is refused.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		go c.end() // ends after closeLimit at the latest; running waits
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { s.running.Wait(); close(done) }() // ends with the last connection
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
