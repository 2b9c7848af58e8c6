package gateway

import (
	"bytes"
	"context"
	"errors"

	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// toProcess forwards a request to the process it names. Where its worker does not
// answer, what is stored does; so it does where the worker has let go of the output.
func (g *Gateway) toProcess(ctx context.Context, c *call) ([]byte, error) {
	var a address
	if err := wire.Unmarshal(c.ContentType(), c.Data, &a, false); err != nil {
		return nil, err
	}
	if a.Process == "" {
		return nil, wire.Invalid("process", "missing; give the id of a process")
	}
	if err := subjects.CheckToken("process", a.Process); err != nil {
		return nil, wire.Invalid("process", "%v", err)
	}
	p, err := g.findProcess(ctx, c.tenant, a.ProcessRef)
	if err != nil {
		if _, bad := wire.DecodeRequest(c.verb, c.ContentType(), c.Data); bad != nil && a.InSession != "" {
			return nil, bad // with the same words as by the worker
		}
		return nil, err
	}
	reply, err := g.askProcess(ctx, c, &a, p)
	switch {
	case errors.Is(err, bus.ErrNoResponders):
		return g.withoutWorker(ctx, c, p)
	case err == nil && (c.verb == wire.VerbRead || c.verb == wire.VerbSearch) && says(c.ContentType(), reply, wire.CodeExpired):
		if stored, serr := g.withoutOutput(ctx, c, p); serr == nil {
			return stored, nil
		}
	}
	return reply, err
}

func (g *Gateway) askProcess(ctx context.Context, c *call, a *address, p process) ([]byte, error) {
	return g.ask(ctx, c, a, p.worker, c.Data, func(e uint64) string {
		return g.conn.Root().Process(c.tenant, p.worker, e, a.Process, c.verb)
	})
}

// findProcess returns where a process lives. One of another tenant, or of another session
// than the one asked for, is as unknown as one that never was.
func (g *Gateway) findProcess(ctx context.Context, tenant string, r wire.ProcessRef) (process, error) {
	key := tenant + "." + r.Process
	if p, ok := g.procs.get(key); ok && (r.InSession == "" || r.InSession == p.session) {
		return p, nil
	}
	rec, _, err := g.reg.Process(ctx, tenant, r.Process)
	if errors.Is(err, registry.ErrNotFound) {
		return process{}, wire.NoProcess(r.Process)
	}
	if err != nil {
		return process{}, noRecords(err)
	}
	p := process{rec.Worker, rec.ExecutionID, rec.Session}
	g.procs.put(key, p)
	if r.InSession != "" && r.InSession != p.session {
		return process{}, wire.NoProcess(r.Process)
	}
	return p, nil
}

// withoutWorker answers for a worker that does not, as far as records and stored output
// can. What has ended stays as it is; what had not is unreachable, which is not final.
func (g *Gateway) withoutWorker(ctx context.Context, c *call, p process) ([]byte, error) {
	req, rec, err := g.recorded(ctx, c, p)
	if err != nil {
		return nil, err
	}
	r := rec.Receipt
	unreached(&r)
	switch m := req.(type) {
	case *wire.Status, *wire.Wait:
		return wire.EncodeReply(c.ContentType(), &r, nil)
	case *wire.Terminate:
		if r.State.Terminal() {
			return wire.EncodeReply(c.ContentType(), &r, nil)
		}
	case *wire.WaitFor:
		if w := waitedFrom(m, &r); w != nil {
			return wire.EncodeReply(c.ContentType(), w, nil)
		}
	case *wire.Read, *wire.Search:
		reply, err := g.fromOutput(ctx, c, req, &r, wire.OwnerUnreachable)
		if err == nil || !errors.Is(err, errNothingStored) {
			return reply, err
		}
	}
	return nil, noWorker("process", map[string]any{"process": r.Process, "worker": p.worker, "state": string(rec.Receipt.State)})
}

// withoutOutput answers a read or search of what the worker does not keep any more.
func (g *Gateway) withoutOutput(ctx context.Context, c *call, p process) ([]byte, error) {
	req, rec, err := g.recorded(ctx, c, p)
	if err != nil {
		return nil, err
	}
	return g.fromOutput(ctx, c, req, &rec.Receipt, "")
}

// recorded checks a request as its worker would and gives the record of its process.
func (g *Gateway) recorded(ctx context.Context, c *call, p process) (wire.Request, *wire.ExecutionRecord, error) {
	req, err := wire.DecodeRequest(c.verb, c.ContentType(), c.Data)
	if err != nil {
		return nil, nil, err
	}
	var a address
	if err := wire.Unmarshal(c.ContentType(), c.Data, &a, false); err != nil {
		return nil, nil, err
	}
	rec, _, err := g.reg.Execution(ctx, c.tenant, p.execution)
	if errors.Is(err, registry.ErrNotFound) {
		return nil, nil, wire.NoProcess(a.Process)
	}
	if err != nil {
		return nil, nil, noRecords(err)
	}
	if a.InSession != "" {
		// The process record has the owner of now.
		owner, _, err := g.reg.Process(ctx, c.tenant, a.Process)
		switch {
		case errors.Is(err, registry.ErrNotFound), err == nil && owner.Session != a.InSession:
			return nil, nil, wire.NoProcess(a.Process)
		case err != nil:
			return nil, nil, noRecords(err)
		}
	}
	return req, rec, nil
}

// unreached marks a receipt that nobody can bring up to date now.
func unreached(r *wire.Receipt) {
	if !r.State.Terminal() {
		r.State = wire.StateUnreachable
	}
}

// says reports whether an answer refuses with one of some codes. The search is cheap,
// the decoding rare.
func says(contentType string, reply []byte, codes ...wire.Code) bool {
	head := reply[:min(len(reply), 256)]
	for _, code := range codes {
		if !bytes.Contains(head, []byte(code)) {
			continue
		}
		_, err := wire.DecodeReply[struct{}](contentType, reply)
		return errors.Is(err, &wire.Error{Code: code})
	}
	return false
}
