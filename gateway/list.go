package gateway

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// listAtOnce bounds how many sessions one list asks at a time.
const listAtOnce = 16

// list asks the session named, or all open sessions of the tenant.
func (g *Gateway) list(ctx context.Context, c *call) ([]byte, error) {
	req, err := wire.DecodeRequest(c.verb, c.ContentType(), c.Data)
	if err != nil {
		return nil, err
	}
	if !req.(*wire.List).All {
		return g.toSession(ctx, c)
	}
	records, err := g.reg.Sessions(ctx, c.tenant)
	if err != nil {
		return nil, noRecords(err)
	}
	parts := make([]wire.Processes, len(records))
	errs := make([]error, len(records))
	var asking sync.WaitGroup
	slots := make(chan struct{}, listAtOnce)
	for i, r := range records {
		if r.Record.Closed {
			continue
		}
		slots <- struct{}{}
		asking.Go(func() { // ends with ctx at the latest
			defer func() { <-slots }()
			parts[i], errs[i] = g.listOne(ctx, c, r.Record)
		})
	}
	asking.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	all := wire.Processes{Version: wire.Version, Processes: []wire.Receipt{}}
	for _, p := range parts {
		all.Sessions = append(all.Sessions, p.Sessions...)
		all.Processes = append(all.Processes, p.Processes...)
	}
	if err := g.addUnreached(ctx, c, &all, parts); err != nil {
		return nil, err
	}
	slices.SortFunc(all.Processes, func(a, b wire.Receipt) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return wire.EncodeReply(c.ContentType(), &all, nil)
}

// listOne asks one session. One that does not answer is given from its record, without
// processes; one that has just ended is left out.
func (g *Gateway) listOne(ctx context.Context, c *call, rec *wire.SessionRecord) (wire.Processes, error) {
	body, err := wire.Marshal(c.ContentType(), &wire.List{Version: wire.Version, SessionRef: wire.SessionRef{Session: rec.ID}})
	if err != nil {
		return wire.Processes{}, err
	}
	reply, err := g.ask(ctx, c, rec.Worker, body, func(e uint64) string {
		return g.conn.Root().Session(c.tenant, rec.Worker, e, rec.ID, wire.VerbList)
	})
	if errors.Is(err, bus.ErrNoResponders) {
		return wire.Processes{Sessions: []wire.Session{sessionOf(rec)}}, nil
	}
	if err != nil {
		return wire.Processes{}, err
	}
	p, err := wire.DecodeReply[wire.Processes](c.ContentType(), reply)
	switch {
	case err == nil:
		return *p, nil
	case errors.Is(err, &wire.Error{Code: wire.CodeNotFound}), errors.Is(err, &wire.Error{Code: wire.CodeSessionClosed}):
		return wire.Processes{}, nil
	}
	return wire.Processes{}, err
}

// addUnreached adds the processes of sessions that did not answer, from the records.
func (g *Gateway) addUnreached(ctx context.Context, c *call, all *wire.Processes, parts []wire.Processes) error {
	missing := map[string]bool{}
	for _, p := range parts {
		if p.Version == 0 && len(p.Sessions) == 1 {
			missing[p.Sessions[0].ID] = true
		}
	}
	if len(missing) == 0 {
		return nil
	}
	records, err := g.reg.Executions(ctx, c.tenant)
	if err != nil {
		return noRecords(err)
	}
	for _, e := range records {
		r := e.Record.Receipt
		if !missing[r.Session] {
			continue
		}
		unreached(&r)
		all.Processes = append(all.Processes, r)
	}
	return nil
}

func sessionOf(rec *wire.SessionRecord) wire.Session {
	return wire.Session{
		Version: wire.Version, ID: rec.ID, Name: rec.Name, Tenant: rec.Tenant, Worker: rec.Worker,
		Incarnation: rec.Incarnation, Cwd: rec.Cwd, CreatedAt: rec.CreatedAt, Limits: rec.Limits,
		IdleTTLMS: rec.IdleTTLMS, Labels: rec.Labels, Closed: rec.Closed,
	}
}
