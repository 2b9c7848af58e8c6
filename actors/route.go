package actors

import (
	"context"
	"errors"

	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// route hands a request to the mailbox it addresses. It runs on the bus's goroutine
// and never blocks.
func (w *Worker) route(req *bus.Request) {
	target, err := w.cfg.Control.Root().ParseWorker(req.Subject)
	r := request{Request: req, target: target}
	switch {
	case err != nil:
		refuse(r, wire.Invalid("subject", "%v", err))
	case target.Session != "":
		s := w.deps.dir.session(target.Tenant, target.Session)
		if s == nil {
			refuse(r, errNoSession())
			return
		}
		s.touch()
		s.deliver(r)
	case target.Process != "":
		p := w.deps.dir.process(target.Tenant, target.Process)
		if p == nil {
			w.deps.aside(r, func(ctx context.Context) { w.answerMissing(ctx, r) })
			return
		}
		p.deliver(r)
	default:
		if !post(w.inbox, r) {
			refuse(r, errOverloaded)
		}
	}
}

func errNoSession() *wire.Error {
	return wire.Errorf(wire.CodeNotFound, "there is no such session here; open it again")
}

// answerMissing answers for a process that has no actor here: its receipt is in the
// records and its output is gone, or it never was.
func (w *Worker) answerMissing(ctx context.Context, r request) {
	// A bad request is refused with the same words as by an actor.
	m, err := wire.DecodeRequest(r.target.Verb, r.ContentType(), r.Data)
	if err != nil {
		refuse(r, err)
		return
	}
	missing := wire.NoProcess(r.target.Process)
	pr, _, err := w.reg.Process(ctx, r.target.Tenant, r.target.Process)
	if errors.Is(err, registry.ErrNotFound) {
		refuse(r, missing)
		return
	}
	if err != nil {
		refuse(r, err)
		return
	}
	if !within(m, pr.Session) {
		refuse(r, missing)
		return
	}
	rec, _, err := w.reg.Execution(ctx, r.target.Tenant, pr.ExecutionID)
	switch {
	case errors.Is(err, registry.ErrNotFound):
		refuse(r, missing)
	case err != nil:
		refuse(r, err)
	default:
		answerRecorded(r, m, &rec.Receipt)
	}
}

// answerRecorded answers with a receipt where that is all that was asked for.
func answerRecorded(r request, m wire.Request, rec *wire.Receipt) {
	switch m := m.(type) {
	case *wire.Status, *wire.Wait, *wire.Terminate:
		answer(r, rec)
		return
	case *wire.WaitFor:
		if m.For == "" || m.For == "end" || m.For == "exit" {
			answer(r, waitedFrom(m, rec))
			return
		}
	}
	refuse(r, errGone(rec.Process))
}

// answerFrom answers a start whose execution id is recorded: the same command gets
// the same process, whoever holds it.
func (w *Worker) answerFrom(r request, rec *wire.ExecutionRecord) {
	rc := &rec.Receipt
	switch {
	case rc.State == wire.StateCancelled && rc.Reason == wire.ReasonNeverStarted:
		refuse(r, errCancelled(rec.ExecutionID))
		return
	case rec.RequestHash != r.call.hash:
		refuse(r, errConflict(rec.ExecutionID))
		return
	case notForked(rc) && rc.Error != nil:
		refuse(r, rc.Error)
		return
	}
	if p := w.deps.dir.process(rc.Tenant, rc.Process); p != nil {
		p.deliver(r)
		return
	}
	if r.call.run {
		answer(r, &wire.Result{Version: wire.Version, Receipt: *rc, Yielded: !rc.State.Terminal(), OnTimeout: r.call.onTimeout})
		return
	}
	answer(r, rc)
}

// cancelFrom ends an execution that was recorded first: by a start that overtook the
// cancel, or by another session of the tenant.
func (w *Worker) cancelFrom(r request, rec *wire.ExecutionRecord) {
	rc := &rec.Receipt
	r.target.Verb = "cancel"
	switch p := w.deps.dir.process(rc.Tenant, rc.Process); {
	case p != nil:
		p.deliver(r)
	case rc.State.Terminal():
		answer(r, rc)
	case rc.Worker != w.cfg.Name:
		refuse(r, &wire.Error{
			Code: wire.CodeNotFound, Field: "execution_id",
			Message: "execution_id: " + rec.ExecutionID + " runs on another worker; cancel it there, or terminate its process",
			Details: map[string]any{"worker": rc.Worker, "process": rc.Process},
		})
	default: // it has just ended, or a start was left half way: a start of it decides
		refuse(r, wire.Errorf(wire.CodeUnavailable, "execution %s is about to end or to start again; try again", rec.ExecutionID))
	}
}
