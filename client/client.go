// Package client is the Go SDK: sessions and processes through the api of a gateway.
// It speaks only api subjects (and listens to live ones, in Live), so it works the same
// over a unix socket, in process, or to a fleet, and it knows nothing of workers.
//
// Every call checks its message before it is sent; every failure is a *[wire.Error]
// with a stable code and the field at fault. A call that found no gateway, a broken
// connection or a worker that is restarting is tried again for Config.Patience, as far
// as trying again is safe: a start or run carries an execution id always, so that it
// never runs twice; a write without an offset, and a signal, are sent once only.
//
// A request waits 55 s at most. Longer waits (Run, Wait, Follow) are many requests, so
// that a gateway or a worker may come and go in between.
//
// # Concurrency
//
// All methods may be called from any goroutine, and block until the answer or the end
// of their context. The client starts no goroutine of its own.
package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// Config says where the gateway is and who calls. One of Conn, Dial, Socket and URL is
// used, in this order; with none of them, nats://127.0.0.1:4222.
type Config struct {
	// Conn is a connection that the caller keeps and closes.
	Conn *bus.Conn
	// Dial makes connections itself.
	Dial func() (net.Conn, error)
	// Socket is the path of the unix socket that `limpet up` leaves.
	Socket string
	// URL of NATS servers, comma separated.
	URL string
	// Credentials for all but Conn: user and password, a token, or a file.
	User, Password, Token, CredsFile string
	// InboxPrefix is where answers arrive. With a user and none given it is the one that
	// the permissions of the tenant allow.
	InboxPrefix string
	// Root of the subjects; the default when zero.
	Root subjects.Root
	// Tenant that calls; "local" when empty. It must be the one the credentials are for.
	Tenant string
	// MaxRequest bounds one request and the wait for its answer, 1 s to 55 s; default
	// 55 s. Longer waits are several requests.
	MaxRequest time.Duration
	// Patience is how long a call is tried again while nobody answers; default 30 s,
	// negative for one try. The context's end is heeded in any case.
	Patience time.Duration
	// FollowPatience is the same for Follow; default 15 min, longer than a worker may
	// take to come back before its processes are ended.
	FollowPatience time.Duration
	// Logger of the connection; slog.Default when nil.
	Logger *slog.Logger
}

func (c *Config) validate() error {
	if c.Tenant == "" {
		c.Tenant = "local"
	}
	if c.MaxRequest == 0 {
		c.MaxRequest = maxRequest
	}
	if c.MaxRequest < time.Second || c.MaxRequest > maxRequest {
		return wire.Invalid("MaxRequest", "%v is not in 1 s to %v", c.MaxRequest, maxRequest)
	}
	if c.Patience == 0 {
		c.Patience = 30 * time.Second
	}
	if c.FollowPatience == 0 {
		c.FollowPatience = 15 * time.Minute
	}
	if c.Dial == nil && c.Socket != "" {
		c.Dial = bus.DialUnix(c.Socket) // of any length
	}
	if err := subjects.CheckToken("Tenant", c.Tenant); err != nil {
		return wire.Invalid("tenant", "%v", err)
	}
	if c.InboxPrefix == "" && c.User != "" {
		c.InboxPrefix = subjects.InboxPrefix(subjects.RoleTenant, c.Tenant)
	}
	return nil
}

const (
	// maxRequest is the longest that a request may take by the protocol.
	maxRequest = 55 * time.Second

	// wayBack is above the time by which a worker answers before a deadline.
	wayBack = 500 * time.Millisecond

	firstPause = 20 * time.Millisecond
	lastPause  = time.Second

	// headerRoom is kept free in a message for its headers, in bytes.
	headerRoom = 4 << 10
)

// Client speaks for one tenant.
type Client struct {
	cfg  Config
	conn *bus.Conn
	own  bool // conn is closed with the client
	// within is the one session whose processes it reaches; "" for all of the tenant.
	within string
}

// Connect connects and returns when the connection stands, or ctx has ended.
func Connect(ctx context.Context, cfg Config) (*Client, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Conn != nil {
		return &Client{cfg: cfg, conn: cfg.Conn}, nil
	}
	conn, err := bus.Connect(ctx, bus.Config{
		URL: cfg.URL, Dial: cfg.Dial, Name: "limpet client", InboxPrefix: cfg.InboxPrefix, Root: cfg.Root,
		User: cfg.User, Password: cfg.Password, Token: cfg.Token, CredsFile: cfg.CredsFile, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return &Client{cfg: cfg, conn: conn, own: true}, nil
}

// Close closes the connection, unless it was given in Config. Sessions and processes
// live on.
func (c *Client) Close() {
	if c.own {
		c.conn.Close()
	}
}

// Tenant is who calls.
func (c *Client) Tenant() string { return c.cfg.Tenant }

// Conn is the connection in use.
func (c *Client) Conn() *bus.Conn { return c.conn }

// retry says after which failures a request may be sent again.
type retry uint8

const (
	// retryUnsent: only where nobody has seen the request.
	retryUnsent retry = iota
	// retryAlways: also where its outcome is unknown; doing it twice is doing it once.
	retryAlways
	// retryAttach: as retryAlways, and the end of the request's time is no failure: the
	// same request goes on waiting.
	retryAttach
)

// piece bounds the wait that one request asks for, so that the answer is on its way
// before MaxRequest.
func (c *Client) piece() time.Duration { return c.cfg.MaxRequest * 9 / 10 }

// limitFor is the time of one request that asks the other side to wait.
func (c *Client) limitFor(waitMS int64) time.Duration {
	return min(time.Duration(waitMS)*time.Millisecond+5*time.Second, c.cfg.MaxRequest)
}

// call sends m to verb and decodes the answer, trying again as how allows. limit bounds
// one try.
func call[T any](ctx context.Context, c *Client, verb string, m wire.Request, how retry, limit time.Duration) (*T, error) {
	return callFor[T](ctx, c, verb, m, how, limit, c.cfg.Patience)
}

func callFor[T any](ctx context.Context, c *Client, verb string, m wire.Request, how retry, limit, patience time.Duration) (*T, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	data, err := wire.Marshal(subjects.TypeMsgpack, m)
	if err != nil {
		return nil, wire.Invalid("message", "cannot be encoded: %v", err)
	}
	if most := c.conn.MaxPayload() - headerRoom; int64(len(data)) > most {
		return nil, wire.Invalid(largest(verb), "the message has %d bytes with it; at most %d", len(data), most)
	}
	subject := c.conn.Root().API(c.cfg.Tenant, verb)
	pause, since := firstPause, time.Now()
	for {
		answer, err := try[T](ctx, c, subject, data, limit)
		if err == nil {
			return answer, nil
		}
		if ctx.Err() != nil {
			return nil, ended(ctx)
		}
		code, again := judge(err, how)
		if code == wire.CodeDeadlineExceeded && again && how == retryAttach {
			since = time.Now() // somebody listened all the while
			continue
		}
		if !again || time.Since(since) >= patience {
			return nil, wire.AsError(err)
		}
		if err := sleep(ctx, pause/2+rand.N(pause/2)); err != nil {
			return nil, err
		}
		pause = min(2*pause, lastPause)
	}
}

func try[T any](ctx context.Context, c *Client, subject string, data []byte, limit time.Duration) (*T, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	m, err := c.conn.Request(ctx, subject, nil, data)
	if err != nil {
		return nil, err
	}
	return wire.DecodeReply[T](m.Header.Get(subjects.HeaderContentType), m.Data)
}

// judge says whether a request that failed with err may be sent again.
func judge(err error, how retry) (wire.Code, bool) {
	switch {
	case errors.Is(err, bus.ErrNoResponders):
		return wire.CodeUnreachable, true // nobody has seen it
	case errors.Is(err, bus.ErrTimeout):
		return wire.CodeDeadlineExceeded, how != retryUnsent
	case errors.Is(err, bus.ErrDisconnected):
		return wire.CodeUnavailable, how != retryUnsent
	case errors.Is(err, bus.ErrClosed), errors.Is(err, bus.ErrTooLarge), errors.Is(err, bus.ErrDenied):
		return wire.AsError(err).Code, false
	}
	e := wire.AsError(err)
	if reached, ok := e.Details["reached"].(bool); ok && !reached {
		return e.Code, true // the gateway found nobody to hand it to
	}
	switch e.Code {
	case wire.CodeOverloaded: // refused before anything was done
		return e.Code, true
	case wire.CodeUnavailable, wire.CodeUnreachable, wire.CodeDeadlineExceeded, wire.CodeSupervisorShuttingDown:
		return e.Code, how != retryUnsent
	}
	return e.Code, false
}

// largest names the field that makes a message of verb too large.
func largest(verb string) string {
	switch verb {
	case wire.VerbRun, wire.VerbStart, wire.VerbPrepare:
		return "command"
	case wire.VerbWrite:
		return "data"
	case wire.VerbOpen:
		return "env"
	}
	return "message"
}

// ended gives the end of ctx a code.
func ended(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", wire.Errorf(wire.CodeDeadlineExceeded, "the caller's deadline passed"), cause)
	}
	return cause
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ended(ctx)
	}
}
