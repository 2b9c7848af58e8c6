package mcp

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

const (
	// maxCalls is how many calls of one connection are in work; more wait maxQueued and
	// are then answered "overloaded".
	maxCalls  = 256
	maxQueued = 10 * time.Second
	// closeLimit bounds the end of a session at the end of its connection.
	closeLimit = 30 * time.Second
	// cancelLimit bounds the cancel that follows a cancelled call.
	cancelLimit = 10 * time.Second
)

// errEnded is the cause of what a connection still did when it ended.
var errEnded = wire.Errorf(wire.CodeSessionClosed, "the connection has ended")

// conn is one client: one MCP connection, or all requests of one session where the
// protocol has no connections. It opens its Limpet session at the first use.
type conn struct {
	s   *Server
	sdk *sdk.Server
	log *slog.Logger
	// id is the Mcp-Session-Id of a connection over HTTP.
	id string
	// name of the Limpet session; kept at the end, or closed with the connection.
	name string
	kept bool
	// nonce makes an execution id of the id of a request. It is fresh for each connection,
	// because ids of requests start at 1 in each. "": ids of requests name nothing.
	nonce string

	ctx    context.Context // ends with the connection
	cancel context.CancelCauseFunc
	own    sync.WaitGroup // goroutines beside calls; after ctx has ended none is added
	slots  chan struct{}  // maxCalls

	opening chan struct{} // holds the one who opens
	bound   atomic.Pointer[bound]
	tried   atomic.Bool // an open was sent: there may be a session

	left  leftovers
	watch watches

	// onInitialize is told the SDK's session of a connection over HTTP.
	onInitialize func(*sdk.ServerSession)
	ending       sync.Once
}

// bound is the open session.
type bound struct {
	*client.Session
	procs *client.Client // reaches the processes of this session alone
}

// newConn makes a connection; end ends it. name "" is a session of its own.
func (s *Server) newConn(name string, kept, repeats bool) *conn {
	c := &conn{
		s: s, name: name, kept: kept, log: s.cfg.Logger,
		slots: make(chan struct{}, maxCalls), opening: make(chan struct{}, 1),
	}
	if name == "" {
		c.name = "mcp-" + subjects.NewID()
	}
	if repeats {
		c.nonce = subjects.NewID()
	}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	c.left.byID = make(map[string]*left)
	c.watch.byProcess = make(map[string]*watched)
	c.sdk = c.newSDK()
	return c
}

// spawn runs f as the connection's own, unless that has ended.
func (c *conn) spawn(f func()) bool {
	c.s.mu.Lock() // orders with end
	defer c.s.mu.Unlock()
	if c.ctx.Err() != nil {
		return false
	}
	c.own.Go(f) // f ends with c.ctx at the latest; end waits
	return true
}

// session opens the session, once.
func (c *conn) session(ctx context.Context) (*bound, error) {
	if b := c.bound.Load(); b != nil {
		return b, nil
	}
	select {
	case c.opening <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-c.opening }()
	if b := c.bound.Load(); b != nil {
		return b, nil
	}
	if c.ctx.Err() != nil {
		return nil, errEnded
	}
	m := c.s.cfg.Session
	m.Name = c.name
	c.tried.Store(true)
	s, err := c.s.cfg.Client.Open(ctx, m)
	if err != nil {
		return nil, fmt.Errorf("open session %s: %w", c.name, err)
	}
	info := s.Info()
	b := &bound{Session: s, procs: c.s.cfg.Client.Within(info.ID)}
	c.bound.Store(b)
	if !info.Created && info.Live > 0 {
		c.adopt(ctx, b)
	}
	if info.IdleTTLMS > 0 {
		c.spawn(func() { c.keepAlive(b, time.Duration(info.IdleTTLMS)*time.Millisecond) })
	}
	return b, nil
}

// adopt takes what an earlier connection of the session left running as left by this one.
func (c *conn) adopt(ctx context.Context, b *bound) {
	l, err := b.List(ctx)
	if err != nil {
		return // what runs is listed when it is asked for
	}
	for i := range l.Processes {
		if r := &l.Processes[i]; !r.State.Terminal() {
			c.leave(r, c.s.cfg.Notices, 0)
		}
	}
}

// keepAlive opens the session again and again, so that it is idle only when the
// connection is gone: whether it ended or its process was killed.
func (c *conn) keepAlive(b *bound, ttl time.Duration) {
	t := time.NewTicker(max(ttl/3, 100*time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-t.C:
		}
		if c.bound.Load() != b {
			return
		}
		m := c.s.cfg.Session
		m.Name = c.name
		ctx, cancel := context.WithTimeout(c.ctx, ttl/3)
		s, err := c.s.cfg.Client.Open(ctx, m)
		cancel()
		if err == nil && s.Info().ID != b.Info().ID {
			c.bound.CompareAndSwap(b, nil) // it was closed meanwhile, and this is a new one
			return
		}
	}
}

// gone reports whether err says that the session has ended: then the next call opens it
// anew.
func (c *conn) gone(b *bound, err error) bool {
	if err == nil {
		return false
	}
	e := wire.AsError(err)
	if e.Code != wire.CodeSessionClosed && (e.Code != wire.CodeNotFound || e.Field != "session_name") {
		return false
	}
	c.bound.CompareAndSwap(b, nil)
	return c.ctx.Err() == nil
}

// execution is the execution id of a command: given, or made of the id of the request,
// or "" for a fresh one.
func (c *conn) execution(given, request string) string {
	if given != "" || c.nonce == "" || request == "" {
		return given
	}
	h := sha256.Sum256([]byte(c.nonce + " " + request))
	return "mcp-" + base64.RawURLEncoding.EncodeToString(h[:24])
}

// enter takes a place among the calls in work; exit gives it back.
func (c *conn) enter(ctx context.Context) (exit func(), err error) {
	select {
	case c.slots <- struct{}{}:
		return func() { <-c.slots }, nil
	default:
	}
	t := time.NewTimer(maxQueued)
	defer t.Stop()
	select {
	case c.slots <- struct{}{}:
		return func() { <-c.slots }, nil
	case <-t.C:
		return nil, wire.Errorf(wire.CodeOverloaded, "%d calls of this connection are in work; nothing was done; try again shortly", maxCalls)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// end ends the connection: calls in work return, and a session of its own is closed with
// all that runs in it. It returns when that is done, at the latest after closeLimit.
func (c *conn) end() {
	c.ending.Do(func() {
		defer c.s.running.Done()
		c.s.mu.Lock()
		c.cancel(errEnded)
		delete(c.s.conns, c)
		c.s.mu.Unlock()
		c.own.Wait()
		if !c.kept && c.tried.Load() {
			c.close()
		}
	})
}

// close closes the session.
func (c *conn) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	_, err := c.s.cfg.Client.Session(c.name).Close(ctx)
	if err != nil && wire.AsError(err).Code != wire.CodeNotFound {
		c.log.Warn("a session was not closed with its connection; it ends when it is idle", "session", c.name, "err", err)
	}
}
