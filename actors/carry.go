package actors

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// carrier writes what a session carries from one command to the next into the session's
// record. A command's answer does not wait for it: the session knows already, and the
// keeper keeps the command until it is written. While the store is away it tries again,
// always with the newest state.
type carrier struct {
	dirty chan struct{} // bounded: 1; full means that the newest state is still to be written
	stop  chan struct{}
	done  chan struct{} // closed when nothing is written any more

	mu      sync.Mutex
	running bool            // guarded by mu
	ended   bool            // guarded by mu
	waiting []chan struct{} // guarded by mu; of who waits for the next write
}

func newCarrier() carrier {
	return carrier{dirty: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
}

// write lets the record of s be written as it is now. The channel is closed when it is;
// never, when the session ends before. It is called by an actor that s waits for.
func (c *carrier) write(s *session) <-chan struct{} {
	stored := make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return stored
	}
	c.waiting = append(c.waiting, stored)
	if !c.running {
		c.running = true
		s.own.Go(func() { // ends by end, which run calls
			defer close(c.done)
			c.loop(s)
		})
	}
	post(c.dirty, struct{}{})
	return stored
}

// end lets a write that is under way come to its end, and starts none.
func (c *carrier) end() {
	c.mu.Lock()
	first, running := !c.ended, c.running
	c.ended = true
	c.mu.Unlock()
	if first {
		close(c.stop)
	}
	if running {
		<-c.done
	}
}

func (c *carrier) loop(s *session) {
	for {
		select {
		case <-c.dirty:
		case <-c.stop:
			return
		}
		for delay := 10 * time.Millisecond; !c.attempt(s); delay = min(2*delay, time.Second) {
			wait := time.NewTimer(delay)
			select {
			case <-wait.C:
			case <-c.stop:
				wait.Stop()
				return
			}
		}
	}
}

// attempt writes the record once; false means that there is to be another attempt.
func (c *carrier) attempt(s *session) bool {
	c.mu.Lock()
	waiting := c.waiting
	c.waiting = nil
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), sealPatience)
	defer cancel()
	var err error = errCrashed // unless it returns
	s.panics(func() { err = s.put(ctx, s.rec.Load()) })
	switch {
	case err == nil:
	case s.deps.lostRace(err):
		s.log.Warn("the record of the session is another's", "err", err)
	default:
		s.log.Debug("record of the session", "err", err)
		c.mu.Lock()
		c.waiting = append(waiting, c.waiting...)
		c.mu.Unlock()
		return false
	}
	for _, w := range waiting {
		close(w)
	}
	return true
}

// put writes a record of the session over its last one. One goroutine at a time does: the
// carrier until its end, and the actor after it. Where an earlier write of ours was taken
// and the answer was lost, it goes on from that.
func (s *session) put(ctx context.Context, rec *wire.SessionRecord) error {
	rev, err := s.deps.sessions.UpdateSession(ctx, rec.Tenant, rec, s.rev)
	if errors.Is(err, registry.ErrConflict) {
		now, at, readErr := s.deps.sessions.Session(ctx, rec.Tenant, rec.Name)
		switch {
		case errors.Is(readErr, registry.ErrNotFound):
			return err
		case readErr != nil:
			return readErr
		case at == s.rev, now.ID != rec.ID, now.Worker != rec.Worker, now.Incarnation != rec.Incarnation, now.Closed:
			return err
		}
		s.rev = at
		rev, err = s.deps.sessions.UpdateSession(ctx, rec.Tenant, rec, s.rev)
	}
	if err == nil {
		s.rev = rev
	}
	return err
}
