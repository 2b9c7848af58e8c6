package gateway

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

const (
	// listAtOnce bounds how many sessions of one worker a list asks at a time.
	listAtOnce = 16
	// listPatience is how long a worker has to answer for one session, in a list of all.
	listPatience = 2 * time.Second
)

// list asks the session named, or all open sessions of the tenant.
func (g *Gateway) list(ctx context.Context, c *call) ([]byte, error) {
	req, err := wire.DecodeRequest(c.verb, c.ContentType(), c.Data)
	if err != nil {
		return nil, err
	}
	m := req.(*wire.List)
	if !m.All {
		reply, err := g.toSession(ctx, c)
		if e, ok := errors.AsType[*wire.Error](err); ok && e.Code == wire.CodeUnreachable {
			return g.listRecorded(ctx, c, m.SessionRef)
		}
		return reply, err
	}
	records, err := g.reg.Sessions(ctx, c.tenant)
	if err != nil {
		return nil, noRecords(err)
	}
	l := lister{gateway: g, call: c}
	l.askAll(ctx, records)
	if l.failed != nil {
		return nil, l.failed
	}
	return l.answer(ctx)
}

// listRecorded answers for a session whose worker does not.
func (g *Gateway) listRecorded(ctx context.Context, c *call, ref wire.SessionRef) ([]byte, error) {
	var rec *wire.SessionRecord
	var err error
	if ref.Session != "" {
		rec, _, err = g.reg.SessionByID(ctx, c.tenant, ref.Session)
	} else {
		rec, _, err = g.reg.Session(ctx, c.tenant, ref.SessionName)
	}
	if err != nil {
		return nil, noRecords(err)
	}
	l := lister{gateway: g, call: c}
	l.miss(rec)
	return l.answer(ctx)
}

// lister collects a list of sessions and their processes.
type lister struct {
	gateway *Gateway
	call    *call

	mu      sync.Mutex
	all     wire.Processes  // guarded by mu, as all below
	missing map[string]bool // sessions, by id, of which only the record is known
	failed  error
}

// askAll asks each worker for its open sessions, the workers side by side: one that
// hangs holds up no other.
func (l *lister) askAll(ctx context.Context, records []registry.Entry[wire.SessionRecord]) {
	workers := map[string][]*wire.SessionRecord{}
	for _, r := range records {
		if !r.Record.Closed {
			workers[r.Record.Worker] = append(workers[r.Record.Worker], r.Record)
		}
	}
	var asking sync.WaitGroup
	for _, sessions := range workers {
		asking.Go(func() { l.askWorker(ctx, sessions) }) // ends with its requests, which are bounded
	}
	asking.Wait()
}

// askWorker asks one worker for its sessions. When it has let one request time out, it is
// asked for no more of them.
func (l *lister) askWorker(ctx context.Context, sessions []*wire.SessionRecord) {
	hung, hang := context.WithCancel(ctx)
	defer hang()
	var asking sync.WaitGroup
	defer asking.Wait()
	slots := make(chan struct{}, listAtOnce)
	for _, rec := range sessions {
		select {
		case slots <- struct{}{}:
		case <-hung.Done():
			l.miss(rec)
			continue
		}
		asking.Go(func() { // ends with its request
			defer func() { <-slots }()
			if !l.askOne(ctx, hung, rec) {
				hang()
			}
		})
	}
}

// askOne asks for one session. One that does not answer is given from its record, one
// that has just ended is left out. It reports whether the worker answered.
func (l *lister) askOne(ctx, hung context.Context, rec *wire.SessionRecord) (answered bool) {
	g, c := l.gateway, l.call
	body, err := wire.Marshal(c.ContentType(), &wire.List{Version: wire.Version, SessionRef: wire.SessionRef{Session: rec.ID}})
	if err != nil {
		l.fail(err)
		return true
	}
	limit := listPatience
	if d, ok := ctx.Deadline(); ok { // something is left for the records and the way back
		limit = min(limit, time.Until(d)/2)
	}
	asked, cancel := context.WithTimeout(hung, limit)
	defer cancel()
	reply, err := g.ask(asked, c, &address{}, rec.Worker, body, func(e uint64) string {
		return g.conn.Root().Session(c.tenant, rec.Worker, e, rec.ID, wire.VerbList)
	})
	if err == nil {
		var p *wire.Processes
		if p, err = wire.DecodeReply[wire.Processes](c.ContentType(), reply); err == nil {
			l.add(p)
			return true
		}
	}
	switch {
	case ctx.Err() != nil:
		l.fail(err)
	case asked.Err() != nil:
		l.miss(rec)
		return false
	case errors.Is(err, bus.ErrNoResponders), errors.Is(err, &wire.Error{Code: wire.CodeUnreachable}), errors.Is(err, &wire.Error{Code: wire.CodeOverloaded}):
		l.miss(rec)
	case errors.Is(err, &wire.Error{Code: wire.CodeNotFound}), errors.Is(err, &wire.Error{Code: wire.CodeSessionClosed}):
	default:
		l.fail(err)
	}
	return true
}

func (l *lister) add(p *wire.Processes) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all.Sessions = append(l.all.Sessions, p.Sessions...)
	l.all.Processes = append(l.all.Processes, p.Processes...)
}

// miss takes a session from its record.
func (l *lister) miss(rec *wire.SessionRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := sessionOf(rec)
	s.Owner = wire.OwnerUnreachable
	l.all.Sessions = append(l.all.Sessions, s)
	if l.missing == nil {
		l.missing = map[string]bool{}
	}
	l.missing[rec.ID] = true
}

func (l *lister) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil {
		l.failed = err
	}
}

// answer adds the processes of the sessions that did not answer, from the records.
func (l *lister) answer(ctx context.Context) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.missing) > 0 {
		records, err := l.gateway.reg.Executions(ctx, l.call.tenant)
		if err != nil {
			return nil, noRecords(err)
		}
		for _, e := range records {
			if r := e.Record.Receipt; l.missing[r.Session] && r.Process != "" {
				unreached(&r)
				l.all.Processes = append(l.all.Processes, r)
			}
		}
	}
	l.all.Version = wire.Version
	if l.all.Processes == nil {
		l.all.Processes = []wire.Receipt{}
	}
	slices.SortFunc(l.all.Sessions, func(a, b wire.Session) int { return a.CreatedAt.Compare(b.CreatedAt) })
	slices.SortFunc(l.all.Processes, func(a, b wire.Receipt) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return wire.EncodeReply(l.call.ContentType(), &l.all, nil)
}

func sessionOf(rec *wire.SessionRecord) wire.Session {
	s := wire.Session{
		Version: wire.Version, ID: rec.ID, Name: rec.Name, Tenant: rec.Tenant, Worker: rec.Worker,
		Incarnation: rec.Incarnation, Cwd: rec.Cwd, CreatedAt: rec.CreatedAt, Limits: rec.Limits,
		IdleTTLMS: rec.IdleTTLMS, Labels: rec.Labels, Closed: rec.Closed,
		Shell: rec.Shell, Login: rec.Login, CaptureState: rec.CaptureState,
	}
	if rec.CaptureState || rec.State != nil {
		s.CurrentCwd = rec.CurrentCwd()
	}
	return s
}
