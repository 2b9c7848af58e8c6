package actors

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// closing asks a session to end; it answers every request it was given.
type closing struct {
	by    string
	calls []request
	// keep leaves record and processes alone: the worker is going, not the session.
	keep bool
	// hurry bounds the wait for the store: the worker is going.
	hurry bool
}

// close ends every process, then the session. How long a process may take is bounded:
// a tree that cannot be ended is said in its receipt and left to the keeper. The records
// are waited for as long as the worker lives, the caller no longer than sealPatience.
func (s *session) close(c closing) {
	s.closing.Store(true)
	if c.keep {
		s.leave()
		return
	}
	w := &waiter{calls: c.calls, hurry: c.hurry, patience: stopped(), again: stopped()}
	defer w.patience.Stop()
	defer w.again.Stop()
	if s.endProcesses(w, c.by) && s.awaitRecords(w) {
		s.log.Debug("all processes have ended")
	}
	for _, p := range s.members {
		p.orders <- order{evict: true, closing: true}
	}
	s.awaitAll()
	if s.deps.spool != "" {
		_ = os.Remove(filepath.Join(s.deps.spool, s.rec.Load().ID)) // fails where something is left in it, or nothing was
	}
	s.writeClosed(w)
	s.deps.dir.removeSession(s)
	w.answer(func(r request) { answer(r, s.info()) })
}

// endProcesses stops all and returns when each has told its end: at the latest when
// those that do not end were given up. It reports whether there is time to go on.
func (s *session) endProcesses(w *waiter, by string) bool {
	longest := defaultGrace
	for _, p := range s.members {
		longest = max(longest, p.grace)
		p.orders <- order{cause: wire.ReasonSessionClosed, by: by, mode: keeper.Terminate, grace: p.grace}
	}
	last := []order{
		{cause: wire.ReasonSessionClosed, by: by, mode: keeper.Kill}, // a longer grace may be under way
		{cause: wire.ReasonSessionClosed, giveUp: true},
	}
	w.again.Reset(longest + collectLimit)
	w.patience.Reset(longest + 2*goneLimit + 3*collectLimit)
	for s.live.Load() > 0 {
		switch s.hear(w) {
		case enough:
			s.log.Error("processes left at close", "live", s.live.Load())
			return false
		case again:
			if len(last) == 0 {
				break // starts that wait for the store, which has a limit of its own
			}
			for id, p := range s.members {
				if s.isLive(id) {
					p.orders <- last[0]
				}
			}
			last = last[1:]
			w.again.Reset(goneLimit + collectLimit)
		}
	}
	return true
}

// awaitRecords waits until the end of every process is recorded.
func (s *session) awaitRecords(w *waiter) bool {
	w.patience.Reset(sealPatience)
	for !s.allRecorded() {
		if s.hear(w) == enough {
			return false
		}
	}
	return true
}

func (s *session) isLive(id string) bool {
	if s.held[id] {
		return false
	}
	return !slices.Contains(s.ended, id)
}

func (s *session) allRecorded() bool {
	for id, p := range s.members {
		if !s.isLive(id) && !p.recorded.Load() {
			return false
		}
	}
	return true
}

// waiter is a close that waits.
type waiter struct {
	calls    []request
	patience *time.Timer // of the callers; of the session too when in a hurry
	again    *time.Timer // for the next step
	hurry    bool
}

func (w *waiter) answer(f func(request)) {
	for _, r := range w.calls {
		f(r)
	}
	w.calls = nil
}

// heard is what a session that closes has heard.
type heard uint8

const (
	news   heard = iota
	again        // the timer
	enough       // there is no more time
)

// hear waits for something to happen to a session that closes.
func (s *session) hear(w *waiter) heard {
	select {
	case n := <-s.notices:
		s.notice(n)
	case r := <-s.inbox:
		s.refuseLate(r)
	case <-w.again.C:
		return again
	case <-s.ending:
		w.hurry = true
		w.patience.Reset(sealPatience)
	case <-w.patience.C:
		w.answer(func(r request) {
			refuse(r, wire.Errorf(wire.CodeUnavailable, "the session has ended, and the store is away: its records are still to be written"))
		})
		if w.hurry {
			return enough
		}
	}
	return news
}

// awaitAll waits for the actors to end while still hearing them.
func (s *session) awaitAll() {
	for _, p := range s.members {
		for ended := false; !ended; {
			select {
			case <-p.done:
				ended = true
			case <-s.notices:
			case r := <-s.inbox:
				s.refuseLate(r)
			}
		}
		s.forget(p)
	}
	s.live.Store(0)
	s.kept.Store(0)
}

// writeClosed writes the record of a session that has ended. One that cannot be written
// while the worker lives is open in the records; the next boot takes it up.
func (s *session) writeClosed(w *waiter) {
	s.carry.end()
	rec := *s.rec.Load()
	if rec.Closed {
		return
	}
	rec.Closed, rec.ClosedAt = true, now()
	w.patience.Reset(sealPatience)
	for delay := 10 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		ctx, cancel := context.WithTimeout(context.Background(), sealPatience)
		err := s.put(ctx, &rec)
		cancel()
		if err == nil {
			break
		}
		if errors.Is(err, registry.ErrConflict) || errors.Is(err, registry.ErrNotFound) {
			s.log.Warn("the record of a closed session is another's", "err", err)
			break
		}
		w.again.Reset(delay)
		for what := news; what != again; {
			if what = s.hear(w); what == enough {
				s.log.Warn("record of a closed session", "err", err)
				return
			}
		}
	}
	s.rec.Store(&rec)
}

// leave ends the actors and nothing else: the next incarnation adopts.
func (s *session) leave() {
	s.leaving = true
	for _, p := range s.members {
		p.orders <- order{leave: true}
	}
	s.awaitAll()
}
