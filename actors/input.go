package actors

import (
	"errors"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// writeCall is one write to stdin, its close, or both.
type writeCall struct {
	r     request
	m     *wire.Write
	close bool
}

func (p *process) write(r request, m *wire.Write) {
	if m.Text != "" {
		m.Data = []byte(m.Text)
	}
	if m.Read != nil { // a bad read writes nothing
		if err := p.out.Check(*m.Read); err != nil {
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
			answer(w.r, p.seen())
			return
		}
		refuse(w.r, errNoInput)
		return
	}
	if p.writes == nil {
		p.writes = make(chan writeCall, writeQueue)
		in, calls := p.input, p.writes
		p.owned(func() { p.writer(in, calls) }) // ends with the actor's context
	}
	if !post(p.writes, w) {
		refuse(w.r, wire.Errorf(wire.CodeInputBackpressure, "%d writes wait already; nothing was written", writeQueue))
	}
}

var errNoInput = wire.Errorf(wire.CodeStdinClosed, `the process takes no input (any more); for input start it with stdin "pipe" or a tty`)

// writer makes the writes. Those that waited behind one that the process did not take
// are refused with it: they have waited as long, and must not overtake it.
func (p *process) writer(in Input, calls <-chan writeCall) {
	var stuck error
	for behind := 0; ; {
		select {
		case w := <-calls:
			r := report{kind: reportWritten, write: w, start: p.out.Next()}
			if behind--; behind >= 0 && w.m != nil {
				r.err = stuck
			} else {
				r.closed, r.err = p.writeOne(in, w)
				if errors.Is(r.err, &wire.Error{Code: wire.CodeInputBackpressure}) {
					stuck, behind = r.err, len(calls)
				}
			}
			r.offset = in.InputOffset()
			if !p.tell(r) {
				p.answerWrite(r)
				return
			}
		case <-p.ctx.Done():
			return
		}
	}
}

// writeOne writes, and closes where it was asked to; it reports whether stdin is closed.
func (p *process) writeOne(in Input, w writeCall) (closed bool, err error) {
	if w.m != nil && len(w.m.Data) > 0 {
		offset := int64(-1)
		if w.m.Offset != nil {
			offset = *w.m.Offset
		}
		_, err = in.WriteInput(p.ctx, offset, w.m.Data)
	}
	if err == nil && w.close {
		if err = in.CloseInput(p.ctx); err == nil {
			return true, nil
		}
	}
	return err != nil && isClosed(err), err
}

// written: stdin moved, or closed. The page that a write asked for is waited for beside
// the writer, so that later writes do not wait for it.
func (p *process) written(r report) {
	p.receipt.StdinBytes = r.offset
	if r.closed {
		p.receipt.StdinOpen = false
	}
	p.publish()
	w := r.write
	if r.err != nil || w.m == nil || w.m.Read == nil || p.waiters >= maxWaiters {
		p.answerWrite(r) // without a page where too many wait: the write has happened
		return
	}
	m := *w.m.Read
	if m.Cursor == nil && m.Offset == nil {
		m.Cursor = &r.start
	}
	p.waiting(w.r, func() {
		rec := p.afterWrite(r)
		p.readAfterWrite(w.r, &m, rec)
		answer(w.r, rec)
	})
}

func (p *process) answerWrite(r report) {
	if r.err != nil {
		refuse(r.write.r, r.err)
		return
	}
	answer(r.write.r, p.afterWrite(r))
}

// afterWrite is the receipt as this write left it.
func (p *process) afterWrite(r report) *wire.Receipt {
	rec := p.seen()
	rec.StdinBytes = max(rec.StdinBytes, r.offset)
	rec.StdinOpen = rec.StdinOpen && !r.closed
	return rec
}

// readAfterWrite adds the page a write asked for, waiting for output as a read does.
func (p *process) readAfterWrite(r request, m *wire.Read, rec *wire.Receipt) {
	if m.Cursor != nil && m.WaitMS > 0 {
		t := time.NewTimer(answerBy(r, time.Duration(m.WaitMS)*time.Millisecond))
		defer t.Stop()
		p.more(t.C, *m.Cursor)
	}
	if page, err := p.out.Read(*m, stateOf(p.snap.Load())); err == nil {
		rec.Page = page
	}
}

// refuseWrites answers the writes that will not be made. The writer has ended.
func (p *process) refuseWrites() {
	for {
		select {
		case w := <-p.writes: // nil, which never is ready, without a write
			refuse(w.r, errNoInput)
		default:
			return
		}
	}
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

// isClosed reports whether no further input is possible after err.
func isClosed(err error) bool {
	e := public(err)
	return e.Code == wire.CodeStdinClosed || e.Code == wire.CodeDeliveryUnknown
}
