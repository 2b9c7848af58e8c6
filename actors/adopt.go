package actors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// adopt makes this incarnation the owner of what the last one left: its sessions, the
// commands that the keeper holds, the outputs on disk, and the records of commands
// that nobody holds any more. Nothing is run again.
func (w *Worker) adopt(ctx context.Context, held []*keeper.Process) error {
	sessions, err := w.adoptSessions(ctx)
	if err != nil {
		return err
	}
	stored, err := w.reg.Executions(ctx, "")
	if err != nil {
		return fmt.Errorf("read the executions: %w", err)
	}
	records := make(map[string]*registry.Entry[wire.ExecutionRecord], len(stored))
	for i := range stored {
		records[stored[i].Record.Receipt.Process] = &stored[i]
	}
	for _, p := range held {
		rec := records[p.ID()]
		delete(records, p.ID())
		w.adoptProcess(ctx, sessions, p, rec)
	}
	return w.adoptRecords(ctx, sessions, records)
}

// adoptSessions takes over the session records of this worker, so that gateways find
// the new address.
func (w *Worker) adoptSessions(ctx context.Context) (map[string]*session, error) {
	stored, err := w.reg.Sessions(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("read the sessions: %w", err)
	}
	sessions := map[string]*session{}
	for _, st := range stored {
		if st.Record.Closed {
			continue
		}
		rec := st.Record
		rec.Incarnation = w.e
		rev, err := w.reg.UpdateSession(ctx, rec.Tenant, rec, st.Rev)
		if err != nil {
			return nil, fmt.Errorf("take over session %s: %w", rec.ID, err)
		}
		s := newSession(w.deps, rec, rev, w.sessionGone)
		sessions[rec.ID] = s
	}
	return sessions, nil
}

// adoptProcess goes on with a command that the keeper held. One whose session is gone,
// or whose plan cannot be read, is ended: nobody could reach it.
func (w *Worker) adoptProcess(ctx context.Context, sessions map[string]*session, held *keeper.Process, st *registry.Entry[wire.ExecutionRecord]) {
	var pl plan
	err := wire.Unmarshal(subjects.TypeMsgpack, held.Meta(), &pl, true)
	s := sessions[pl.Receipt.Session]
	if err == nil && pl.Version != wire.Version {
		err = fmt.Errorf("plan version %d", pl.Version)
	}
	if err == nil && s == nil {
		err = errors.New("its session has ended")
	}
	if err != nil {
		w.deps.log.Error("a held process cannot be adopted", "process", held.ID(), "err", err)
		if err := held.Stop(ctx, wire.ReasonSessionClosed, keeper.Kill, 0); err != nil {
			w.deps.log.Warn("end it", "err", err)
		}
		_ = held.Release(ctx)
		return
	}
	p := newProcess(s, pl.Receipt.ExecutionID)
	p.id, p.adopted, p.plan, p.receipt = held.ID(), true, pl, pl.Receipt
	p.log = w.deps.log.With("session", p.session, "process", p.id)
	p.rev, p.grace = pl.Rev, pl.grace()
	p.child, p.input = held, held
	p.receipt.Incarnation = w.e
	if st != nil {
		p.rev = st.Rev
		if st.Record.Receipt.State.Terminal() { // the record was written, the release was not
			p.receipt = st.Record.Receipt
		}
	}
	if !p.receipt.State.Terminal() {
		p.receipt.State = wire.StateRunning
		at := held.StartedAt()
		p.receipt.StartedAt = &at
		p.receipt.StdinBytes = held.InputOffset()
	}
	if p.out, err = p.open(); err != nil {
		w.deps.log.Error("recover the output", "process", p.id, "err", err)
		return
	}
	p.logRef.Store(p.out)
	if e := held.Exited(); e != nil {
		p.facts <- keeper.Event{Exited: e}
	}
	if g := held.Gone(); g != nil {
		p.facts <- keeper.Event{Gone: g}
	}
	// An end without a stop, and leftovers that nobody has ended since: they are kept.
	p.kept = p.receipt.State.Terminal() && pl.Leftovers == wire.LeftoversKeep && p.receipt.LeftoversLive > 0 && held.Gone() == nil
	p.publish()
	w.ensureAddress(ctx, &p.receipt, registry.Life(p.receipt.Deadline == nil && !p.receipt.State.Terminal()))
	s.adopted = append(s.adopted, p)
}

// ensureAddress writes the process record that an earlier incarnation sent and that
// never arrived: without it nobody finds a process that its execution names.
func (w *Worker) ensureAddress(ctx context.Context, rc *wire.Receipt, life registry.Life) {
	_, _, err := w.reg.Process(ctx, rc.Tenant, rc.Process)
	if errors.Is(err, registry.ErrNotFound) {
		_, err = w.reg.CreateProcess(ctx, rc.Tenant, addressOf(rc), life)
	}
	if err != nil {
		w.deps.log.Warn("process record", "process", rc.Process, "err", err)
	}
}

// notForked: the record is of a start that no process came of.
func notForked(rc *wire.Receipt) bool {
	return rc.Reason == wire.ReasonSpawnFailed || rc.Reason == wire.ReasonNeverStarted
}

// adoptRecords settles what no keeper holds: an ended command is retained while its
// session is, within the session's limit; one that has no end gets the end we know.
func (w *Worker) adoptRecords(ctx context.Context, sessions map[string]*session, records map[string]*registry.Entry[wire.ExecutionRecord]) error {
	left := make([]*registry.Entry[wire.ExecutionRecord], 0, len(records))
	for _, st := range records {
		left = append(left, st)
	}
	slices.SortFunc(left, func(a, b *registry.Entry[wire.ExecutionRecord]) int {
		return a.Record.Receipt.CreatedAt.Compare(b.Record.Receipt.CreatedAt)
	})
	for _, st := range left {
		rc := &st.Record.Receipt
		if !rc.State.Terminal() {
			w.settle(rc)
			rev, err := w.reg.UpdateExecution(ctx, rc.Tenant, st.Record, st.Rev)
			if err != nil && !errors.Is(err, registry.ErrConflict) {
				return fmt.Errorf("settle execution %s: %w", rc.ExecutionID, err)
			}
			st.Rev = rev
			if !notForked(rc) {
				w.ensureAddress(ctx, rc, registry.Ended)
			}
			f := w.deps.feed(rc, "", true)
			f.Finished(status(rc))
		}
		if s := sessions[rc.Session]; s != nil && rc.Process != "" && !notForked(rc) {
			w.retain(s, st)
		}
	}
	for _, s := range sessions {
		w.deps.dir.addSession(s)
		w.own.Go(s.run) // ends by its close, its TTL, or the worker's shutdown
	}
	return nil
}

// settle gives a record without an end the one that is known. The keeper knows every
// fork of its life: one it does not hold, in the life of the same keeper, never was.
func (w *Worker) settle(rc *wire.Receipt) {
	rc.EndedAt = now()
	if rc.StartedAt == nil && w.sameKeeper {
		rc.State, rc.Reason = wire.StateFailed, wire.ReasonNeverStarted
		rc.Error = wire.Errorf(wire.CodeSpawnFailed, "the worker ended before the fork; nothing was started")
		return
	}
	rc.State, rc.Reason = wire.StateOutcomeUnknown, wire.ReasonWorkerLost
}

// retain makes an actor for an ended command, so that its output can still be read.
func (w *Worker) retain(s *session, st *registry.Entry[wire.ExecutionRecord]) {
	p := newProcess(s, st.Record.ExecutionID)
	rc := st.Record.Receipt
	p.id, p.adopted, p.receipt, p.rev = rc.Process, true, rc, st.Rev
	p.log = w.deps.log.With("session", p.session, "process", p.id)
	var err error
	if p.out, err = p.open(); err != nil {
		w.deps.log.Warn("recover the output", "process", p.id, "err", err)
		return
	}
	p.logRef.Store(p.out)
	p.out.Close(rc.Output.Complete, rc.Output.Error)
	p.publish()
	s.adopted = append(s.adopted, p)
}

// resume is begin for a command of an earlier incarnation: one that had ended needs
// nothing more than to be released.
func (p *process) resume() {
	if !p.receipt.State.Terminal() {
		p.begin()
		return
	}
	p.hasExit, p.sealing, p.streams, p.tree = true, true, true, true
	close(p.exited)
	close(p.ended)
	c := p.child
	if c == nil {
		return
	}
	// The record has the end; the log may miss what the journal still has.
	p.pumped.Store(&c)
	out, kept := p.receipt.Output, p.kept
	p.owned(func() {
		ctx, cancel := context.WithCancel(p.ctx)
		if !kept { // else the pump drains what the leftovers write, as before
			ctx, cancel = context.WithTimeout(p.ctx, collectLimit)
		}
		defer cancel()
		rest := &sink{ctx: ctx, log: p.out, trim: c.Trim, until: max(1, out.TotalBytes)}
		if err := c.Pump(ctx, rest, p.out.Next()); err != nil {
			p.log.Debug("rest of the output", "err", err)
		}
		p.out.Close(out.Complete, out.Error)
		if !kept {
			p.letGo()
		}
	})
}

// adoptMembers enters what boot found, oldest first, when the session's actor starts.
func (s *session) adoptMembers() {
	slices.SortFunc(s.adopted, func(a, b *process) int { return a.receipt.CreatedAt.Compare(b.receipt.CreatedAt) })
	for _, p := range s.adopted {
		ended := p.receipt.State.Terminal()
		s.enter(p)
		switch {
		case !ended:
			s.live.Add(1)
		case !p.kept:
			s.ended = append(s.ended, p.id)
		}
	}
	s.adopted = nil
	s.evict()
	s.kept.Store(int64(len(s.ended)))
	s.used.Store(time.Now().UnixNano())
}
