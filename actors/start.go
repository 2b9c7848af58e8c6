package actors

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/actors/output"
	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// claim is a start on its way: admitted, not yet forked.
type claim struct {
	spec     keeper.Spawn
	calls    []request // that wait for the answer: the first, and its retries
	input    []byte    // for stdin, first of all
	keepOpen bool      // stdin stays open after the input
}

// call is what a start or run request asks for beside the command.
type call struct {
	hash      string
	run       bool
	render    wire.Render
	yield     time.Duration
	onTimeout wire.OnTimeout
	timeout   time.Duration // of a run that goes on in the background; 0 otherwise
}

// start is the way from the record to the fork. It runs in a goroutine of the actor.
//
// The create of the execution record is the right to fork. The process record is
// written while the keeper forks, and is there before anybody gets the handle.
func (p *process) start() {
	ctx := p.ctx
	rec := p.record()
	rev, existing, err := p.deps.store.CreateExecution(ctx, p.tenant, rec)
	if err == nil && existing != nil {
		err = &takenError{existing}
	}
	if err != nil {
		p.tell(report{kind: reportRefused, err: err})
		return
	}
	spec := p.claim.spec
	if spec.Meta, err = p.meta(rev); err != nil {
		p.tell(report{kind: reportRefused, rev: rev, err: err})
		return
	}
	wait, err := p.deps.store.CreateProcessAsync(ctx, p.tenant, p.address(), p.life())
	if err != nil {
		p.tell(report{kind: reportRefused, rev: rev, err: err})
		return
	}
	child, err := p.deps.spawner.Spawn(ctx, spec)
	if err != nil {
		p.tell(report{kind: reportRefused, rev: rev, err: err})
		return
	}
	out, err := p.open()
	var addressRev uint64
	if err == nil {
		addressRev, err = wait(ctx)
	}
	if err != nil {
		// The command runs and nobody could be told its handle: end it.
		p.log.Error("start", "err", err)
		_ = child.Stop(context.WithoutCancel(ctx), wire.ReasonInternal, keeper.Kill, 0)
		_ = child.Release(context.WithoutCancel(ctx))
		p.tell(report{kind: reportRefused, rev: rev, err: fmt.Errorf("record process %s: %w", p.id, err)})
		return
	}
	in, _ := child.(Input)
	p.tell(report{kind: reportSpawned, child: child, input: in, rev: rev, addressRev: addressRev, out: out})
}

// address is the record by which the process is found.
func (p *process) address() *wire.ProcessRecord { return addressOf(&p.receipt) }

func addressOf(rc *wire.Receipt) *wire.ProcessRecord {
	return &wire.ProcessRecord{
		Version: wire.Version, Process: rc.Process, Tenant: rc.Tenant, Session: rc.Session,
		ExecutionID: rc.ExecutionID, Worker: rc.Worker,
		Labels: rc.Labels, CreatedAt: rc.CreatedAt,
	}
}

// life of the address: a command with a time limit has an end that is known, so its
// record needs no second write.
func (p *process) life() registry.Life {
	if p.claim.spec.Timeout > 0 {
		return registry.Ended
	}
	return registry.Live
}

// takenError: somebody holds the execution id.
type takenError struct{ rec *wire.ExecutionRecord }

func (e *takenError) Error() string { return "execution " + e.rec.ExecutionID + " exists" }

func (p *process) meta(rev uint64) ([]byte, error) {
	m := p.plan
	m.Version, m.Rev, m.Receipt = wire.Version, rev, p.receipt
	b, err := wire.Marshal(subjects.TypeMsgpack, &m)
	if err != nil {
		return nil, fmt.Errorf("encode the plan of %s: %w", p.id, err)
	}
	return b, nil
}

func (p *process) open() (*output.Log, error) {
	dir := ""
	if p.deps.spool != "" {
		dir = filepath.Join(p.deps.spool, p.session)
	}
	return output.Open(output.Config{
		Process: p.id, Dir: dir, Limits: p.plan.Output, TTY: p.receipt.TTY != nil,
		Budget: p.deps.budget, Logger: p.log,
		OnTrim: func(raw int64) {
			if c := p.pumped.Load(); c != nil {
				(*c).Trim(raw)
			}
		},
	})
}

// spawned: the fork is a fact.
func (p *process) spawned(r report) {
	p.child, p.input, p.rev, p.addressRev, p.out = r.child, r.input, r.rev, r.addressRev, r.out
	p.logRef.Store(r.out)
	p.move(evSpawned)
	p.receipt.StartedAt = now()
	p.begin()
	c := p.claim
	p.claim = nil
	if len(c.input) > 0 {
		p.enqueue(writeCall{m: &wire.Write{Data: c.input}, close: !c.keepOpen, silent: true})
	}
	for _, r := range c.calls {
		p.attach(r)
	}
	if s := p.stopping; s != nil {
		p.stopping = nil
		p.stop(*s)
	}
}

// begin starts what a live command needs: the pump, its observations, its timers.
func (p *process) begin() {
	p.feed = p.deps.feed(&p.receipt, p.plan.Trace, p.adopted)
	p.sink = &sink{
		ctx: p.ctx, log: p.out, feed: p.feed, trim: p.child.Trim, limit: p.plan.Output.KillOverBytes,
		over: func() { p.tell(report{kind: reportOverLimit}) },
	}
	p.sink.last.Store(time.Now().UnixNano())
	c := p.child
	p.pumped.Store(&c)
	if !p.adopted {
		p.feed.Started(status(&p.receipt))
	}
	if ms := p.plan.IdleTimeoutMS; ms > 0 {
		p.idle.Reset(time.Duration(ms) * time.Millisecond)
	}
	p.publish()
	p.owned(func() {
		err := p.child.Pump(p.ctx, p.sink, p.out.Next())
		p.tell(report{kind: reportStreams, err: err})
	})
}

// refused: there is no process. A claim that lost to another holder of the id hands
// its callers over to that process, or answers from the record.
func (p *process) refusedStart(r report) {
	calls := p.claim.calls
	p.claim = nil
	var taken *takenError
	if errors.As(r.err, &taken) {
		for _, c := range calls {
			p.deps.answerFrom(c, taken.rec)
		}
		return
	}
	p.log.Info("start refused", "err", r.err)
	e := public(r.err)
	if r.rev != 0 { // the record exists: say in it that nothing came of it
		p.move(evSpawnFailed)
		p.receipt.Reason, p.receipt.Error = wire.ReasonSpawnFailed, e
		p.receipt.EndedAt = now()
		if _, err := p.deps.store.UpdateExecution(p.ctx, p.tenant, p.record(), r.rev); err != nil {
			p.log.Warn("record of a failed start", "err", err)
		}
	}
	for _, c := range calls {
		refuse(c, e)
	}
}
