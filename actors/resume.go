package actors

import (
	"context"
	"fmt"
	"slices"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// adoptMembers enters what boot found, oldest first. It is called before the session's
// actor is started.
func (s *session) adoptMembers() {
	slices.SortFunc(s.adopted, func(a, b *process) int { return a.receipt.CreatedAt.Compare(b.receipt.CreatedAt) })
	for _, p := range s.adopted {
		switch {
		case !p.receipt.State.Terminal():
			s.live.Add(1)
		case p.kept:
			s.held[p.id] = true
		default:
			s.ended = append(s.ended, p.id)
		}
		s.enter(p)
	}
	s.adopted = nil
	s.evict()
	s.touch()
}

// resume is begin for a command of an earlier incarnation: one that had ended needs
// nothing more than to be released.
func (p *process) resume() {
	if !p.receipt.State.Terminal() {
		p.begin()
		p.resumeInput()
		if p.resolves { // what lives of it was given up already
			p.note("an earlier worker lost it; this one ended it and found the result")
			p.askStop(order{cause: wire.ReasonWorkerLost, mode: keeper.Kill})
		}
		return
	}
	p.hasExit, p.streams, p.tree = true, true, true
	p.past, p.sealing, p.sealer, p.told = true, true, true, true
	p.release()
	p.ship.Store(p.newShipper())
	c := p.child
	if c == nil {
		p.ship.Load().end(p.receipt.State) // its worker may have died before all was shipped
		return
	}
	// The record has the end; the log may miss what the journal still has.
	p.pumped.Store(&c)
	total, kept := p.receipt.Output.TotalBytes, p.kept
	p.sink = &sink{
		ctx: p.ctx, log: p.out, trim: c.Trim, until: max(1, total),
		limit: total - 1, over: func() { p.tell(report{kind: reportCollected}) },
	}
	if p.out.Stats().TotalBytes >= total {
		p.closeRecovered()
	}
	p.drain.Reset(collectLimit)
	rest := p.sink
	p.owned(func() {
		ctx, cancel := context.WithCancel(p.ctx)
		if !kept { // else the pump drains what the leftovers write, as before
			ctx, cancel = context.WithTimeout(p.ctx, collectLimit)
		}
		defer cancel()
		if err := c.Pump(ctx, rest, p.out.Next()); err != nil {
			p.log.Debug("rest of the output", "err", err)
		}
		if !kept {
			p.tell(report{kind: reportStreams})
		}
	})
}

// closeRecovered closes the log of an earlier incarnation, and says so where it has not
// got all that was there.
func (p *process) closeRecovered() {
	if p.sink != nil {
		p.sink.close()
	}
	defer func() { p.ship.Load().end(p.receipt.State) }()
	o := p.receipt.Output
	if p.out.Stats().TotalBytes < o.TotalBytes {
		p.out.Close(false, "the end of the output was lost with an earlier worker")
		return
	}
	p.out.Close(o.Complete, o.Error)
}

// resumeInput ends what an earlier incarnation was to write first of all. Its text is
// gone with it.
func (p *process) resumeInput() {
	n := p.plan.InputBytes
	if n == 0 {
		return
	}
	if have := p.input.InputOffset(); have < n {
		p.note(fmt.Sprintf("the worker ended while it wrote the input: %d of %d bytes were delivered; the input is closed", have, n))
	} else if !p.plan.CloseInput {
		return
	}
	p.enqueue(writeCall{r: unasked(), close: true})
}
