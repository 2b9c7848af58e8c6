package observer

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
)

// Publisher sends the observations of all processes of one incarnation of a worker.
type Publisher struct {
	conn        *bus.Conn
	worker      string
	incarnation uint64
	cfg         Config
	log         *slog.Logger
	cancel      context.CancelFunc // ends the senders
	senders     sync.WaitGroup
	share       share

	mu      sync.Mutex
	work    *sync.Cond // ready or stopped changed
	ready   []*Feed    // guarded by mu; each feed at most once
	linger  *time.Timer
	lingers bool   // guarded by mu; the linger timer runs
	waiting []wait // guarded by mu; ordered by due
	timer   *time.Timer
	ended   int // guarded by mu; lifecycle observations of ended processes not yet sent
	stats   Stats
	closed  bool          // guarded by mu; nothing is taken any more
	stopped bool          // guarded by mu; senders leave
	drained chan struct{} // closed when closed and nothing is pending
}

// wait is a feed that is being coalesced.
type wait struct {
	f     *Feed
	round uint64
	due   time.Time
}

// Stats count observations.
type Stats struct {
	Pending int   // have a number and are not sent yet
	Bytes   int   // output text among them
	Sent    int64 // stored or published
	Dropped int64 // output and state, over all processes
	Lost    int64 // lifecycle observations that could not be stored
}

// New starts a publisher that sends over conn, which the caller keeps open until Close
// has returned. worker and incarnation are put into every observation.
func New(conn *bus.Conn, worker string, incarnation uint64, cfg Config) (*Publisher, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("observer: %w", err)
	}
	if err := subjects.CheckToken("worker", worker); err != nil {
		return nil, fmt.Errorf("observer: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Publisher{
		conn: conn, worker: worker, incarnation: incarnation, cfg: cfg, cancel: cancel,
		log: cfg.Logger.With("worker", worker), drained: make(chan struct{}),
	}
	p.share.rate = float64(cfg.StoredRate)
	p.work = sync.NewCond(&p.mu)
	p.timer = time.AfterFunc(time.Hour, p.tick)
	p.timer.Stop()
	p.linger = time.AfterFunc(time.Hour, p.travel)
	p.linger.Stop()
	for range cfg.Senders {
		p.senders.Go(func() { p.send(ctx) }) // ends when stopped; Close waits
	}
	return p, nil
}

// Process returns the feed of one process. The ids in meta must be valid tokens.
func (p *Publisher) Process(meta Meta) *Feed {
	f := &Feed{p: p, meta: meta, next: 1}
	if meta.Adopted {
		f.next = p.incarnation<<adoptedShift + 1
	}
	return f
}

// Stats returns the counters.
func (p *Publisher) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// Close takes nothing more, sends what is pending until ctx ends, and returns when all
// goroutines have ended. The error says what was lost. A second call does nothing.
func (p *Publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	for _, w := range p.waiting {
		if w.f.phase == waiting && w.f.round == w.round {
			p.enqueue(w.f)
		}
	}
	p.waiting = nil
	p.settle()
	p.work.Broadcast()
	p.mu.Unlock()

	select {
	case <-p.drained:
	case <-ctx.Done():
	}
	p.cancel()
	p.mu.Lock()
	p.stopped = true
	p.timer.Stop()
	p.linger.Stop()
	p.work.Broadcast()
	p.mu.Unlock()
	p.senders.Wait()

	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.stats.Pending; n > 0 {
		return fmt.Errorf("observer: %d observations not sent: %w", n, context.Cause(ctx))
	}
	if n := p.stats.Lost; n > 0 {
		return fmt.Errorf("observer: %d lifecycle observations lost", n)
	}
	return nil
}

// settle closes drained when there is nothing left to send; p.mu is held.
func (p *Publisher) settle() {
	if !p.closed || p.stats.Pending > 0 {
		return
	}
	select {
	case <-p.drained:
	default:
		close(p.drained)
	}
}

// schedule puts f where its box belongs after something was added; p.mu is held.
func (p *Publisher) schedule(f *Feed) {
	switch f.phase {
	case ready, sending: // whoever holds it looks again
		return
	}
	switch {
	case len(f.box) == 0:
		f.phase = idle
	case len(f.box) > f.held, p.closed: // a lifecycle observation does not wait
		p.enqueue(f)
	case f.held >= mailbox:
		p.coalesce(f)
		p.flushFull(f)
	default:
		p.coalesce(f)
	}
}

// coalesce lets f wait for company; p.mu is held.
func (p *Publisher) coalesce(f *Feed) {
	if f.phase == waiting {
		return
	}
	f.phase = waiting
	f.round++
	p.waiting = append(p.waiting, wait{f, f.round, time.Now().Add(p.cfg.Coalesce)})
	if len(p.waiting) == 1 {
		p.timer.Reset(p.cfg.Coalesce)
	}
}

// flushFull sends a full box early, but never more than five boxes in a coalescing
// interval, so that a flood costs little; p.mu is held.
func (p *Publisher) flushFull(f *Feed) {
	if f.phase == waiting && f.held >= mailbox && time.Since(f.flushed) >= p.cfg.Coalesce/5 {
		p.enqueue(f)
	}
}

// enqueue makes f ready, to be sent after Linger or when enough are; p.mu is held.
func (p *Publisher) enqueue(f *Feed) {
	f.phase = ready
	p.ready = append(p.ready, f)
	switch {
	case p.closed || len(p.ready) >= roundFeeds:
		p.work.Signal()
	case !p.lingers:
		p.lingers = true
		p.linger.Reset(p.cfg.Linger)
	}
}

// travel sends those who lingered.
func (p *Publisher) travel() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lingers = false
	p.work.Signal()
}

// tick moves the feeds that waited long enough.
func (p *Publisher) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for len(p.waiting) > 0 {
		w := p.waiting[0]
		stale := w.f.phase != waiting || w.f.round != w.round
		if !stale && w.due.After(now) {
			p.timer.Reset(w.due.Sub(now))
			return
		}
		p.waiting[0] = wait{}
		p.waiting = p.waiting[1:]
		if !stale {
			p.enqueue(w.f)
		}
	}
	p.waiting = nil
}

// end accounts for a process that ended. When too much waits for the store already,
// its observations are lost: this is the bound on memory in an outage. p.mu is held.
func (p *Publisher) end(f *Feed) {
	n := len(f.box) - f.held
	if p.ended+n <= p.cfg.MaxEnded {
		p.ended += n
		for _, e := range f.box {
			e.ended = e.lifecycle()
		}
		return
	}
	for _, e := range f.box {
		if e.lifecycle() {
			p.refuse(e)
		} else {
			f.dropped.Add(1)
			p.stats.Dropped++
		}
		p.release(e)
	}
	f.box, f.held = nil, 0
}

// refuse counts a lifecycle observation that will never be stored; p.mu is held.
func (p *Publisher) refuse(e *entry) {
	if !e.lifecycle() {
		p.stats.Dropped++
		return
	}
	p.stats.Lost++
	if p.stats.Lost == 1 || p.stats.Lost%1000 == 0 {
		p.log.Error("lifecycle observations lost", "lost", p.stats.Lost, "pending", p.stats.Pending, "phase", string(e.phase))
	}
}

// release gives back what e was charged; p.mu is held.
func (p *Publisher) release(e *entry) {
	p.stats.Pending--
	p.stats.Bytes -= e.bytes
	p.settle()
}

// job is the box of a feed in the hands of a sender.
type job struct {
	f   *Feed
	box []*entry
}

// take waits for feeds with work and returns their boxes. The caller gives each back
// with done. There are none when the publisher has stopped.
func (p *Publisher) take(round []job) []job {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.stopped && (len(p.ready) == 0 || p.lingers && !p.closed && len(p.ready) < roundFeeds) {
		p.work.Wait()
	}
	if p.stopped {
		return nil
	}
	n := min(len(p.ready), roundFeeds)
	for _, f := range p.ready[:n] {
		round = append(round, job{f, f.box})
		f.box, f.held, f.phase, f.flushed = nil, 0, sending, time.Now()
	}
	clear(p.ready[:n])
	if p.ready = p.ready[n:]; len(p.ready) == 0 {
		p.ready = nil
	} else {
		p.work.Signal() // another sender may take them
	}
	return round
}

// done gives a feed back after its box was sent.
func (p *Publisher) done(f *Feed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f.phase = idle
	p.schedule(f)
}

// outcome of sending one observation.
type outcome uint8

const (
	sent outcome = iota
	dropped
	lost
	unsent // stopped before it could be sent; still pending
)

// account closes the books on one observation of a box.
func (p *Publisher) account(f *Feed, e *entry, o outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.ended {
		p.ended--
	}
	switch o {
	case unsent:
		return
	case sent:
		p.stats.Sent++
	case dropped:
		f.dropped.Add(1)
		p.stats.Dropped++
	case lost:
		p.refuse(e)
	}
	p.release(e)
}

// share limits the output that goes to EVENTS: a token bucket in bytes.
type share struct {
	mu     sync.Mutex
	rate   float64   // bytes a second
	level  float64   // guarded by mu; what was used and has not drained yet
	before time.Time // guarded by mu
}

// take reports whether n bytes fit, and uses them.
func (s *share) take(n int, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.level = max(0, s.level-now.Sub(s.before).Seconds()*s.rate)
	s.before = now
	if s.level+float64(n) > 256*s.rate {
		return false
	}
	s.level += float64(n)
	return true
}
