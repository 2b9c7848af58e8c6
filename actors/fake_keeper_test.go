package actors

import (
	"context"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// fakeKeeper is a Spawner whose children do what the test says.
type fakeKeeper struct {
	w        *world
	mu       sync.Mutex
	children map[string]*fakeChild // guarded by mu
	gate     chan struct{}         // guarded by mu; when set, a fork waits for it
	err      error                 // guarded by mu
	panics   bool                  // guarded by mu
	forks    int                   // guarded by mu
	lazy     bool                  // guarded by mu; children obey nothing
	broken   error                 // guarded by mu; what pumps end with
}

func (k *fakeKeeper) set(f func(*fakeKeeper)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f(k)
}

func (k *fakeKeeper) Spawn(ctx context.Context, s keeper.Spawn) (Child, error) {
	k.mu.Lock()
	gate := k.gate
	k.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.panics:
		panic("spawn")
	case k.err != nil:
		return nil, k.err
	}
	k.forks++
	c := k.children[s.Process]
	if c == nil { // its events may have come first
		c = newFakeChild(k.w, s.Process)
		k.children[s.Process] = c
	}
	c.spec, c.lazy, c.broken = s, k.lazy, k.broken
	return c, nil
}

// child is the child of a process, forked or about to be.
func (k *fakeKeeper) child(process string) *fakeChild {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.children[process]
	if c == nil {
		c = newFakeChild(k.w, process)
		k.children[process] = c
	}
	return c
}

func (k *fakeKeeper) only() *fakeChild {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.children {
		return c
	}
	return nil
}

// obedient lets every child that is left end at a stop, and ends those that were asked.
func (k *fakeKeeper) obedient() {
	k.mu.Lock()
	k.gate = nil
	children := make([]*fakeChild, 0, len(k.children))
	for _, c := range k.children {
		children = append(children, c)
	}
	k.mu.Unlock()
	for _, c := range children {
		c.mu.Lock()
		asked := len(c.stops) > 0 && c.lazy
		c.lazy = false
		c.mu.Unlock()
		if asked {
			c.end(wire.ReasonSessionClosed)
		}
	}
}

type stopCall struct {
	cause wire.Reason
	mode  keeper.Mode
	grace time.Duration
}

// fakeChild ends at the first Stop, unless it is lazy.
type fakeChild struct {
	w      *world
	id     string
	spec   keeper.Spawn
	chunks chan keeper.Chunk
	eof    chan struct{}

	mu       sync.Mutex
	stops    []stopCall       // guarded by mu
	left     []time.Duration  // guarded by mu; when leftovers were asked to go
	signals  []syscall.Signal // guarded by mu
	released int              // guarded by mu
	exited   bool             // guarded by mu
	gone     bool             // guarded by mu
	lazy     bool             // guarded by mu
	broken   error            // guarded by mu
	next     int64            // guarded by mu
	offset   int64            // guarded by mu
	written  []string         // guarded by mu
	closed   bool             // guarded by mu
	input    int64            // guarded by mu
}

func newFakeChild(w *world, id string) *fakeChild {
	return &fakeChild{w: w, id: id, chunks: make(chan keeper.Chunk, 64), eof: make(chan struct{})}
}

func (c *fakeChild) Stop(_ context.Context, cause wire.Reason, mode keeper.Mode, grace time.Duration) error {
	c.mu.Lock()
	c.stops = append(c.stops, stopCall{cause, mode, grace})
	ends := !c.lazy && mode != keeper.Interrupt
	cause = c.stops[0].cause
	c.mu.Unlock()
	if ends {
		c.end(cause)
	}
	return nil
}

func (c *fakeChild) Signal(_ context.Context, sig syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.signals = append(c.signals, sig)
	return nil
}

func (c *fakeChild) KillLeftovers(context.Context) error {
	c.mu.Lock()
	c.left = append(c.left, c.w.after())
	lazy := c.lazy
	c.mu.Unlock()
	if !lazy {
		c.goes(1)
		c.close()
	}
	return nil
}

func (c *fakeChild) Pump(ctx context.Context, sink keeper.Sink, _ int64) error {
	c.mu.Lock()
	broken := c.broken
	c.mu.Unlock()
	if broken != nil {
		if broken.Error() == "panic" {
			panic("pump")
		}
		return broken
	}
	for {
		select {
		case ch := <-c.chunks:
			if err := sink.Append(ch); err != nil {
				return err
			}
		case <-c.eof:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (c *fakeChild) Trim(int64) {}

func (c *fakeChild) Release(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.released++
	return nil
}

func (c *fakeChild) WriteInput(_ context.Context, _ int64, b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, wire.Errorf(wire.CodeStdinClosed, "closed")
	}
	c.written = append(c.written, string(b))
	c.input += int64(len(b))
	return len(b), nil
}

func (c *fakeChild) CloseInput(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return nil
}

func (c *fakeChild) Resize(context.Context, wire.WindowSize) error { return nil }

func (c *fakeChild) InputOffset() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.input
}

// says is output of the command.
func (c *fakeChild) says(text string) {
	c.mu.Lock()
	ch := keeper.Chunk{Number: c.next, Offset: c.offset, Stream: wire.Stdout, Data: []byte(text), At: time.Now()}
	c.next++
	c.offset += int64(len(text))
	c.mu.Unlock()
	c.chunks <- ch
}

// close is the end of the streams.
func (c *fakeChild) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !isDone(c.eof) {
		close(c.eof)
	}
}

// exits is the end of the command, with or without the whole tree.
func (c *fakeChild) exits(e keeper.Exited) {
	c.mu.Lock()
	first := !c.exited
	c.exited, c.gone = true, c.gone || e.Gone
	c.mu.Unlock()
	if !first {
		return
	}
	e.Process, e.At = c.id, time.Now()
	if e.Cause == "" {
		e.Cause = wire.ReasonExit
	}
	if e.Gone {
		e.Proof = wire.ProofCgroup
	}
	c.w.worker.deliver(keeper.Event{Exited: &e})
}

func (c *fakeChild) goes(leftovers int) {
	c.mu.Lock()
	first := !c.gone
	c.gone = true
	c.mu.Unlock()
	if first {
		c.w.worker.deliver(keeper.Event{Gone: &keeper.Gone{Process: c.id, Gone: true, Proof: wire.ProofCgroup, Leftovers: leftovers}})
	}
}

// end is the end of everything.
func (c *fakeChild) end(cause wire.Reason) {
	c.exits(keeper.Exited{Code: 143, Signal: "TERM", Cause: cause})
	c.goes(0)
	c.close()
}

func (c *fakeChild) seen() (stops []stopCall, left []time.Duration, released int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.stops), slices.Clone(c.left), c.released
}
