package actors

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// opening is one open of a name; later ones of the same name join it.
type opening struct {
	key     string
	tenant  string
	msg     *wire.Open
	calls   []request
	again   bool // the record was read once more, after no session of it was found here
	rec     *wire.SessionRecord
	rev     uint64
	created bool
	err     error
}

// open finds or makes the session of a name. One name is opened once at a time, so
// that two callers get the same session.
func (w *Worker) open(own context.Context, r request) {
	m, err := decode[wire.Open](r)
	if err != nil {
		refuse(r, err)
		return
	}
	m.Name = cmp.Or(m.Name, subjects.NewID())
	m.Cwd = cmp.Or(m.Cwd, w.cfg.Cwd)
	if err := w.bound(m); err != nil {
		refuse(r, err)
		return
	}
	key := r.target.Tenant + "." + m.Name
	if o := w.opens[key]; o != nil {
		if len(o.calls) >= maxWaiters {
			refuse(r, errOverloaded)
			return
		}
		o.calls = append(o.calls, r)
		return
	}
	o := &opening{key: key, tenant: r.target.Tenant, msg: m, calls: []request{r}}
	w.opens[key] = o
	w.look(own, o)
}

// look finds or writes the record of an open beside the worker.
func (w *Worker) look(own context.Context, o *opening) {
	if !post(w.aside, struct{}{}) {
		delete(w.opens, o.key)
		o.refuse(errOverloaded)
		return
	}
	w.own.Go(func() { // ends within the store's patience, or with own
		defer func() { <-w.aside }()
		ctx, cancel := context.WithTimeout(own, 10*time.Second)
		defer cancel()
		if o.err = w.possible(o.msg); o.err == nil {
			o.rec, o.rev, o.created, o.err = w.sessionRecord(ctx, o)
		}
		select {
		case w.opened <- o:
		case <-own.Done(): // shutdown has answered it
		}
	})
}

// possible checks an open against this host. It may block.
func (w *Worker) possible(m *wire.Open) error {
	if err := checkDir(m.Cwd); err != nil {
		return atOpen("cwd", err)
	}
	if m.Shell == "" && !m.CaptureState {
		return nil // a host without bash still runs programs
	}
	path, program, err := w.deps.shells.Find(m.Shell)
	if err != nil {
		return atOpen("shell", err)
	}
	if m.CaptureState && wrapper(path, program, "", 0) == "" {
		return errNoWrapper("capture_state", program)
	}
	return nil
}

// atOpen names the field of an open in an error about that of a command.
func atOpen(field string, err error) error {
	e := *public(err)
	e.Message = strings.Replace(e.Message, "command."+field, field, 1)
	e.Field = field
	return &e
}

func (o *opening) refuse(err error) {
	for _, r := range o.calls {
		refuse(r, err)
	}
	o.calls = nil
}

// bound checks an open against this worker.
func (w *Worker) bound(m *wire.Open) error {
	if l := m.Limits; l != nil {
		if l.LiveProcesses > w.cfg.MaxLive {
			return wire.Invalid("limits.live_processes", "%d is over this worker's %d", l.LiveProcesses, w.cfg.MaxLive)
		}
		if l.RetainedProcesses > w.cfg.MaxRetained {
			return wire.Invalid("limits.retained_processes", "%d is over this worker's %d", l.RetainedProcesses, w.cfg.MaxRetained)
		}
	}
	return nil
}

// sessionRecord reads the name's record, or writes it: over a closed one, or anew.
func (w *Worker) sessionRecord(ctx context.Context, o *opening) (*wire.SessionRecord, uint64, bool, error) {
	fresh := w.freshSession(o)
	for range 3 {
		rec, rev, err := w.reg.Session(ctx, o.tenant, o.msg.Name)
		switch {
		case errors.Is(err, registry.ErrNotFound):
			rev, existing, err := w.reg.CreateSession(ctx, o.tenant, fresh)
			if err != nil {
				return nil, 0, false, err
			}
			if existing == nil {
				return fresh, rev, true, nil
			}
		case err != nil:
			return nil, 0, false, err
		case rec.Closed:
			rev, err = w.reg.UpdateSession(ctx, o.tenant, fresh, rev)
			if err == nil {
				return fresh, rev, true, nil
			}
			if !errors.Is(err, registry.ErrConflict) {
				return nil, 0, false, err
			}
		case rec.Worker != w.cfg.Name:
			return nil, 0, false, &wire.Error{
				Code: wire.CodeNotFound, Message: "session " + rec.Name + " lives on another worker",
				Details: map[string]any{"worker": rec.Worker},
			}
		case rec.Incarnation != w.e: // an earlier incarnation's, which no boot of ours took over
			rec.Incarnation = w.e
			rev, err = w.reg.UpdateSession(ctx, o.tenant, rec, rev)
			if err == nil {
				return rec, rev, false, nil
			}
			if !errors.Is(err, registry.ErrConflict) {
				return nil, 0, false, err
			}
		default:
			return rec, rev, false, nil
		}
	}
	return nil, 0, false, wire.Errorf(wire.CodeUnavailable, "the record of session %s changes too fast", o.msg.Name)
}

func (w *Worker) freshSession(o *opening) *wire.SessionRecord {
	m := o.msg
	rec := &wire.SessionRecord{
		Version: wire.Version, ID: subjects.NewID(), Name: m.Name, Tenant: o.tenant, Worker: w.cfg.Name,
		Incarnation: w.e, Cwd: m.Cwd, Env: m.Env, Labels: m.Labels, CreatedAt: time.Now().UTC(),
		IdleTTLMS:        cmp.Or(m.IdleTTLMS, defaultIdleTTL.Milliseconds()),
		DefaultTimeoutMS: cmp.Or(m.DefaultTimeoutMS, defaultTimeout.Milliseconds()),
		Shell:            cmp.Or(m.Shell, "bash"), Login: m.Login, CaptureState: m.CaptureState,
	}
	if m.Limits != nil {
		rec.Limits = *m.Limits
	}
	rec.Limits.LiveProcesses = cmp.Or(rec.Limits.LiveProcesses, defaultLive)
	rec.Limits.RetainedProcesses = cmp.Or(rec.Limits.RetainedProcesses, defaultRetained)
	return rec
}

// finishOpen starts the actor of a session that has none yet, and answers.
func (w *Worker) finishOpen(own context.Context, o *opening) {
	if o.err != nil {
		delete(w.opens, o.key)
		o.refuse(o.err)
		return
	}
	s := w.deps.dir.session(o.tenant, o.rec.ID)
	if s == nil && !o.created && !o.again {
		o.again = true // it may have been closed since the record was read
		w.look(own, o)
		return
	}
	delete(w.opens, o.key)
	if s == nil {
		s = w.enter(o.rec, o.rev)
	}
	s.touch()
	if s.closing.Load() { // the name's old session is on its way out: open again after it
		if len(w.again[s])+len(o.calls) > inboxSize {
			o.refuse(errOverloaded)
			return
		}
		w.again[s] = append(w.again[s], o.calls...)
		return
	}
	for i, r := range o.calls {
		info := s.info()
		info.Created = o.created && i == 0
		answer(r, info)
	}
}

// sessionGone is told by a session on its way out.
func (w *Worker) sessionGone(own context.Context) func(s *session) {
	return func(s *session) {
		select {
		case w.gone <- s:
		case <-own.Done(): // the worker is gone first
		}
	}
}

// sessionEnded opens what waited for the end of a session.
func (w *Worker) sessionEnded(own context.Context, s *session) {
	w.deps.dir.removeSession(s)
	calls := w.again[s]
	delete(w.again, s)
	for _, r := range calls {
		w.open(own, r)
	}
}

// enter starts a session's actor.
func (w *Worker) enter(rec *wire.SessionRecord, rev uint64) *session {
	s := newSession(w.deps, rec, rev, w.onGone)
	w.deps.dir.addSession(s)
	w.own.Go(s.run) // ends by its close, its TTL, or the worker's shutdown
	return s
}
