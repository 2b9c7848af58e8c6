package mcp

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/limpet-sh/limpet/actors/output"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// minYield is the least a run waits: 0 would be for ever.
const minYield = time.Millisecond

// run runs a command to its end, or until it yields the handle.
func (k *call) run(ctx context.Context, b *bound) (*reply, error) {
	most := k.c.s.cfg.YieldMax
	m := wire.Run{
		ExecutionID: k.executionID(), Command: k.wireCommand(), Render: k.render(), OnTimeout: wire.OnTimeout(k.onTimeout),
		YieldMS: max(minYield, k.wait("yield_s", k.yieldMS, most, most)).Milliseconds(),
	}
	k.report.runs(m.ExecutionID)
	res, err := b.Run(ctx, m)
	if k.c.gone(b, err) {
		if b, err = k.c.session(ctx); err == nil {
			res, err = b.Run(ctx, m)
		}
	}
	if err != nil {
		return nil, k.undone(ctx, b, m.ExecutionID, err)
	}
	r := &res.Receipt
	if res.Yielded {
		k.c.leave(r, k.how(), r.Output.TotalBytes)
	}
	k.c.left.saw(r.Process, r.State)
	return &reply{
		answer: runAnswer(res), failed: k.failed(r), others: true,
		text: func(o output.TextOptions) string { return output.Text(res, o) },
	}, nil
}

// start starts a command that goes on after the call.
func (k *call) start(ctx context.Context, b *bound) (*reply, error) {
	m := wire.Start{ExecutionID: k.executionID(), Command: k.wireCommand()}
	r, err := b.Start(ctx, m)
	if k.c.gone(b, err) {
		if b, err = k.c.session(ctx); err == nil {
			r, err = b.Start(ctx, m)
		}
	}
	if err != nil {
		return nil, k.undone(ctx, b, m.ExecutionID, err)
	}
	seen := int64(0)
	if r.Page != nil {
		seen = r.Page.NextOffset
	}
	k.c.leave(r, k.how(), seen)
	k.c.left.saw(r.Process, r.State)
	a := receiptAnswer(r)
	a.Execution = r.ExecutionID
	return &reply{
		answer: a, failed: k.failed(r), others: true,
		text: func(o output.TextOptions) string { return output.ReceiptText(r, o) },
	}, nil
}

// executionID is never empty, so that a call can be cancelled by it.
func (k *call) executionID() string {
	return cmp.Or(k.c.execution(k.execution, k.request), subjects.NewID())
}

// how an end is told.
func (k *call) how() Notices { return cmp.Or(Notices(k.onEnd), k.c.s.cfg.Notices) }

// failed reports whether the result of a command is an error. That it exited nonzero is
// none, unless it is asked for: it is an answer.
func (k *call) failed(r *wire.Receipt) bool {
	switch {
	case r.Reason == wire.ReasonSpawnFailed, r.Reason == wire.ReasonNeverStarted, r.Reason == wire.ReasonInternal:
		return true
	case r.State == wire.StateFailed, r.State == wire.StateCancelled:
		return k.c.s.cfg.NonzeroIsError
	}
	return false
}

// undone is a command whose handle was not returned. If the caller cancelled it, it is
// ended by its execution id, also where it was still on its way. If the call was late or
// lost its way, the error says how to go on with it.
func (k *call) undone(ctx context.Context, b *bound, execution string, err error) error {
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		if b != nil && k.c.s.cfg.OnCancel == CancelKill && !k.c.left.handed(execution) {
			k.c.spawn(func() { // ends with its answer, at the latest after cancelLimit
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelLimit)
				defer cancel()
				if _, err := b.Cancel(ctx, execution); err != nil {
					k.c.log.Warn("a cancelled command may go on", "execution", execution, "err", err)
				}
			})
		}
		return context.Canceled
	}
	e := *wire.AsError(late(ctx, err))
	switch e.Code {
	case wire.CodeDeadlineExceeded, wire.CodeUnreachable, wire.CodeUnavailable, wire.CodeSupervisorShuttingDown:
		e.Message += "; the same command with execution_id " + execution + " finds it, and never runs it twice"
		e.Details = map[string]any{"execution_id": execution}
	}
	return &e
}
