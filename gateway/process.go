package gateway

import (
	"context"
	"errors"

	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// toProcess forwards a request to the process it names, or answers from its record
// when its worker does not.
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
	p, err := g.findProcess(ctx, c.tenant, a.Process)
	if err != nil {
		return nil, err
	}
	reply, err := g.ask(ctx, c, p.worker, c.Data, func(e uint64) string {
		return g.conn.Root().Process(c.tenant, p.worker, e, a.Process, c.verb)
	})
	if errors.Is(err, bus.ErrNoResponders) {
		return g.fromRecord(ctx, c, a.Process, p)
	}
	return reply, err
}

// findProcess returns where a process lives. One of another tenant is as unknown as
// one that never was.
func (g *Gateway) findProcess(ctx context.Context, tenant, id string) (process, error) {
	key := tenant + "." + id
	if p, ok := g.procs.get(key); ok {
		return p, nil
	}
	rec, _, err := g.reg.Process(ctx, tenant, id)
	if errors.Is(err, registry.ErrNotFound) {
		return process{}, noProcess(id)
	}
	if err != nil {
		return process{}, noRecords(err)
	}
	p := process{rec.Worker, rec.ExecutionID}
	g.procs.put(key, p)
	return p, nil
}

func noProcess(id string) error {
	return &wire.Error{Code: wire.CodeNotFound, Field: "process", Message: "process: there is no process " + id}
}

// fromRecord answers for a worker that does not: with the receipt where that is what
// was asked for. What has ended stays as it is; what had not is unreachable, which is
// not final.
func (g *Gateway) fromRecord(ctx context.Context, c *call, id string, p process) ([]byte, error) {
	rec, _, err := g.reg.Execution(ctx, c.tenant, p.execution)
	if errors.Is(err, registry.ErrNotFound) {
		return nil, noProcess(id)
	}
	if err != nil {
		return nil, noRecords(err)
	}
	// A bad request is refused with the same words as by the worker.
	if _, err := wire.DecodeRequest(c.verb, c.ContentType(), c.Data); err != nil {
		return nil, err
	}
	r := rec.Receipt
	state := r.State
	unreached(&r)
	switch {
	case c.verb == wire.VerbStatus || c.verb == wire.VerbWait,
		c.verb == wire.VerbTerminate && state.Terminal():
		return wire.EncodeReply(c.ContentType(), &r, nil)
	}
	return nil, noWorker("process", map[string]any{"process": id, "worker": p.worker, "state": string(state)})
}

// unreached marks a receipt that nobody can bring up to date now.
func unreached(r *wire.Receipt) {
	if !r.State.Terminal() {
		r.State = wire.StateUnreachable
	}
}
