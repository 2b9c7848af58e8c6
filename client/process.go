package client

import (
	"context"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// Within is a client whose calls reach only the processes of one session, given by its
// id: all others are as unknown to it as those that never were. It shares the connection.
func (c *Client) Within(session string) *Client {
	n := *c
	n.own, n.within = false, session
	return &n
}

func (c *Client) ref(process string) wire.ProcessRef {
	return wire.ProcessRef{Process: process, InSession: c.within}
}

func (c *Client) confine(r *wire.ProcessRef) {
	if c.within != "" {
		r.InSession = c.within
	}
}

// Read reads a page of output. The same cursor gives the same chunks every time.
func (c *Client) Read(ctx context.Context, m wire.Read) (*wire.Page, error) {
	m.Version = wire.Version
	c.confine(&m.ProcessRef)
	if err := m.Validate(); err != nil {
		return nil, err
	}
	until := time.Now().Add(time.Duration(m.WaitMS) * time.Millisecond)
	for {
		m.WaitMS = max(0, min(time.Until(until), c.piece()).Milliseconds())
		p, err := call[wire.Page](ctx, c, wire.VerbRead, &m, retryAlways, c.limitFor(m.WaitMS))
		if err != nil || len(p.Chunks) > 0 || p.End || p.CursorExpired || m.WaitMS == 0 || !time.Now().Before(until) {
			return p, err
		}
		if p.Owner != "" { // answered at once: the worker is away
			if err := sleep(ctx, min(time.Until(until), lastPause)); err != nil {
				return nil, err
			}
		}
	}
}

// Wait waits for the end of a process and returns its receipt, the same also when
// WaitMS is over first: then its state is not terminal. It cancels nothing.
func (c *Client) Wait(ctx context.Context, m wire.Wait) (*wire.Receipt, error) {
	m.Version = wire.Version
	c.confine(&m.ProcessRef)
	if err := m.Validate(); err != nil {
		return nil, err
	}
	if m.WaitMS == 0 {
		m.WaitMS = 1000
	}
	until := time.Now().Add(time.Duration(m.WaitMS) * time.Millisecond)
	for {
		piece := m
		piece.WaitMS = max(1, min(time.Until(until), c.piece()).Milliseconds())
		r, err := call[wire.Receipt](ctx, c, wire.VerbWait, &piece, retryAlways, c.limitFor(piece.WaitMS))
		if err != nil {
			return nil, err
		}
		if r.State.Terminal() || m.For == "exit" && r.ExitedAt != nil || !time.Now().Before(until) {
			return r, nil
		}
		if r.State == wire.StateUnreachable { // answered at once from the record
			if err := sleep(ctx, min(time.Until(until), lastPause)); err != nil {
				return nil, err
			}
		}
	}
}

// WaitFor waits on the worker until something is true of a process, or of several, or
// the time is up. It cancels nothing.
func (c *Client) WaitFor(ctx context.Context, m wire.WaitFor) (*wire.Waited, error) {
	m.Version = wire.Version
	c.confine(&m.ProcessRef)
	if err := m.Validate(); err != nil {
		return nil, err
	}
	if m.WaitMS == 0 {
		m.WaitMS = wire.DefaultWaitForMS
	}
	began := time.Now()
	until := began.Add(time.Duration(m.WaitMS) * time.Millisecond)
	for {
		piece := m
		piece.WaitMS = max(1, min(time.Until(until), c.piece()).Milliseconds())
		sent := time.Now()
		if m.For == "quiet" { // which may be longer than one request
			piece.WaitedMS = min(m.WaitedMS+sent.Sub(began).Milliseconds(), wire.MaxWaitMS)
		}
		w, err := call[wire.Waited](ctx, c, wire.VerbWaitFor, &piece, retryAlways, c.limitFor(piece.WaitMS))
		if err != nil || w.Met || w.Over() || !time.Now().Before(until) {
			return w, err
		}
		if time.Since(sent) < lastPause/2 { // nobody waited: answered from the records
			if err := sleep(ctx, min(time.Until(until), lastPause)); err != nil {
				return nil, err
			}
		}
	}
}

// Search looks for lines in the output of a process.
func (c *Client) Search(ctx context.Context, m wire.Search) (*wire.Found, error) {
	m.Version = wire.Version
	c.confine(&m.ProcessRef)
	return call[wire.Found](ctx, c, wire.VerbSearch, &m, retryAlways, c.cfg.MaxRequest)
}

// WaitEnd waits for the end of a process for as long as ctx allows.
func (c *Client) WaitEnd(ctx context.Context, process string) (*wire.Receipt, error) {
	for {
		r, err := c.Wait(ctx, wire.Wait{ProcessRef: c.ref(process), WaitMS: wire.MaxWaitMS})
		if err != nil || r.State.Terminal() {
			return r, err
		}
	}
}

// Status returns the receipt of a process.
func (c *Client) Status(ctx context.Context, process string) (*wire.Receipt, error) {
	m := wire.Status{Version: wire.Version, ProcessRef: c.ref(process)}
	return call[wire.Receipt](ctx, c, wire.VerbStatus, &m, retryAlways, c.cfg.MaxRequest)
}

// Write writes to the input of a process. With an offset it is tried again safely: what
// was typed is not typed twice. Without one it is sent once, and a lost answer is an
// error of code delivery_unknown.
func (c *Client) Write(ctx context.Context, m wire.Write) (*wire.Receipt, error) {
	m.Version = wire.Version
	c.confine(&m.ProcessRef)
	how := retryUnsent
	if m.Offset != nil {
		how = retryAlways
	}
	r, err := call[wire.Receipt](ctx, c, wire.VerbWrite, &m, how, c.cfg.MaxRequest)
	if err != nil && how == retryUnsent {
		return nil, undelivered(err)
	}
	return r, err
}

// CloseStdin ends the input of a process.
func (c *Client) CloseStdin(ctx context.Context, process string) (*wire.Receipt, error) {
	m := wire.CloseStdin{Version: wire.Version, ProcessRef: c.ref(process)}
	return call[wire.Receipt](ctx, c, wire.VerbCloseStdin, &m, retryAlways, c.cfg.MaxRequest)
}

// Resize sets the size of a process's terminal.
func (c *Client) Resize(ctx context.Context, process string, size wire.WindowSize) (*wire.Receipt, error) {
	m := wire.Resize{Version: wire.Version, ProcessRef: c.ref(process), WindowSize: size}
	return call[wire.Receipt](ctx, c, wire.VerbResize, &m, retryAlways, c.cfg.MaxRequest)
}

// Signal sends one signal to the process group, by name or number. It is sent once; a
// lost answer is an error of code delivery_unknown.
func (c *Client) Signal(ctx context.Context, process, signal string) (*wire.Receipt, error) {
	m := wire.Signal{Version: wire.Version, ProcessRef: c.ref(process), Signal: signal}
	r, err := call[wire.Receipt](ctx, c, wire.VerbSignal, &m, retryUnsent, c.cfg.MaxRequest)
	if err != nil {
		return nil, undelivered(err)
	}
	return r, nil
}

// Terminate stops the whole tree of a process and returns when that is observed.
func (c *Client) Terminate(ctx context.Context, m wire.Terminate) (*wire.Receipt, error) {
	m.Version = wire.Version
	c.confine(&m.ProcessRef)
	return call[wire.Receipt](ctx, c, wire.VerbTerminate, &m, retryAlways, c.cfg.MaxRequest)
}

// undelivered names the failures after which nobody knows whether a process got
// something.
func undelivered(err error) error {
	e := wire.AsError(err)
	if reached, ok := e.Details["reached"].(bool); ok && !reached {
		return err
	}
	switch e.Code {
	case wire.CodeDeadlineExceeded, wire.CodeUnavailable, wire.CodeUnreachable, wire.CodeSupervisorShuttingDown:
		return &wire.Error{
			Code:    wire.CodeDeliveryUnknown,
			Message: "no answer came; whether the process got it is unknown; do not retry: " + e.Message,
		}
	}
	return err
}
