package actors

import (
	"context"
	"errors"
	"time"

	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// conclude sends the record of an end that is decided. The end is told when the record
// is written, or when an answer has waited for it long enough; a writer that has to
// wait for the store goes on until the worker goes.
func (p *process) conclude(spilled bool) {
	p.sealing = true
	p.drain.Reset(sealPatience)
	rec, kept := p.record(), p.kept
	p.sealer = true
	p.owned(func() {
		if spilled {
			p.settle(rec)
		}
		p.seal(rec, kept)
	})
}

// settle brings the rest of a large output to disk, where it may push out older bytes,
// before the record says how many are kept.
func (p *process) settle(rec *wire.ExecutionRecord) {
	if err := p.out.Flush(); err != nil {
		p.log.Warn("flush the output", "err", err)
	}
	rec.Receipt.Output = p.out.Stats()
	p.tell(report{kind: reportSettled, stats: rec.Receipt.Output})
}

// seal writes the terminal record, and lets the keeper forget the process after it: what
// is not recorded stays with the keeper for the next incarnation.
func (p *process) seal(rec *wire.ExecutionRecord, kept bool) {
	if !p.writeEnd(rec) {
		return
	}
	p.recorded.Store(true)
	p.tell(report{kind: reportSealed})
	p.endAddress(rec)
	if !kept { // else the keeper holds its leftovers until somebody ends them
		p.letGo()
	}
}

// writeEnd tries until the record is written or is another's; false when the actor goes.
func (p *process) writeEnd(rec *wire.ExecutionRecord) bool {
	for delay := 10 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		var err error = errCrashed // unless it returns
		p.panics(func() {
			_, err = p.deps.store.UpdateExecution(p.ctx, p.tenant, rec, p.rev)
		})
		switch {
		case err == nil:
			return true
		case p.deps.lostRace(err):
			p.log.Warn("the record has another end", "err", err)
			return true
		}
		p.log.Debug("terminal record", "err", err)
		wait := time.NewTimer(delay)
		select {
		case <-wait.C:
		case <-p.ctx.Done():
			wait.Stop()
			return false
		}
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

// letGo makes the keeper forget a process of which nothing is left.
func (p *process) letGo() {
	if err := p.out.Flush(); err != nil {
		p.log.Warn("flush the output", "err", err)
		return // the journal still has it
	}
	if p.child == nil || !p.awaitStored() {
		return
	}
	if err := p.child.Release(p.ctx); err != nil {
		p.log.Debug("release", "err", err)
	}
}

// sealed: the record is written. It reports whether the actor goes on: one without a
// process has nothing more to say.
func (p *process) sealed() bool {
	late := p.told
	if !late {
		p.tellEnd()
	}
	switch {
	case p.failure != nil:
		p.leave(p.serveFailed)
		return false
	case p.owed:
		p.owed = false
		p.owned(p.letGo)
	}
	if late {
		p.notify(notice{kind: noticeRecorded})
	}
	return true
}

// tellEnd publishes the end: the receipt first, the signals last.
func (p *process) tellEnd() {
	p.told = true
	p.drain.Stop()
	p.publish()
	p.release()
	p.ship.Load().end(p.receipt.State) // after the answer, which never waits for it
	if p.failure != nil {
		calls := p.claim.calls
		p.claim.calls = nil
		for _, r := range calls {
			p.serveFailed(r)
		}
		return // nothing was told of it, and the session hears when the actor leaves
	}
	if p.feed != nil {
		p.feed.Finished(status(&p.receipt))
	}
	p.notify(notice{kind: noticeEnded, kept: p.kept})
}
