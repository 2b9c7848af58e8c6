package output

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// Errors of [Log.Append]. Both leave the log as it was.
var (
	// ErrFull: a lossless log has no room; wait for [Log.Room] and append again.
	ErrFull = errors.New("output log is full")
	// ErrClosed: the log was closed or removed.
	ErrClosed = errors.New("output log is closed")
)

// Chunk is a piece of output as it was read.
type Chunk struct {
	Number int64 // consecutive from 0
	Offset int64 // raw bytes of the process before it, over all streams
	Stream wire.Stream
	Data   []byte // 1..4,096 bytes; copied
	At     time.Time
	// OrderUnknown: it was found after a crash; its place among the chunks of the
	// other stream is not known.
	OrderUnknown bool
	// StdoutOffset is the stdout bytes before the chunk, Descriptors those of each extra
	// descriptor that wrote some. They are used only where the log lacks the chunks
	// before, after a recovery.
	StdoutOffset int64
	Descriptors  []wire.DescriptorBytes
}

// Log is the output of one process.
type Log struct {
	cfg Config

	// disk is held by who writes, recycles or removes segment files, and around
	// OnTrim. It is taken before mu.
	disk    sync.Mutex
	file    *os.File // of the last segment, open for writing; guarded by disk
	failing bool     // the last write failed; guarded by disk
	trimmed int64    // last value given to OnTrim; guarded by disk

	mu        sync.Mutex
	blocks    []*block      // the window, oldest first; guarded by mu, as all below
	free      []*block      // at most 2
	bytes     int64         // of data in the window
	chunks    int           // in the window
	segs      []*segment    // head segments, then tail segments, oldest first
	headDone  bool          // the next segment is a tail segment
	lost      []lostSpan    // why chunks are gone, where it was not the budget
	next      int64         // number of the next chunk
	total     int64         // raw bytes so far
	stdout    int64         // stdout bytes so far
	lines     [2]int64      // line feeds so far
	states    [2]state      // of each stream, after its last chunk
	extra     []extent      // of the extra descriptors that wrote something, by number
	scratch   []byte        // of table
	dropped   int64         // total = kept + dropped
	wake      chan struct{} // closed at the next chunk; nil without waiters
	room      chan struct{} // closed when a stalled log may try again; nil when not stalled
	jump      bool          // after Open, before the first Append: numbers may skip
	closed    bool
	complete  bool
	errText   string
	removed   bool
	evicted   int64 // the raw offset of the last trim without a spool
	evictedAt int64 // and its chunk
	recovery  Recovery
}

// lostSpan is a run of chunks that is gone for another reason than the budget.
type lostSpan struct {
	from, to int64
	reason   string
}

// maxLost bounds the reasons remembered; beyond it the oldest read as "budget".
const maxLost = 256

// Reasons of a [wire.Gap].
const (
	gapBudget = "budget"
	gapSpool  = "spool_error"
	gapTorn   = "torn"
)

// Open makes the log of a process, from the spool that is there or empty.
func Open(cfg Config) (*Log, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	l := &Log{cfg: cfg, jump: true}
	if cfg.spooled() {
		if err := l.recover(); err != nil {
			return nil, fmt.Errorf("recover output of %s: %w", cfg.Process, err)
		}
	}
	return l, nil
}

// Next is the number of the chunk that is wanted next.
func (l *Log) Next() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next
}

// Append adds one chunk. Its number and offset follow the last chunk's; only the
// first chunk after Open may be further on, where a journal has lost what the spool
// lacks: that becomes a gap. It never waits for a reader. A spool that cannot take
// bytes is no error: the bytes are counted as dropped and the log goes on, or, when
// lossless, answers [ErrFull].
func (l *Log) Append(c Chunk) error {
	if l.cfg.Limits.Lossless {
		if err := l.makeRoom(); err != nil {
			return err
		}
	}
	data := c.Data
	if l.cfg.Filter != nil {
		if data = l.cfg.Filter(c); len(data) > MaxChunk {
			return fmt.Errorf("append chunk %d: the filter made %d bytes of %d", c.Number, len(data), len(c.Data))
		}
	}
	l.mu.Lock()
	if err := l.check(&c); err != nil {
		l.mu.Unlock()
		return err
	}
	l.add(&c, data)
	leaving, trim := l.leaving() != nil, false
	if !l.cfg.spooled() {
		leaving, trim = false, l.evict()
	}
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
	l.mu.Unlock()
	if leaving {
		l.drain()
	} else if trim {
		l.disk.Lock()
		l.trim()
		l.disk.Unlock()
	}
	return nil
}

// check refuses what the caller should not have sent, and takes a jump after Open.
func (l *Log) check(c *Chunk) error {
	switch {
	case l.closed || l.removed:
		return fmt.Errorf("append chunk %d: %w", c.Number, ErrClosed)
	case !c.Stream.Valid():
		return fmt.Errorf("append chunk %d: no stream %d", c.Number, c.Stream)
	case len(c.Data) == 0 || len(c.Data) > MaxChunk:
		return fmt.Errorf("append chunk %d: %d bytes, not 1..%d", c.Number, len(c.Data), MaxChunk)
	case c.Number == l.next && c.Offset == l.total:
		l.jump = false
		return nil
	case l.jump && c.Number > l.next && c.Offset > l.total && c.before() <= c.Offset:
		l.jump = false
		l.lose(l.next, c.Number, gapTorn)
		l.dropped += c.Offset - l.total
		// What the lost chunks left open is lost with them.
		l.next, l.total, l.states = c.Number, c.Offset, [2]state{}
		l.stdout = max(l.stdout, c.StdoutOffset)
		for i := range l.extra {
			l.extra[i].state = state{}
		}
		for _, d := range c.Descriptors {
			e := l.extent(wire.Stream(d.Number))
			e.bytes = max(e.bytes, d.Bytes)
		}
		return nil
	}
	return fmt.Errorf("append chunk %d at offset %d: want chunk %d at %d", c.Number, c.Offset, l.next, l.total)
}

// before is the bytes of all streams before the chunk, less stderr's.
func (c *Chunk) before() int64 {
	n := c.StdoutOffset
	for _, d := range c.Descriptors {
		if d.Bytes < 0 || d.Number < wire.MinDescriptor || d.Number > wire.MaxDescriptor {
			return math.MaxInt64
		}
		n += d.Bytes
	}
	return n
}

var lineFeed = []byte{'\n'}

// add puts a checked chunk in the window and moves the counters. guarded by mu.
func (l *Log) add(c *Chunk, data []byte) {
	r := record{
		number: c.Number, raw: c.Offset, stdout: l.stdout, nanos: c.At.UnixNano(),
		source: len(c.Data), stream: c.Stream, states: l.states, data: data,
		lines: [2]uint32{saturate(l.lines[0]), saturate(l.lines[1])}, table: l.table(),
	}
	if c.OrderUnknown {
		r.flags = flagNoRank
	}
	l.blockFor(&r).add(&r)
	l.bytes += int64(r.source)
	l.chunks++
	l.next++
	l.total += int64(r.source)
	l.stdout = r.stdoutEnd()
	l.advance(&r)
}

// advance moves what is counted of the record's stream over its data. guarded by mu.
func (l *Log) advance(r *record) {
	lines := int64(bytes.Count(r.data, lineFeed))
	if r.stream > wire.Stderr {
		e := l.extent(r.stream)
		e.bytes += int64(r.source)
		e.lines += lines
		e.state.advance(r.data)
		return
	}
	l.lines[r.stream-1] += lines
	l.states[r.stream-1].advance(r.data)
}

func saturate(n int64) uint32 { return uint32(min(n, math.MaxUint32)) }

// Close says that the streams have ended, completely or with what errText says. It
// wakes all waiters. Only the first call counts.
func (l *Log) Close(complete bool, errText string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed, l.complete, l.errText = true, complete, errText
	l.free = nil
	l.wakeAll()
}

// wakeAll ends every wait. guarded by mu.
func (l *Log) wakeAll() {
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
	l.unstall()
}

// Changed gives a channel that is closed when there is output past cursor, or none
// will come; at once if that is so already. Waiters share one channel, so their
// number costs nothing and needs no bound here. A chunk of another stream wakes too.
func (l *Log) Changed(cursor int64) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if cursor < l.next || l.closed || l.removed {
		return closedChan()
	}
	if l.wake == nil {
		l.wake = make(chan struct{})
	}
	return l.wake
}

func closedChan() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// Room gives a channel that is closed when a lossless log that answered [ErrFull]
// may have room again: budget was given back, or the log closed. A disk that was
// full says nothing when it no longer is, so append again after a second anyway.
func (l *Log) Room() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.room == nil {
		return closedChan()
	}
	return l.room
}

// wakeRoom is called by the budget when space was given back.
func (l *Log) wakeRoom() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unstall()
}

// unstall ends a stall. guarded by mu.
func (l *Log) unstall() {
	if l.room != nil {
		close(l.room)
		l.room = nil
		l.cfg.Budget.watch(l, false)
	}
}

// makeRoom answers ErrFull while a lossless log holds a block that nothing takes.
func (l *Log) makeRoom() error {
	l.mu.Lock()
	full := l.overfull()
	l.mu.Unlock()
	if full {
		l.drain()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.removed || !l.overfull() {
		l.unstall()
		return nil
	}
	if l.room == nil {
		l.room = make(chan struct{})
		l.cfg.Budget.watch(l, true)
	}
	return ErrFull
}

// Stats counts the output so far.
func (l *Log) Stats() wire.OutputStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats()
}

func (l *Log) stats() wire.OutputStats {
	return wire.OutputStats{
		TotalBytes: l.total, StdoutBytes: l.stdout, StderrBytes: l.total - l.stdout - l.others(),
		Descriptors: l.descriptors(),
		KeptBytes:   l.total - l.dropped, DroppedBytes: l.dropped,
		EarliestCursor: l.earliest(), LatestCursor: l.next,
		Complete: l.complete, Error: l.errText, Stalled: l.room != nil,
	}
}
