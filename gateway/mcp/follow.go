package mcp

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/limpet-sh/limpet/actors/output"
	"github.com/limpet-sh/limpet/subjects/wire"
)

const (
	// defaultPage is how much new output a wait shows, in bytes.
	defaultPage = 16 << 10
	// maxProcesses bounds a list.
	maxProcesses = 50
	// writeWait is how long a write waits for the first output after it.
	writeWait = time.Second
	// by is who asks for an end, in receipts.
	by = "agent"
)

func (k *call) ref() wire.ProcessRef { return wire.ProcessRef{Process: k.process} }

// read shows a page of output.
func (k *call) read(ctx context.Context, b *bound) (*reply, error) {
	most := k.c.s.cfg.YieldMax
	m := k.page(0)
	m.WaitMS = k.wait("wait_s", k.waitMS, 0, most).Milliseconds()
	p, err := b.procs.Read(ctx, m)
	if err != nil {
		return nil, err
	}
	if k.stream == "" {
		k.c.left.shown(p.Process, p.NextOffset)
	}
	if p.End {
		k.c.left.saw(p.Process, p.State)
	}
	return &reply{
		answer: pageAnswer(p),
		text:   func(o output.TextOptions) string { return output.PageText(p, o) },
	}, nil
}

// waitEnd waits for the end and shows what is new.
func (k *call) waitEnd(ctx context.Context, b *bound) (*reply, error) {
	if err := k.checkOffset(ctx, b); err != nil {
		return nil, err
	}
	most := k.c.s.cfg.YieldMax
	r, err := b.procs.Wait(ctx, wire.Wait{
		ProcessRef: k.ref(), For: k.until, WaitMS: max(1, k.wait("wait_s", k.waitMS, most, most).Milliseconds()),
	})
	if err != nil {
		return nil, err
	}
	return k.shown(ctx, b, r, output.ReceiptText)
}

// checkOffset refuses an offset ahead of the output before anything is done (A36).
func (k *call) checkOffset(ctx context.Context, b *bound) error {
	if !k.given("offset") {
		return nil
	}
	m := k.page(k.offset)
	m.MaxBytes = wire.MinPageBytes
	_, err := b.procs.Read(ctx, m)
	return err
}

type receiptText = func(*wire.Receipt, output.TextOptions) string

// shown is a receipt with the output that the agent has not seen.
func (k *call) shown(ctx context.Context, b *bound, r *wire.Receipt, words receiptText) (*reply, error) {
	skipped := k.unseen(ctx, b, r)
	if p := r.Page; p != nil && p.State != r.State { // it went on while its output was read
		if now, err := b.procs.Status(ctx, r.Process); err == nil {
			now.Page, r = p, now
		}
	}
	k.c.left.saw(r.Process, r.State)
	a := receiptAnswer(r)
	return &reply{answer: a, text: func(o output.TextOptions) string {
		text := words(r, o)
		if skipped >= 0 {
			text = fmt.Sprintf("[%d bytes before this were not shown; %s]\n", *a.Offset-skipped, o.Rest(r.Process, skipped)) + text
		}
		return text
	}}, nil
}

// unseen puts into the receipt the output that was not shown yet: of what is too much the
// last of it, where errors are. It returns the offset of what it passed over, or -1.
func (k *call) unseen(ctx context.Context, b *bound, r *wire.Receipt) (skipped int64) {
	from := k.c.left.unseen(r.Process)
	skipped = -1
	size := int64(defaultPage)
	if k.given("max_bytes") {
		size = k.maxBytes
	}
	if rest := r.Output.TotalBytes - from; rest > size && !k.given("offset") {
		skipped, from = from, r.Output.TotalBytes-size
	}
	p, err := b.procs.Read(ctx, k.page(from))
	if err != nil {
		return -1 // the receipt is what was asked for; its counts say that there is output
	}
	r.Page, r.Output = p, p.Output
	k.c.left.shown(r.Process, p.NextOffset)
	if skipped >= 0 && p.Offset <= skipped {
		skipped = -1
	}
	return skipped
}

// waitUntil waits for a condition, of one process or of several.
func (k *call) waitUntil(ctx context.Context, b *bound) (*reply, error) {
	most := k.c.s.cfg.YieldMax
	limit := k.wait("wait_s", k.waitMS, most, most)
	m := k.waitFor(limit)
	w, err := b.procs.WaitFor(ctx, m)
	if err != nil {
		return nil, err
	}
	if len(k.processes) > 0 {
		return k.severalWaited(&m, w), nil
	}
	if len(w.Results) != 1 {
		return nil, wire.Errorf(wire.CodeInternal, "an answer of another shape")
	}
	one := &w.Results[0]
	if one.Error != nil {
		return nil, one.Error
	}
	r := one.Receipt
	if r == nil {
		if r, err = b.procs.Status(ctx, k.process); err != nil {
			return nil, err
		}
	}
	rep, err := k.shown(ctx, b, r, output.ReceiptText)
	if err != nil {
		return nil, err
	}
	rep.answer.Met, rep.answer.PortOwner = &one.Met, one.PortOwner
	if one.Match != nil {
		rep.answer.Matches = []match{matchOf(one.Match)}
	}
	text := rep.text
	rep.text = func(o output.TextOptions) string { return join(text(o), output.WaitedText(&m, w, o)) }
	return rep, nil
}

func (k *call) severalWaited(m *wire.WaitFor, w *wire.Waited) *reply {
	a := &answer{Met: &w.Met}
	for i := range w.Results {
		r := &w.Results[i]
		one := waited{handle: handle{Process: r.Process}, Met: r.Met, PortOwner: r.PortOwner}
		if r.Receipt != nil {
			one.handle = handleOf(r.Receipt, time.Now())
			k.c.left.saw(r.Process, r.Receipt.State)
		}
		if r.Match != nil {
			m := matchOf(r.Match)
			one.Match = &m
		}
		if r.Error != nil {
			one.Error = public(r.Error)
		}
		a.Results = append(a.Results, one)
	}
	return &reply{answer: a, text: func(o output.TextOptions) string { return output.WaitedText(m, w, o) }}
}

func (k *call) status(ctx context.Context, b *bound) (*reply, error) {
	r, err := b.procs.Status(ctx, k.process)
	if err != nil {
		return nil, err
	}
	return k.receipt(r, output.ReceiptText), nil
}

func (k *call) receipt(r *wire.Receipt, text receiptText) *reply {
	k.c.left.saw(r.Process, r.State)
	return &reply{answer: receiptAnswer(r), text: func(o output.TextOptions) string { return text(r, o) }}
}

// write writes to the input, waits for the first output after it, and shows what is new.
func (k *call) write(ctx context.Context, b *bound) (*reply, error) {
	if err := k.checkOffset(ctx, b); err != nil {
		return nil, err
	}
	m := wire.Write{ProcessRef: k.ref(), Text: k.stdin, Close: k.closeStdin}
	if wait := k.wait("wait_s", k.waitMS, writeWait, k.c.s.cfg.YieldMax); wait > 0 {
		m.Read = &wire.Read{ProcessRef: k.ref(), WaitMS: max(1, wait.Milliseconds()), MaxBytes: wire.MinPageBytes}
	}
	r, err := b.procs.Write(ctx, m)
	if err != nil {
		return nil, err
	}
	r.Page = nil // it begins at the write; there may be more that was not shown
	return k.shown(ctx, b, r, output.WriteText)
}

func (k *call) resize(ctx context.Context, b *bound) (*reply, error) {
	r, err := b.procs.Resize(ctx, k.process, wire.WindowSize{Rows: int(k.rows), Cols: int(k.cols)})
	if err != nil {
		return nil, err
	}
	return k.receipt(r, output.ResizeText), nil
}

func (k *call) sendSignal(ctx context.Context, b *bound) (*reply, error) {
	r, err := b.procs.Signal(ctx, k.process, k.signal)
	if err != nil {
		return nil, err
	}
	return k.receipt(r, func(r *wire.Receipt, o output.TextOptions) string { return output.SignalText(r, k.signal, o) }), nil
}

// terminate ends a process and shows the last of it.
func (k *call) terminate(ctx context.Context, b *bound) (*reply, error) {
	if err := k.checkOffset(ctx, b); err != nil {
		return nil, err
	}
	m := wire.Terminate{ProcessRef: k.ref(), Mode: k.mode, By: by}
	if k.given("grace_s") {
		m.GraceMS = &k.graceMS
	}
	r, err := b.procs.Terminate(ctx, m)
	if err != nil {
		return nil, err
	}
	rep, err := k.shown(ctx, b, r, output.ReceiptText)
	if rep != nil {
		e := rep.answer.Error
		rep.others, rep.failed = true, e != nil && e.Code == wire.CodeTeardownFailed // P30: part of it lives
	}
	return rep, err
}

// list shows what the session runs and ran: what lives first, then the newest.
func (k *call) list(ctx context.Context, b *bound) (*reply, error) {
	l, err := b.List(ctx)
	if k.c.gone(b, err) {
		if b, err = k.c.session(ctx); err == nil {
			l, err = b.List(ctx)
		}
	}
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(l.Processes, func(a, b wire.Receipt) int {
		if x, y := a.State.Terminal(), b.State.Terminal(); x != y {
			if y {
				return -1
			}
			return 1
		}
		return b.CreatedAt.Compare(a.CreatedAt)
	})
	a, now := &answer{Session: b.Info().Name, Processes: []handle{}}, time.Now()
	for i := range l.Processes {
		r := &l.Processes[i]
		if i < maxProcesses {
			h := handleOf(r, now)
			h.Notes, h.Description = nil, r.Description
			a.Processes = append(a.Processes, h)
			k.c.left.saw(r.Process, r.State)
		}
	}
	a.HasMore = len(l.Processes) > maxProcesses
	return &reply{answer: a, text: func(o output.TextOptions) string { return output.ListText(l, o) }}, nil
}

// find looks for lines.
func (k *call) find(ctx context.Context, b *bound) (*reply, error) {
	f, err := b.procs.Search(ctx, k.search())
	if err != nil {
		return nil, err
	}
	if f.End {
		k.c.left.saw(f.Process, f.State)
	}
	a := &answer{
		handle:     &handle{Process: f.Process, State: string(f.State), ExitCode: f.ExitCode, TotalBytes: &f.Output.TotalBytes},
		NextOffset: &f.NextOffset, HasMore: f.HasMore, ScannedBytes: f.Scanned, Matches: []match{},
	}
	for i := range f.Matches {
		a.Matches = append(a.Matches, matchOf(&f.Matches[i]))
	}
	for _, g := range f.Gaps {
		a.GapBytes += g.Bytes
	}
	return &reply{answer: a, text: func(o output.TextOptions) string { return output.FoundText(f, o) }}, nil
}
