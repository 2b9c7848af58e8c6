package mcp

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

const (
	// maxLeft is how many processes a connection remembers to have left running; beyond,
	// those are forgotten first of whose end it knows.
	maxLeft = 1024
	// maxAsked is how many are asked for one by one; more are listed.
	maxAsked = 8
	// askLimit bounds what looking for ends adds to a call.
	askLimit = 2 * time.Second
)

// leftovers are the processes that an agent left running, and what it knows of them: how
// far it has seen their output, and whether it knows of their end. Each end is told once.
type leftovers struct {
	mu     sync.Mutex
	byID   map[string]*left // guarded by mu
	order  []string         // guarded by mu; oldest first
	asking bool             // guarded by mu; one call at a time looks
}

type left struct {
	receipt wire.Receipt // as last known
	how     Notices
	seen    int64 // raw offset up to which its output was shown
	ended   bool
	told    bool
}

// leave remembers a process that goes on after the call.
func (c *conn) leave(r *wire.Receipt, how Notices, seen int64) {
	l := &c.left
	l.mu.Lock()
	if p := l.byID[r.Process]; p != nil {
		p.seen = max(p.seen, seen)
		l.mu.Unlock()
		return
	}
	if len(l.order) >= maxLeft {
		l.forget()
	}
	p := &left{receipt: *r, how: how, seen: seen}
	p.receipt.Page = nil
	l.byID[r.Process] = p
	l.order = append(l.order, r.Process)
	l.mu.Unlock()
	if how == NoticesNotify {
		c.watchEnd(r.Process)
	}
}

// forget drops the oldest whose end is told, else the oldest. mu is held.
func (l *leftovers) forget() {
	i := max(0, slices.IndexFunc(l.order, func(id string) bool { return l.byID[id].told }))
	delete(l.byID, l.order[i])
	l.order = slices.Delete(l.order, i, i+1)
}

// shown notes that the agent has the output of a process up to an offset.
func (l *leftovers) shown(process string, offset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.byID[process]; p != nil {
		p.seen = max(p.seen, offset)
	}
}

// handed reports whether the handle of an execution was returned already: a call that
// asks for it again only looks.
func (l *leftovers) handed(execution string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.byID {
		if p.receipt.ExecutionID == execution {
			return true
		}
	}
	return false
}

// unseen is the offset from which the agent has not seen the output of a process.
func (l *leftovers) unseen(process string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.byID[process]; p != nil {
		return p.seen
	}
	return 0
}

// saw notes that the result of a call shows the end of a process.
func (l *leftovers) saw(process string, state wire.State) {
	if !state.Terminal() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.byID[process]; p != nil {
		p.ended, p.told = true, true
	}
}

// running are those whose end is not known.
func (l *leftovers) running() (ids []string) {
	for _, id := range l.order {
		if !l.byID[id].ended {
			ids = append(ids, id)
		}
	}
	return ids
}

// take looks what has ended of what was left running, and gives what the agent does not
// know yet, each once; and the receipts of those that live. A call that nobody waits for
// any more takes nothing.
func (c *conn) take(ctx context.Context, b *bound) (ended []notice, live []wire.Receipt) {
	l := &c.left
	l.mu.Lock()
	ids := l.running()
	ask := len(ids) > 0 && !l.asking && b != nil
	if ask {
		l.asking = true
	}
	l.mu.Unlock()
	if ask {
		list := c.ask(ctx, b, ids)
		l.mu.Lock()
		l.asking = false
		for i := range list {
			l.update(&list[i])
		}
		l.mu.Unlock()
	}
	if ctx.Err() != nil {
		return nil, nil
	}
	var notify []string
	l.mu.Lock()
	for _, id := range l.order {
		switch p := l.byID[id]; {
		case !p.ended:
			live = append(live, p.receipt)
		case p.told:
		case p.how == NoticesInject:
			p.told = true
			ended = append(ended, p.notice())
		case p.how == NoticesNotify:
			notify = append(notify, id)
		}
	}
	l.mu.Unlock()
	for _, id := range notify {
		c.notifyEnd(id)
	}
	return ended, live
}

// update takes a receipt. mu is held.
func (l *leftovers) update(r *wire.Receipt) {
	p := l.byID[r.Process]
	if p == nil || p.ended {
		return
	}
	if r.State == "" { // it is not there any more
		p.ended, p.told = true, true
		return
	}
	p.receipt = *r
	p.receipt.Page = nil
	p.ended = r.State.Terminal()
}

func (p *left) notice() notice {
	r := &p.receipt
	return notice{
		Process: r.Process, Description: r.Description, State: string(r.State), Reason: string(r.Reason), ExitCode: r.ExitCode,
		UnreadBytes: max(0, r.Output.TotalBytes-p.seen),
	}
}

// ask gets the receipts of processes. One that is not there any more comes without a
// state; one that could not be asked for does not come.
func (c *conn) ask(ctx context.Context, b *bound, ids []string) (found []wire.Receipt) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if len(ids) > maxAsked {
		all, err := b.List(ctx)
		if err != nil {
			return nil
		}
		for _, r := range all.Processes {
			if i := slices.Index(ids, r.Process); i >= 0 {
				found, ids = append(found, r), slices.Delete(ids, i, i+1)
			}
		}
	}
	answers := make(chan *wire.Receipt, len(ids))
	for _, id := range ids { // what is not listed may be known still
		go func() { // ends with the answer or askLimit; all are waited for
			r, err := b.procs.Status(ctx, id)
			if err != nil && wire.AsError(err).Code == wire.CodeNotFound {
				r = &wire.Receipt{Process: id}
			}
			answers <- r
		}()
	}
	for range ids {
		if r := <-answers; r != nil {
			found = append(found, *r)
		}
	}
	return found
}
