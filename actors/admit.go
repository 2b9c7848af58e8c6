package actors

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

func (s *session) start(r request, m *wire.Start) {
	r.call = &call{hash: wire.RequestHash(&m.Command), onTimeout: wire.OnTimeoutKill}
	s.admit(r, m.ExecutionID, &m.Command)
}

func (s *session) startRun(r request, m *wire.Run) {
	r.call = &call{
		hash: wire.RequestHash(&m.Command), run: true, render: m.Render,
		yield: time.Duration(m.YieldMS) * time.Millisecond, onTimeout: cmp.Or(m.OnTimeout, wire.OnTimeoutKill),
	}
	if r.call.onTimeout != wire.OnTimeoutKill {
		r.call.timeout = time.Duration(s.timeout(&m.Command)) * time.Millisecond
	}
	s.admit(r, m.ExecutionID, &m.Command)
}

// admit checks a start, in this order: a known execution id, the policy, the command
// against this host, the limits. The directory is looked at by the actor, because a file
// system may hang. Nothing is recorded before the last check has passed.
func (s *session) admit(r request, execution string, c *wire.Command) {
	if p := s.byExec[execution]; p != nil && execution != "" {
		p.deliver(r)
		return
	}
	p, err := s.claim(r, cmp.Or(execution, subjects.NewID()), c)
	if err != nil {
		refuse(r, err)
		return
	}
	live, limit := int(s.live.Load()), s.rec.Load().Limits.LiveProcesses
	if kept := len(s.held); live+kept >= limit { // what a command left behind lives too
		refuse(r, &wire.Error{
			Code:    wire.CodeProcessQuotaExceeded,
			Message: fmt.Sprintf("the session has %d live processes, and may have %d; end one, or wait for one to end", live+kept, limit),
			Details: map[string]any{"live": live, "kept": kept, "limit": limit},
		})
		return
	}
	s.enter(p)
	s.live.Add(1)
}

// enter makes a process known and starts its actor.
func (s *session) enter(p *process) {
	s.members[p.id], s.byExec[p.execution] = p, p
	s.deps.dir.addProcess(p)
	s.own.Go(p.run) // ends by an order of this session
}

// claim resolves a command into what the keeper forks.
func (s *session) claim(r request, execution string, c *wire.Command) (*process, error) {
	rec := s.rec.Load()
	res, err := s.resolve(c)
	if err != nil {
		return nil, err
	}
	p := newProcess(s, execution)
	p.receipt = wire.Receipt{
		Version: wire.Version, Process: p.id, ExecutionID: execution, Session: rec.ID, Tenant: rec.Tenant,
		Worker: rec.Worker, Incarnation: rec.Incarnation, RequestHash: r.call.hash, CallDigest: res.digest,
		State: wire.StateStarting, CreatedAt: time.Now().UTC(), TimeoutMS: res.timeoutMS, GraceMS: res.grace.Milliseconds(),
		TTY: res.spawn.TTY, Streams: res.streams, Shell: res.shell, Login: res.login, Cwd: res.spawn.Dir, Confinement: "none",
		Notes: append(res.verdict.Notes, c.Notes()...), StdinOpen: res.spawn.Stdin || res.spawn.TTY != nil,
		Labels: c.Labels, Description: c.Description,
	}
	if r.call.timeout > 0 { // the time yields the handle, it does not end the command
		res.spawn.Timeout = 0
	}
	if res.spawn.Timeout > 0 {
		d := p.receipt.CreatedAt.Add(res.spawn.Timeout)
		p.receipt.Deadline = &d
	}
	p.grace, p.longest = res.grace, res.grace
	p.plan = plan{Leftovers: cmp.Or(c.Leftovers, wire.LeftoversKill), IdleTimeoutMS: c.IdleTimeoutMS, Trace: traceOf(r), Capture: res.spawn.CaptureState}
	p.strays = res.strays
	switch {
	case res.missed != "":
		p.missed(res.missed)
	case res.keeps:
		p.receipt.StateCapture, p.receipt.SessionCwd = stateUnchanged, rec.CurrentCwd()
	}
	if c.Output != nil {
		p.plan.Output = *c.Output
	}
	res.spawn.Process = p.id
	p.claim = &claim{spec: res.spawn, calls: []request{r}, input: c.Input, keepOpen: c.Stdin == wire.StdinPipe || c.TTY != nil}
	if len(c.Input) > 0 {
		p.claim.spec.Stdin = c.TTY == nil
		p.receipt.StdinOpen = true
		p.plan.InputBytes, p.plan.CloseInput = int64(len(c.Input)), !p.claim.keepOpen
	}
	p.publish()
	return p, nil
}

// traceOf is the caller's trace context, if it is one: 55 bytes of lower-case hex and
// dashes, as W3C has it.
func traceOf(r request) string {
	t := r.Header.Get(subjects.HeaderTrace)
	if len(t) != 55 || strings.Trim(t, "0123456789abcdef-") != "" {
		return ""
	}
	return t
}

// checkDir refuses a directory that is not there before anything is recorded. It may
// block, so no actor calls it.
func checkDir(dir string) error {
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &wire.Error{Code: wire.CodeWorkdirNotFound, Field: "command.cwd", Message: "command.cwd: there is no directory " + dir}
	case err != nil:
		return &wire.Error{Code: wire.CodeWorkdirNotFound, Field: "command.cwd", Message: "command.cwd: " + dir + " cannot be entered"}
	case !st.IsDir():
		return &wire.Error{Code: wire.CodeWorkdirNotFound, Field: "command.cwd", Message: "command.cwd: " + dir + " is not a directory"}
	}
	return nil
}

// prepare says what a start would do, and starts nothing.
func (s *session) prepare(r request, m *wire.Prepare) {
	res, err := s.resolve(&m.Command)
	if err != nil {
		refuse(r, err)
		return
	}
	out := &wire.Prepared{
		Version: wire.Version, ExecutionID: cmp.Or(m.ExecutionID, subjects.NewID()),
		RequestHash: wire.RequestHash(&m.Command), CallDigest: res.digest, Verdict: res.verdict, Cwd: res.spawn.Dir,
	}
	if res.shell != "" {
		out.Shell = res.spawn.Argv[:len(res.spawn.Argv)-1]
	}
	s.deps.aside(r, func(context.Context) {
		if err := checkDir(out.Cwd); err != nil {
			refuse(r, err)
			return
		}
		answer(r, out)
	})
}

// cancel ends an execution by its id. One that has not arrived yet is reserved as
// cancelled: its late start finds that and does not fork.
func (s *session) cancel(r request, m *wire.Cancel) {
	if p := s.byExec[m.ExecutionID]; p != nil {
		p.deliver(r)
		return
	}
	rec := s.rec.Load()
	at := time.Now().UTC()
	e := &wire.ExecutionRecord{Version: wire.Version, ExecutionID: m.ExecutionID, Receipt: wire.Receipt{
		Version: wire.Version, ExecutionID: m.ExecutionID, Session: rec.ID, Tenant: rec.Tenant, Worker: rec.Worker,
		Incarnation: rec.Incarnation, State: wire.StateCancelled, Reason: wire.ReasonNeverStarted,
		CancelRequested: true, CreatedAt: at, EndedAt: &at, Streams: wire.StreamsSeparate, Confinement: "none",
	}}
	s.deps.aside(r, func(ctx context.Context) {
		rev, existing, err := s.deps.store.CreateExecution(ctx, rec.Tenant, e)
		if existing != nil && s.deps.dir.abandoned(existing, rec.Worker, rec.Incarnation) {
			e.RequestHash, e.Receipt.RequestHash, existing = existing.RequestHash, existing.RequestHash, nil
			_, err = s.deps.store.UpdateExecution(ctx, rec.Tenant, e, rev)
		}
		switch {
		case err != nil:
			refuse(r, err)
		case existing != nil:
			s.deps.cancelFrom(r, existing)
		default:
			answer(r, &e.Receipt)
		}
	})
}
