package actors

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
	inbox   chan request // bounded: inboxSize; see deliver
	notices chan notice  // of its processes, which wait for room
	ending  chan closing // of the worker; one is enough
	used    atomic.Int64 // unix nanoseconds of the last call on it or on a process of it
	closing atomic.Bool  // close has begun; nothing more is started
	carry   carrier      // writes rec after a command has changed the session's state
	done    chan struct{}
	onDone  func(*session)

	rev     uint64              // of rec in the store; the carrier's until that has ended
	adopted []*process          // what boot found, until run takes it
	members map[string]*process // by process id
	byExec  map[string]*process
	ended   []string        // retained: oldest first
	held    map[string]bool // ended, with leftovers that were kept
	live    atomic.Int64    // neither ended nor gone; written by run
	kept    atomic.Int64    // ended and retained; written by run
	leaving bool            // by leave: what is asked too late is told so
	ttl     *time.Timer
	own     sync.WaitGroup // its processes, also those that it has evicted
}

// notice is what a process tells its session.
type notice struct {
	id   string
	kind noticeKind
	kept bool // of ended: leftovers live on, so that it is not to be evicted
}

type noticeKind uint8

const (
	noticeEnded    noticeKind = iota // its end is told
	noticeRecorded                   // its record was late, and is written
	noticeSwept                      // the leftovers that it kept have been ended
	noticeLeft                       // the actor is gone
)

func newSession(d *deps, rec *wire.SessionRecord, rev uint64, onDone func(*session)) *session {
	s := &session{
		deps: d, log: d.log.With("session", rec.ID), rev: rev, onDone: onDone,
		inbox: make(chan request, inboxSize), notices: make(chan notice, inboxSize),
		ending: make(chan closing, 1), done: make(chan struct{}),
		carry: newCarrier(), members: map[string]*process{}, byExec: map[string]*process{}, held: map[string]bool{}, ttl: stopped(),
	}
	s.rec.Store(rec)
	s.touch()
	return s
}

// touch keeps the session alive.
func (s *session) touch() { s.used.Store(time.Now().UnixNano()) }

// run is the actor. It returns when the session has ended and all it owned with it. A
// panic ends the session, and no other.
func (s *session) run() {
	defer s.turnAway()
	defer close(s.done)
	defer s.onDone(s)
	defer s.own.Wait()
	defer s.carry.end()
	defer s.ttl.Stop()
	if s.panics(s.loop) {
		if s.panics(func() { s.close(closing{by: "internal error"}) }) {
			s.panics(s.leave)
		}
	}
}

func (s *session) loop() {
	if s.rec.Load().Closed {
		s.close(closing{by: "close"})
		return
	}
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

func (s *session) panics(f func()) (panicked bool) {
	defer func() {
		if v := recover(); v != nil {
			s.log.Error("session actor failed", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			panicked = true
		}
	}()
	f()
	return false
}

// deliver hands a request to the actor. It never blocks: a full mailbox is answered
// "overloaded".
func (s *session) deliver(r request) {
	if !post(s.inbox, r) {
		refuse(r, errOverloaded)
		return
	}
	select {
	case <-s.done: // it ended meanwhile, and may not have seen the request
		s.turnAway()
	default:
	}
}

// turnAway answers what a session that has ended was asked too late.
func (s *session) turnAway() {
	for {
		select {
		case r := <-s.inbox:
			s.refuseLate(r)
		default:
			return
		}
	}
}

func (s *session) refuseLate(r request) {
	switch {
	case s.leaving:
		refuse(r, errLeaving())
	case r.target.Verb == "close":
		answer(r, s.info()) // closing twice is harmless
	default:
		refuse(r, errClosed(s.rec.Load().Name))
	}
}

// serve answers one request; it returns true when the request ends the session.
func (s *session) serve(r request) (c closing, ends bool) {
	defer func() {
		if v := recover(); v != nil {
			refuse(r, fmt.Errorf("panic: %v", v))
			panic(v) // run ends the session
		}
	}()
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
		with(r, func(*wire.CloseSession) { c, ends = closing{by: "close", calls: []request{r}}, true })
	default:
		refuse(r, wire.Invalid("verb", "%q is no verb of a session", r.target.Verb))
	}
	return c, ends
}

func (s *session) notice(n notice) {
	p := s.members[n.id]
	if p == nil {
		return
	}
	switch n.kind {
	case noticeLeft:
		if !s.held[n.id] && !slices.Contains(s.ended, n.id) {
			s.live.Add(-1)
		}
		s.forget(p)
	case noticeEnded:
		s.touch()
		s.live.Add(-1)
		if n.kept {
			s.held[n.id] = true // it stays until they are ended
			break
		}
		s.ended = append(s.ended, n.id)
	case noticeSwept:
		s.touch()
		delete(s.held, n.id)
		s.ended = append(s.ended, n.id)
	}
	s.evict()
}

// evict drops the oldest ended processes beyond the limit, never a live one, never one
// whose end is not recorded yet, and never for a start that is refused (A48).
func (s *session) evict() {
	for len(s.ended) > s.rec.Load().Limits.RetainedProcesses {
		p := s.members[s.ended[0]]
		if !p.recorded.Load() {
			break // it says so when it is
		}
		p.orders <- order{evict: true}
		s.forget(p)
	}
	s.kept.Store(int64(len(s.ended)))
}

// forget takes a process out of every list; its actor is on its way out.
func (s *session) forget(p *process) {
	delete(s.members, p.id)
	delete(s.held, p.id)
	if s.byExec[p.execution] == p {
		delete(s.byExec, p.execution)
	}
	if i := slices.Index(s.ended, p.id); i >= 0 {
		s.ended = slices.Delete(s.ended, i, i+1)
	}
	s.deps.dir.removeProcess(p)
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
	info := &wire.Session{
		Version: wire.Version, ID: rec.ID, Name: rec.Name, Tenant: rec.Tenant, Worker: rec.Worker,
		Incarnation: rec.Incarnation, Cwd: rec.Cwd, CreatedAt: rec.CreatedAt, Closed: rec.Closed,
		Live: int(s.live.Load()), Retained: int(s.kept.Load()), Limits: rec.Limits, IdleTTLMS: rec.IdleTTLMS, Labels: rec.Labels,
		Shell: rec.Shell, Login: rec.Login, CaptureState: rec.CaptureState,
	}
	if rec.CaptureState || rec.State != nil {
		info.CurrentCwd = rec.CurrentCwd()
	}
	return info
}

func (s *session) list(r request) {
	l := wire.Processes{Version: wire.Version, Sessions: []wire.Session{*s.info()}, Processes: make([]wire.Receipt, 0, len(s.members))}
	for _, p := range s.members {
		l.Processes = append(l.Processes, *p.seen())
	}
	slices.SortFunc(l.Processes, func(a, b wire.Receipt) int { return a.CreatedAt.Compare(b.CreatedAt) })
	answer(r, &l)
}

func errClosed(name string) *wire.Error {
	return wire.Errorf(wire.CodeSessionClosed, "session %s has ended; open it again", name)
}
