package actors

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// session is the actor of one agent's mounted tool: it owns processes, admits starts
// within its limits, evicts what is no longer retained, and ends with all it owns.
//
// Everything below the first blank line is touched by run alone.
type session struct {
	deps    *deps
	rec     atomic.Pointer[wire.SessionRecord]
	log     *slog.Logger
	inbox   chan request // bounded: inboxSize; the router answers overloaded
	notices chan notice  // of its processes, which wait for room
	ending  chan closing // of the worker; one is enough
	used    atomic.Int64 // unix nanoseconds of the last call on it or on a process of it
	closing atomic.Bool  // close has begun; nothing more is started
	done    chan struct{}
	onDone  func(*session)

	rev     uint64
	adopted []*process          // what boot found, until run takes it
	members map[string]*process // by process id
	byExec  map[string]*process
	ended   []string     // oldest first
	live    atomic.Int64 // written by run
	kept    atomic.Int64 // ended and retained; written by run
	ttl     *time.Timer
}

// notice is what a process tells its session.
type notice struct {
	id   string
	left bool // the actor is gone; else its command has ended and is retained
	kept bool // leftovers live on: not to be evicted
	// swept: the kept leftovers have been ended; nothing more is to be heard of it.
	swept bool
}

// closing asks a session to end; it answers every request it was given.
type closing struct {
	by    string
	calls []request
	// keep leaves record and processes alone: the worker is going, not the session.
	keep bool
}

func newSession(d *deps, rec *wire.SessionRecord, rev uint64, onDone func(*session)) *session {
	s := &session{
		deps: d, log: d.log.With("session", rec.ID), rev: rev, onDone: onDone,
		inbox: make(chan request, inboxSize), notices: make(chan notice, inboxSize),
		ending: make(chan closing, 1), done: make(chan struct{}),
		members: map[string]*process{}, byExec: map[string]*process{}, ttl: stopped(),
	}
	s.rec.Store(rec)
	s.touch()
	return s
}

// touch keeps the session alive.
func (s *session) touch() { s.used.Store(time.Now().UnixNano()) }

// run is the actor. It returns when the session has ended and all it owned with it.
func (s *session) run() {
	defer close(s.done)
	defer s.onDone(s)
	defer s.ttl.Stop()
	s.adoptMembers()
	s.armTTL()
	for {
		select {
		case r := <-s.inbox:
			if c, ok := s.serve(r); ok {
				s.close(c)
				return
			}
		case n := <-s.notices:
			s.notice(n)
		case c := <-s.ending:
			s.close(c)
			return
		case <-s.ttl.C:
			if s.idle() {
				s.log.Info("session closed: idle")
				s.close(closing{by: "idle ttl"})
				return
			}
			s.armTTL()
		}
	}
}

// serve answers one request; it returns true when the request ends the session.
func (s *session) serve(r request) (closing, bool) {
	switch r.target.Verb {
	case "start":
		with(r, func(m *wire.Start) { s.start(r, m) })
	case "run":
		with(r, func(m *wire.Run) { s.startRun(r, m) })
	case "prepare":
		with(r, func(m *wire.Prepare) { s.prepare(r, m) })
	case "cancel":
		with(r, func(m *wire.Cancel) { s.cancel(r, m) })
	case "list":
		with(r, func(*wire.List) { s.list(r) })
	case "close":
		m, err := decode[wire.CloseSession](r)
		if err != nil {
			refuse(r, err)
			return closing{}, false
		}
		_ = m
		return closing{by: "close", calls: []request{r}}, true
	default:
		refuse(r, wire.Invalid("verb", "%q is no verb of a session", r.target.Verb))
	}
	return closing{}, false
}

func (s *session) notice(n notice) {
	p := s.members[n.id]
	if p == nil {
		return
	}
	if n.left {
		if !slices.Contains(s.ended, n.id) {
			s.live.Add(-1)
		}
		s.forget(p)
		return
	}
	s.touch()
	if !n.swept {
		s.live.Add(-1)
	}
	if n.kept {
		return // it stays until they are ended
	}
	s.ended = append(s.ended, n.id)
	s.evict()
	s.kept.Store(int64(len(s.ended)))
}

// evict drops the oldest ended processes beyond the limit, never a live one, and
// never for a start that is refused (A48).
func (s *session) evict() {
	for len(s.ended) > s.rec.Load().Limits.RetainedProcesses {
		p := s.members[s.ended[0]]
		s.ended = s.ended[1:]
		p.orders <- order{evict: true}
		s.forget(p)
	}
}

func (s *session) forget(p *process) {
	delete(s.members, p.id)
	if s.byExec[p.execution] == p {
		delete(s.byExec, p.execution)
	}
	s.ended = slices.DeleteFunc(s.ended, func(id string) bool { return id == p.id })
	s.deps.dir.removeProcess(p.id)
}

// idle reports whether the TTL has passed without a call and without a live process.
func (s *session) idle() bool {
	ttl := s.rec.Load().IdleTTLMS
	return ttl > 0 && s.live.Load() == 0 && time.Since(time.Unix(0, s.used.Load())) >= time.Duration(ttl)*time.Millisecond
}

func (s *session) armTTL() {
	ttl := time.Duration(s.rec.Load().IdleTTLMS) * time.Millisecond
	if ttl <= 0 {
		return
	}
	rest := ttl - time.Since(time.Unix(0, s.used.Load()))
	s.ttl.Reset(max(rest, ttl/100, time.Millisecond))
}

// info is the session as callers see it.
func (s *session) info() *wire.Session {
	rec := s.rec.Load()
	return &wire.Session{
		Version: wire.Version, ID: rec.ID, Name: rec.Name, Tenant: rec.Tenant, Worker: rec.Worker,
		Incarnation: rec.Incarnation, Cwd: rec.Cwd, CreatedAt: rec.CreatedAt, Closed: rec.Closed,
		Live: int(s.live.Load()), Retained: int(s.kept.Load()), Limits: rec.Limits, IdleTTLMS: rec.IdleTTLMS, Labels: rec.Labels,
	}
}

func (s *session) list(r request) {
	l := wire.Processes{Version: wire.Version, Sessions: []wire.Session{*s.info()}, Processes: make([]wire.Receipt, 0, len(s.members))}
	for _, p := range s.members {
		l.Processes = append(l.Processes, *p.seen())
	}
	slices.SortFunc(l.Processes, func(a, b wire.Receipt) int { return a.CreatedAt.Compare(b.CreatedAt) })
	answer(r, &l)
}

// close ends every process, then the session. It is bounded: a tree that cannot be
// ended is said in its receipt and left to the keeper.
func (s *session) close(c closing) {
	s.closing.Store(true)
	if c.keep {
		s.leave()
		return
	}
	rec := *s.rec.Load()
	longest := defaultGrace
	for _, p := range s.members {
		longest = max(longest, p.grace)
		p.orders <- order{cause: wire.ReasonSessionClosed, by: c.by, mode: keeper.Terminate, grace: p.grace}
	}
	limit := time.NewTimer(longest + goneLimit + collectLimit)
	defer limit.Stop()
	for s.live.Load() > 0 {
		select {
		case n := <-s.notices:
			s.notice(n)
		case r := <-s.inbox:
			refuse(r, errClosed(rec.Name))
		case <-limit.C:
			s.log.Error("processes left at close", "live", s.live.Load())
			s.live.Store(0)
		}
	}
	for _, p := range s.members {
		p.orders <- order{evict: true}
	}
	for _, p := range s.members {
		s.await(p)
	}
	rec.Closed, rec.ClosedAt = true, now()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := s.deps.sessions.UpdateSession(ctx, rec.Tenant, &rec, s.rev); err != nil {
		s.log.Warn("record of a closed session", "err", err)
	}
	s.rec.Store(&rec)
	s.deps.dir.removeSession(rec.ID)
	for _, r := range c.calls {
		answer(r, s.info())
	}
	s.drainInbox(errClosed(rec.Name))
}

// await waits for an actor to end while still hearing the others.
func (s *session) await(p *process) {
	for {
		select {
		case <-p.done:
			s.deps.dir.removeProcess(p.id)
			return
		case <-s.notices:
		case r := <-s.inbox:
			refuse(r, errClosed(s.rec.Load().Name))
		}
	}
}

// leave ends the actors and nothing else: the next incarnation adopts.
func (s *session) leave() {
	for _, p := range s.members {
		p.orders <- order{leave: true}
	}
	for _, p := range s.members {
		s.await(p)
	}
	s.drainInbox(wire.Errorf(wire.CodeSupervisorShuttingDown, "the worker is shutting down; its processes run on"))
}

func (s *session) drainInbox(why error) {
	for {
		select {
		case r := <-s.inbox:
			refuse(r, why)
		default:
			return
		}
	}
}

func errClosed(name string) *wire.Error {
	return wire.Errorf(wire.CodeSessionClosed, "session %s has ended; open it again", name)
}
