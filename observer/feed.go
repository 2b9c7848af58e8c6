package observer

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// Meta says whose observations a feed carries. It is the same in every one of them.
type Meta struct {
	Tenant      string
	Session     string
	Process     string
	ExecutionID string // put into a status that has none
	Trace       string // traceparent of the request that started it
	// Adopted: an earlier incarnation observed this process before.
	Adopted bool
}

// Feed takes the observations of one process.
type Feed struct {
	p       *Publisher
	meta    Meta
	dropped atomic.Int64

	// guarded by p.mu
	next     uint64    // number of the next observation
	box      []*entry  // in order
	held     int       // droppable entries in box, at most mailbox
	phase    feedPhase // where the feed stands in the publisher's queues
	round    uint64    // counts entries into the waiting queue, to know stale ones
	flushed  time.Time // when a sender last took the box
	finished bool
	second   time.Time // when the count of told began
	told     int       // source bytes rendered since
	stored   int       // bytes of output sent to EVENTS; touched by the sender that holds the feed
}

type feedPhase uint8

const (
	idle    feedPhase = iota // box empty, in no queue
	waiting                  // in the waiting queue, until coalesced
	ready                    // in the ready queue, or about to be taken
	sending                  // a sender holds its last box
)

// entry is one observation that has a number.
type entry struct {
	seq    uint64
	phase  wire.Phase
	at     time.Time
	status *wire.EventStatus
	chunk  *wire.Chunk
	texts  []string // of merged chunks
	bytes  int      // charged to the outbox
	ended  bool     // charged to Config.MaxEnded
}

// lifecycle reports whether the observation is written once and never dropped.
func (e *entry) lifecycle() bool {
	return e.phase != wire.PhaseOutput && e.phase != wire.PhaseState
}

// Started is the first observation of a process.
func (f *Feed) Started(status wire.EventStatus) { f.put(wire.PhaseStarted, &status, false) }

// Backgrounded says that the caller went on and the process stays.
func (f *Feed) Backgrounded(status wire.EventStatus) { f.put(wire.PhaseBackgrounded, &status, false) }

// State tells a change between started and finished. It may be dropped.
func (f *Feed) State(status wire.EventStatus) { f.put(wire.PhaseState, &status, false) }

// Finished is the last observation of a process; later ones are ignored. If EVENTS
// already holds a finished of unknown outcome, this one is written as resolved.
func (f *Feed) Finished(status wire.EventStatus) { f.put(wire.PhaseFinished, &status, true) }

// Dropped counts the observations that were dropped.
func (f *Feed) Dropped() int64 { return f.dropped.Load() }

// Output tells a piece of output, which must have passed the binary guard. It may be
// dropped, or merged with the piece before it.
func (f *Feed) Output(c wire.Chunk) {
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	switch {
	case f.finished:
	case f.p.closed:
		f.drop()
	default:
		f.output(&c)
	}
}

// OutputFunc is Output for a piece of size source bytes that costs something to render:
// render is called only when there is room for it, and before OutputFunc returns. A
// process is observed at liveRate at the most, so that one that prints as fast as it
// can is not rendered as fast as it can; the rest is dropped.
func (f *Feed) OutputFunc(size int, render func() wire.Chunk) {
	f.p.mu.Lock()
	room := !f.finished && !f.p.closed && (f.held < mailbox || f.mergeable()) && f.afford(size)
	if !room && !f.finished {
		f.drop()
	}
	f.p.mu.Unlock()
	if room {
		f.Output(render())
	}
}

// afford takes size out of this second's share; p.mu is held.
func (f *Feed) afford(size int) bool {
	if now := time.Now(); now.Sub(f.second) >= time.Second {
		f.second, f.told = now, 0
	}
	if f.told+size > liveRate {
		return false
	}
	f.told += size
	return true
}

// drop counts an observation that found no room and leaves its number unused; p.mu is
// held.
func (f *Feed) drop() {
	f.next++
	f.dropped.Add(1)
	f.p.stats.Dropped++
	f.p.flushFull(f)
}

func (f *Feed) put(phase wire.Phase, status *wire.EventStatus, last bool) {
	if status.ExecutionID == "" {
		status.ExecutionID = f.meta.ExecutionID
	}
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	if f.finished {
		return
	}
	f.finished = last
	e := &entry{phase: phase, at: time.Now().UTC(), status: status}
	if f.p.closed {
		f.next++
		f.p.refuse(e)
		return
	}
	if !e.lifecycle() && f.held >= mailbox {
		f.drop()
		return
	}
	f.add(e)
	if last {
		f.p.end(f)
	}
	f.p.schedule(f)
}

// add numbers e and puts it into the box; p.mu is held.
func (f *Feed) add(e *entry) {
	e.seq = f.next
	f.next++
	if !e.lifecycle() {
		f.held++
		f.p.stats.Bytes += e.bytes
	}
	f.box = append(f.box, e)
	f.p.stats.Pending++
}

// output puts c into the box or merges it with the last piece; p.mu is held.
func (f *Feed) output(c *wire.Chunk) {
	n := len(c.Text) + len(c.Data)
	if f.p.stats.Bytes+n > f.p.cfg.OutboxBytes {
		f.drop()
		return
	}
	if f.mergeable() && f.merge(c, n) {
		return
	}
	if f.held >= mailbox {
		f.drop()
		return
	}
	f.add(&entry{phase: wire.PhaseOutput, at: time.Now().UTC(), chunk: c, texts: []string{c.Text}, bytes: n})
	f.p.schedule(f)
}

// mergeable reports whether the box ends in output with room for more.
func (f *Feed) mergeable() bool {
	if len(f.box) == 0 {
		return false
	}
	e := f.box[len(f.box)-1]
	return e.chunk != nil && e.bytes < mergeBytes
}

// merge joins c to the last observation when nothing is lost by it: the bytes are
// adjacent, of one stream and one kind.
func (f *Feed) merge(c *wire.Chunk, n int) bool {
	e := f.box[len(f.box)-1]
	l := e.chunk
	if l.Stream != c.Stream || l.Offset+int64(l.SourceBytes) != c.Offset || l.Binary != c.Binary ||
		l.OrderUnknown != c.OrderUnknown || l.Data != "" || c.Data != "" || e.bytes+n > mergeBytes {
		return false
	}
	l.SourceBytes += c.SourceBytes
	l.EncodingLoss += c.EncodingLoss
	e.texts = append(e.texts, c.Text)
	e.bytes += n
	f.p.stats.Bytes += n
	return true
}

// event builds what is sent.
func (f *Feed) event(e *entry) *wire.Event {
	if e.chunk != nil && len(e.texts) > 1 {
		e.chunk.Text = strings.Join(e.texts, "")
	}
	return &wire.Event{
		SchemaVersion: wire.Version, EventID: eventID(f.meta.Process, e.seq), Sequence: e.seq,
		OperationID: f.meta.Process, OwnerID: f.meta.Session, Source: "limpet", Kind: "process",
		Phase: e.phase, At: e.at, Tenant: f.meta.Tenant, Session: f.meta.Session,
		Worker: f.p.worker, Incarnation: f.p.incarnation, Trace: f.meta.Trace,
		ObserverDroppedEvents: f.dropped.Load(), Status: e.status, Chunk: e.chunk,
	}
}
