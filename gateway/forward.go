package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// address is the part of a message that says whom it is for, and whether it may be sent
// again. Everything else in it is for the worker to judge.
type address struct {
	wire.SessionRef
	wire.ProcessRef
	ExecutionID string `json:"execution_id,omitempty"`
	Offset      *int64 `json:"offset,omitempty"`
}

// repeatable reports whether a request that was done and not answered may be sent again:
// section 7 of the protocol.
func (a *address) repeatable(verb string) bool {
	switch verb {
	case wire.VerbStart, wire.VerbRun:
		return a.ExecutionID != ""
	case wire.VerbWrite:
		return a.Offset != nil
	case wire.VerbSignal, wire.VerbOpen: // an open without a name makes a session each time
		return false
	}
	return true
}

// session is where a session lives; it never moves.
type session struct{ id, worker string }

// process is where a process lives; it never moves either.
type process struct{ worker, execution, session string }

// headers that go on to the worker; what else a tenant sends stays here.
var forwarded = [...]string{subjects.HeaderContentType, subjects.HeaderTrace, subjects.HeaderDeadline, subjects.HeaderVersion}

func (c *call) header() bus.Header {
	if len(c.Header) == 0 {
		return nil
	}
	h := make(bus.Header, len(forwarded))
	for _, k := range forwarded {
		if v := c.Header[k]; len(v) > 0 {
			h[k] = v[:1]
		}
	}
	return h
}

// tries bounds how often one request is sent to a worker that starts again and again.
const tries = 8

// ask sends the request to a worker and returns its answer. subject builds the address
// for an incarnation. When nobody answers there, the worker may have started again: the
// boots are read and the newer incarnation is asked. One that went away while it had the
// request is asked again at its new address, if the request may be repeated.
// bus.ErrNoResponders: nobody has it, and nobody has done it but where that is harmless.
func (g *Gateway) ask(ctx context.Context, c *call, a *address, worker string, data []byte, subject func(e uint64) string) ([]byte, error) {
	leave, err := g.workers.enter(c.tenant, worker)
	if err != nil {
		return nil, err
	}
	defer leave()
	asked := time.Now()
	e, err := g.workers.current(ctx, worker)
	if err != nil {
		return nil, noRecords(err)
	}
	for range tries {
		again := false // at the same address
		if e != 0 {
			reply, err := g.askOne(ctx, c, worker, e, data, subject(e))
			again = errors.Is(err, errWent) && a.repeatable(c.verb)
			if !again && !errors.Is(err, bus.ErrNoResponders) {
				return reply, went(err, worker)
			}
			if again {
				asked = time.Now()
			}
		}
		if err := g.workers.refresh(ctx, asked); err != nil {
			return nil, noRecords(err)
		}
		now := g.workers.incarnation(worker)
		if now == 0 || now == e && !again {
			return nil, bus.ErrNoResponders
		}
		e = now
	}
	return nil, bus.ErrNoResponders
}

// askOne asks one incarnation, as long as it is there and the worker's newest. errWent:
// it had the request when it went away.
func (g *Gateway) askOne(ctx context.Context, c *call, worker string, e uint64, data []byte, subject string) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer g.workers.watch(worker, e, func() { cancel(errWent) })()
	m, err := g.conn.Request(ctx, subject, c.header(), data)
	if err == nil {
		return m.Data, nil
	}
	if errors.Is(context.Cause(ctx), errWent) {
		return nil, errWent
	}
	return nil, err
}

// went says that a worker went away while it had a request.
func went(err error, worker string) error {
	if !errors.Is(err, errWent) {
		return err
	}
	return &wire.Error{
		Code:    wire.CodeUnreachable,
		Message: "the worker ended while it had the request; whether it was done is not known; section 7 of the protocol says what may be sent again",
		Details: map[string]any{"owner": wire.OwnerUnreachable, "reached": true, "worker": worker},
	}
}

// noRecords is the answer when the store cannot be read: not to be taken for the
// silence of a worker.
func noRecords(err error) error {
	if errors.Is(err, bus.ErrNoResponders) || errors.Is(err, bus.ErrTimeout) {
		return wire.Errorf(wire.CodeUnavailable, "the records cannot be read now; try again")
	}
	return err
}

// noWorker says that a request reached nobody, so that it is safe to send it again.
func noWorker(what string, details map[string]any) *wire.Error {
	details["owner"], details["reached"] = wire.OwnerUnreachable, false
	return &wire.Error{
		Code:    wire.CodeUnreachable,
		Message: "the worker of this " + what + " does not answer; the request reached nobody; try again",
		Details: details,
	}
}

// toSession forwards a request to the session it names.
func (g *Gateway) toSession(ctx context.Context, c *call) ([]byte, error) {
	var a address
	if err := wire.Unmarshal(c.ContentType(), c.Data, &a, false); err != nil {
		return nil, err
	}
	key, err := sessionKey(c.tenant, a.SessionRef)
	if err != nil {
		return nil, err
	}
	s, known := g.sessions.get(key)
	if !known {
		if s, err = g.findSession(ctx, c, a.SessionRef); err != nil {
			return closedAlready(c, err)
		}
		g.sessions.put(key, s)
	}
	reply, err := g.askSession(ctx, c, &a, s)
	if err == nil && known && says(c.ContentType(), reply, wire.CodeNotFound, wire.CodeSessionClosed) {
		// The name may stand for a newer session than the one remembered.
		g.sessions.drop(key)
		now, ferr := g.findSession(ctx, c, a.SessionRef)
		if ferr != nil {
			return closedAlready(c, ferr)
		}
		if now != s {
			g.sessions.put(key, now)
			reply, err = g.askSession(ctx, c, &a, now)
		}
	}
	if c.verb == wire.VerbClose {
		g.sessions.drop(key)
	}
	if errors.Is(err, bus.ErrNoResponders) {
		return nil, noWorker("session", map[string]any{"session": s.id, "worker": s.worker})
	}
	return reply, err
}

// closedError is session_closed with the session that is closed.
type closedError struct {
	err *wire.Error
	rec *wire.SessionRecord
}

func (e *closedError) Error() string { return e.err.Error() }
func (e *closedError) Unwrap() error { return e.err }

// closedAlready answers the close of a closed session with what the first close left.
func closedAlready(c *call, err error) ([]byte, error) {
	if e, ok := errors.AsType[*closedError](err); ok && c.verb == wire.VerbClose {
		s := sessionOf(e.rec)
		return wire.EncodeReply(c.ContentType(), &s, nil)
	}
	return nil, err
}

func (g *Gateway) askSession(ctx context.Context, c *call, a *address, s session) ([]byte, error) {
	return g.ask(ctx, c, a, s.worker, c.Data, func(e uint64) string {
		return g.conn.Root().Session(c.tenant, s.worker, e, s.id, c.verb)
	})
}

// sessionKey is the cache's key for a reference, which must name exactly one session.
func sessionKey(tenant string, ref wire.SessionRef) (string, error) {
	switch {
	case ref.Session == "" && ref.SessionName == "":
		return "", wire.Invalid("session", "missing; give session or session_name")
	case ref.Session != "" && ref.SessionName != "":
		return "", wire.Invalid("session_name", "session is given too; give one of both")
	case ref.Session != "":
		if err := subjects.CheckToken("session", ref.Session); err != nil {
			return "", wire.Invalid("session", "%v", err)
		}
		return tenant + ".i." + ref.Session, nil
	}
	if err := subjects.CheckToken("session_name", ref.SessionName); err != nil {
		return "", wire.Invalid("session_name", "%v", err)
	}
	return tenant + ".n." + ref.SessionName, nil
}

// findSession reads the record of a session that is open.
func (g *Gateway) findSession(ctx context.Context, c *call, ref wire.SessionRef) (session, error) {
	var rec *wire.SessionRecord
	var err error
	field, name := "session", ref.Session
	if ref.Session != "" {
		rec, _, err = g.reg.SessionByID(ctx, c.tenant, ref.Session)
	} else {
		field, name = "session_name", ref.SessionName
		rec, _, err = g.reg.Session(ctx, c.tenant, ref.SessionName)
	}
	switch {
	case errors.Is(err, registry.ErrNotFound):
		return session{}, &wire.Error{Code: wire.CodeNotFound, Field: field, Message: field + ": there is no session " + name + "; open it"}
	case err != nil:
		return session{}, noRecords(err)
	case rec.Closed:
		return session{}, &closedError{
			&wire.Error{Code: wire.CodeSessionClosed, Field: field, Message: field + ": the session " + name + " is closed; open it again"}, rec,
		}
	}
	return session{rec.ID, rec.Worker}, nil
}
