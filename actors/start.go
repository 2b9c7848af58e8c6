package actors

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
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
	calls    []request // that wait for the answer: the first, its retries, and what came before the fork
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

// takenError: somebody holds the execution id.
type takenError struct{ rec *wire.ExecutionRecord }

func (e *takenError) Error() string { return "execution " + e.rec.ExecutionID + " exists" }

// errHalted: the end was asked for before the fork.
var errHalted = errors.New("stopped before the fork")

// launch starts the way to the fork in a goroutine of the actor. Its outcome is always
// reported: an actor that is on its way out finds it in untold.
func (p *process) launch() {
	rec, address, spec := p.record(), p.address(), p.claim.spec
	p.own.Go(func() { // ends with the actor's context
		r := &report{kind: reportRefused}
		defer func() {
			if v := recover(); v != nil {
				p.log.Error("start failed", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
				r.kind, r.err = reportRefused, fmt.Errorf("panic: %v", v)
			}
			if !p.tell(*r) {
				p.untold = r
			}
		}()
		if r.err = p.start(rec, address, spec, r); r.err == nil {
			r.kind = reportSpawned
		}
	})
}

// start is the way from the record to the fork; in r it leaves what has come to be.
//
// The create of the execution record is the right to fork. The process record is
// written while the keeper forks, and is there before anybody gets the handle.
func (p *process) start(rec *wire.ExecutionRecord, address *wire.ProcessRecord, spec keeper.Spawn, r *report) error {
	ctx := p.ctx
	if err := checkDir(spec.Dir); err != nil {
		return p.strayed(spec.Dir, err)
	}
	rev, existing, err := p.deps.store.CreateExecution(ctx, p.tenant, rec)
	if err != nil {
		return err
	}
	if existing != nil {
		if existing.RequestHash != rec.RequestHash || !p.deps.dir.abandoned(existing, rec.Receipt.Worker, rec.Receipt.Incarnation) {
			return &takenError{existing}
		}
		if rev, err = p.deps.store.UpdateExecution(ctx, p.tenant, rec, rev); err != nil {
			return err
		}
	}
	r.rev = rev
	if p.halted.Load() {
		return errHalted
	}
	if spec.Meta, err = p.meta(rec, rev); err != nil {
		return err
	}
	wait, err := p.deps.store.CreateProcessAsync(ctx, p.tenant, address, lifeOf(&spec))
	if err != nil {
		return err
	}
	waited := false
	recorded := func() (err error) {
		waited = true
		r.addressRev, err = wait(ctx)
		return err
	}
	defer func() {
		if !waited { // what nobody waits for is never given back
			_ = recorded()
		}
	}()
	if r.child, err = p.deps.spawner.Spawn(ctx, spec); err != nil {
		r.child = nil
		return p.strayed(spec.Dir, err)
	}
	r.input, _ = r.child.(Input)
	if r.out, err = p.open(); err != nil {
		return fmt.Errorf("output of process %s: %w", p.id, err)
	}
	if err := recorded(); err != nil {
		return fmt.Errorf("record process %s: %w", p.id, err)
	}
	return nil
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

// lifeOf the address: a command with a time limit has an end that is known, so its
// record needs no second write.
func lifeOf(spec *keeper.Spawn) registry.Life {
	if spec.Timeout > 0 {
		return registry.Ended
	}
	return registry.Live
}

func (p *process) meta(rec *wire.ExecutionRecord, rev uint64) ([]byte, error) {
	m := p.plan
	m.Version, m.Rev, m.Receipt = wire.Version, rev, rec.Receipt
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
	return p.openIn(dir)
}

func (p *process) openIn(dir string) (*output.Log, error) {
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
	close(p.forked)
	p.move(evSpawned)
	p.receipt.StartedAt = now()
	p.begin()
	c := p.claim
	p.claim = nil
	if len(c.input) > 0 {
		p.enqueue(writeCall{r: unasked(), m: &wire.Write{Data: c.input}, close: !c.keepOpen})
	}
	if s := p.stopping; s != nil {
		p.stopping = nil
		p.stop(*s)
	}
	for _, r := range c.calls {
		p.serve(r)
	}
}

// begin starts what a live command needs: the pump, its observations, its timers.
func (p *process) begin() {
	p.feed = p.deps.feed(&p.receipt, p.plan.Trace, p.adopted)
	ship := p.newShipper()
	p.ship.Store(ship)
	if p.adopted {
		ship.wrote(p.out.Stats().TotalBytes) // what an earlier incarnation may not have shipped
	}
	p.sink = &sink{
		ctx: p.ctx, log: p.out, feed: p.feed, ship: ship, trim: p.child.Trim, limit: p.plan.Output.KillOverBytes,
		over: func() { p.tell(report{kind: reportOverLimit}) },
	}
	p.sink.last.Store(time.Now().UnixNano())
	c := p.child
	p.pumped.Store(&c)
	p.feed.Started(status(&p.receipt)) // of an adopted one too: it is stored once, whoever tells it
	if ms := p.plan.IdleTimeoutMS; ms > 0 {
		p.idle.Reset(time.Duration(ms) * time.Millisecond)
	}
	p.publish()
	out, sink := p.out, p.sink
	p.owned(func() {
		err := c.Pump(p.ctx, sink, out.Next())
		p.tell(report{kind: reportStreams, err: err})
	})
}

// refused: there is no process, or none that anybody could be told of. It reports
// whether the actor goes on, which it does until its record says so.
func (p *process) refused(r report) bool {
	if taken, ok := errors.AsType[*takenError](r.err); ok {
		p.leave(func(r request) { p.handOver(r, taken.rec) })
		return false
	}
	p.log.Info("start refused", "err", r.err)
	p.failure = public(r.err)
	halted := errors.Is(r.err, errHalted)
	if halted {
		p.failure = haltedBy(p.stopping.cause, p.execution)
	}
	p.rev, p.addressRev, p.child, p.out = r.rev, r.addressRev, r.child, r.out
	if p.out == nil {
		p.out, _ = p.openIn("") // in memory, and empty: it cannot fail
	}
	p.hasExit, p.tree, p.streams = true, true, true
	p.receipt.StdinOpen = false
	p.receipt.EndedAt = now()
	switch {
	case halted:
		p.move(evEndedCancelled)
		p.receipt.Reason = wire.ReasonNeverStarted
	default:
		p.move(evSpawnFailed)
		p.receipt.Reason, p.receipt.Error = wire.ReasonSpawnFailed, p.failure
	}
	if r.rev == 0 { // nothing is recorded: nothing is there to be corrected
		p.told = true
		p.publish()
		p.leave(p.serveFailed)
		return false
	}
	if c := p.child; c != nil {
		p.owned(func() {
			if err := c.Stop(p.ctx, wire.ReasonInternal, keeper.Kill, 0); err != nil {
				p.tell(report{kind: reportStopFailed, err: err})
			}
		})
	}
	p.out.Close(true, "")
	p.conclude(false)
	return true
}

// haltedBy is the answer to a start that was stopped before the fork.
func haltedBy(cause wire.Reason, execution string) *wire.Error {
	switch cause {
	case wire.ReasonCancel:
		return errCancelled(execution)
	case wire.ReasonSessionClosed:
		return wire.Errorf(wire.CodeSessionClosed, "the session has ended before execution %s was started; nothing was started", execution)
	}
	return errCrashed
}

// handOver answers a request of a start that lost to another holder of the id: that
// process answers, or its record.
func (p *process) handOver(r request, rec *wire.ExecutionRecord) {
	switch {
	case r.call != nil:
		p.deps.answerFrom(r, rec)
	case r.target.Verb == "cancel":
		p.deps.cancelFrom(r, rec)
	default:
		refuse(r, wire.Errorf(wire.CodeNotFound, "there is no process %s; its execution is process %s", p.id, rec.Receipt.Process))
	}
}

// serveFailed answers a request of a start of which nothing came.
func (p *process) serveFailed(r request) {
	switch {
	case r.call != nil && r.call.hash != p.receipt.RequestHash:
		refuse(r, errConflict(p.execution))
	case r.call != nil:
		refuse(r, p.failure)
	case p.rev == 0: // nobody will know of it
		refuse(r, p.failure)
	default:
		switch r.target.Verb {
		case "status", "wait", "terminate", "cancel":
			answer(r, p.seen())
		case "wait_for":
			with(r, func(m *wire.WaitFor) { answer(r, waitedFrom(m, p.seen())) })
		default:
			refuse(r, p.failure)
		}
	}
}

// leave ends an actor that the session did not send away. last answers what it was
// asked, and will be.
func (p *process) leave(last func(request)) {
	p.last = last
	if c := p.claim; c != nil {
		p.claim = nil
		for _, r := range c.calls {
			last(r)
		}
	}
	p.release()
	p.notify(notice{kind: noticeLeft})
}

// release lets go of all who wait for the exit and the end.
func (p *process) release() {
	for _, c := range []chan struct{}{p.exited, p.ended} {
		if !isDone(c) {
			close(c)
		}
	}
}

func isDone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func errCancelled(execution string) *wire.Error {
	return &wire.Error{
		Code: wire.CodeExecutionCancelled, Field: "execution_id",
		Message: "execution_id: " + execution + " was cancelled before its start; nothing was started",
	}
}
