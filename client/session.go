package client

import (
	"context"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// Session is one opened session. It is found by its name, so it stays valid when its
// worker restarts.
type Session struct {
	c    *Client
	info wire.Session
}

// Open opens a session: the same name gives the same session. Without a name it gets a
// fresh one.
func (c *Client) Open(ctx context.Context, m wire.Open) (*Session, error) {
	m.Version = wire.Version
	if m.Name == "" {
		m.Name = subjects.NewID() // so that a second try finds what the first made
	}
	info, err := call[wire.Session](ctx, c, wire.VerbOpen, &m, retryAlways, c.cfg.MaxRequest)
	if err != nil {
		return nil, err
	}
	return &Session{c: c, info: *info}, nil
}

// Session is a handle on a session that exists, by name; it asks nobody.
func (c *Client) Session(name string) *Session {
	return &Session{c: c, info: wire.Session{Version: wire.Version, Name: name, Tenant: c.cfg.Tenant}}
}

// Info is the session as Open found it.
func (s *Session) Info() wire.Session { return s.info }

// Client is whose session it is.
func (s *Session) Client() *Client { return s.c }

// ref names the session: by name, which outlives an incarnation in the caches of all
// gateways.
func (s *Session) ref(r *wire.SessionRef) {
	*r = wire.SessionRef{SessionName: s.info.Name}
}

// Run runs a command to its end and returns its receipt and its output as text. It
// returns earlier, the process going on, after YieldMS or as OnTimeout says. An absent
// execution id is made up and stands in the receipt. When ctx ends, the process goes on.
func (s *Session) Run(ctx context.Context, m wire.Run) (*wire.Result, error) {
	m.Version = wire.Version
	s.ref(&m.SessionRef)
	if m.ExecutionID == "" {
		m.ExecutionID = subjects.NewID()
	}
	began, yield := time.Now(), time.Duration(m.YieldMS)*time.Millisecond
	for {
		sent := time.Now()
		res, err := call[wire.Result](ctx, s.c, wire.VerbRun, &m, retryAttach, s.c.cfg.MaxRequest)
		if err != nil || !res.Yielded || time.Since(sent) < s.c.cfg.MaxRequest-wayBack {
			return res, err
		}
		// Only our own request was at its end: the same id goes on waiting.
		if m.YieldMS > 0 {
			rest := yield - time.Since(began)
			if rest < time.Millisecond {
				return res, nil
			}
			m.YieldMS = rest.Milliseconds()
		}
	}
}

// Start starts a command and returns its receipt with the first page of its output. An
// absent execution id is made up and stands in the receipt.
func (s *Session) Start(ctx context.Context, m wire.Start) (*wire.Receipt, error) {
	m.Version = wire.Version
	s.ref(&m.SessionRef)
	if m.ExecutionID == "" {
		m.ExecutionID = subjects.NewID()
	}
	return call[wire.Receipt](ctx, s.c, wire.VerbStart, &m, retryAlways, s.c.cfg.MaxRequest)
}

// Prepare says what a start would do, and starts nothing.
func (s *Session) Prepare(ctx context.Context, m wire.Prepare) (*wire.Prepared, error) {
	m.Version = wire.Version
	s.ref(&m.SessionRef)
	return call[wire.Prepared](ctx, s.c, wire.VerbPrepare, &m, retryAlways, s.c.cfg.MaxRequest)
}

// Cancel ends an execution by its id, also one whose start has not arrived yet: that
// start will then start nothing.
func (s *Session) Cancel(ctx context.Context, executionID string) (*wire.Receipt, error) {
	m := wire.Cancel{Version: wire.Version, ExecutionID: executionID}
	s.ref(&m.SessionRef)
	return call[wire.Receipt](ctx, s.c, wire.VerbCancel, &m, retryAlways, s.c.cfg.MaxRequest)
}

// List returns the processes of the session.
func (s *Session) List(ctx context.Context) (*wire.Processes, error) {
	m := wire.List{Version: wire.Version}
	s.ref(&m.SessionRef)
	return call[wire.Processes](ctx, s.c, wire.VerbList, &m, retryAlways, s.c.cfg.MaxRequest)
}

// Close ends the session and all its processes, and returns when they have ended.
func (s *Session) Close(ctx context.Context) (*wire.Session, error) {
	m := wire.CloseSession{Version: wire.Version}
	s.ref(&m.SessionRef)
	return call[wire.Session](ctx, s.c, wire.VerbClose, &m, retryAlways, s.c.cfg.MaxRequest)
}

// ListAll returns the sessions of the tenant and their processes.
func (c *Client) ListAll(ctx context.Context) (*wire.Processes, error) {
	m := wire.List{Version: wire.Version, All: true}
	return call[wire.Processes](ctx, c, wire.VerbList, &m, retryAlways, c.cfg.MaxRequest)
}
