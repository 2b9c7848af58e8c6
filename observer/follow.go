package observer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

const (
	// liveBacklog is how many live messages wait for a slow reader, beside what the
	// subscription holds; more are lost and show as gaps.
	liveBacklog = 1024
	// healEvery is how often a reader looks whether live messages were lost on the way.
	healEvery = time.Second
)

var errCaughtUp = errors.New("caught up")

// Follow gives fn the observations of one process, or of all of a tenant when process
// is empty: those stored so far if fromStart is set, then those that come. It returns
// when ctx ends, when fn returns an error (which it returns), and with nil after the
// last observation of the one process: finished with a known outcome, or resolved.
//
// Stored observations come at least once each and in order; after an outage they are
// read again from the last one seen. Output beyond its share in EVENTS is live only
// and may be missed; numbers tell. fn runs on the caller's goroutine.
func Follow(ctx context.Context, conn *bus.Conn, tenant, process string, fromStart bool, fn func(wire.Event) error) error {
	f, err := newFollower(conn, tenant, process, fn)
	if err != nil {
		return err
	}
	live := conn.Root().Live(tenant)
	if process != "" {
		live = conn.Root().LiveProcess(tenant, process)
	}
	return f.run(ctx, live, fromStart)
}

// Replay gives fn the observations that are stored when it is called, as Follow does,
// and returns.
func Replay(ctx context.Context, conn *bus.Conn, tenant, process string, fn func(wire.Event) error) error {
	f, err := newFollower(conn, tenant, process, fn)
	if err != nil {
		return err
	}
	return f.replay(ctx)
}

func newFollower(conn *bus.Conn, tenant, process string, fn func(wire.Event) error) (*follower, error) {
	f := &follower{conn: conn, process: process, fn: fn, stream: conn.Root().Stream(subjects.StreamEvents)}
	if err := subjects.CheckToken("tenant", tenant); err != nil {
		return nil, err
	}
	if process == "" {
		f.filter = conn.Root().Event(tenant, "*", "*", "*")
		return f, nil
	}
	if err := subjects.CheckToken("process", process); err != nil {
		return nil, err
	}
	f.filter = conn.Root().Event(tenant, "*", process, "*")
	return f, nil
}

type follower struct {
	conn    *bus.Conn
	process string
	filter  string // of EVENTS
	stream  string
	fn      func(wire.Event) error
	seen    uint64 // the sequence in EVENTS up to which fn has everything
	ended   bool   // the one process has no more
}

func (f *follower) run(ctx context.Context, live string, fromStart bool) error {
	backlog, stop := make(chan *bus.Msg, liveBacklog), make(chan struct{})
	// The subscription stands before the stored ones are read, so that nothing falls
	// between the two.
	sub, err := f.conn.Subscribe(live, liveBacklog, func(m *bus.Msg) {
		select {
		case backlog <- m:
		case <-stop:
		}
	})
	if err != nil {
		return fmt.Errorf("follow: %w", err)
	}
	defer func() {
		close(stop)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = sub.Stop(ctx) // it ends by itself when its last message is handed over
	}()
	if !fromStart {
		if err := f.skip(ctx); err != nil {
			return err
		}
	} else if err := f.replay(ctx); err != nil {
		return err
	}
	tick := time.NewTicker(healEvery)
	defer tick.Stop()
	lossesBefore := f.losses(sub)
	for !f.ended {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case m := <-backlog:
			if now := f.losses(sub); now != lossesBefore && f.conn.Connected() { // m may be behind what was lost
				lossesBefore = now
				if err := f.replay(ctx); err != nil {
					return err
				}
			}
			seq, _ := strconv.ParseUint(m.Header.Get("Nats-Sequence"), 10, 64) // 0: live only
			if err := f.deliver(seq, m.Data); err != nil {
				return err
			}
		case <-tick.C:
			now := f.losses(sub)
			if now == lossesBefore || !f.conn.Connected() {
				continue
			}
			lossesBefore = now
			if err := f.replay(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// losses changes when live messages may have been missed.
func (f *follower) losses(sub *bus.Subscription) int64 {
	return int64(f.conn.Stats().Reconnects) + sub.Dropped()
}

// skip begins behind what is stored.
func (f *follower) skip(ctx context.Context) error {
	m, err := f.conn.Last(ctx, f.stream, f.filter)
	switch {
	case errors.Is(err, bus.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("follow: %w", err)
	}
	f.seen = m.Seq
	return nil
}

// replay delivers what EVENTS holds behind seen.
func (f *follower) replay(ctx context.Context) error {
	last, err := f.conn.Last(ctx, f.stream, f.filter)
	switch {
	case errors.Is(err, bus.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("follow: %w", err)
	case last.Seq <= f.seen:
		return nil
	}
	err = f.conn.Follow(ctx, f.stream, []string{f.filter}, bus.FromSeq(f.seen+1), func(s bus.Stored) error {
		if err := f.deliver(s.Seq, s.Data); err != nil {
			return err
		}
		if f.ended || s.Seq >= last.Seq {
			return errCaughtUp
		}
		return nil
	})
	if errors.Is(err, errCaughtUp) {
		return nil
	}
	return err
}

// deliver hands one observation over, unless a replay did so before.
func (f *follower) deliver(seq uint64, data []byte) error {
	if seq != 0 {
		if seq <= f.seen {
			return nil
		}
		f.seen = seq
	}
	ev, err := decode(data)
	if err != nil {
		return err
	}
	if err := f.fn(*ev); err != nil {
		return err
	}
	unknown := ev.Status != nil && ev.Status.State == wire.StateOutcomeUnknown
	if f.process != "" && (ev.Phase == wire.PhaseResolved || ev.Phase == wire.PhaseFinished && !unknown) {
		f.ended = true
	}
	return nil
}
