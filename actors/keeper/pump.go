package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/limpet-sh/limpet/actors/runtime"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// Sink takes the output of one process, chunk by chunk, in order. Append may wait:
// then the process waits too, once the pipe is full. An error ends the pump.
type Sink interface{ Append(c Chunk) error }

// Chunk is one piece of output.
type Chunk struct {
	// Number counts the chunks of a process from 0. A number is given once.
	Number int64
	// Offset is the raw offset of the first byte: over all streams, in the order read.
	Offset int64
	Stream wire.Stream
	// Data has 1 to 4,096 bytes, valid during the call.
	Data []byte
	// At is when it was read.
	At time.Time
	// OrderUnknown says that the order between the streams could not be told.
	OrderUnknown bool
	// StdoutOffset is the stdout bytes before it.
	StdoutOffset int64
	// Descriptors are the bytes of each extra descriptor before it, where there were any.
	// They are in the first chunk that a [Process.Pump] gives, and in no other.
	Descriptors []wire.DescriptorBytes
}

var (
	errReleased = errors.New("process is released")
	errPumping  = errors.New("pump: one is running already")
)

// pump is the worker's part of the output of a process.
type pump struct {
	process *Process

	stdout, stderr, master *os.File
	extra                  []runtime.Output
	between                *[2]int // read and write end of a terminal's pipe

	life   sync.Mutex
	cancel context.CancelCauseFunc // guarded by life; not nil while pumping
	idle   chan struct{}           // guarded by life; closed when the pump under way has ended
	ended  error                   // guarded by life; why no pump may start any more

	// turn is held from a read until its bytes are with the sink, so that chunks are
	// indexed and handed over in one order. It guards what follows, and the slot.
	turn     sync.Mutex
	journal  *journal
	released bool     // slot and journal belong to someone else
	tidying  bool     // a timer for tidy runs
	tidied   [2]int64 // next chunk and trimmed offset at the last tidy
	sink     Sink
	next     int64 // number of the first chunk the sink has not got
	fresh    bool  // the sink has got none from this pump
	failed   error // the sink's or ours: nothing is read any more

	wanted atomic.Int64  // what Trim was called with at most
	trims  chan struct{} // wakes the holder of turn that waits for room
}

// Pump moves output from the pipes through the journal into sink and returns when both
// streams are at their end, nil, or when ctx ends, its cause. next is the number of
// the first chunk that the sink has not got: 0 for a new process. Chunks that an
// earlier worker indexed come first, as they were; those that were trimmed are gone,
// which shows in the numbers. A next beyond what exists is cursor_ahead. Pump can be
// called again after it has returned.
func (p *Process) Pump(ctx context.Context, sink Sink, next int64) error {
	u := &p.output
	ctx, done, err := u.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := u.resume(sink, next); err != nil {
		return fmt.Errorf("pump %s: %w", p.info.Process, err)
	}
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { u.setDeadline(time.Unix(1, 0)); close(fired) })
	defer func() {
		if !stop() {
			<-fired // the deadline must not hit the next pump
		}
	}()
	var streams sync.WaitGroup
	for _, o := range u.extra {
		streams.Go(func() { u.run(ctx, o.File, wire.Stream(o.Number)) }) // as below
	}
	if u.stderr != nil {
		streams.Go(func() { u.run(ctx, u.stderr, wire.Stderr) }) // ends with ctx or the stream
	}
	switch {
	case u.master != nil:
		u.run(ctx, u.master, wire.Stdout)
	case u.stdout != nil:
		u.run(ctx, u.stdout, wire.Stdout)
	}
	streams.Wait()
	p.awaitExit(ctx)
	u.turn.Lock()
	defer u.turn.Unlock()
	if u.failed != nil {
		return fmt.Errorf("pump %s: %w", p.info.Process, u.failed)
	}
	return context.Cause(ctx)
}

// exitSpin is how long awaitExit looks for the exit.
const exitSpin = 150 * time.Microsecond

// awaitExit keeps this processor awake for the exit, which mostly follows the end of
// the streams within 100 µs: the way over the keeper is two wake-ups, and one of a
// sleeping processor costs as much as the rest of the way. Measured on a run of true:
// 5 % of the whole. One pump at a time does it, so that a busy worker does not pay.
func (p *Process) awaitExit(ctx context.Context) {
	if !p.client.spinning.CompareAndSwap(false, true) {
		return
	}
	defer p.client.spinning.Store(false)
	for start := time.Now(); p.exited.Load() == nil && ctx.Err() == nil && time.Since(start) < exitSpin; {
		goruntime.Gosched()
	}
}

// Trim says that the sink needs no bytes below raw offset raw any more. It never
// waits, may be called from Append, and ignores what is not above an earlier call.
func (p *Process) Trim(raw int64) {
	u := &p.output
	for old := u.wanted.Load(); raw > old; old = u.wanted.Load() {
		if !u.wanted.CompareAndSwap(old, raw) {
			continue
		}
		select {
		case u.trims <- struct{}{}:
		default: // it has been woken already
		}
		if u.turn.TryLock() {
			u.unlock() // else who holds it sees what we want
		}
		return
	}
}

// begin registers a pump; done ends it.
func (u *pump) begin(ctx context.Context) (context.Context, func(), error) {
	c := u.process.client
	c.mu.Lock()
	closing := c.closing
	if !closing {
		c.pumping.Add(1)
	}
	c.mu.Unlock()
	if closing {
		return nil, nil, errClosed
	}
	u.life.Lock()
	defer u.life.Unlock()
	err := u.ended
	if err == nil && u.cancel != nil {
		err = errPumping
	}
	if err != nil {
		c.pumping.Done()
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	idle := make(chan struct{})
	u.cancel, u.idle = cancel, idle
	u.setDeadline(time.Time{})
	return ctx, func() {
		u.life.Lock()
		u.cancel = nil
		u.life.Unlock()
		close(idle)
		cancel(nil)
		c.pumping.Done()
	}, nil
}

// stop ends the pump under way, waits for it, and lets none start again.
func (u *pump) stop(cause error) {
	u.life.Lock()
	u.ended = cause
	cancel, idle := u.cancel, u.idle
	u.life.Unlock()
	if cancel != nil {
		cancel(cause)
		<-idle
	}
}

func (u *pump) setDeadline(t time.Time) {
	for _, f := range []*os.File{u.stdout, u.stderr, u.master} {
		if f != nil {
			_ = f.SetReadDeadline(t) // fails on a file that is closed, which needs none
		}
	}
	for _, o := range u.extra {
		_ = o.File.SetReadDeadline(t) // likewise
	}
}

// fail ends the pump under way with err. The caller holds turn.
func (u *pump) fail(err error) {
	if u.failed == nil {
		u.failed = err
	}
	u.life.Lock()
	defer u.life.Unlock()
	if u.cancel != nil {
		u.cancel(err)
	}
}

// run moves one stream until its end, or that of ctx.
func (u *pump) run(ctx context.Context, file *os.File, stream wire.Stream) {
	raw, err := file.SyscallConn()
	if err != nil {
		return
	}
	ended := false
	waitErr := raw.Read(func(fd uintptr) bool {
		for ctx.Err() == nil {
			n, err := u.step(ctx, int(fd), stream)
			if errors.Is(err, unix.EAGAIN) {
				return false // wait in the netpoller
			}
			if err != nil {
				return true
			}
			if n == 0 {
				ended = true
				return true
			}
		}
		return true
	})
	switch {
	case ended && file != u.master: // the terminal still takes input and a size
		_ = file.Close()
	case waitErr != nil && ctx.Err() == nil && !errors.Is(waitErr, os.ErrClosed): // closed: it was at its end before
		u.turn.Lock()
		u.fail(waitErr)
		u.turn.Unlock()
	}
}

// step reads once, indexes what came and hands it to the sink. It gives the count of
// bytes, 0 at the end of the stream, or EAGAIN when there is nothing now.
func (u *pump) step(ctx context.Context, fd int, stream wire.Stream) (int, error) {
	u.turn.Lock()
	defer u.unlock()
	n, err := u.read(ctx, fd, stream)
	if n > 0 {
		u.process.slot.index(stream, n, time.Now(), false)
		err = u.handOver()
	}
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		u.fail(err)
	}
	return n, err
}

// read moves bytes of stream to the end of the journal.
func (u *pump) read(ctx context.Context, fd int, stream wire.Stream) (int, error) {
	if u.failed != nil {
		return 0, u.failed
	}
	if u.journal == nil {
		if ready, err := u.readable(fd); !ready || err != nil {
			return 0, err
		}
		if err := u.assignJournal(ctx); err != nil {
			return 0, err
		}
	}
	if err := u.waitRoom(ctx); err != nil {
		return 0, err
	}
	if intent := u.process.slot.word(wordIntent); intent.Load() != uint64(stream) {
		intent.Store(uint64(stream))
	}
	if u.between != nil {
		return u.spliceTerminal(fd)
	}
	return u.splice(fd)
}
