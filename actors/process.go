package actors

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/actors/output"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// process is the actor of one command, from admission to its eviction.
//
// Its goroutine is run; what blocks is in goroutines that own tracks and that send to
// reports. Everything below the first blank line is touched by run alone.
type process struct {
	deps      *deps
	id        string
	session   string
	tenant    string
	execution string
	grace     time.Duration
	log       *slog.Logger
	inbox     chan request      // bounded: inboxSize; the router answers overloaded
	facts     chan keeper.Event // the keeper says at most exited, gone, lost: never full
	orders    chan order        // of the session: stop, evict; never full, see order
	reports   chan report       // of our own goroutines, which wait for room
	snap      atomic.Pointer[wire.Receipt]
	exited    chan struct{}              // closed after snap has the exit
	ended     chan struct{}              // closed after snap is terminal and the record tried
	done      chan struct{}              // closed when run has returned
	notify    func(notice)               // tells the session; waits for room
	pumped    atomic.Pointer[Child]      // for the log's trims, which come from the pump
	logRef    atomic.Pointer[output.Log] // out, for the receipts that others make

	ctx    context.Context //nolint:containedctx // the life of the actor itself, ended by run
	cancel context.CancelFunc
	own    sync.WaitGroup

	plan       plan
	receipt    wire.Receipt
	rev        uint64
	addressRev uint64 // of the process record; 0 when its end is known without a write
	child      Child
	input      Input
	out        *output.Log
	feed       feed
	sink       *sink
	adopted    bool
	claim      *claim         // until spawned
	stopping   *order         // a stop that waits for the fork
	waiters    int            // calls that wait in goroutines
	writes     chan writeCall // nil until the first write
	streams    bool           // the pump has returned
	tree       bool           // nothing of the tree is left, or it is kept, or we gave up
	hasExit    bool
	sealing    bool
	killed     bool          // leftovers were asked to go
	kept       bool          // leftovers live on, owned until they are ended or the session closes
	swept      chan struct{} // closed when kept leftovers were ended; nil until asked for
	yielded    bool          // a run went on in the background
	drain      *time.Timer
	idle       *time.Timer
}

// order is what a session tells its process. At most two are ever sent: a stop, and
// the eviction or the leave.
type order struct {
	cause wire.Reason
	by    string
	mode  keeper.Mode
	grace time.Duration
	// evict ends the actor and its output; leave ends the actor alone.
	evict, leave bool
}

// report is a message of a goroutine that the actor owns.
type report struct {
	kind reportKind
	err  error
	// spawned:
	child      Child
	input      Input
	rev        uint64
	addressRev uint64 // of the process record
	out        *output.Log
	// written: the offset of stdin, and whether it is closed
	offset int64
	closed bool
	// settled: what is kept of the output in the end
	stats wire.OutputStats
	// backgrounded: nothing may be left that holds the call
	detach bool
}

type reportKind uint8

const (
	reportSpawned      reportKind = iota
	reportRefused                 // the start was answered; there is no process
	reportStreams                 // the pump has returned
	reportOverLimit               // more output than kill_over_bytes
	reportStopFailed              // the keeper did not take a stop
	reportWaiter                  // a waiting call was answered
	reportBackgrounded            // a run yielded its handle
	reportWritten                 // stdin moved, or closed
	reportSettled                 // a large output is on disk, and counted
	reportSealed                  // the terminal record is written, or waited for long enough
)

// run is the actor. It returns after the eviction, when all it started has ended.
func (p *process) run() {
	defer close(p.done)
	defer p.own.Wait()
	defer p.cancel()
	defer p.contain()
	p.drain, p.idle = stopped(), stopped()
	defer p.drain.Stop()
	defer p.idle.Stop()
	if p.adopted {
		p.resume()
	} else {
		p.owned(func() { p.start() })
	}
	for p.step() {
	}
}

// step handles one message and reports whether there is a next one.
func (p *process) step() bool {
	facts := p.facts
	if p.child == nil {
		facts = nil // the keeper may be faster than the report of the fork
	}
	select {
	case e := <-facts:
		p.fact(e)
	case r := <-p.reports:
		return p.report(r)
	case o := <-p.orders:
		if o.evict || o.leave {
			p.depart(o.evict)
			return false
		}
		p.stop(o)
	case r := <-p.inbox:
		p.serve(r)
	case <-p.drain.C:
		p.drained()
	case <-p.idle.C:
		p.idled()
	}
	return true
}

// contain ends the process when the actor panics: tree killed, record failed, event
// published, and nothing else of the worker touched.
func (p *process) contain() {
	v := recover()
	if v == nil {
		return
	}
	p.log.Error("process actor failed", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), goneLimit)
	defer cancel()
	if p.child != nil {
		_ = p.child.Stop(ctx, wire.ReasonInternal, keeper.Kill, 0)
	}
	if p.receipt.State.Terminal() {
		p.leave()
		return
	}
	p.receipt.State, p.receipt.Reason = wire.StateFailed, wire.ReasonInternal
	p.receipt.Error = wire.Errorf(wire.CodeInternal, "an internal error ended this process; the worker's log has it")
	p.receipt.EndedAt = now()
	if p.out != nil {
		p.out.Close(false, "internal error")
		p.receipt.Output = p.out.Stats()
	}
	if p.rev != 0 {
		if _, err := p.deps.store.UpdateExecution(ctx, p.tenant, p.record(), p.rev); err != nil {
			p.log.Error("record of a failed actor", "err", err)
		}
	}
	if p.feed != nil {
		p.feed.Finished(status(&p.receipt))
	}
	p.publish()
	if !p.hasExit {
		close(p.exited)
	}
	p.leave()
}

// leave closes what others wait on and answers what is still in the inbox.
func (p *process) leave() {
	select {
	case <-p.ended:
	default:
		close(p.ended)
	}
	if p.child != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), time.Second)
		_ = p.child.Release(ctx)
		cancel()
	}
	p.notify(notice{left: true})
	p.emptyInbox(errGone(p.id))
}

// depart ends the actor. An eviction takes the output along and lets the keeper
// forget; a leave touches neither, because the next incarnation adopts.
func (p *process) depart(evict bool) {
	if evict {
		p.awaitKept()
	}
	p.cancel()
	p.own.Wait()
	if !evict {
		if p.out != nil {
			p.out.Close(false, "the worker is shutting down") // in memory: the files stay as they are
		}
		p.emptyInbox(wire.Errorf(wire.CodeSupervisorShuttingDown, "the worker is shutting down; the process runs on"))
		return
	}
	if p.out != nil {
		if err := p.out.Remove(); err != nil {
			p.log.Warn("remove the output", "err", err)
		}
	}
	if p.child != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = p.child.Release(ctx)
	}
	p.emptyInbox(errGone(p.id))
}

// awaitKept ends kept leftovers, which nobody else will, and waits for their end.
func (p *process) awaitKept() {
	if !p.kept {
		return
	}
	if p.swept == nil {
		p.endKept(order{cause: wire.ReasonSessionClosed, mode: keeper.Kill})
	}
	t := time.NewTimer(p.grace + goneLimit)
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

func (p *process) emptyInbox(why error) {
	for {
		select {
		case r := <-p.inbox:
			refuse(r, why)
		default:
			return
		}
	}
}

// owned runs f in a goroutine that run waits for.
func (p *process) owned(f func()) {
	p.own.Go(func() {
		defer func() {
			if v := recover(); v != nil {
				p.log.Error("goroutine of a process failed", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
				p.tell(report{kind: reportStopFailed, err: fmt.Errorf("panic: %v", v)})
			}
		}()
		f()
	})
}

// tell reports to the actor, unless it is on its way out.
func (p *process) tell(r report) {
	select {
	case p.reports <- r:
	case <-p.ctx.Done():
	}
}

// publish makes the receipt what others see. They get a copy that nobody changes.
func (p *process) publish() {
	r := p.receipt
	if p.out != nil && !r.State.Terminal() {
		text := r.Output.Error
		r.Output = p.out.Stats()
		r.Output.Error = text
	}
	if p.feed != nil {
		r.ObserverDroppedEvents = p.feed.Dropped()
	}
	p.snap.Store(&r)
}

// seen is the receipt as others may see it, with counters of this moment.
func (p *process) seen() *wire.Receipt {
	r := *p.snap.Load()
	if out := p.logRef.Load(); out != nil && !r.State.Terminal() {
		r.Output = out.Stats()
	}
	return &r
}

func (p *process) record() *wire.ExecutionRecord {
	return &wire.ExecutionRecord{
		Version: wire.Version, ExecutionID: p.receipt.ExecutionID,
		RequestHash: p.receipt.RequestHash, Receipt: p.receipt,
	}
}

// move takes the table's next state; a refused pair is logged and changes nothing.
func (p *process) move(e event) bool {
	s, err := next(p.receipt.State, e)
	if err != nil {
		p.log.Error("process table", "err", err)
		return false
	}
	p.receipt.State = s
	return true
}

func stopped() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

func now() *time.Time {
	t := time.Now().UTC()
	return &t
}

func errGone(id string) *wire.Error {
	return &wire.Error{
		Code:    wire.CodeExpired,
		Message: "the output of process " + id + " is no longer retained; its receipt is in the records",
	}
}

// status is the part of a receipt that observers get.
func status(r *wire.Receipt) wire.EventStatus {
	return wire.EventStatus{
		ExecutionID: r.ExecutionID, State: r.State, Reason: r.Reason, ExitCode: r.ExitCode,
		Signal: r.Signal, StartedAt: r.StartedAt, ExitedAt: r.ExitedAt, EndedAt: r.EndedAt,
		Output: r.Output, Proof: r.Proof, CancelRequested: r.CancelRequested,
		LeftoversKilled: r.LeftoversKilled,
	}
}
