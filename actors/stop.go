package actors

import (
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// isRequested reports whether somebody asked for the end, rather than a limit.
func isRequested(cause wire.Reason) bool {
	return cause == wire.ReasonCancel || cause == wire.ReasonSessionClosed
}

// stop asks for the end. The keeper is the arbiter of which cause was first.
func (p *process) stop(o order) {
	switch {
	case p.receipt.State.Terminal() || p.sealing:
		if p.kept && p.swept == nil && isRequested(o.cause) {
			p.endKept(o)
		}
		return
	case p.hasExit:
		if !p.tree && !p.killed {
			p.killLeftovers() // no use in waiting for what holds the streams
		}
		return
	case p.child == nil:
		p.halted.Store(true)
		if p.stopping == nil || o.cause == wire.ReasonSessionClosed {
			p.stopping = &o
		}
	}
	e := evLimit
	if isRequested(o.cause) {
		e = evCancel
		if !p.receipt.CancelRequested {
			p.receipt.CancelRequested, p.receipt.CancelRequestedBy = true, o.by
		}
	}
	p.move(e)
	p.publish()
	if p.child == nil {
		return
	}
	if p.feed != nil {
		p.feed.State(status(&p.receipt))
	}
	p.askStop(o)
}

func (p *process) askStop(o order) {
	p.longest = max(p.longest, o.grace)
	c := p.child
	p.owned(func() {
		if err := c.Stop(p.ctx, o.cause, o.mode, o.grace); err != nil {
			p.tell(report{kind: reportStopFailed, err: err})
		}
	})
}

// endKept ends leftovers that were kept until now. The state of the process, which is
// final, stays.
func (p *process) endKept(o order) {
	p.swept = make(chan struct{})
	p.askStop(o)
}

// sweptUp: the kept leftovers have ended, as far as they could be.
func (p *process) sweptUp() {
	p.publish()
	if isDone(p.swept) {
		return
	}
	close(p.swept)
	p.kept = false
	p.out.Close(p.receipt.Output.Complete, p.receipt.Output.Error) // it is, unless adopted
	if p.recorded.Load() {
		p.owned(p.letGo)
	} else {
		p.owed = true
	}
	p.notify(notice{kind: noticeSwept})
}

// crash is what a panic of the actor, or of a goroutine of it, does to its process: the
// tree is killed, the end is recorded as failed, and told. What had ended already stays.
func (p *process) crash() {
	if p.sealer || p.told {
		return
	}
	if p.failure != nil {
		panic("the end of a failed start could not be recorded") // surrender does
	}
	p.crashed = true
	if c := p.claim; c != nil && p.child != nil {
		p.claim = nil
		for _, r := range c.calls {
			refuse(r, errCrashed)
		}
	}
	switch {
	case p.sealing, p.hasExit && p.tree:
		p.end(false)
	case p.hasExit:
		p.killLeftovers()
	default:
		p.stop(order{cause: wire.ReasonInternal, mode: keeper.Kill})
	}
}

var errCrashed = wire.Errorf(wire.CodeInternal, "an internal error ended this process; the worker's log has it")

// surrender is the end of an actor that panicked twice: it does what it can without the
// rest of the actor, and stays until its record says that it has ended, because a start
// of the same execution would fork again otherwise.
func (p *process) surrender() {
	if !p.receipt.State.Terminal() {
		p.receipt.State, p.receipt.Reason = wire.StateFailed, wire.ReasonInternal
		p.receipt.EndedAt, p.receipt.Error = now(), errCrashed
	}
	p.failure, p.sealing, p.told = errCrashed, true, true
	p.panics(p.publish)
	p.release()
	p.cancel()
	p.own.Wait()
	p.takeStray()
	if p.child != nil {
		p.panics(func() { p.killNow(wire.ReasonInternal) })
	}
	if p.out != nil {
		p.out.Close(false, "internal error")
		p.receipt.Output = p.out.Stats()
	}
	if p.feed != nil {
		p.panics(func() { p.feed.Finished(status(&p.receipt)) })
	}
	if p.recordLast() {
		p.panics(p.removeOutput)
		if p.child != nil {
			p.panics(p.releaseNow)
		}
	}
	p.leave(p.serveFailed)
}

// recordLast writes the record without a goroutine, until the session sends us away.
func (p *process) recordLast() bool {
	retry := time.NewTimer(0)
	defer retry.Stop()
	for p.rev != 0 && !p.recorded.Load() {
		select {
		case o := <-p.orders:
			if o.evict || o.leave {
				return false
			}
		case <-retry.C:
			p.panics(func() { p.recordNow(sealPatience) })
			retry.Reset(time.Second)
		}
	}
	return true
}
