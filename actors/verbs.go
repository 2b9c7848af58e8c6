package actors

import (
	"syscall"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/actors/output"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// serve answers one request. What waits or touches a disk does so in a goroutine, of
// which a process has at most maxWaiters.
func (p *process) serve(r request) {
	if r.call != nil {
		p.attach(r)
		return
	}
	switch r.target.Verb {
	case "status":
		with(r, func(*wire.Status) { answer(r, p.seen()) })
	case "read":
		with(r, func(m *wire.Read) { p.waiting(r, func() { p.read(r, m) }) })
	case "wait":
		with(r, func(m *wire.Wait) { p.waiting(r, func() { p.wait(r, m) }) })
	case "write":
		with(r, func(m *wire.Write) { p.write(r, m) })
	case "close_stdin":
		with(r, func(*wire.CloseStdin) { p.enqueue(writeCall{r: r, close: true}) })
	case "resize":
		with(r, func(m *wire.Resize) { p.resize(r, m) })
	case "signal":
		with(r, func(m *wire.Signal) { p.signal(r, m) })
	case "terminate":
		with(r, func(m *wire.Terminate) { p.terminate(r, m) })
	case "cancel": // of the execution, handed on by the session
		with(r, func(*wire.Cancel) { p.terminate(r, &wire.Terminate{}) })
	default:
		refuse(r, wire.Invalid("verb", "%q is no verb of a process", r.target.Verb))
	}
}

// with decodes and checks the body before anything happens (A36).
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

// waiting runs f in a goroutine of the actor, or refuses when there are too many.
func (p *process) waiting(r request, f func()) {
	if p.waiters >= maxWaiters {
		refuse(r, errOverloaded)
		return
	}
	p.waiters++
	p.owned(func() {
		defer p.tell(report{kind: reportWaiter})
		f()
	})
}

// attach answers a start or run of this very process: the one that made it, or a retry.
func (p *process) attach(r request) {
	switch {
	case r.call.hash != p.receipt.RequestHash:
		refuse(r, errConflict(p.receipt.ExecutionID))
	case p.claim != nil:
		if len(p.claim.calls) >= maxWaiters {
			refuse(r, errOverloaded)
			return
		}
		p.claim.calls = append(p.claim.calls, r)
	case r.call.run:
		p.waiting(r, func() { p.awaitRun(r) })
	default:
		rec := p.seen()
		page, err := p.out.Read(wire.Read{Version: wire.Version, MaxBytes: firstPage}, stateOf(rec))
		if err == nil {
			rec.Page = page
		}
		answer(r, rec)
	}
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
	if p.out == nil {
		refuse(r, wire.Errorf(wire.CodeUnavailable, "the process is still starting; there is no output yet"))
		return
	}
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
	t := time.NewTimer(answerBy(r, time.Duration(ms)*time.Millisecond))
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
	if p.hasExit {
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

// terminate asks for the end and answers when that was seen. Repeating it is harmless.
func (p *process) terminate(r request, m *wire.Terminate) {
	mode := keeper.Terminate
	switch m.Mode {
	case "kill":
		mode = keeper.Kill
	case "interrupt":
		mode = keeper.Interrupt
	}
	grace := p.grace
	if m.GraceMS != nil {
		grace = time.Duration(*m.GraceMS) * time.Millisecond
	}
	p.stop(order{cause: wire.ReasonCancel, by: m.By, mode: mode, grace: grace})
	until := p.ended
	if p.swept != nil {
		until = p.swept // it has ended, and what it left behind is asked to go
	}
	limit := grace + goneLimit
	if mode == keeper.Interrupt {
		limit = grace // it may well go on
	}
	p.waiting(r, func() {
		t := time.NewTimer(answerBy(r, limit))
		defer t.Stop()
		select {
		case <-until:
		case <-t.C:
		case <-p.ctx.Done():
		}
		answer(r, p.seen())
	})
}

// writeCall is one write to stdin, its close, or both.
type writeCall struct {
	r      request
	m      *wire.Write
	close  bool
	silent bool // nobody asked: there is no request to answer
}

func (p *process) write(r request, m *wire.Write) {
	if m.Text != "" {
		m.Data = []byte(m.Text)
	}
	if m.Read != nil && p.out != nil { // a bad read writes nothing
		if _, err := p.out.Read(*m.Read, stateOf(p.seen())); err != nil {
			e := *public(err)
			if e.Field != "" {
				e.Field = "read." + e.Field
			}
			refuse(r, &e)
			return
		}
	}
	p.enqueue(writeCall{r: r, m: m, close: m.Close})
}

// enqueue serialises writes: one goroutine, in order of arrival.
func (p *process) enqueue(w writeCall) {
	if p.input == nil || !p.receipt.StdinOpen {
		if w.repeats(p.receipt.StdinBytes) {
			w.answer(p.seen())
			return
		}
		w.refuse(wire.Errorf(wire.CodeStdinClosed, `the process takes no input (any more); for input start it with stdin "pipe" or a tty`))
		return
	}
	if p.writes == nil {
		p.writes = make(chan writeCall, writeQueue)
		in, calls := p.input, p.writes
		p.owned(func() { p.writer(in, calls) }) // ends with the actor's context
	}
	if !post(p.writes, w) {
		w.refuse(wire.Errorf(wire.CodeInputBackpressure, "%d writes wait already; nothing was written", writeQueue))
	}
}

func (p *process) writer(in Input, calls <-chan writeCall) {
	for {
		select {
		case w := <-calls:
			p.writeOne(in, w)
		case <-p.ctx.Done():
			return
		}
	}
}

func (p *process) writeOne(in Input, w writeCall) {
	start := p.out.Next()
	var err error
	if w.m != nil && len(w.m.Data) > 0 {
		offset := int64(-1)
		if w.m.Offset != nil {
			offset = *w.m.Offset
		}
		_, err = in.WriteInput(p.ctx, offset, w.m.Data)
	}
	closed := false
	if err == nil && w.close {
		if err = in.CloseInput(p.ctx); err == nil {
			closed = true
		}
	}
	if err != nil && isClosed(err) {
		closed = true
	}
	p.tell(report{kind: reportWritten, offset: in.InputOffset(), closed: closed})
	if err != nil {
		w.refuse(err)
		return
	}
	rec := p.seen()
	rec.StdinBytes = in.InputOffset()
	rec.StdinOpen = rec.StdinOpen && !closed
	if w.m != nil && w.m.Read != nil {
		m := *w.m.Read
		if m.Cursor == nil && m.Offset == nil {
			m.Cursor = &start
		}
		p.readAfterWrite(&m, rec)
	}
	w.answer(rec)
}

// repeats reports whether a call asks for nothing that has not happened already: a
// close of what is closed, or bytes that were written before.
func (w *writeCall) repeats(written int64) bool {
	switch {
	case w.m == nil:
		return true
	case len(w.m.Data) == 0:
		return w.close
	}
	return w.m.Offset != nil && *w.m.Offset+int64(len(w.m.Data)) <= written
}

func (w *writeCall) answer(rec *wire.Receipt) {
	if !w.silent {
		answer(w.r, rec)
	}
}

func (w *writeCall) refuse(err error) {
	if !w.silent {
		refuse(w.r, err)
	}
}

// isClosed reports whether no further input is possible after err.
func isClosed(err error) bool {
	e := public(err)
	return e.Code == wire.CodeStdinClosed || e.Code == wire.CodeDeliveryUnknown
}

// readAfterWrite adds the page a write asked for, waiting for output as a read does.
func (p *process) readAfterWrite(m *wire.Read, rec *wire.Receipt) {
	if m.Cursor != nil && m.WaitMS > 0 {
		t := time.NewTimer(time.Duration(m.WaitMS) * time.Millisecond)
		defer t.Stop()
		p.more(t.C, *m.Cursor)
	}
	if page, err := p.out.Read(*m, stateOf(p.snap.Load())); err == nil {
		rec.Page = page
	}
}
