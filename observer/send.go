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

// Pauses between two tries of the same observation.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
	// readBack bounds the one read of what stands in EVENTS.
	readBack = 5 * time.Second
)

func eventID(process string, seq uint64) string {
	return process + ":" + strconv.FormatUint(seq, 10)
}

// send is one sender: it takes the box of a feed, sends it in order, and only then
// takes another, so that started is stored before finished is sent. It returns when
// the publisher stops.
func (p *Publisher) send(ctx context.Context) {
	retry := time.NewTimer(time.Hour)
	retry.Stop()
	defer retry.Stop()
	for {
		f, box, ok := p.take()
		if !ok {
			return
		}
		for _, e := range box {
			p.account(f, e, p.sendOne(ctx, f, e, retry))
		}
		p.done(f)
	}
}

func (p *Publisher) sendOne(ctx context.Context, f *Feed, e *entry, retry *time.Timer) outcome {
	ev := f.event(e)
	data, err := wire.Marshal(subjects.TypeJSON, ev)
	if err != nil {
		p.log.Error("observation not encoded", "process", f.meta.Process, "phase", string(e.phase), "err", err)
		if e.lifecycle() {
			return lost
		}
		return dropped
	}
	if e.lifecycle() {
		return p.store(ctx, f, ev, data, retry)
	}
	return p.watch(ctx, f, e, ev, data)
}

// watch sends an observation that may be lost: once, without a retry (A62).
func (p *Publisher) watch(ctx context.Context, f *Feed, e *entry, ev *wire.Event, data []byte) outcome {
	r := p.conn.Root()
	var err error
	if e.phase == wire.PhaseOutput && !p.storesOutput(f, len(data)) {
		err = p.conn.Publish(r.LivePhase(f.meta.Tenant, p.worker, f.meta.Process, string(e.phase)), header(ev), data)
	} else {
		_, err = p.conn.Append(ctx, r.Event(f.meta.Tenant, p.worker, f.meta.Process, string(e.phase)), header(ev), data, bus.ExpectAny())
	}
	if err != nil {
		p.log.Debug("observation dropped", "process", f.meta.Process, "event", ev.EventID, "err", err)
		return dropped
	}
	return sent
}

// storesOutput charges n bytes to the shares of output in EVENTS, if they fit both.
func (p *Publisher) storesOutput(f *Feed, n int) bool {
	if f.stored+n > p.cfg.StoredBytes || !p.share.take(n, time.Now()) {
		return false
	}
	f.stored += n
	return true
}

// store writes a lifecycle observation: at most once, whoever writes. While the store
// is away it tries again for ever; what the store refuses, Config.Attempts times.
func (p *Publisher) store(ctx context.Context, f *Feed, ev *wire.Event, data []byte, retry *time.Timer) outcome {
	subject := p.conn.Root().Event(f.meta.Tenant, p.worker, f.meta.Process, string(ev.Phase))
	pause := firstPause
	for refused := 0; ; {
		_, err := p.conn.Append(ctx, subject, header(ev), data, bus.ExpectLast(0))
		switch {
		case err == nil:
			return sent
		case errors.Is(err, bus.ErrWrongSequence):
			// It is there: from an earlier try whose answer was lost, or from another
			// writer, who was first.
			if ev.Phase == wire.PhaseFinished {
				if next, ok := p.resolves(ctx, subject, ev); ok {
					return p.resolve(ctx, f, next, retry)
				}
			}
			return sent
		case errors.Is(err, bus.ErrTooLarge), errors.Is(err, bus.ErrClosed):
			p.log.Error("lifecycle observation refused", "event", ev.EventID, "err", err)
			return lost
		case !away(err):
			if refused++; refused >= p.cfg.Attempts {
				p.log.Error("lifecycle observation refused", "event", ev.EventID, "err", err)
				return lost
			}
		}
		retry.Reset(pause)
		pause = min(2*pause, lastPause)
		select {
		case <-retry.C:
		case <-ctx.Done():
			return unsent
		}
	}
}

// away reports whether the store did not refuse the write but could not be asked.
func away(err error) bool {
	for _, t := range []error{
		bus.ErrDisconnected, bus.ErrUnknownOutcome, bus.ErrTimeout, bus.ErrNoResponders, bus.ErrOverloaded,
		context.Canceled,
	} {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}

// resolves reports whether the finished that stands in EVENTS is the guess of another
// writer (outcome_unknown), which ev replaces by what was seen; it then returns ev as
// resolved.
func (p *Publisher) resolves(ctx context.Context, subject string, ev *wire.Event) (*wire.Event, bool) {
	ctx, cancel := context.WithTimeout(ctx, readBack)
	defer cancel()
	m, err := p.conn.Last(ctx, p.conn.Root().Stream(subjects.StreamEvents), subject)
	if err != nil {
		p.log.Warn("finished is stored and cannot be read back", "event", ev.EventID, "err", err)
		return nil, false
	}
	old, err := decode(m.Data)
	if err != nil || old.Status == nil || ev.Status == nil ||
		old.Status.State != wire.StateOutcomeUnknown || ev.Status.State == wire.StateOutcomeUnknown {
		return nil, false
	}
	next := *ev
	next.Phase = wire.PhaseResolved
	return &next, true
}

func (p *Publisher) resolve(ctx context.Context, f *Feed, ev *wire.Event, retry *time.Timer) outcome {
	data, err := wire.Marshal(subjects.TypeJSON, ev)
	if err != nil {
		p.log.Error("observation not encoded", "event", ev.EventID, "err", err)
		return lost
	}
	return p.store(ctx, f, ev, data, retry)
}

// header holds the attributes of CloudEvents 1.0 in binary mode.
func header(ev *wire.Event) bus.Header {
	return bus.Header{
		subjects.HeaderContentType: {subjects.TypeJSON},
		"ce-specversion":           {"1.0"},
		"ce-id":                    {ev.EventID},
		"ce-type":                  {"limpet.process." + string(ev.Phase)},
		"ce-source":                {"/limpet/worker/" + ev.Worker + "/" + strconv.FormatUint(ev.Incarnation, 10)},
		"ce-time":                  {ev.At.Format(time.RFC3339Nano)},
		"ce-subject":               {ev.OperationID},
	}
}

func decode(data []byte) (*wire.Event, error) {
	var ev wire.Event
	if err := wire.Unmarshal(subjects.TypeJSON, data, &ev, false); err != nil {
		return nil, fmt.Errorf("observation: %w", err)
	}
	if ev.SchemaVersion != wire.Version {
		return nil, fmt.Errorf("observation of schema version %d", ev.SchemaVersion)
	}
	return &ev, nil
}
