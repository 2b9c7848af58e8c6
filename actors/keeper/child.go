package keeper

import (
	"cmp"
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/limpet-sh/limpet/actors/runtime"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// child is one command that the keeper holds. Beside it runs one goroutine, watch,
// until the command ends, and one more during a stop.
type child struct {
	info    processInfo // as at the spawn
	tree    *runtime.Child
	slot    *slot
	between *[2]int
	done    chan struct{} // closed when the exit is known and told
	ended   chan struct{} // closed when exit and fate of the tree are known

	// guarded by keeper.mu
	deadline *time.Timer
	cause    wire.Reason // of the first stop
	asked    wire.Reason // of the first interrupt, which may be ignored
	exited   *Exited
	gone     *Gone
	hurry    context.CancelFunc // ends the grace of the stop under way; nil without one
	released bool
	swept    bool // the release has killed what was left
}

// watch waits for the exit and tells it.
func (k *keeper) watch(c *child) {
	exit, err := c.tree.Wait()
	if err != nil {
		k.log.Error("wait", "process", c.info.Process, "err", err)
	}
	left, proof, scanErr := c.tree.Survivors()
	if scanErr != nil {
		k.log.Error("look for survivors", "process", c.info.Process, "err", scanErr)
	}
	e := &Exited{
		Process: c.info.Process, Code: exit.Shell(), CoreDumped: exit.CoreDumped,
		At: exit.At.UTC(), Usage: &exit.Usage, OOM: exit.OOM, Left: left, Proof: proof,
	}
	state, stateErr := c.tree.State()
	if stateErr != nil {
		k.log.Error("captured state", "process", c.info.Process, "err", stateErr)
	}
	e.State = state
	if exit.Signal != 0 {
		e.Signal = wire.SignalName(int(exit.Signal))
	}
	k.mu.Lock()
	if c.deadline != nil {
		c.deadline.Stop()
	}
	switch {
	case c.cause != "":
		e.Cause = c.cause
	case err != nil:
		e.Cause = wire.ReasonInternal
	case c.asked != "" && e.Code == 128+int(syscall.SIGINT):
		e.Cause = c.asked
	case exit.OOM && e.Code != 0:
		e.Cause = wire.ReasonOOM
	case exit.Signal != 0:
		e.Cause = wire.ReasonSignal
	default:
		e.Cause = wire.ReasonExit
	}
	if left == 0 && scanErr == nil && c.hurry == nil {
		e.Gone = true
		c.gone = &Gone{Process: e.Process, Gone: true, Proof: proof}
	}
	c.exited = e
	w := k.worker
	k.mu.Unlock()
	k.tell(w, kindExited, e)
	close(c.done)
	k.settle(c)
}

// tell sends an event to the worker that was there when it happened. A later one finds
// it in what it adopts.
func (k *keeper) tell(w *session, kind kind, event any) {
	if w == nil {
		return
	}
	if err := w.link.send(context.Background(), kind, 0, event); err != nil {
		k.log.Debug("event", "err", err)
	}
}

// stop begins the end of a tree, or makes it come faster.
func (k *keeper) stop(c *child, cause wire.Reason, mode Mode, grace time.Duration) error {
	switch {
	case mode != Terminate && mode != Kill && mode != Interrupt && mode != leftovers:
		return wire.Invalid("mode", "%q is not terminate, kill or interrupt", mode)
	case len(cause) > 64:
		return wire.Invalid("cause", "at most 64 bytes")
	}
	if mode == Interrupt {
		k.mu.Lock()
		c.asked = cmp.Or(c.asked, cause)
		k.mu.Unlock()
		return c.signal(syscall.SIGINT)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if mode == leftovers && c.exited == nil {
		return wire.Invalid("mode", "the command of %s has not ended", c.info.Process)
	}
	if c.gone != nil && c.gone.Gone {
		return nil
	}
	if c.exited == nil && c.cause == "" {
		c.cause = cause
	}
	if c.hurry != nil {
		if mode == Kill {
			c.hurry()
		}
		return nil
	}
	options := runtime.StopOptions{First: syscall.SIGTERM, Grace: grace}
	if mode == Kill {
		options = runtime.StopOptions{}
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.hurry = cancel
	k.work.Go(func() { k.end(ctx, c, options) }) // ends after the grace and the look that follows KILL
	return nil
}

// end ends a tree and tells the result.
func (k *keeper) end(ctx context.Context, c *child, options runtime.StopOptions) {
	alone := 0 // descendants without their command, before anything is done to them
	k.mu.Lock()
	exited := c.exited != nil // which is told before done is closed
	k.mu.Unlock()
	if exited {
		alone, _, _ = c.tree.Survivors()
	}
	r := c.tree.Stop(ctx, options)
	if r.Gone {
		<-c.done // exited is told before gone
	}
	g := &Gone{Process: c.info.Process, Gone: r.Gone, Proof: r.Proof, Killed: r.Killed, Unsignalled: r.Unsignalled}
	k.mu.Lock()
	if alone == 0 && c.cause != "" && c.exited != nil {
		alone = c.exited.Left // the stop reached the command first
	}
	g.Leftovers = max(0, alone-len(r.Unsignalled))
	c.hurry()
	c.hurry = nil
	c.gone = g
	w := k.worker
	k.mu.Unlock()
	k.tell(w, kindGone, g)
	k.settle(c)
}

// settle closes the books of a child when everything about it is known, and forgets it
// when it is released.
func (k *keeper) settle(c *child) {
	k.mu.Lock()
	if c.exited == nil || c.hurry != nil {
		k.mu.Unlock()
		return
	}
	if c.gone != nil {
		select {
		case <-c.ended:
		default:
			close(c.ended)
		}
	}
	forget := c.released && c.gone != nil && (c.gone.Gone || c.swept) && k.children[c.info.Process] == c
	if forget {
		delete(k.children, c.info.Process)
	}
	sweep := c.released && !forget && !c.swept
	c.swept = c.swept || sweep
	k.mu.Unlock()
	switch {
	case sweep:
		_ = k.stop(c, wire.ReasonInternal, Kill, 0) // its mode is right
	case forget:
		k.forget(c)
	}
}

// release: the worker is done with c. What still lives is killed first.
func (k *keeper) release(c *child) {
	k.mu.Lock()
	c.released = true
	running := c.exited == nil
	k.mu.Unlock()
	if running {
		_ = k.stop(c, wire.ReasonInternal, Kill, 0) // its mode is right
	}
	k.settle(c)
}

// forget gives everything of c back. It is in no list any more.
func (k *keeper) forget(c *child) {
	if err := c.tree.Close(); err != nil {
		k.log.Error("close", "process", c.info.Process, "err", err)
	}
	if c.between != nil {
		_ = unix.Close(c.between[0])
		_ = unix.Close(c.between[1])
	}
	k.freeSlot(c.slot)
	k.mu.Lock()
	delete(k.names, c.info.Process)
	k.mu.Unlock()
	k.wake()
}

func (c *child) signal(sig syscall.Signal) error {
	err := c.tree.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return wire.Errorf(wire.CodeNotFound, "process %s has ended", c.info.Process)
	}
	return err
}

// closeInput closes the keeper's end of stdin.
func (c *child) closeInput() {
	if c.tree.Stdin != nil {
		_ = c.tree.Stdin.Close() // a second time: closed already
	}
}

// describe is what a worker that adopts c needs to know. The caller holds k.mu.
func (k *keeper) describe(c *child) processInfo {
	info := c.info
	info.Exited, info.Gone = c.exited, c.gone
	info.Journal = uint32(c.slot.word(wordJournal).Load())
	if k.journals[info.Journal-1] == nil {
		info.Journal = 0
	}
	return info
}

// descriptors lists what goes with info, and corrects it by what is closed. They stay
// open as long as nobody releases c, which only the worker that gets them can.
func (c *child) descriptors(info *processInfo) []int {
	var fds []int
	add := func(there *bool, f *os.File) {
		if !*there || f == nil {
			*there = false
			return
		}
		err := control(f, func(fd int) error {
			fds = append(fds, fd)
			return nil
		})
		*there = err == nil
	}
	add(&info.Stdout, c.tree.Stdout)
	add(&info.Stderr, c.tree.Stderr)
	add(&info.Stdin, c.tree.Stdin)
	add(&info.Master, c.tree.Master)
	info.Outputs = nil
	for _, o := range c.tree.Outputs {
		open := true
		if add(&open, o.File); open {
			info.Outputs = append(info.Outputs, o.Number)
		}
	}
	if info.Between {
		fds = append(fds, c.between[0], c.between[1])
	}
	return fds
}
