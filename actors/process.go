package actors

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
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
// reports. Everything below the second blank line is touched by run alone.
type process struct {
	deps      *deps
	id        string
	session   string
	tenant    string
	execution string
	grace     time.Duration
	log       *slog.Logger
	inbox     chan request      // bounded: inboxSize; see deliver
	facts     chan keeper.Event // bounded: factsSize, which is more than the keeper can say
	orders    chan order        // of the session: at most stop, give up, and evict or leave
	reports   chan report       // of our own goroutines, which wait for room
	snap      atomic.Pointer[wire.Receipt]
	forked    chan struct{}              // closed after logRef has the log; never when nothing was forked
	exited    chan struct{}              // closed after snap has the exit
	ended     chan struct{}              // closed after snap is terminal and the record tried
	done      chan struct{}              // closed when run has returned
	notify    func(notice)               // tells the session; waits for room
	pumped    atomic.Pointer[Child]      // for the log's trims, which come from the pump
	logRef    atomic.Pointer[output.Log] // out, for the receipts that others make
	ship      atomic.Pointer[shipper]    // nil where no output is shipped; set by run
	halted    atomic.Bool                // a stop came before the fork: do not fork
	recorded  atomic.Bool                // the terminal record is written, or another's is

	ctx    context.Context //nolint:containedctx // the life of the actor itself, ended by run
	cancel context.CancelFunc
	own    sync.WaitGroup
	last   func(request) // answers what comes too late; set before done is closed
	untold *report       // of a start that found the actor on its way out; read after own.Wait

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
	strays     bool            // its directory is where an earlier command left the session
	stored     <-chan struct{} // closed when the session's record has what this command changed; nil: nothing
	past       bool            // adopted, with an end that was recorded
	resolves   bool            // adopted, with an outcome that was recorded as unknown
	claim      *claim          // until the start is answered
	failure    *wire.Error     // why there is no process: the answer to every start
	stopping   *order          // a stop that waits for the fork
	longest    time.Duration   // grace of a stop that may be under way
	waiters    int             // calls that wait in goroutines
	watchers   int             // those of wait_for, counted by themselves
	writes     chan writeCall  // nil until the first write
	streams    bool            // the pump has returned
	tree       bool            // nothing of the tree is left, or it is kept, or we gave up
	hasExit    bool
	killed     bool          // leftovers were asked to go
	crashed    bool          // a panic ended it
	sealing    bool          // its end is decided, and its record on the way
	sealer     bool          // seal has been started
	told       bool          // its end is published
	kept       bool          // leftovers live on, owned until they are ended or the session closes
	owed       bool          // the keeper is still to forget it, once the record is written
	swept      chan struct{} // closed when kept leftovers were ended; nil until asked for
	yielded    bool          // a run went on in the background
	drain      *time.Timer
	idle       *time.Timer
}

// order is what a session tells its process.
type order struct {
	cause wire.Reason
	by    string
	mode  keeper.Mode
	grace time.Duration
	// giveUp says that the stop had its time; evict ends the actor and its output, leave
	// the actor alone. closing says that its session ends with it.
	giveUp, evict, leave, closing bool
}

// report is a message of a goroutine that the actor owns.
type report struct {
	kind reportKind
	err  error
	// spawned and refused, as far as they came:
	child      Child
	input      Input
	rev        uint64
	addressRev uint64 // of the process record
	out        *output.Log
	// written:
	write  writeCall
	offset int64 // of stdin
	closed bool
	start  int64 // cursor of the output before the write
	// settled: what is kept of the output in the end
	stats wire.OutputStats
	// backgrounded: nothing may be left that holds the call
	detach bool
}

type reportKind uint8

const (
	reportSpawned      reportKind = iota
	reportRefused                 // there is no process, or it was ended at once
	reportStreams                 // the pump has returned
	reportOverLimit               // more output than kill_over_bytes
	reportStopFailed              // the keeper did not take a stop
	reportCrashed                 // a goroutine of ours panicked
	reportWaiter                  // a waiting call was answered
	reportWatcher                 // a wait_for was
	reportBackgrounded            // a run yielded its handle
	reportWritten                 // stdin moved, or closed, or a write failed
	reportCollected               // the log of an adopted ended command has got all there was
	reportSettled                 // a large output is on disk, and counted
	reportSealed                  // the terminal record is written
)

// run is the actor. It returns after the eviction, when all it started has ended.
func (p *process) run() {
	defer p.turnAway()
	defer close(p.done)
	defer p.own.Wait()
	defer p.cancel()
	p.drain, p.idle = stopped(), stopped()
	defer p.drain.Stop()
	defer p.idle.Stop()
	if !p.panics(p.live) {
		return
	}
	if p.panics(func() { p.crash(); p.loop() }) {
		p.surrender()
	}
}

func (p *process) live() {
	if p.adopted {
		close(p.forked)
		p.resume()
	} else {
		p.launch()
	}
	p.loop()
}

func (p *process) loop() {
	for p.step() {
	}
}

// panics runs f and reports whether it panicked, which is logged and goes no further.
func (p *process) panics(f func()) (panicked bool) {
	defer func() {
		if v := recover(); v != nil {
			p.log.Error("process actor failed", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			panicked = true
		}
	}()
	f()
	return false
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
		return p.obey(o)
	case r := <-p.inbox:
		p.serve(r)
	case <-p.drain.C:
		p.drained()
	case <-p.idle.C:
		p.idled()
	}
	return true
}

// report handles a message of our own goroutines; false ends the actor.
func (p *process) report(r report) bool {
	switch r.kind {
	case reportSpawned:
		p.spawned(r)
	case reportRefused:
		return p.refused(r)
	case reportStreams:
		p.streamsClosed(r.err)
	case reportOverLimit:
		p.stop(order{cause: wire.ReasonOutputLimit, mode: keeper.Terminate, grace: p.grace})
	case reportStopFailed:
		p.log.Warn("the keeper did not take a stop", "err", r.err)
	case reportCrashed:
		p.crash()
	case reportWaiter:
		p.waiters--
	case reportWatcher:
		p.watchers--
	case reportBackgrounded:
		p.backgrounded(r.detach)
	case reportWritten:
		p.written(r)
	case reportCollected:
		p.closeRecovered()
	case reportSettled:
		p.receipt.Output = r.stats
	case reportSealed:
		return p.sealed()
	}
	return true
}

// obey does what the session says; false ends the actor.
func (p *process) obey(o order) bool {
	switch {
	case o.evict || o.leave:
		p.depart(o.evict, o.closing)
		return false
	case o.giveUp:
		p.giveUp(o.cause)
	default:
		p.stop(o)
	}
	return true
}

// deliver hands a request to the actor. It never blocks: a full mailbox is answered
// "overloaded".
func (p *process) deliver(r request) {
	if !post(p.inbox, r) {
		refuse(r, errOverloaded)
		return
	}
	select {
	case <-p.done: // it left meanwhile, and may not have seen the request
		p.turnAway()
	default:
	}
}

// turnAway answers what an actor that has left did not.
func (p *process) turnAway() {
	for {
		select {
		case r := <-p.inbox:
			p.lastTo(r)
		default:
			return
		}
	}
}

// lastTo is last, for who may know of the process.
func (p *process) lastTo(r request) {
	if m, err := wire.DecodeRequest(r.target.Verb, r.ContentType(), r.Data); r.call == nil && err == nil && !within(m, p.session) {
		refuse(r, wire.NoProcess(p.id))
		return
	}
	p.last(r)
}

// owned runs f in a goroutine that run waits for. A panic in it ends the process.
func (p *process) owned(f func()) {
	p.own.Go(func() {
		if p.panics(f) {
			p.tell(report{kind: reportCrashed})
		}
	})
}

// tell reports to the actor, unless it is on its way out.
func (p *process) tell(r report) bool {
	select {
	case p.reports <- r:
		return true
	case <-p.ctx.Done():
		return false
	}
}

// publish makes the receipt what others see. They get a copy that nobody changes. An
// end is not seen before its record was tried.
func (p *process) publish() {
	if p.sealing && !p.told {
		return
	}
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
	if s := p.ship.Load(); s != nil {
		r.ShippedBytes = s.stored.Load()
	}
	return &r
}

func (p *process) record() *wire.ExecutionRecord {
	return &wire.ExecutionRecord{
		Version: wire.Version, ExecutionID: p.receipt.ExecutionID,
		RequestHash: p.receipt.RequestHash, Receipt: p.receipt, ShipBytes: p.plan.Output.ShipBytes,
	}
}

// note adds to the receipt what a person should know. Others may hold the old list.
func (p *process) note(text string) {
	p.receipt.Notes = append(slices.Clip(p.receipt.Notes), text)
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
