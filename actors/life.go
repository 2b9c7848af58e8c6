package actors

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/actors/output"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// fact handles what the keeper saw.
func (p *process) fact(e keeper.Event) {
	switch {
	case e.Exited != nil:
		p.commandExited(e.Exited)
	case e.Gone != nil:
		p.treeGone(e.Gone)
	case e.Lost != nil:
		p.lost(e.Lost.Err)
	}
}

// commandExited: the exit is reported at once, whatever holds the streams. An adopted
// process may hear of it twice.
func (p *process) commandExited(e *keeper.Exited) {
	if p.hasExit || p.sealing || !p.move(evExited) {
		return
	}
	p.hasExit = true
	code := e.Code
	p.receipt.ExitCode, p.receipt.Signal, p.receipt.CoreDumped = &code, e.Signal, e.CoreDumped
	at := e.At.UTC()
	p.receipt.ExitedAt = &at
	p.receipt.Usage = e.Usage
	p.receipt.Reason = e.Cause
	if isRequested(e.Cause) {
		p.receipt.CancelRequested = true // also where an earlier incarnation was asked
	}
	if e.OOM {
		p.note("the kernel ended a member of the tree for want of memory")
	}
	p.receipt.StdinOpen = false
	p.idle.Stop()
	p.capture(e) // before anybody hears of the end: the next start is to see it
	natural := e.Cause == wire.ReasonExit || e.Cause == wire.ReasonSignal || e.Cause == wire.ReasonOOM
	switch {
	case e.Gone:
		p.setProof(e.Proof, true)
		p.tree = true
	case natural && p.plan.Leftovers == wire.LeftoversKeep:
		p.receipt.LeftoversLive = e.Left
		p.receipt.Proof = e.Proof
		p.tree, p.kept = true, true
	default:
		p.receipt.LeftoversLive = e.Left
	}
	p.publish()
	close(p.exited)
	if p.feed != nil && !p.tree {
		p.feed.State(status(&p.receipt))
	}
	p.advance()
}

// treeGone: the keeper is done with the tree, one way or the other.
func (p *process) treeGone(g *keeper.Gone) {
	if p.sealing && p.swept == nil {
		return // late: the end is recorded as it was known then
	}
	p.receipt.Unsignalled = g.Unsignalled
	p.setProof(g.Proof, g.Gone)
	p.receipt.LeftoversKilled = g.Leftovers
	if g.Gone || len(g.Unsignalled) > 0 {
		p.receipt.LeftoversLive = len(g.Unsignalled)
	}
	if !g.Gone {
		p.receipt.Error = &wire.Error{
			Code:    wire.CodeTeardownFailed,
			Message: "part of the tree could not be ended",
			Details: map[string]any{"pids": g.Unsignalled},
		}
		p.publish()
		if !p.hasExit {
			return // the command itself lives: the state stays what it is
		}
	}
	if p.swept != nil {
		p.sweptUp()
		return
	}
	p.tree = true
	p.advance()
}

// setProof says what may be claimed: a scan never claims that nothing is left.
func (p *process) setProof(proof wire.Proof, gone bool) {
	p.receipt.Proof = proof
	p.receipt.TreeGone = gone && (proof == wire.ProofCgroup || proof == wire.ProofPIDNS)
	if e := p.receipt.Error; gone && e != nil && e.Code == wire.CodeTeardownFailed {
		p.receipt.Error = nil // an earlier attempt failed, this one did not
	}
}

func (p *process) streamsClosed(err error) {
	if p.past { // it had ended before; this was the rest of its output
		p.closeRecovered()
		p.owned(p.letGo)
		return
	}
	p.streams = true
	if err != nil && !errors.Is(err, context.Canceled) && !p.sealing {
		p.log.Warn("output", "err", err)
		p.receipt.Output.Error = "output collection failed"
		if !p.hasExit { // nobody reads its output any more: it would wait for ever
			p.stop(order{cause: wire.ReasonInternal, mode: keeper.Terminate, grace: p.grace})
		}
	}
	p.advance()
}

// advance moves an ended command towards its terminal state.
func (p *process) advance() {
	switch {
	case !p.hasExit || p.sealing:
	case p.tree && p.streams:
		p.end(true)
	case !p.tree && p.streams && !p.killed:
		p.killLeftovers()
	case !p.tree && !p.killed:
		p.drain.Reset(drainLimit)
	case !p.tree:
		p.drain.Reset(p.longest + goneLimit)
	case p.kept:
		p.drain.Reset(drainLimit)
	default:
		p.drain.Reset(collectLimit)
	}
}

// drained: the time for the streams, for the tree, or for the record is up.
func (p *process) drained() {
	switch {
	case p.sealing && !p.told:
		p.log.Warn("the terminal record is late")
		p.note("the record of this end is still to be written: the store is away or slow")
		if p.stored != nil && !isDone(p.stored) {
			p.note("state: the session has it, and its record is still to be written")
		}
		p.tellEnd()
	case p.past:
		p.closeRecovered() // of kept leftovers, whose journal had not all that was there
	case !p.hasExit || p.sealing:
	case !p.tree && !p.killed:
		p.killLeftovers()
	case !p.tree:
		p.log.Error("the keeper did not prove the tree gone in time")
		p.receipt.Error = wire.Errorf(wire.CodeTeardownFailed, "the end of the tree could not be proven in time")
		p.tree = true
		p.advance()
	case p.kept:
		p.end(true) // what they write from now on is drained and counted, not logged
	default:
		p.end(false)
	}
}

// killLeftovers ends what the command left behind. A stop under way does that anyway,
// and the keeper lets it.
func (p *process) killLeftovers() {
	p.killed = true
	p.drain.Reset(p.longest + goneLimit)
	c := p.child
	p.owned(func() {
		if err := c.KillLeftovers(p.ctx); err != nil {
			p.tell(report{kind: reportStopFailed, err: err})
		}
	})
}

// end makes the state terminal and sends the record.
func (p *process) end(complete bool) {
	text := p.receipt.Output.Error
	if !complete {
		text = "output collection incomplete"
	}
	if p.streams {
		p.receipt.ClosedAt = now()
	}
	p.closeOutput(complete && text == "", text)
	p.receipt.EndedAt = now()
	if p.crashed {
		p.receipt.Reason = wire.ReasonInternal
		p.receipt.Error = wire.Errorf(wire.CodeInternal, "an internal error ended this process; the worker's log has it")
	}
	p.move(outcome(&p.receipt))
	p.conclude(p.receipt.Output.TotalBytes > cmp.Or(p.plan.Output.WindowBytes, output.DefaultWindow))
}

func (p *process) closeOutput(complete bool, text string) {
	if p.sink != nil { // nil where a panic came first
		p.sink.close()
	}
	p.out.Close(complete, text)
	p.receipt.Output = p.out.Stats()
}

// lost: the keeper is gone, and with it what it knew.
func (p *process) lost(err error) {
	if p.receipt.State.Terminal() || p.sealing {
		return
	}
	p.log.Error("keeper lost", "err", err)
	p.unknown("the keeper was lost", wire.ReasonWorkerLost)
}

// giveUp is the end of waiting for a tree that cannot be ended.
func (p *process) giveUp(cause wire.Reason) {
	if p.child == nil || p.receipt.State.Terminal() || p.sealing {
		return
	}
	p.log.Error("the process could not be ended in time")
	p.receipt.Error = wire.Errorf(wire.CodeTeardownFailed, "the process could not be ended in time; the keeper goes on trying")
	p.unknown("the process could not be ended", cause)
}

// unknown ends a process of which nobody knows how it will have ended.
func (p *process) unknown(why string, cause wire.Reason) {
	p.closeOutput(false, why)
	p.receipt.Reason = cause
	p.receipt.EndedAt = now()
	p.receipt.StdinOpen = false
	if p.plan.Capture && p.receipt.StateCapture == "" {
		p.missed(why)
	}
	p.idle.Stop()
	p.move(evLost)
	p.conclude(false)
}

// idled: no output for the idle timeout, or the timer was early.
func (p *process) idled() {
	limit := time.Duration(p.plan.IdleTimeoutMS) * time.Millisecond
	quiet := time.Since(time.Unix(0, p.sink.last.Load()))
	if rest := limit - quiet; rest > 0 {
		p.idle.Reset(rest)
		return
	}
	p.stop(order{cause: wire.ReasonIdleTimeout, mode: keeper.Terminate, grace: p.grace})
}

// backgrounded: a run yielded its handle and the command goes on. Detached, it loses
// its input too, so that nothing of the call is left to hold it.
func (p *process) backgrounded(detach bool) {
	if p.feed != nil && !p.yielded {
		p.feed.Backgrounded(status(&p.receipt))
	}
	p.yielded = true
	if detach && p.receipt.StdinOpen {
		p.enqueue(writeCall{r: unasked(), close: true})
	}
}
