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

// send is one sender: it takes the boxes of some feeds and sends each in order, one
// observation of a process at a time: started is stored before finished is sent, and
// those of different processes travel together. It returns when the publisher stops.
func (p *Publisher) send(ctx context.Context) {
	s := sender{p: p, retry: time.NewTimer(time.Hour)}
	s.retry.Stop()
	defer s.retry.Stop()
	var round []job
	for {
		if round = p.take(round[:0]); len(round) == 0 {
			return
		}
		for s.wave(ctx, round) {
		}
		clear(round)
	}
}

type sender struct {
	p      *Publisher
	flying []flight
	retry  *time.Timer
}

// flight is an observation that is on its way to EVENTS.
type flight struct {
	f    *Feed
	e    *entry
	ev   *wire.Event
	data []byte
	sent *bus.Pending // nil: it could not be sent
	err  error
}

// wave sends the next observation of each job and waits for the answers. It reports
// whether any is left.
func (s *sender) wave(ctx context.Context, round []job) bool {
	for i := range round {
		j := &round[i]
		for len(j.box) > 0 && !s.launch(ctx, j.f, j.box[0]) {
			j.box = j.box[1:] // live only: nothing to wait for
		}
	}
	if len(s.flying) > 0 {
		s.land(ctx)
	}
	left := false
	for i := range round {
		j := &round[i]
		if j.f == nil {
			continue
		}
		if len(j.box) > 0 {
			j.box = j.box[1:]
		}
		if len(j.box) == 0 {
			s.p.done(j.f)
			j.f = nil
			continue
		}
		left = true
	}
	return left
}

// launch sends e. It reports whether an answer is to be waited for.
func (s *sender) launch(ctx context.Context, f *Feed, e *entry) bool {
	p := s.p
	ev := f.event(e)
	data, err := wire.Marshal(subjects.TypeJSON, ev)
	if err != nil {
		p.log.Error("observation not encoded", "process", f.meta.Process, "phase", string(e.phase), "err", err)
		p.account(f, e, failed(e))
		return false
	}
	r := p.conn.Root()
	if e.phase == wire.PhaseOutput && !p.storesOutput(f, len(data)) {
		o := sent
		if err := p.conn.Publish(r.LivePhase(f.meta.Tenant, p.worker, f.meta.Process, string(e.phase)), header(ev), data); err != nil {
			o = dropped
		}
		p.account(f, e, o)
		return false
	}
	fl := flight{f: f, e: e, ev: ev, data: data}
	fl.sent, fl.err = p.conn.AppendAsync(ctx, r.Event(f.meta.Tenant, p.worker, f.meta.Process, string(e.phase)), header(ev), data, expect(e))
	s.flying = append(s.flying, fl)
	return true
}

func expect(e *entry) bus.Expect {
	if e.lifecycle() {
		return bus.ExpectLast(0)
	}
	return bus.ExpectAny()
}

// failed is the outcome of an observation that cannot be sent at all.
func failed(e *entry) outcome {
	if e.lifecycle() {
		return lost
	}
	return dropped
}

// land waits for what flies. What may be lost is sent once (A62); a lifecycle
// observation that did not arrive is tried again when all others have their answers.
func (s *sender) land(ctx context.Context) {
	again := s.flying[:0]
	for _, fl := range s.flying {
		if fl.sent != nil {
			_, fl.err = fl.sent.Wait(ctx)
		}
		switch {
		case fl.err == nil:
			s.p.account(fl.f, fl.e, sent)
		case fl.e.lifecycle():
			again = append(again, fl)
		default:
			s.p.log.Debug("observation dropped", "event", fl.ev.EventID, "err", fl.err)
			s.p.account(fl.f, fl.e, dropped)
		}
	}
	for _, fl := range again {
		s.p.account(fl.f, fl.e, s.p.store(ctx, fl.f, fl.ev, fl.data, fl.err, s.retry))
	}
	clear(s.flying)
	s.flying = s.flying[:0]
}

// storesOutput charges n bytes to the shares of output in EVENTS, if they fit both.
func (p *Publisher) storesOutput(f *Feed, n int) bool {
	if f.stored+n > p.cfg.StoredBytes || !p.share.take(n, time.Now()) {
		return false
	}
	f.stored += n
	return true
}

// store writes a lifecycle observation that failed with err: at most once, whoever
// writes. While the store is away it tries again for ever; what the store refuses,
// Config.Attempts times.
func (p *Publisher) store(ctx context.Context, f *Feed, ev *wire.Event, data []byte, err error, retry *time.Timer) outcome {
	subject := p.conn.Root().Event(f.meta.Tenant, p.worker, f.meta.Process, string(ev.Phase))
	pause := firstPause
	for refused := 0; ; {
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
		_, err = p.conn.Append(ctx, subject, header(ev), data, bus.ExpectLast(0))
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
	_, err = p.conn.Append(ctx, p.conn.Root().Event(f.meta.Tenant, p.worker, f.meta.Process, string(ev.Phase)), header(ev), data, bus.ExpectLast(0))
	return p.store(ctx, f, ev, data, err, retry)
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
