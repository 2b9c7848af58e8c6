package keeper

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// Client is a worker's connection to its keeper.
type Client struct {
	link        *link
	incarnation uint64 // the highest the keeper had seen when we dialled
	keeperPID   int
	deliver     atomic.Pointer[func(Event)]
	done        chan struct{} // closed when the reader has returned
	buffers     sync.Pool     // of *[]byte, readBytes each, for pumps at work
	spinning    atomic.Bool   // a pump is in awaitExit

	arena    *arena
	journals pool

	mu        sync.Mutex
	lastID    uint64                  // guarded by mu
	calls     map[uint64]chan<- frame // guarded by mu; nil when the reader is gone
	processes map[string]*Process     // guarded by mu
	starting  map[string]*fate        // guarded by mu; a command may end before Spawn knows that it runs
	adopting  []*Process              // guarded by mu; filled while attach is under way
	closing   bool                    // guarded by mu
	cause     error                   // guarded by mu; why the reader returned
	pumping   sync.WaitGroup          // pumps under way
	asking    sync.WaitGroup          // starts under way, and answers awaited for nobody
	orphans   atomic.Int32            // of those answers
}

// detachLimit bounds the good-bye to a keeper that may be stuck.
const detachLimit = 2 * time.Second

// maxOrphans bounds the requests that were given up before their answer. A keeper that
// owes more is stuck, and the connection ends.
const maxOrphans = 256

// errClosed is the end of everything after Close.
var errClosed = errors.New("keeper client is closed")

// Dial connects to the keeper of a state directory. It does not start one: [Ensure]
// does. Nothing is served before [Client.Attach].
func Dial(ctx context.Context, dir string) (*Client, error) {
	conn, err := connect(ctx, dir)
	if err != nil {
		return nil, err
	}
	c := &Client{
		link: newLink(conn), done: make(chan struct{}),
		calls: map[uint64]chan<- frame{}, processes: map[string]*Process{},
		starting: map[string]*fate{},
	}
	c.buffers.New = func() any { b := make([]byte, readBytes); return &b }
	go c.read() // ends with the connection; Close waits for it
	var hello helloReply
	if _, err := c.call(ctx, kindHello, nil, &hello); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("greet the keeper: %w", err)
	}
	c.incarnation, c.keeperPID = hello.Incarnation, hello.PID
	return c, nil
}

// LastIncarnation is the highest incarnation the keeper had seen at [Dial]; 0 for a
// keeper that nobody has attached to.
func (c *Client) LastIncarnation() uint64 { return c.incarnation }

// KeeperPID is the keeper's process id.
func (c *Client) KeeperPID() int { return c.keeperPID }

// Attach makes this the worker that the keeper serves, as incarnation e, and gives the
// processes that it holds. An older worker that did not go in good order is killed
// first and its exit awaited. An e that is not above the last one is refused with
// invalid_arguments.
//
// deliver gets every event from now on; it must only hand over. It may be called
// before Attach has returned.
func (c *Client) Attach(ctx context.Context, e uint64, deliver func(Event)) ([]*Process, error) {
	if !c.deliver.CompareAndSwap(nil, &deliver) {
		return nil, errors.New("attach: already attached")
	}
	var reply attachReply
	f, err := c.call(ctx, kindAttach, attachRequest{Incarnation: e}, &reply)
	if err != nil {
		return nil, fmt.Errorf("attach to the keeper: %w", err)
	}
	defer func() { f.closeDescriptors() }()
	c.mu.Lock()
	adopted := c.adopting
	c.adopting = nil
	c.mu.Unlock()
	if len(f.descriptors) != 1+len(reply.Journals) || len(adopted) != reply.Processes {
		return nil, fmt.Errorf("attach to the keeper: %w: %d processes and %d descriptors", errFrame, len(adopted), len(f.descriptors))
	}
	c.arena = openArena(f.descriptors[0])
	c.journals.add(reply.Journals, f.descriptors[1:])
	f.descriptors = nil
	for _, p := range adopted {
		if p.slot, err = c.arena.slot(p.info.Slot, p.info.Wide); err != nil {
			return nil, fmt.Errorf("adopt process %s: %w", p.info.Process, err)
		}
		p.input.written.Store(int64(p.slot.word(wordInput).Load()))
	}
	return adopted, nil
}

// Close ends the connection in good order: pumps are stopped and waited for, and the
// keeper is told that this worker reads no more, so that the next one need not kill
// it. Processes run on; the adoption window opens. Starts under way are waited for and
// undone. A keeper that does not answer holds it up for 2 s. No Lost is delivered. It is
// safe to call it twice.
func (c *Client) Close() error {
	c.mu.Lock()
	first := !c.closing
	c.closing = true
	processes := make([]*Process, 0, len(c.processes))
	for _, p := range c.processes {
		processes = append(processes, p)
	}
	c.mu.Unlock()
	if !first {
		<-c.done
		return nil
	}
	for _, p := range processes {
		p.output.stop(errClosed)
	}
	c.pumping.Wait()
	for _, p := range processes { // before the good-bye: the next worker may write at once
		p.input.shut()
	}
	asked := make(chan struct{})
	go func() { c.asking.Wait(); close(asked) }() // awaited below
	ctx, cancel := context.WithTimeout(context.Background(), detachLimit)
	defer cancel()
	select {
	case <-asked:
	case <-ctx.Done():
	}
	if c.deliver.Load() != nil { // attached, or an Attach was cut off that the keeper may have taken
		// Awaited, so that the next worker cannot come before it. A keeper that is gone
		// is as good.
		_, _ = c.call(ctx, kindDetach, nil, nil)
	}
	c.link.close()
	<-c.done
	<-asked // no answer comes any more
	for _, p := range processes {
		p.closeFiles()
	}
	c.journals.close()
	if c.arena != nil {
		c.arena.close()
	}
	return nil
}

// call sends one request and waits for its answer. The caller owns the descriptors of
// the frame, if it gets one.
func (c *Client) call(ctx context.Context, k kind, request, reply any) (frame, error) {
	answer := make(chan frame, 1)
	c.mu.Lock()
	if c.calls == nil {
		err := c.cause
		c.mu.Unlock()
		return frame{}, wire.Errorf(wire.CodeUnavailable, "the keeper is gone: %v", err)
	}
	c.lastID++
	id := c.lastID
	c.calls[id] = answer
	c.mu.Unlock()
	if err := c.link.send(ctx, k, id, request); err != nil {
		c.forget(id)
		return frame{}, err
	}
	select {
	case f, ok := <-answer:
		if !ok {
			return frame{}, wire.Errorf(wire.CodeUnavailable, "the keeper went away before it answered")
		}
		return answered(f, reply)
	case <-ctx.Done():
		if k == kindSpawn || k == kindJournals {
			c.giveUp(k, answer)
		} else {
			c.forget(id)
		}
		return frame{}, context.Cause(ctx)
	}
}

// giveUp leaves an answer that brings something to a goroutine that gives it back: a
// process that was spawned for nobody is released, which kills it. The caller is counted
// in asking or pumping.
func (c *Client) giveUp(k kind, answer <-chan frame) {
	if c.orphans.Add(1) > maxOrphans {
		c.link.close() // closes answer; the goroutine ends at once
	}
	c.asking.Go(func() { // ends with the answer or the connection; Close waits for it
		defer c.orphans.Add(-1)
		f, ok := <-answer
		if !ok {
			return
		}
		f.closeDescriptors()
		var info processInfo
		var list journalList
		ctx := context.Background()
		switch {
		case f.kind != kindReply:
		case k == kindSpawn && f.decode(&info) == nil:
			_ = c.link.send(ctx, kindRelease, 0, processRequest{Process: info.Process})
		case k == kindJournals && f.decode(&list) == nil:
			_ = c.link.send(ctx, kindDropJournals, 0, list)
		}
	})
}

// answered decodes an answer; an error in it becomes ours.
func answered(f frame, reply any) (frame, error) {
	if f.kind == kindError {
		f.closeDescriptors()
		var e wire.Error
		if err := f.decode(&e); err != nil {
			return frame{}, err
		}
		return frame{}, &e
	}
	if reply == nil {
		f.closeDescriptors()
		return frame{}, nil
	}
	if err := f.decode(reply); err != nil {
		f.closeDescriptors()
		return frame{}, err
	}
	return f, nil
}

func (c *Client) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calls, id)
}

// read hands out answers and events until the connection ends.
func (c *Client) read() {
	defer close(c.done)
	var err error
	for err == nil {
		var f frame
		if f, err = c.link.receive(); err == nil {
			err = c.dispatch(f)
		}
	}
	c.link.close()
	c.link.drop()
	c.mu.Lock()
	c.cause = err
	closing := c.closing
	for _, answer := range c.calls {
		close(answer)
	}
	c.calls = nil
	c.mu.Unlock()
	if deliver := c.deliver.Load(); deliver != nil && !closing {
		(*deliver)(Event{Lost: &Lost{Err: fmt.Errorf("connection to the keeper: %w", err)}})
	}
}

func (c *Client) dispatch(f frame) error {
	switch f.kind {
	case kindReply, kindError:
		c.mu.Lock()
		answer := c.calls[f.id]
		delete(c.calls, f.id)
		if answer != nil {
			answer <- f // has room for the one answer
		}
		c.mu.Unlock()
		if answer == nil {
			f.closeDescriptors() // given up, and of no consequence
		}
		return nil
	case kindAdopted:
		return c.adopt(f)
	case kindExited:
		e := new(Exited)
		if err := f.decode(e); err != nil {
			return err
		}
		c.event(e.Process, Event{Exited: e})
		return nil
	case kindGone:
		g := new(Gone)
		if err := f.decode(g); err != nil {
			return err
		}
		c.event(g.Process, Event{Gone: g})
		return nil
	}
	f.closeDescriptors()
	return fmt.Errorf("%w: unexpected kind %d", errFrame, f.kind)
}

// event notes what happened to a process and delivers it.
func (c *Client) event(process string, e Event) {
	c.mu.Lock()
	if p := c.processes[process]; p != nil {
		p.note(e)
	} else if early := c.starting[process]; early != nil {
		early.note(e)
	}
	c.mu.Unlock()
	if deliver := c.deliver.Load(); deliver != nil {
		(*deliver)(e)
	}
}

func (c *Client) adopt(f frame) error {
	var info processInfo
	if err := f.decode(&info); err != nil {
		f.closeDescriptors()
		return err
	}
	p, err := c.newProcess(info, f.descriptors)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.processes[info.Process] = p
	c.adopting = append(c.adopting, p)
	c.mu.Unlock()
	return nil
}
