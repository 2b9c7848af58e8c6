package actors

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limpet-sh/limpet/actors/output"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

const (
	// shipAfter is how long output may wait for more before it is shipped; where little
	// comes it doubles, up to shipSlowly.
	shipAfter  = 500 * time.Millisecond
	shipSlowly = 4 * time.Second
	// shipSoonest spares commands that print much and end soon: all of it is then shipped
	// after their answer.
	shipSoonest = 100 * time.Millisecond
	// shipSize is the most that one message holds, in bytes.
	shipSize = 256 << 10
	// shipPatience is how long a process that leaves waits for the rest of its output.
	shipPatience = 2 * time.Second
	// shipLittle is what a message holds at least, in bytes, that does not slow the next.
	shipLittle = 4 << 10
	// shipRate, in bytes a second, and shipBurst bound what a worker ships: a MiB costs
	// worker and store 3 ms of a processor, which commands in a row would feel.
	shipRate  = 16 << 20
	shipBurst = 4 << 20
	// shipLanes bounds the messages that a worker has in flight, and their memory.
	shipLanes = 16
)

// shipping is what the shippers of a worker share.
type shipping struct {
	stream outputs
	bytes  int64       // of a process that says nothing else; -1 none, whatever it says
	lanes  chan []byte // the buffers of the messages in flight
	e      uint64      // incarnation of the worker
	// unshipped counts processes that left before all was shipped.
	unshipped atomic.Int64

	mu   sync.Mutex
	free time.Time // guarded by mu; when all that was reserved is paid at shipRate
}

// reserve gives the time at which so many bytes may be sent. A negative number gives back.
func (s *shipping) reserve(bytes int64) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if full := time.Now().Add(-shipBurst * time.Second / shipRate); s.free.Before(full) {
		s.free = full
	}
	at := s.free
	s.free = at.Add(time.Duration(bytes) * time.Second / shipRate)
	return at
}

func newShipping(stream outputs, bytes int64, e uint64) *shipping {
	s := &shipping{stream: stream, bytes: bytes, e: e, lanes: make(chan []byte, shipLanes)}
	for range shipLanes {
		s.lanes <- nil
	}
	return s
}

// budget of a process that asks for limit.
func (s *shipping) budget(limit int64) int64 {
	if s == nil || s.bytes < 0 || limit < 0 {
		return 0
	}
	return cmp.Or(limit, s.bytes)
}

// shipper brings the output of one process to the OUTPUT stream, within a budget: the
// first half as it comes, and what still fits of the end when it is told. The log is its
// buffer, so that it may wait for NATS as long as the process is kept.
//
// The pump calls wrote, the actor the rest; run is a goroutine of the actor, started at
// the first output. Everything below the blank line is touched by run alone.
type shipper struct {
	*shipping
	log     *output.Log
	tenant  string
	process string
	limit   int64 // the budget, in bytes of message
	logger  *slog.Logger
	spawn   func() // starts run
	once    sync.Once
	wakeAt  atomic.Int64  // bytes of output at which run goes on
	wake    chan struct{} // 1: there are so many
	told    sync.Once
	ended   chan struct{} // closed when nothing follows; sealed and complete are set before
	sealed  bool          // the end is known: the last message says so
	whole   bool          // the streams were read to their end
	hurried chan struct{} // closed when the process leaves with its session
	hurry   sync.Once
	done    chan struct{} // closed when run has returned
	stored  atomic.Int64  // raw bytes in the stream

	seq    uint64 // of the last message; 0 none
	next   int64  // number of the chunk to be shipped next
	offset int64  // raw bytes before it
	used   int64  // of the budget
	raw    int64  // bytes shipped
	tail   bool   // next is where the tail begins
	stale  bool   // the stream may have more than we know
	over   bool   // nothing more is shipped
}

// newShipper gives nil where nothing is to be shipped.
func (p *process) newShipper() *shipper {
	limit := p.deps.ship.budget(p.plan.Output.ShipBytes)
	if limit == 0 {
		return nil
	}
	s := &shipper{
		shipping: p.deps.ship, log: p.out, tenant: p.tenant, process: p.id, limit: limit, stale: p.adopted, logger: p.log,
		wake: make(chan struct{}, 1), ended: make(chan struct{}), hurried: make(chan struct{}), done: make(chan struct{}),
	}
	s.wakeAt.Store(1)
	s.spawn = func() {
		p.own.Go(func() { // ends with the last message, at the latest with the actor's context
			defer close(s.done)
			if p.panics(func() { s.run(p.ctx) }) {
				s.logger.Error("the output is not shipped any more")
			}
		})
	}
	return s
}

// wrote is told by the pump how much output there is now.
func (s *shipper) wrote(total int64) {
	if s == nil || total < s.wakeAt.Load() {
		return
	}
	s.wakeAt.Store(math.MaxInt64)
	s.once.Do(s.spawn)
	post(s.wake, struct{}{})
}

// end lets the rest be shipped; the log is closed. Where there was no output nothing is,
// and there is not even a goroutine.
func (s *shipper) end(state wire.State) {
	if s == nil {
		return
	}
	s.told.Do(func() {
		o := s.log.Stats()
		s.sealed, s.whole = state != wire.StateOutcomeUnknown, o.Complete
		close(s.ended)
		if o.TotalBytes > 0 {
			s.once.Do(s.spawn)
		}
	})
}

// settle waits for the rest, no longer than patience. What was not shipped then is a gap
// for those who read without the worker. At the end of a session nobody is spared.
func (s *shipper) settle(patience time.Duration, closing bool) {
	if s == nil || !isDone(s.ended) || s.log.Stats().TotalBytes == 0 {
		return
	}
	if closing {
		s.hurry.Do(func() { close(s.hurried) })
	}
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-s.done:
	case <-t.C:
		s.unshipped.Add(1)
		s.logger.Warn("the rest of the output could not be shipped in time", "shipped", s.stored.Load(), "unshipped_outputs", s.unshipped.Load())
	}
}

// run ships until all is shipped that is to be, or ctx ends.
func (s *shipper) run(ctx context.Context) {
	ok := s.head(ctx)
	for sent := 1; ok && sent > 0 && !s.fits(); { // the end came before the first half was full
		sent, ok = s.persist(ctx, s.limit/2, false)
	}
	for ok {
		_, ok = s.persist(ctx, s.limit, true)
	}
}

// fits reports whether all that is not shipped yet is within the budget.
func (s *shipper) fits() bool { return s.log.TailFrom(s.next, s.limit-s.used, shipSize) == s.next }

// cue is why a wait of a shipper ended.
type cue uint8

const (
	cueOutput cue = iota // there is so much, or the time is up
	cueEnd               // nothing follows
	cueGone              // the actor leaves
)

const never = math.MaxInt64

// await waits until there is so much output, or the timer says so.
func (s *shipper) await(ctx context.Context, total int64, timer <-chan time.Time) cue {
	for {
		s.wakeAt.Store(total)
		if s.log.Stats().TotalBytes >= total { // before the pump could know
			return cueOutput
		}
		select {
		case <-s.wake:
		case <-timer:
			return cueOutput
		case <-s.ended:
			return cueEnd
		case <-ctx.Done():
			return cueGone
		}
	}
}

// head ships the first half of the budget as it comes, and returns true when the end is
// told.
func (s *shipper) head(ctx context.Context) bool {
	t := time.NewTimer(shipSoonest)
	defer t.Stop()
	what := s.await(ctx, never, t.C)
	for pause := shipAfter; what == cueOutput; {
		if what = s.await(ctx, s.offset+1, nil); what != cueOutput {
			break
		}
		t.Reset(pause)
		if what = s.await(ctx, s.offset+shipSize, t.C); what != cueOutput {
			break
		}
		before := s.offset
		sent, ok := s.persist(ctx, s.limit/2, false)
		switch {
		case !ok:
			return false
		case sent == 0 && s.log.Stats().TotalBytes > s.offset: // the half is full; the rest is for the end
			what = s.await(ctx, never, nil)
		case s.offset-before < shipLittle:
			pause = min(2*pause, shipSlowly)
		default:
			pause = shipAfter
		}
	}
	return what == cueEnd
}

// persist stores one message, as [shipper.send] does, and tries until it is; false when
// there is no more to do, or the actor leaves.
func (s *shipper) persist(ctx context.Context, share int64, end bool) (sent int, ok bool) {
	retry := stopped()
	defer retry.Stop()
	paced := false
	for delay := 5 * time.Millisecond; ; delay = min(2*delay, shipSlowly) {
		var err error
		if s.stale {
			err = s.lane(ctx, func(b []byte) ([]byte, error) { return b, s.readBack(ctx) })
		}
		if s.over {
			return 0, false
		}
		if err == nil && !paced {
			give, waited := s.pace(ctx)
			defer give()
			if paced = waited; !paced {
				return 0, false
			}
		}
		if err == nil {
			if sent, err = s.send(ctx, share, end); err == nil {
				return sent, !s.over
			}
		}
		if errors.Is(err, bus.ErrTooLarge) || errors.Is(err, bus.ErrDenied) || errors.Is(err, bus.ErrClosed) {
			s.logger.Error("the output cannot be shipped", "err", err)
			s.over = true
			return 0, false
		}
		s.logger.Debug("output not shipped yet", "err", err)
		retry.Reset(delay)
		select {
		case <-retry.C:
		case <-ctx.Done():
			return 0, false
		}
	}
}

// pace waits for the turn of the next message; false when the actor leaves. give returns
// what was reserved for more than it took.
func (s *shipper) pace(ctx context.Context) (give func(), ok bool) {
	size, used := min(shipSize, s.log.Stats().TotalBytes-s.offset), s.used
	give = func() { s.reserve(s.used - used - size) }
	wait := time.Until(s.reserve(size))
	if wait <= 0 {
		return give, true
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.hurried: // shipPatience bounds it
	case <-ctx.Done():
		return give, false
	}
	return give, true
}

// lane gives f one of the buffers in turn, which bound what a worker has in flight.
func (s *shipper) lane(ctx context.Context, f func([]byte) ([]byte, error)) error {
	var b []byte
	select {
	case b = <-s.lanes:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { s.lanes <- b[:0] }()
	var err error
	b, err = f(b)
	return err
}

// send makes a message of the chunks that are next, within a share of the budget, and
// stores it. At the end it goes on where the tail begins, and seals the stream with the
// last message. The message is made anew for each try: what waits for NATS is in the log.
func (s *shipper) send(ctx context.Context, share int64, end bool) (sent int, err error) {
	err = s.lane(ctx, func(b []byte) ([]byte, error) {
		if end && !s.tail {
			s.next, s.tail = s.log.TailFrom(s.next, share-s.used, shipSize), true
		}
		m := s.log.Ship(b, s.next, int(min(share-s.used, shipSize)), s.e)
		if end && m.Chunks == 0 { // nothing is left, or nothing fits
			m = s.log.Ship(m.Message[:0], s.log.Next(), shipSize, s.e)
		}
		sent = m.Chunks
		return m.Message, s.store(ctx, &m, end && m.Next == s.log.Next())
	})
	return sent, err
}

// store stores a message; the last one seals the stream.
func (s *shipper) store(ctx context.Context, m *output.Shipment, last bool) error {
	seals := last && s.sealed
	if m.Chunks == 0 && !seals {
		s.over = last
		return nil
	}
	used, raw := s.used+int64(len(m.Message)), s.raw+m.Raw
	wire.SetOutputUsed(m.Message, used, raw, seals, seals && s.whole)
	seq, err := s.stream.Append(ctx, s.tenant, s.process, m.Message, s.seq)
	if err != nil {
		s.stale = errors.Is(err, bus.ErrWrongSequence) || errors.Is(err, bus.ErrUnknownOutcome)
		return err
	}
	s.seq, s.next, s.offset, s.used, s.raw, s.over = seq, m.Next, m.Offset, used, raw, last
	s.stored.Store(raw)
	return nil
}

// readBack learns from the last message where the output goes on: after a restart, or
// when it is not known what became of a message of ours.
func (s *shipper) readBack(ctx context.Context) error {
	seq, data, err := s.stream.Last(ctx, s.tenant, s.process)
	if errors.Is(err, bus.ErrNotFound) {
		s.seq, s.stale = 0, false // nothing was stored, or it is past its time there
		return nil
	}
	if err != nil {
		return err
	}
	s.stale = false
	m, err := wire.DecodeOutput(data)
	switch {
	case err != nil:
		s.logger.Error("the output cannot be shipped behind what is there", "err", err)
		s.over = true
		return nil
	case m.Incarnation > s.e:
		s.logger.Warn("the output is shipped by a later worker", "incarnation", m.Incarnation)
		s.over = true
	case m.End:
		s.over = true
	}
	s.seq, s.next, s.offset, s.used, s.raw, s.tail = seq, m.Next(), m.NextOffset(), m.Used, m.Raw, false
	s.stored.Store(m.Raw)
	return nil
}
