package actors

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/actors/output"
	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// report handles a message of our own goroutines; false ends the actor.
func (p *process) report(r report) bool {
	switch r.kind {
	case reportSpawned:
		p.spawned(r)
	case reportRefused:
		p.refusedStart(r)
		p.leave()
		return false
	case reportStreams:
		p.streamsClosed(r.err)
	case reportOverLimit:
		p.stop(order{cause: wire.ReasonOutputLimit, mode: keeper.Terminate, grace: p.grace})
	case reportStopFailed:
		p.log.Warn("the keeper did not take a stop", "err", r.err)
	case reportWaiter:
		p.waiters--
	case reportBackgrounded:
		p.backgrounded(r.detach)
	case reportWritten:
		p.receipt.StdinBytes = r.offset
		if r.closed {
			p.receipt.StdinOpen = false
		}
		p.publish()
	case reportSettled:
		p.receipt.Output = r.stats
	case reportSealed:
		p.sealed(r.err)
	}
	return true
}

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

// commandExited: the exit is reported at once, whatever holds the streams.
func (p *process) commandExited(e *keeper.Exited) {
	if p.hasExit || !p.move(evExited) {
		return
	}
	p.hasExit = true
	code := e.Code
	p.receipt.ExitCode, p.receipt.Signal, p.receipt.CoreDumped = &code, e.Signal, e.CoreDumped
	at := e.At.UTC()
	p.receipt.ExitedAt = &at
	p.receipt.Usage = e.Usage
	p.receipt.Reason = e.Cause
	if e.OOM {
		p.note("the kernel ended a member of the tree for want of memory")
	}
	p.receipt.StdinOpen = false
	p.idle.Stop()
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
		p.killed = !natural // then the keeper's stop is on its way already
	}
	p.publish()
	close(p.exited)
	if p.feed != nil && !p.tree {
		p.feed.State(status(&p.receipt))
	}
	p.advance()
}

// note adds to the receipt what a person should know. Others may hold the old list.
func (p *process) note(text string) {
	p.receipt.Notes = append(slices.Clip(p.receipt.Notes), text)
}

// treeGone: the keeper is done with the tree, one way or the other.
func (p *process) treeGone(g *keeper.Gone) {
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
}

func (p *process) streamsClosed(err error) {
	p.streams = true
	if err != nil && !errors.Is(err, context.Canceled) {
		p.log.Warn("output", "err", err)
		p.receipt.Output.Error = "output collection failed"
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
		p.drain.Reset(goneLimit)
	case p.kept:
		p.drain.Reset(drainLimit)
	default:
		p.drain.Reset(collectLimit)
	}
}

// drained: the time for the streams, or for the tree, is up.
func (p *process) drained() {
	switch {
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

func (p *process) killLeftovers() {
	p.killed = true
	p.drain.Reset(goneLimit)
	p.owned(func() {
		if err := p.child.KillLeftovers(p.ctx); err != nil {
			p.tell(report{kind: reportStopFailed, err: err})
		}
	})
}

// end makes the state terminal and sends the record.
func (p *process) end(complete bool) {
	p.sealing = true
	p.drain.Stop()
	text := p.receipt.Output.Error
	if !complete {
		text = "output collection incomplete"
	}
	if p.streams {
		p.receipt.ClosedAt = now()
	}
	p.sink.close()
	p.out.Close(complete && text == "", text)
	p.receipt.Output = p.out.Stats()
	p.receipt.EndedAt = now()
	p.move(outcome(&p.receipt))
	rec, kept := p.record(), p.kept
	spilled := p.receipt.Output.TotalBytes > cmp.Or(p.plan.Output.WindowBytes, output.DefaultWindow)
	p.owned(func() {
		if spilled {
			p.settle(rec)
		}
		p.seal(rec, kept)
	})
}

// seal writes the terminal record. It reports as soon as that is done or an answer
// has waited long enough, and tries on until the worker goes.
func (p *process) seal(rec *wire.ExecutionRecord, kept bool) {
	told := false
	patience := time.NewTimer(sealPatience)
	defer patience.Stop()
	for delay := 10 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		_, err := p.deps.store.UpdateExecution(p.ctx, p.tenant, rec, p.rev)
		if err == nil || p.deps.lostRace(err) {
			if err != nil {
				p.log.Warn("the record has another end", "err", err)
			}
			break
		}
		wait := time.NewTimer(delay)
		select {
		case <-patience.C:
			told = true
			p.tell(report{kind: reportSealed, err: err})
			<-wait.C
		case <-wait.C:
		case <-p.ctx.Done():
			wait.Stop()
			return
		}
	}
	if !told {
		p.tell(report{kind: reportSealed})
	}
	p.endAddress(rec)
	if kept {
		return // its leftovers live on: the keeper holds them until somebody ends them
	}
	p.letGo()
}

// letGo makes the keeper forget a process of which nothing is left.
func (p *process) letGo() {
	if err := p.out.Flush(); err != nil {
		p.log.Warn("flush the output", "err", err)
		return // the journal still has it
	}
	if err := p.child.Release(p.ctx); err != nil {
		p.log.Debug("release", "err", err)
	}
}

// endAddress starts the retention of a process record that had no known end.
func (p *process) endAddress(rec *wire.ExecutionRecord) {
	if rec.Receipt.Deadline != nil {
		return
	}
	rev := p.addressRev
	if rev == 0 { // an earlier incarnation wrote it
		var err error
		if _, rev, err = p.deps.addresses(p.ctx, p.tenant, p.id); err != nil {
			p.log.Debug("process record", "err", err)
			return
		}
	}
	if _, err := p.deps.store.UpdateProcess(p.ctx, p.tenant, p.address(), rev, registry.Ended); err != nil && !errors.Is(err, context.Canceled) {
		p.log.Warn("process record", "err", err)
	}
}

// sealed publishes the end: the receipt first, the signal last.
func (p *process) sealed(err error) {
	if err != nil {
		p.log.Warn("the terminal record is late", "err", err)
		p.note("the store is away: the record of this end is still to be written")
	}
	p.publish()
	close(p.ended)
	if p.feed != nil {
		p.feed.Finished(status(&p.receipt))
	}
	p.notify(notice{kept: p.kept})
}

// backgrounded: a run yielded its handle and the command goes on. Detached, it loses
// its input too, so that nothing of the call is left to hold it.
func (p *process) backgrounded(detach bool) {
	if p.feed != nil && !p.yielded {
		p.feed.Backgrounded(status(&p.receipt))
	}
	p.yielded = true
	if detach && p.receipt.StdinOpen {
		p.enqueue(writeCall{close: true, silent: true})
	}
}

// stop asks for the end. The keeper is the arbiter of which cause was first.
func (p *process) stop(o order) {
	requested := o.cause == wire.ReasonCancel || o.cause == wire.ReasonSessionClosed
	switch {
	case p.receipt.State.Terminal() || p.sealing:
		if p.kept && p.swept == nil && requested {
			p.endKept(o)
		}
		return
	case p.hasExit:
		if !p.tree && !p.killed {
			p.killLeftovers() // no use in waiting for what holds the streams
		}
		return
	case p.child == nil:
		if p.stopping == nil || o.cause == wire.ReasonSessionClosed {
			p.stopping = &o
		}
	}
	e := evLimit
	if requested {
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
	p.owned(func() {
		if err := p.child.Stop(p.ctx, o.cause, o.mode, o.grace); err != nil {
			p.tell(report{kind: reportStopFailed, err: err})
		}
	})
}

// endKept ends leftovers that were kept until now. The state of the process, which is
// final, stays.
func (p *process) endKept(o order) {
	p.swept = make(chan struct{})
	p.owned(func() {
		if err := p.child.Stop(p.ctx, o.cause, o.mode, o.grace); err != nil {
			p.tell(report{kind: reportStopFailed, err: err})
		}
	})
}

// sweptUp: the kept leftovers have ended, as far as they could be.
func (p *process) sweptUp() {
	p.publish()
	close(p.swept)
	p.kept = false
	p.owned(p.letGo)
	p.notify(notice{swept: true})
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

// lost: the keeper is gone, and with it what it knew.
func (p *process) lost(err error) {
	if p.receipt.State.Terminal() || p.sealing {
		return
	}
	p.log.Error("keeper lost", "err", err)
	p.sealing = true
	p.sink.close()
	p.out.Close(false, "the keeper was lost")
	p.receipt.Output = p.out.Stats()
	p.receipt.Reason = wire.ReasonWorkerLost
	p.receipt.EndedAt = now()
	p.move(evLost)
	if !p.hasExit {
		p.hasExit = true
		close(p.exited)
	}
	rec := p.record()
	p.owned(func() { p.seal(rec, false) })
}
