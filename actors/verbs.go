package actors

import (
	"fmt"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/actors/output"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// serve answers one request. What waits or touches a disk does so in a goroutine, of
// which a process has at most maxWaiters. What needs the command waits for its fork.
func (p *process) serve(r request) {
	defer func() {
		if v := recover(); v != nil {
			refuse(r, errCrashed)
			panic(v) // run ends the process
		}
	}()
	if r.call != nil {
		p.attach(r)
		return
	}
	m, err := p.message(r)
	switch {
	case err != nil:
		refuse(r, err)
	case p.failure != nil && p.told:
		p.serveFailed(r)
	case p.claim != nil && p.defers(r, m):
	default:
		p.perform(r, m)
	}
}

// message decodes and checks a request before anything happens (A36). One that is to
// reach the processes of another session only hears what it would of one that never was.
func (p *process) message(r request) (wire.Request, error) {
	m, err := wire.DecodeRequest(r.target.Verb, r.ContentType(), r.Data)
	if err != nil {
		return nil, err
	}
	if !within(m, p.session) {
		return nil, wire.NoProcess(p.id)
	}
	if s := p.deps.dir.session(p.tenant, p.session); s != nil {
		s.touch()
	}
	return m, nil
}

// within reports whether a request may know of the processes of a session (P26).
func within(m wire.Request, session string) bool {
	of, ok := m.(interface{ Ref() wire.ProcessRef })
	return !ok || of.Ref().InSession == "" || of.Ref().InSession == session
}

func (p *process) perform(r request, m wire.Request) {
	switch m := m.(type) {
	case *wire.Status:
		answer(r, p.seen())
	case *wire.Read:
		p.waiting(r, func() { p.read(r, m) })
	case *wire.Wait:
		p.waiting(r, func() { p.wait(r, m) })
	case *wire.WaitFor:
		p.waitFor(r, m)
	case *wire.Search:
		p.search(r, m)
	case *wire.Write:
		p.write(r, m)
	case *wire.CloseStdin:
		p.enqueue(writeCall{r: r, close: true})
	case *wire.Resize:
		p.resize(r, m)
	case *wire.Signal:
		p.signal(r, m)
	case *wire.Terminate:
		p.terminate(r, m)
	case *wire.Cancel: // of the execution, handed on by the session
		p.terminate(r, &wire.Terminate{})
	default:
		refuse(r, wire.Invalid("verb", "%q is no verb of a process", r.target.Verb))
	}
}

// defers puts aside what only a forked command can answer. A request to end it counts
// at once.
func (p *process) defers(r request, m wire.Request) bool {
	switch m := m.(type) {
	case *wire.Status, *wire.Wait, *wire.WaitFor:
		return false
	case *wire.Terminate:
		p.stop(p.terminateOrder(m))
	case *wire.Cancel:
		p.stop(p.terminateOrder(&wire.Terminate{}))
	}
	p.queue(r)
	return true
}

// queue lets a request wait for the outcome of the start.
func (p *process) queue(r request) {
	if len(p.claim.calls) >= maxWaiters {
		refuse(r, errOverloaded)
		return
	}
	p.claim.calls = append(p.claim.calls, r)
}

// with decodes and checks the body of a request to a session before anything happens.
func with[M any, P interface {
	*M
	validator
}](r request, f func(*M)) {
	m, err := decode[M, P](r)
	if err != nil {
		refuse(r, err)
		return
	}
	f(m)
}

// waiting runs f in a goroutine of the actor, or refuses when there are too many. A
// panic in it is that call's and nobody else's.
func (p *process) waiting(r request, f func()) { p.waitingIn(&p.waiters, reportWaiter, r, f) }

// waitingIn is waiting, with a count of its own that the report takes down.
func (p *process) waitingIn(count *int, kind reportKind, r request, f func()) {
	if *count >= maxWaiters {
		refuse(r, errOverloaded)
		return
	}
	*count++
	p.own.Go(func() { // ends with its answer, at the latest with the actor
		defer p.tell(report{kind: kind})
		defer func() {
			if v := recover(); v != nil {
				p.log.Error("call failed", "verb", r.target.Verb, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
				refuse(r, fmt.Errorf("panic: %v", v))
			}
		}()
		f()
	})
}

// attach answers a start or run of this very process: the one that made it, or a retry.
func (p *process) attach(r request) {
	switch {
	case p.failure != nil && p.told:
		p.serveFailed(r)
	case r.call.hash != p.receipt.RequestHash:
		refuse(r, errConflict(p.execution))
	case p.claim != nil:
		p.queue(r)
	case r.call.run:
		p.waiting(r, func() { p.awaitRun(r) })
	case p.out.Next() == 0:
		p.firstPage(r)
	default: // what was first may be on disk by now
		p.waiting(r, func() { p.firstPage(r) })
	}
}

func (p *process) firstPage(r request) {
	rec := p.seen()
	page, err := p.out.Read(wire.Read{Version: wire.Version, MaxBytes: firstPage}, stateOf(rec))
	if err == nil {
		rec.Page = page
	}
	answer(r, rec)
}

func errConflict(execution string) *wire.Error {
	return &wire.Error{
		Code: wire.CodeExecutionConflict, Field: "execution_id",
		Message: "execution_id: " + execution + " was used for another command; a new command takes a new id",
	}
}

// awaitRun waits for the end, or yields the handle.
func (p *process) awaitRun(r request) {
	c := r.call
	limit := answerBy(r, 24*time.Hour)
	yields, detaches := false, false
	if c.yield > 0 && c.yield <= limit {
		limit, yields = c.yield, true
	}
	if c.timeout > 0 {
		if rest := time.Until(p.snap.Load().CreatedAt.Add(c.timeout)); rest < limit {
			limit, yields, detaches = max(0, rest), true, c.onTimeout == wire.OnTimeoutDetach
		}
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-p.ended:
	case <-t.C:
	case <-p.ctx.Done():
	}
	rec := p.seen()
	res := &wire.Result{Version: wire.Version, Receipt: *rec, OnTimeout: c.onTimeout, Yielded: !rec.State.Terminal()}
	res.Stdout, res.Stderr = p.out.Render(c.render, rec.Streams == wire.StreamsMerged)
	if res.Yielded && yields { // not where only this call's own time is up: it will be asked again
		p.tell(report{kind: reportBackgrounded, detach: detaches})
	}
	answer(r, res)
}

func stateOf(r *wire.Receipt) output.State {
	return output.State{State: r.State, ExitCode: r.ExitCode}
}

// read answers with a page; one that would be empty waits for output or the end.
func (p *process) read(r request, m *wire.Read) {
	t := time.NewTimer(answerBy(r, time.Duration(m.WaitMS)*time.Millisecond))
	defer t.Stop()
	for {
		// The end before the page, so that an ended page is the last.
		st := stateOf(p.snap.Load())
		page, err := p.out.Read(*m, st)
		if err != nil {
			refuse(r, err)
			return
		}
		if len(page.Chunks) > 0 || page.CursorExpired || st.State.Terminal() || m.WaitMS == 0 {
			answer(r, page)
			return
		}
		if !p.more(t.C, page.NextCursor) {
			answer(r, page)
			return
		}
		m.Cursor, m.Offset = &page.NextCursor, nil
	}
}

// more waits for output past a cursor, or for the end; false when the time is up.
func (p *process) more(limit <-chan time.Time, cursor int64) bool {
	select {
	case <-p.out.Changed(cursor):
		if p.out.Next() > cursor {
			return true
		}
	case <-p.ended:
		return true
	case <-limit:
		return false
	case <-p.ctx.Done():
		return false
	}
	select { // the streams have ended: what is left to wait for is the end
	case <-p.ended:
		return true
	case <-limit:
		return false
	case <-p.ctx.Done():
		return false
	}
}

// wait answers at the exit or the end; when its time is up it answers as things are.
func (p *process) wait(r request, m *wire.Wait) {
	ms := m.WaitMS
	if ms == 0 {
		ms = 1000
	}
	until := p.ended
	if m.For == "exit" {
		until = p.exited
	}
	p.awaitAnswer(r, until, time.Duration(ms)*time.Millisecond)
}

// awaitAnswer answers with the receipt when until is closed, or the time is up.
func (p *process) awaitAnswer(r request, until <-chan struct{}, limit time.Duration) {
	t := time.NewTimer(answerBy(r, limit))
	defer t.Stop()
	select {
	case <-until:
	case <-t.C:
	case <-p.ctx.Done():
	}
	answer(r, p.seen())
}

func (p *process) resize(r request, m *wire.Resize) {
	if p.receipt.TTY == nil || p.input == nil {
		refuse(r, wire.Errorf(wire.CodePTYUnavailable, "the process has no terminal to resize; start it with a tty"))
		return
	}
	if p.hasExit || p.receipt.State.Terminal() {
		refuse(r, wire.Errorf(wire.CodeStdinClosed, "the command has ended; its terminal is closed"))
		return
	}
	size := m.WindowSize
	p.receipt.TTY = &size
	p.publish()
	in := p.input
	p.waiting(r, func() {
		if err := in.Resize(p.ctx, size); err != nil {
			refuse(r, err)
			return
		}
		answer(r, p.seen())
	})
}

// signal sends one signal to the group. A signal is no request to end: the state stays.
func (p *process) signal(r request, m *wire.Signal) {
	sig, err := wire.ParseSignal(m.Signal)
	if err != nil {
		refuse(r, err)
		return
	}
	if p.child == nil || p.hasExit {
		answer(r, p.seen()) // nothing to signal: the receipt says so
		return
	}
	c := p.child
	p.waiting(r, func() {
		if err := c.Signal(p.ctx, syscall.Signal(sig)); err != nil {
			refuse(r, err)
			return
		}
		answer(r, p.seen())
	})
}

func (p *process) terminateOrder(m *wire.Terminate) order {
	o := order{cause: wire.ReasonCancel, by: m.By, mode: keeper.Terminate, grace: p.grace}
	switch m.Mode {
	case "kill":
		o.mode = keeper.Kill
	case "interrupt":
		o.mode = keeper.Interrupt
	}
	if m.GraceMS != nil {
		o.grace = time.Duration(*m.GraceMS) * time.Millisecond
	}
	return o
}

// terminate asks for the end and answers when that was seen. Repeating it is harmless.
func (p *process) terminate(r request, m *wire.Terminate) {
	o := p.terminateOrder(m)
	p.stop(o)
	until := p.ended
	if p.swept != nil {
		until = p.swept // it has ended, and what it left behind is asked to go
	}
	limit := o.grace + goneLimit
	if o.mode == keeper.Interrupt {
		limit = o.grace // it may well go on
	}
	p.waiting(r, func() { p.awaitAnswer(r, until, limit) })
}
