// Package gateway is the api service: it takes the tool calls of tenants from the bus,
// finds the session or process that each is for, and hands it on. It holds no state
// that matters: what it remembers are addresses, and any number of gateways may run.
//
// The tenant is read from the subject, which the server vouches for, and never from a
// message. A message is decoded as far as its address; the same bytes go on to the
// worker, and the worker's answer comes back as it is. Where a worker does not answer,
// the gateway reads the records again: the worker may have come back as another
// incarnation. If it has not, statuses and waits are answered from the record, reads and
// searches from the OUTPUT stream, with the same cursors; what is not final says so. A
// request whose worker went away with it is sent again where that is harmless, with the
// same ids.
//
// # Concurrency
//
// Run serves until its context ends. The bus's goroutine only counts and hands over;
// each request has a goroutine of its own, at most Config.MaxInFlight at once and
// Config.MaxPerTenant for one tenant, of which Config.MaxPerWorker may wait for one
// worker; one more is answered with code overloaded. A list of all, and a wait for several
// processes, ask the workers side by side, in goroutines that the request waits for. Run
// waits for all of them. The other methods may be called from any goroutine.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// Config of a gateway.
type Config struct {
	// Conn with the permissions of a gateway. It stays the caller's.
	Conn *bus.Conn
	// MaxInFlight bounds the requests in work, those that wait included; default 4,096.
	MaxInFlight int
	// MaxPerTenant bounds those of one tenant; default 1,024.
	MaxPerTenant int
	// MaxPerWorker bounds those of one tenant that wait for one worker; default three
	// quarters of MaxPerTenant, so that a worker that hangs leaves some for the others.
	MaxPerWorker int
	// MaxRequest bounds a request that brings no deadline; default 11 min, above the
	// longest wait.
	MaxRequest time.Duration
	// CacheSize is how many sessions, and how many processes, it remembers the address
	// of; default 65,536 each.
	CacheSize int
	// Logger; slog.Default when nil.
	Logger *slog.Logger
}

func (c *Config) validate() error {
	if c.Conn == nil {
		return errors.New("config: Conn is missing")
	}
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&c.MaxInFlight, 4096)
	def(&c.MaxPerTenant, 1024)
	def(&c.MaxPerWorker, max(1, c.MaxPerTenant*3/4))
	def(&c.CacheSize, 65_536)
	if c.MaxRequest == 0 {
		c.MaxRequest = 11 * time.Minute
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.MaxInFlight < 1 || c.MaxPerTenant < 1 || c.MaxPerWorker < 1 || c.CacheSize < 1 || c.MaxRequest < 0 {
		return errors.New("config: MaxInFlight, MaxPerTenant, MaxPerWorker, CacheSize and MaxRequest must be positive")
	}
	return nil
}

const (
	// queue is the group of gateways: each request goes to one of them.
	queue = "gw"
	// backlog is how many requests wait for the bus's goroutine, which only hands over.
	backlog = 8192
	// drainTime is how long requests in work may go on when Run is to end.
	drainTime = time.Second
)

var errOverloaded = wire.Errorf(wire.CodeOverloaded, "too many requests are in work; nothing was started; try again shortly")

// Gateway forwards the api of all tenants.
type Gateway struct {
	cfg      Config
	conn     *bus.Conn
	reg      *registry.Registry
	log      *slog.Logger
	workers  *workers
	sessions *cache[session]
	procs    *cache[process]

	restoring chan struct{} // a token for each output in memory
	waits     atomic.Int64  // of wait_for, one a process

	serving  chan struct{} // closed when the api is subscribed
	inFlight sync.WaitGroup
	mu       sync.Mutex
	tenants  map[string]int // guarded by mu; requests in work
	total    int            // guarded by mu
	served   atomic.Int64
	refused  atomic.Int64
}

// New makes a gateway; Run serves.
func New(cfg Config) (*Gateway, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	reg := registry.New(cfg.Conn, "")
	return &Gateway{
		cfg: cfg, conn: cfg.Conn, reg: reg, log: cfg.Logger,
		workers:  newWorkers(reg, cfg.MaxPerWorker),
		sessions: newCache[session](cfg.CacheSize), procs: newCache[process](cfg.CacheSize),
		restoring: make(chan struct{}, restoreAtOnce),
		tenants:   make(map[string]int), serving: make(chan struct{}),
	}, nil
}

// Serving is closed when requests reach the gateway.
func (g *Gateway) Serving() <-chan struct{} { return g.serving }

// Run serves until ctx ends; it is called once. Then it takes no more requests, gives those in work a
// second, ends the rest with code supervisor_shutting_down, and returns nil.
func (g *Gateway) Run(ctx context.Context) error {
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	sub, err := g.conn.Serve(g.conn.Root().APIAll(), queue, backlog, func(r *bus.Request) { g.admit(own, r) })
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	close(g.serving)
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { g.workers.run(own, g.probe) }) // ends with own, which is cancelled below
	<-ctx.Done()
	limit, stop := context.WithTimeout(own, drainTime)
	defer stop()
	if err := sub.Stop(limit); err != nil {
		g.log.Warn("the api subscription did not drain", "err", err)
	}
	done := make(chan struct{})
	go func() { g.inFlight.Wait(); close(done) }() // ends with the requests, which cancel ends
	select {
	case <-done:
	case <-limit.Done():
	}
	cancel(wire.Errorf(wire.CodeSupervisorShuttingDown, "the gateway is shutting down"))
	<-done
	return nil
}

// Stats count requests since New.
type Stats struct {
	InFlight int
	Served   int64
	Refused  int64 // for being too many
}

// Stats returns the counters.
func (g *Gateway) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return Stats{InFlight: g.total, Served: g.served.Load(), Refused: g.refused.Load()}
}

// admit runs on the bus's goroutine: it refuses what is too much and hands over.
func (g *Gateway) admit(own context.Context, r *bus.Request) {
	tenant, verb, err := g.conn.Root().ParseAPI(r.Subject)
	if err != nil {
		g.answer(r, wire.Invalid("subject", "%v", err))
		return
	}
	g.mu.Lock()
	full := g.total >= g.cfg.MaxInFlight || g.tenants[tenant] >= g.cfg.MaxPerTenant
	if !full {
		g.total++
		g.tenants[tenant]++
		g.inFlight.Add(1)
	}
	g.mu.Unlock()
	if full {
		g.refused.Add(1)
		g.answer(r, errOverloaded)
		return
	}
	go func() { // ends with the request's deadline at the latest; Run waits
		defer g.leave(tenant)
		g.serve(own, &call{Request: r, tenant: tenant, verb: verb})
	}()
}

func (g *Gateway) leave(tenant string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.total--
	if g.tenants[tenant]--; g.tenants[tenant] == 0 {
		delete(g.tenants, tenant)
	}
	g.served.Add(1)
	g.inFlight.Done()
}

// call is one request in work.
type call struct {
	*bus.Request
	tenant string
	verb   string
}

// serve answers one request.
func (g *Gateway) serve(own context.Context, c *call) {
	deadline, ok := c.Deadline()
	if latest := time.Now().Add(g.cfg.MaxRequest); !ok || deadline.After(latest) {
		deadline = latest
	}
	ctx, cancel := context.WithDeadline(own, deadline)
	defer cancel()
	if ctx.Err() != nil {
		g.answer(c.Request, failure(ctx, ctx.Err()))
		return
	}
	reply, err := g.dispatch(ctx, c)
	if err != nil {
		g.answer(c.Request, failure(ctx, err))
		return
	}
	if err := c.Respond(reply); err != nil && !errors.Is(err, bus.ErrNoReply) {
		g.log.Debug("answer not sent", "tenant", c.tenant, "verb", c.verb, "err", err)
		if errors.Is(err, bus.ErrTooLarge) {
			g.answer(c.Request, wire.Errorf(wire.CodeInternal, "the answer is larger than the bus carries; ask for less"))
		}
	}
}

// answer sends an error.
func (g *Gateway) answer(r *bus.Request, err error) {
	if e := wire.AsError(err); e.Code == wire.CodeInternal {
		g.log.Error("request failed", "subject", r.Subject, "err", err)
	}
	if err := r.RespondError(err); err != nil && !errors.Is(err, bus.ErrNoReply) {
		g.log.Debug("error answer not sent", "subject", r.Subject, "err", err)
	}
}

// failure names the error that a caller sees.
func failure(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if e, ok := errors.AsType[*wire.Error](context.Cause(ctx)); ok {
		return e // why the gateway ends it
	}
	return wire.Errorf(wire.CodeDeadlineExceeded, "the request's deadline passed before the answer came; its outcome is unknown here")
}

// dispatch finds out what a request is for and returns the encoded answer.
func (g *Gateway) dispatch(ctx context.Context, c *call) ([]byte, error) {
	if v := c.Header.Get(subjects.HeaderVersion); v != "" && v != strconv.Itoa(wire.Version) {
		return nil, &wire.Error{
			Code: wire.CodeUnsupportedVersion, Field: subjects.HeaderVersion,
			Message: fmt.Sprintf("%s: %.20q is not known here; this side speaks %d", subjects.HeaderVersion, v, wire.Version),
			Details: map[string]any{"supported": []any{wire.Version}},
		}
	}
	switch c.verb {
	case wire.VerbOpen:
		return g.open(ctx, c)
	case wire.VerbList:
		return g.list(ctx, c)
	case wire.VerbClose, wire.VerbPrepare, wire.VerbRun, wire.VerbStart, wire.VerbCancel:
		return g.toSession(ctx, c)
	case wire.VerbWaitFor:
		return g.waitFor(ctx, c)
	case wire.VerbRead, wire.VerbSearch, wire.VerbWait, wire.VerbStatus, wire.VerbWrite, wire.VerbCloseStdin,
		wire.VerbResize, wire.VerbSignal, wire.VerbTerminate:
		return g.toProcess(ctx, c)
	}
	_, err := wire.DecodeRequest(c.verb, c.ContentType(), c.Data) // names the nearest verb
	if err == nil {
		err = wire.Invalid("verb", "%s is not served here", c.verb)
	}
	return nil, err
}
