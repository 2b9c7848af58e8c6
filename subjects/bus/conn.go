package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/limpet-sh/limpet/subjects"
)

// Config says whom to connect to and as whom.
type Config struct {
	// URL of the servers, comma separated; nats://127.0.0.1:4222 when empty. Not used with Dial.
	URL string
	// Dial makes the connection itself: a unix socket ([DialUnix]), or in process.
	Dial func() (net.Conn, error)
	// Name is shown in the server's connection list.
	Name string
	// Credentials: user and password, a token, or a file. All empty means none.
	User, Password, Token, CredsFile string
	// InboxPrefix is where answers arrive, which permissions tie to a user; "_INBOX" when empty.
	InboxPrefix string
	// Root of the subjects; [subjects.Default] when zero.
	Root subjects.Root
	// MaxWaiting bounds the requests and appends that wait for an answer; default 8,192.
	// One more is refused with [ErrOverloaded].
	MaxWaiting int
	// AckWait bounds the wait for the acknowledgement of an append, above a context
	// without an earlier deadline; default 10 s, over the longest election of a leader.
	AckWait time.Duration
	// MaxAsync bounds the appends of AppendAsync in flight; default 256.
	MaxAsync int
	// Logger gets what was lost and why; slog.Default when nil.
	Logger *slog.Logger
	// OnLoss is told what was lost. It may be nil and must not block.
	OnLoss func(Loss)
}

func (c *Config) validate() error {
	if c.URL == "" {
		c.URL = nats.DefaultURL
	}
	if c.InboxPrefix == "" {
		c.InboxPrefix = nats.InboxPrefix[:len(nats.InboxPrefix)-1]
	}
	for t := range strings.SplitSeq(c.InboxPrefix, ".") {
		if err := subjects.CheckToken("InboxPrefix", t); err != nil {
			return err
		}
	}
	if c.Root == (subjects.Root{}) {
		c.Root = subjects.Default()
	}
	if c.MaxWaiting == 0 {
		c.MaxWaiting = 8192
	}
	if c.MaxAsync == 0 {
		c.MaxAsync = 256
	}
	if c.AckWait == 0 {
		c.AckWait = 10 * time.Second
	}
	if c.MaxWaiting < 1 || c.MaxAsync < 1 || c.AckWait < 0 {
		return errors.New("MaxWaiting, MaxAsync and AckWait must be positive")
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// Conn is one connection to NATS. It reconnects for ever until it is closed.
type Conn struct {
	cfg     Config
	nc      *nats.Conn
	js      jetstream.JetStream
	log     *slog.Logger
	replies replies
	async   chan struct{} // a token per AppendAsync in flight

	mu     sync.Mutex
	subs   map[*nats.Subscription]*Subscription // guarded by mu
	downAt time.Time                            // guarded by mu; zero while connected
	calls  map[*apiCall]struct{}                // guarded by mu; see failFast

	losses  lossCounters
	closing atomic.Bool
	closed  chan struct{} // closed when nats.go is done with the connection
}

// Connect connects, trying again until ctx ends; the error then tells the last failure.
// Once connected, the connection comes back by itself for ever; calls made while it is
// away fail with [ErrDisconnected] at once.
func Connect(ctx context.Context, cfg Config) (*Conn, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("bus: %w", err)
	}
	c := &Conn{
		cfg: cfg, log: cfg.Logger.With("conn", cfg.Name),
		async:  make(chan struct{}, cfg.MaxAsync),
		subs:   make(map[*nats.Subscription]*Subscription),
		calls:  make(map[*apiCall]struct{}),
		closed: make(chan struct{}),
	}
	url, opts := c.options()
	retry := time.NewTimer(0)
	defer retry.Stop()
	wait := 10 * time.Millisecond
	var last error
	for {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("bus: connect %s: %w", cfg.target(), errors.Join(context.Cause(ctx), last))
		case <-retry.C:
		}
		nc, err := nats.Connect(url, opts...)
		if err == nil {
			c.nc = nc
			break
		}
		if errors.Is(err, nats.ErrAuthorization) {
			return nil, fmt.Errorf("bus: connect %s as %q: %w", cfg.target(), cfg.User, err)
		}
		last = err
		retry.Reset(wait)
		wait = min(wait*2, time.Second)
	}
	js, err := jetstream.New(c.nc)
	if err != nil {
		c.nc.Close()
		return nil, fmt.Errorf("bus: jetstream: %w", err)
	}
	c.js = js
	c.replies.init(c.nc, cfg.MaxWaiting)
	return c, nil
}

func (c *Config) target() string {
	if c.Dial != nil {
		return "through its dialer"
	}
	return c.URL
}

type dialer func() (net.Conn, error)

func (d dialer) Dial(string, string) (net.Conn, error) { return d() }

// options are those of nats.md: reconnect for ever, notice a dead link in 10 s, and
// never buffer a publish while the connection is away.
func (c *Conn) options() (url string, opts []nats.Option) {
	cfg := &c.cfg
	opts = []nats.Option{
		nats.Name(cfg.Name),
		nats.MaxReconnects(-1),
		nats.CustomReconnectDelay(reconnectDelay),
		nats.IgnoreAuthErrorAbort(),
		nats.PingInterval(5 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.ReconnectBufSize(-1),
		nats.Timeout(2 * time.Second),
		nats.CustomInboxPrefix(cfg.InboxPrefix),
		nats.ErrorHandler(c.onError),
		nats.DisconnectErrHandler(c.onDisconnect),
		nats.ReconnectHandler(c.onReconnect),
		nats.ClosedHandler(func(*nats.Conn) { close(c.closed) }),
		nats.LameDuckModeHandler(func(*nats.Conn) { c.log.Info("the server is going away; moving to another") }),
	}
	url = cfg.URL
	if cfg.Dial != nil {
		// The URL is a placeholder that must not be looked up, and the addresses that
		// the server tells are not ours to follow.
		url = "nats://127.0.0.1:4222"
		opts = append(opts, nats.SetCustomDialer(dialer(cfg.Dial)), nats.IgnoreDiscoveredServers())
	}
	switch {
	case cfg.CredsFile != "":
		opts = append(opts, nats.UserCredentials(cfg.CredsFile))
	case cfg.Token != "":
		opts = append(opts, nats.Token(cfg.Token))
	case cfg.User != "":
		opts = append(opts, nats.UserInfo(cfg.User, cfg.Password))
	}
	return url, opts
}

// reconnectDelay is short at first, because most outages here are a restart of the
// server beside us, and grows to a second, because a fleet must not storm a cluster
// that comes back. Half of it is chance.
func reconnectDelay(attempts int) time.Duration {
	d := time.Second
	if attempts < 7 {
		d = 10 * time.Millisecond << max(attempts, 0)
	}
	return d/2 + rand.N(d/2)
}

// Root builds the subjects of this installation.
func (c *Conn) Root() subjects.Root { return c.cfg.Root }

// Logger is the connection's own, for what is told of losses.
func (c *Conn) Logger() *slog.Logger { return c.log }

// Connected reports whether the connection stands at this moment.
func (c *Conn) Connected() bool { return c.nc.IsConnected() }

// MaxPayload is the largest message the server takes, headers included, in bytes.
func (c *Conn) MaxPayload() int64 { return c.nc.MaxPayload() }

// Flush waits until the server has seen what was published before.
func (c *Conn) Flush(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.cfg.AckWait)
		defer cancel()
	}
	if err := c.nc.FlushWithContext(ctx); err != nil {
		if ctx.Err() != nil {
			return ended(ctx)
		}
		return sendError(err)
	}
	return nil
}

// Close ends the connection: each subscription's handler gets what the server already
// sent (at most 5 s in all), what was published reaches the server, then everything
// stops and every waiting call returns [ErrClosed]. It returns when nothing of the
// connection runs any more. A second call waits for the first.
func (c *Conn) Close() {
	if !c.closing.Swap(true) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if c.nc.IsConnected() {
			c.drain(ctx)
			_ = c.nc.FlushWithContext(ctx) // nobody is left to tell
		}
		c.nc.Close()
		c.replies.fail(ErrClosed)
	}
	<-c.closed
}

func (c *Conn) drain(ctx context.Context) {
	c.mu.Lock()
	subs := slices.Collect(maps.Values(c.subs))
	c.mu.Unlock()
	for _, s := range subs {
		_ = s.sub.Drain() // fails only for one that has ended
	}
	for _, s := range subs {
		select {
		case <-s.done:
		case <-ctx.Done():
			c.log.Warn("a handler did not end in time", "subject", s.sub.Subject)
			return
		}
	}
}
