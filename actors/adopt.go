package actors

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

type execution = registry.Entry[wire.ExecutionRecord]

// adoption is what a boot takes over.
type adoption struct {
	exits map[string]*keeper.Exited // of the held processes when the adoption began; nil of who ran
	*Worker
	sessions map[string]*session   // by id
	records  map[string]*execution // by process id; less those that the keeper holds
	retained map[string]int        // ended commands, by session
	told     int                   // ends that were told again
}

const (
	// tellAgain is how long after its end a process is told as finished once more by the
	// next incarnation, because the last one may have died between record and event.
	tellAgain = time.Minute
	// maxTellAgain bounds how many are, the newest first.
	maxTellAgain = 4096
)

// adopt makes this incarnation the owner of what the last one left: its sessions, the
// commands that the keeper holds, the outputs on disk, and the records of commands
// that nobody holds any more. Nothing is run again.
func (w *Worker) adopt(ctx context.Context, held []*keeper.Process) error {
	a := newAdoption(w)
	if err := a.adoptSessions(ctx); err != nil {
		return err
	}
	stored, err := w.reg.Executions(ctx, "")
	if err != nil {
		return fmt.Errorf("read the executions: %w", err)
	}
	for i := range stored {
		if id := stored[i].Record.Receipt.Process; id != "" { // else cancelled before its start
			a.records[id] = &stored[i]
		}
	}
	for _, p := range held { // what ends from now on, its actor will hear
		a.exits[p.ID()] = p.Exited()
	}
	slices.SortStableFunc(held, a.byEnd)
	for _, p := range held {
		if err := a.adoptProcess(ctx, p); err != nil {
			return err
		}
	}
	if err := a.adoptRecords(ctx); err != nil {
		return err
	}
	w.sweepSpool()
	a.start()
	return nil
}

func newAdoption(w *Worker) *adoption {
	return &adoption{Worker: w, sessions: map[string]*session{}, records: map[string]*execution{}, exits: map[string]*keeper.Exited{}, retained: map[string]int{}}
}

// start starts the actors of the sessions, and they those of their processes.
func (a *adoption) start() {
	for _, s := range a.sessions {
		a.deps.dir.addSession(s)
		s.adoptMembers() // before anybody can ask for one of them
		a.own.Go(s.run)  // ends by its close, its TTL, or the worker's shutdown
	}
}

// adoptSessions takes over the session records of this worker, so that gateways find
// the new address.
func (a *adoption) adoptSessions(ctx context.Context) error {
	stored, err := a.reg.Sessions(ctx, "")
	if err != nil {
		return fmt.Errorf("read the sessions: %w", err)
	}
	for _, st := range stored {
		rec, rev := st.Record, st.Rev
		for !rec.Closed && rec.Worker == a.cfg.Name {
			rec.Incarnation = a.e
			now, err := a.reg.UpdateSession(ctx, rec.Tenant, rec, rev)
			if err == nil {
				a.sessions[rec.ID] = newSession(a.deps, rec, now, a.onGone)
				break
			}
			if errors.Is(err, registry.ErrConflict) { // changed since: as it is now
				rec, rev, err = a.reg.Session(ctx, rec.Tenant, rec.Name)
			}
			if err != nil {
				return fmt.Errorf("take over session %s: %w", st.Record.ID, err)
			}
		}
	}
	return nil
}

// byEnd orders commands by their ends, and those that run behind them.
func (a *adoption) byEnd(p, q *keeper.Process) int {
	x, y := a.exits[p.ID()], a.exits[q.ID()]
	switch {
	case x != nil && y != nil:
		return x.At.Compare(y.At)
	case x != nil:
		return -1
	case y != nil:
		return 1
	}
	return 0
}

// ended gives the session of a command whose session has ended: it ends the command,
// and itself.
func (a *adoption) ended(rc *wire.Receipt) *session {
	s := newSession(a.deps, &wire.SessionRecord{
		Version: wire.Version, ID: rc.Session, Name: rc.Session, Tenant: rc.Tenant, Worker: a.cfg.Name, Incarnation: a.e, Closed: true,
	}, 0, a.onGone)
	a.sessions[rc.Session] = s
	return s
}

// adoptProcess goes on with a command that the keeper held. One whose plan cannot be
// read is ended: nobody could own it.
func (a *adoption) adoptProcess(ctx context.Context, held *keeper.Process) error {
	st := a.records[held.ID()]
	var pl plan
	err := wire.Unmarshal(subjects.TypeMsgpack, held.Meta(), &pl, true)
	if err == nil && pl.Version != wire.Version {
		err = fmt.Errorf("plan version %d", pl.Version)
	}
	if err != nil {
		a.deps.log.Error("a held process cannot be adopted", "process", held.ID(), "err", err)
		if err := held.Stop(ctx, wire.ReasonInternal, keeper.Kill, 0); err != nil {
			a.deps.log.Warn("end it", "err", err)
		}
		if st != nil && !st.Record.Receipt.State.Terminal() {
			if err := a.settle(ctx, st, unknownEnd); err != nil {
				return err // before it is released, which loses the evidence that it ran
			}
		}
		_ = held.Release(ctx)
		return nil
	}
	delete(a.records, held.ID())
	s := a.sessions[pl.Receipt.Session]
	if s == nil {
		s = a.ended(&pl.Receipt)
	}
	p := newProcess(s, pl.Receipt.ExecutionID)
	p.id, p.adopted, p.plan, p.receipt, p.rev = held.ID(), true, pl, pl.Receipt, pl.Rev
	p.log = a.deps.log.With("session", p.session, "process", p.id)
	p.grace, p.longest = pl.grace(), pl.grace()
	p.child, p.input = held, held
	if st != nil {
		p.rev = st.Rev
		if st.Record.Receipt.State.Terminal() { // the record was written, the release was not
			p.receipt = st.Record.Receipt
		}
	}
	a.place(p, held)
	if p.out, err = p.open(); err != nil {
		a.deps.log.Error("recover the output; from here on it is kept in memory", "process", p.id, "err", err)
		p.out, _ = p.openIn("")
	}
	p.logRef.Store(p.out)
	p.publish()
	// From here on the events come to the actor; those before are with the child. Some
	// may come twice, none is missed.
	a.deps.dir.addProcess(p)
	if e := held.Exited(); e != nil {
		if a.exits[held.ID()] != nil {
			p.recapture(s, e) // in its turn; a later end is the actor's to capture
		}
		p.facts <- keeper.Event{Exited: e}
	}
	if g := held.Gone(); g != nil {
		p.facts <- keeper.Event{Gone: g}
	}
	s.adopted = append(s.adopted, p)
	a.ensureAddress(ctx, &p.receipt, registry.Life(p.receipt.Deadline == nil && !p.receipt.State.Terminal()))
	return nil
}

// ensureAddress writes the process record that an earlier incarnation sent and that
// never arrived: without it nobody finds a process that its execution names.
func (a *adoption) ensureAddress(ctx context.Context, rc *wire.Receipt, life registry.Life) {
	_, _, err := a.reg.Process(ctx, rc.Tenant, rc.Process)
	if errors.Is(err, registry.ErrNotFound) {
		_, err = a.reg.CreateProcess(ctx, rc.Tenant, addressOf(rc), life)
	}
	if err != nil {
		a.deps.log.Warn("process record", "process", rc.Process, "err", err)
	}
}

// notForked: the record is of a start that no process came of.
func notForked(rc *wire.Receipt) bool {
	return rc.Reason == wire.ReasonSpawnFailed || rc.Reason == wire.ReasonNeverStarted
}

// place puts an adopted process where it is in its life.
func (a *adoption) place(p *process, held *keeper.Process) {
	rc := &p.receipt
	rc.Incarnation = a.e
	if rc.State == wire.StateOutcomeUnknown {
		// Here is the evidence: the real result follows, once.
		p.resolves = true
		rc.State, rc.Reason, rc.Error, rc.EndedAt, rc.ExitedAt = wire.StateRunning, "", nil, nil, nil
		rc.Output.Error = ""
	}
	if rc.State.Terminal() {
		p.recorded.Store(true)
		a.tell(rc, p.plan.Trace)
		// An end without a stop, and leftovers that nobody has ended since: they are kept.
		p.kept = p.plan.Leftovers == wire.LeftoversKeep && rc.LeftoversLive > 0 && held.Gone() == nil
		return
	}
	rc.State = wire.StateRunning
	at := held.StartedAt()
	rc.StartedAt = &at
	rc.StdinBytes = held.InputOffset()
}

// tell tells a recorded end once more, and the start before it. Each is stored at most
// once.
func (a *adoption) tell(rc *wire.Receipt, trace string) {
	if rc.EndedAt == nil || time.Since(*rc.EndedAt) > tellAgain || a.told >= maxTellAgain {
		return
	}
	a.told++
	first := status(rc)
	first.State, first.Reason, first.ExitCode, first.Signal, first.ExitedAt, first.EndedAt = wire.StateRunning, "", nil, "", nil, nil
	f := a.deps.feed(rc, trace, true)
	if rc.State != wire.StateOutcomeUnknown { // else nobody knows whether it ever started
		f.Started(first)
	}
	f.Finished(status(rc))
}

// adoptRecords settles what no keeper holds: an ended command is retained while its
// session is, within the session's limit; one that has no end gets the end we know.
func (a *adoption) adoptRecords(ctx context.Context) error {
	newest := make([]*execution, 0, len(a.records))
	for _, st := range a.records {
		newest = append(newest, st)
	}
	slices.SortFunc(newest, func(a, b *execution) int {
		return b.Record.Receipt.CreatedAt.Compare(a.Record.Receipt.CreatedAt)
	})
	for _, st := range newest {
		if !st.Record.Receipt.State.Terminal() {
			if err := a.settle(ctx, st, a.knownEnd); err != nil {
				return err
			}
			if !notForked(&st.Record.Receipt) {
				a.ensureAddress(ctx, &st.Record.Receipt, registry.Ended)
			}
		}
		if notForked(&st.Record.Receipt) {
			continue
		}
		a.tell(&st.Record.Receipt, "")
		s := a.sessions[st.Record.Receipt.Session]
		if s != nil && a.retained[s.rec.Load().ID] < s.rec.Load().Limits.RetainedProcesses {
			a.retain(s, st)
		}
	}
	return nil
}

// settle writes an end of a record that has none, and nobody to find one.
func (a *adoption) settle(ctx context.Context, st *execution, end func(*wire.Receipt)) error {
	rc := &st.Record.Receipt
	end(rc)
	rc.EndedAt = now()
	rev, err := a.reg.UpdateExecution(ctx, rc.Tenant, st.Record, st.Rev)
	if errors.Is(err, registry.ErrConflict) { // another found one
		st.Record, rev, err = a.reg.Execution(ctx, rc.Tenant, rc.ExecutionID)
	}
	if err != nil {
		return fmt.Errorf("settle execution %s: %w", rc.ExecutionID, err)
	}
	st.Rev = rev
	return nil
}

// knownEnd is the end of what no keeper holds. The keeper knows every fork that the last
// incarnation it served asked for, and that incarnation let go of none before its record
// had an end: what the keeper does not hold of it never was.
func (a *adoption) knownEnd(rc *wire.Receipt) {
	if rc.Incarnation == a.before {
		rc.State, rc.Reason = wire.StateFailed, wire.ReasonNeverStarted
		rc.Error = wire.Errorf(wire.CodeSpawnFailed, "the worker ended before the fork; nothing was started")
		return
	}
	unknownEnd(rc)
}

func unknownEnd(rc *wire.Receipt) {
	rc.State, rc.Reason = wire.StateOutcomeUnknown, wire.ReasonWorkerLost
}

// retain makes an actor for an ended command, so that its output can still be read. One
// whose output is gone, such as an evicted one, is answered from its record.
func (a *adoption) retain(s *session, st *execution) {
	p := newProcess(s, st.Record.ExecutionID)
	rc := st.Record.Receipt
	p.id, p.adopted, p.receipt, p.rev = rc.Process, true, rc, st.Rev
	p.plan.Output.ShipBytes = st.Record.ShipBytes
	p.log = a.deps.log.With("session", p.session, "process", p.id)
	var err error
	if p.out, err = p.open(); err != nil {
		a.deps.log.Warn("recover the output", "process", p.id, "err", err)
		return
	}
	if rc.Output.TotalBytes > 0 && p.out.Next() == 0 {
		p.cancel()
		return
	}
	p.logRef.Store(p.out)
	p.closeRecovered()
	p.recorded.Store(true)
	p.publish()
	a.deps.dir.addProcess(p)
	a.retained[p.session]++
	s.adopted = append(s.adopted, p)
}

// sweepSpool removes the outputs that nobody owns any more.
func (w *Worker) sweepSpool() {
	sessions, err := os.ReadDir(w.deps.spool)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.deps.log.Warn("sweep the spool", "err", err)
	}
	for _, s := range sessions {
		dir := filepath.Join(w.deps.spool, s.Name())
		processes, err := os.ReadDir(dir)
		for _, p := range processes {
			if w.deps.dir.anyProcess(p.Name()) == nil {
				err = errors.Join(err, os.RemoveAll(filepath.Join(dir, p.Name())))
			}
		}
		if err != nil {
			w.deps.log.Warn("sweep the spool", "dir", dir, "err", err)
		}
		_ = os.Remove(dir) // fails where something is left in it
	}
}
