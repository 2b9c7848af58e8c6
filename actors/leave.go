package actors

import (
	"context"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// depart ends the actor at its session's word. An eviction takes the output along and
// lets the keeper forget. A leave touches neither, because the next incarnation adopts;
// nor does the eviction of what is not recorded, because nothing else knows its end.
func (p *process) depart(evict, closing bool) {
	p.last = func(r request) { refuse(r, errGone(p.id)) }
	if evict {
		p.awaitKept()
		p.ship.Load().settle(shipPatience, closing)
	} else {
		p.last = func(r request) { refuse(r, errLeaving()) }
		p.awaitFork()
	}
	p.cancel()
	p.own.Wait()
	p.takeStray()
	if c := p.claim; c != nil {
		p.claim = nil
		for _, r := range c.calls {
			refuse(r, errLeaving())
		}
	}
	p.refuseWrites()
	if !evict || !p.recorded.Load() {
		if p.out != nil {
			p.out.Close(false, "the worker is shutting down") // in memory: the files stay as they are
		}
		return
	}
	p.removeOutput()
	if p.child != nil {
		p.releaseNow()
	}
}

func errLeaving() *wire.Error {
	return wire.Errorf(wire.CodeSupervisorShuttingDown, "the worker is shutting down; what was started runs on, and is found again by its id")
}

// awaitFork lets a start that is under way come to its end, so that what is forked is
// known to be.
func (p *process) awaitFork() {
	t := time.NewTimer(collectLimit)
	defer t.Stop()
	for p.claim != nil && p.failure == nil {
		select {
		case r := <-p.reports:
			if !p.report(r) {
				return
			}
		case <-t.C:
			return
		}
	}
}

// takeStray finds the outcome of a start that nobody has heard of. All goroutines of the
// actor have ended.
func (p *process) takeStray() {
	stray := p.untold
	for {
		select {
		case r := <-p.reports:
			if r.kind == reportSpawned || r.kind == reportRefused {
				stray = &r
			}
			continue
		default:
		}
		break
	}
	if p.claim == nil || stray == nil {
		return
	}
	p.rev, p.child, p.out = stray.rev, stray.child, stray.out
}

// awaitKept ends kept leftovers, which nobody else will, and waits for their end.
func (p *process) awaitKept() {
	if !p.kept {
		return
	}
	if p.swept == nil {
		p.endKept(order{cause: wire.ReasonSessionClosed, mode: keeper.Kill})
	}
	t := time.NewTimer(p.longest + goneLimit)
	defer t.Stop()
	for p.kept {
		select {
		case e := <-p.facts:
			p.fact(e)
		case r := <-p.reports:
			p.report(r)
		case <-t.C:
			p.log.Error("kept leftovers are not proven gone in time")
			return
		}
	}
}

// removeOutput deletes what was kept of the output.
func (p *process) removeOutput() {
	if p.out == nil {
		return
	}
	if err := p.out.Remove(); err != nil {
		p.log.Warn("remove the output", "err", err)
	}
}

// The last things are done without goroutines, which have ended, and bounded.

func (p *process) releaseNow() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), time.Second)
	defer cancel()
	_ = p.child.Release(ctx) // it fails where the keeper is gone, which forgets too
}

func (p *process) killNow(cause wire.Reason) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), goneLimit)
	defer cancel()
	if err := p.child.Stop(ctx, cause, keeper.Kill, 0); err != nil {
		p.log.Error("kill the process of a failed actor", "err", err)
	}
}

func (p *process) recordNow(limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), limit)
	defer cancel()
	_, err := p.deps.store.UpdateExecution(ctx, p.tenant, p.record(), p.rev)
	if err != nil && !p.deps.lostRace(err) {
		p.log.Error("record of a failed actor", "err", err)
		return
	}
	p.recorded.Store(true)
}
