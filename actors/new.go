package actors

import (
	"context"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// newProcess makes the actor of a process of s; its session starts it.
func newProcess(s *session, execution string) *process {
	rec := s.rec.Load()
	p := &process{
		deps: s.deps, id: subjects.NewID(), session: rec.ID, tenant: rec.Tenant, execution: execution,
		inbox: make(chan request, inboxSize), facts: make(chan keeper.Event, factsSize), orders: make(chan order, ordersSize),
		reports: make(chan report, reportsSize), forked: make(chan struct{}),
		exited: make(chan struct{}), ended: make(chan struct{}), done: make(chan struct{}),
	}
	p.log = s.log.With("process", p.id)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.notify = func(n notice) {
		n.id = p.id
		select {
		case s.notices <- n:
		case <-s.done:
		}
	}
	p.last = func(r request) { refuse(r, errGone(p.id)) }
	p.receipt.State = wire.StateStarting
	return p
}
