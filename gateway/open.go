package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// joinDelay bounds how long a new worker gets no sessions.
const joinDelay = 2 * time.Second

// open finds the session of a name where it lives, or places it on a worker. It is the
// only request that may go to another worker than the first one asked.
func (g *Gateway) open(ctx context.Context, c *call) ([]byte, error) {
	req, err := wire.DecodeRequest(c.verb, c.ContentType(), c.Data)
	if err != nil {
		return nil, err
	}
	m := req.(*wire.Open)
	if m.Name == "" {
		return g.place(ctx, c)
	}
	rec, _, err := g.reg.Session(ctx, c.tenant, m.Name)
	switch {
	case errors.Is(err, registry.ErrNotFound):
		return g.place(ctx, c)
	case err != nil:
		return nil, noRecords(err)
	case rec.Closed:
		return g.place(ctx, c)
	}
	return g.openAt(ctx, c, rec.Worker)
}

// openAt asks the worker on which the session lives, and no other.
func (g *Gateway) openAt(ctx context.Context, c *call, worker string) ([]byte, error) {
	reply, err := g.askOpen(ctx, c, worker)
	if errors.Is(err, bus.ErrNoResponders) {
		return nil, noWorker("session", map[string]any{"worker": worker})
	}
	return g.opened(c, reply, err)
}

// openPatience is how long one worker has to open a session while there are others.
const openPatience = 5 * time.Second

// place opens a session on the first worker that answers. One that hangs may open it
// late: with a name it then learns that the session lives elsewhere, without one it is a
// session that nobody knows, and ends by its idle time.
func (g *Gateway) place(ctx context.Context, c *call) ([]byte, error) {
	asked := time.Now()
	// A worker that joined lately is a candidate too.
	if err := g.workers.refresh(ctx, asked.Add(-joinDelay)); err != nil {
		return nil, noRecords(err)
	}
	tried := map[string]uint64{}
	for range 2 {
		candidates := g.workers.candidates()
		for i, name := range candidates {
			if e, ok := tried[name]; ok && e == g.workers.incarnation(name) {
				continue
			}
			tried[name] = g.workers.incarnation(name)
			reply, err := g.tryOpen(ctx, c, name, i < len(candidates)-1)
			if errors.Is(err, bus.ErrNoResponders) || errors.Is(err, bus.ErrTimeout) && ctx.Err() == nil {
				g.workers.quiet(name, g.workers.incarnation(name))
				continue
			}
			if err != nil {
				return nil, err
			}
			g.workers.heard(name)
			if at := livesOn(c.ContentType(), reply); at != "" && at != name {
				return g.openAt(ctx, c, at) // another gateway was first to place this name
			}
			return g.opened(c, reply, nil)
		}
		if err := g.workers.refresh(ctx, asked); err != nil {
			return nil, noRecords(err)
		}
	}
	return nil, wire.Errorf(wire.CodeUnavailable, "no worker answers; nothing was opened; try again")
}

func (g *Gateway) askOpen(ctx context.Context, c *call, worker string) ([]byte, error) {
	return g.ask(ctx, c, &address{}, worker, c.Data, func(e uint64) string {
		return g.conn.Root().WorkerOpen(c.tenant, worker, e)
	})
}

// tryOpen asks one worker, no longer than openPatience if there are others.
func (g *Gateway) tryOpen(ctx context.Context, c *call, worker string, others bool) ([]byte, error) {
	if others {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, openPatience)
		defer cancel()
	}
	return g.askOpen(ctx, c, worker)
}

// livesOn is the worker that an answer to open refers to, if it does.
func livesOn(contentType string, reply []byte) string {
	_, err := wire.DecodeReply[wire.Session](contentType, reply)
	e, ok := errors.AsType[*wire.Error](err)
	if !ok || e.Code != wire.CodeNotFound {
		return ""
	}
	at, _ := e.Details["worker"].(string)
	return at
}

// opened remembers where the session of an answer lives.
func (g *Gateway) opened(c *call, reply []byte, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	if s, err := wire.DecodeReply[wire.Session](c.ContentType(), reply); err == nil {
		at := session{s.ID, s.Worker}
		g.sessions.put(c.tenant+".i."+s.ID, at)
		g.sessions.put(c.tenant+".n."+s.Name, at)
	}
	return reply, nil
}
