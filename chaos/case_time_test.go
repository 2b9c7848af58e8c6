package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// ended checks how a receipt says that a command ended.
func ended(t testing.TB, r *wire.Receipt, state wire.State, reason wire.Reason) {
	t.Helper()
	if r.State != state || r.Reason != reason {
		t.Errorf("ended as %s by %s (code %v, signal %q, error %v); want %s by %s", r.State, r.Reason, value(r.ExitCode), r.Signal, r.Error, state, reason)
	}
	if r.State.Terminal() && (r.EndedAt == nil || r.ExitedAt == nil) {
		t.Errorf("%s without its times: exited %v, ended %v", r.State, r.ExitedAt, r.EndedAt)
	}
}

func (a agent) terminate(t testing.TB, m wire.Terminate) *wire.Receipt {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	r, err := a.c.Terminate(ctx, m)
	if err != nil {
		t.Fatalf("terminate: %v", err)
	}
	return r
}

func TestCaseTimeouts(t *testing.T) {
	a := newAgent(t, start(t), wire.Open{Cwd: t.TempDir()})

	// TIME 104
	t.Run("the deadline is echoed and an absurd one refused with what was meant", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "sleep 1", TimeoutMS: 180_000})
		r := a.status(t, id)
		if r.TimeoutMS != 180_000 || r.Deadline == nil {
			t.Fatalf("timeout %d, deadline %v", r.TimeoutMS, r.Deadline)
		}
		if d := r.Deadline.Sub(r.CreatedAt); d != 180*time.Second {
			t.Errorf("the deadline is %v after the start", d)
		}
		if r := a.text(t, "true").Receipt; r.TimeoutMS != long.Milliseconds() {
			t.Errorf("timeout %d", r.TimeoutMS)
		}
		if r := a.run(t, wire.Command{Text: "true"}).Receipt; r.TimeoutMS != 120_000 || r.Deadline == nil { // the session's default
			t.Errorf("default %d, deadline %v", r.TimeoutMS, r.Deadline)
		}
		if r := a.run(t, wire.Command{Text: "true", TimeoutMS: -1}).Receipt; r.TimeoutMS != -1 || r.Deadline != nil {
			t.Errorf("without a limit: %d, deadline %v", r.TimeoutMS, r.Deadline)
		}
		for ms, hint := range map[int64]string{86_400_001: "", 180_000_000: "did you mean 180000?", 30_000_000_000: "did you mean 30000?", -2: "", -180_000: ""} {
			_, err := a.try(t, wire.Run{Command: wire.Command{Text: "true", TimeoutMS: ms}})
			if refused(t, err, wire.CodeInvalidArguments, "command.timeout_ms"); !strings.Contains(fmt.Sprint(err), hint) {
				t.Errorf("%d: no hint in %v", ms, err)
			}
			_, err = a.try(t, wire.Run{Command: wire.Command{Text: "true"}, YieldMS: max(ms, 86_400_001)})
			refused(t, err, wire.CodeInvalidArguments, "yield_ms")
		}
		a.kill(t, id)
	})
	// TIME 106
	t.Run("the answer comes at the deadline and nothing after it", func(t *testing.T) {
		began := time.Now()
		res := a.run(t, wire.Command{Text: "sleep 6; echo late | tee late", TimeoutMS: 1000})
		took := time.Since(began)
		if ended(t, &res.Receipt, wire.StateFailed, wire.ReasonTimeout); took < time.Second || took > 5*time.Second {
			t.Errorf("the answer took %v", took)
		}
		if res.Receipt.CancelRequested || res.Receipt.Signal != "TERM" || value(res.Receipt.ExitCode) != 143 {
			t.Errorf("cancel requested %v, signal %q, code %v", res.Receipt.CancelRequested, res.Receipt.Signal, value(res.Receipt.ExitCode))
		}
		if n := a.text(t, "pgrep -fx 'sleep 6' -P 1; ls").Stdout.Text; strings.Contains(n, "late") {
			t.Errorf("late was written: %q", n)
		}
	})
	t.Run("a command with helpers in the pipe ends with them", func(t *testing.T) { // TIME 106
		res := a.run(t, wire.Command{Text: "(sleep 300 & sleep 300) | cat | (sleep 300; cat)", TimeoutMS: 500})
		if ended(t, &res.Receipt, wire.StateFailed, wire.ReasonTimeout); res.Receipt.LeftoversLive != 0 || len(res.Receipt.Unsignalled) != 0 {
			t.Errorf("left %d, unsignalled %v", res.Receipt.LeftoversLive, res.Receipt.Unsignalled)
		}
	})
	// TIME 108
	t.Run("what was written before the deadline is kept", func(t *testing.T) {
		for _, c := range []wire.Command{
			{Text: "echo before; sleep 30", TimeoutMS: 1000},
			{Text: "printf before; sleep 30", TimeoutMS: 1000},
			{Text: "echo before; echo error >&2; sleep 30", TimeoutMS: 1000, Streams: wire.StreamsMerged},
			{Text: "trap 'echo last words' TERM; echo before; sleep 30 & wait; wait", TimeoutMS: 1000},
		} {
			res := a.run(t, c)
			if !strings.HasPrefix(res.Stdout.Text, "before") || res.Receipt.Reason != wire.ReasonTimeout {
				t.Errorf("%s: %q by %s", c.Text, res.Stdout.Text, res.Receipt.Reason)
			}
			if strings.Contains(c.Text, "trap") && !strings.Contains(res.Stdout.Text, "last words") {
				t.Errorf("the last words are lost: %q", res.Stdout.Text)
			}
			if o := res.Receipt.Output; o.TotalBytes != o.KeptBytes+o.DroppedBytes || o.DroppedBytes != 0 {
				t.Errorf("%+v", o)
			}
		}
	})
	// TIME 110
	t.Run("a cancel is a cancel and says by whom", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "echo part; tail -f /dev/null"})
		a.until(t, id, "part\n")
		r := a.terminate(t, wire.Terminate{ProcessRef: wire.ProcessRef{Process: id}, By: "the user"})
		if ended(t, r, wire.StateCancelled, wire.ReasonCancel); !r.CancelRequested || r.CancelRequestedBy != "the user" {
			t.Errorf("requested %v by %q", r.CancelRequested, r.CancelRequestedBy)
		}
		if out := a.output(t, id); out != "part\n" {
			t.Errorf("%q", out)
		}
		m := wire.Start{ExecutionID: subjects.NewID(), Command: wire.Command{Text: "echo part; tail -f /dev/null"}}
		s, err := a.s.Start(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		a.until(t, s.Process, "part\n")
		if r, err = a.s.Cancel(t.Context(), m.ExecutionID); err != nil {
			t.Fatal(err)
		}
		ended(t, r, wire.StateCancelled, wire.ReasonCancel)
	})
	// TIME 114
	t.Run("of two equal limits the result says which one ended it", func(t *testing.T) {
		for range 3 {
			res := a.run(t, wire.Command{Text: `timeout 2 bash -c 'trap "echo cleanup; exit 9" TERM; sleep 30 & wait'; rc=$?; echo inner=$rc; exit $rc`, TimeoutMS: 2000, GraceMS: 5000})
			r := res.Receipt
			if !strings.Contains(res.Stdout.Text, "cleanup") {
				t.Errorf("no grace for the trap: %q, %s", res.Stdout.Text, r.Reason)
			}
			switch r.Reason {
			case wire.ReasonTimeout: // ours was first; the state says so whatever the code
				ended(t, &r, wire.StateFailed, wire.ReasonTimeout)
			case wire.ReasonExit: // the inner one was first
				if value(r.ExitCode) != 124 && value(r.ExitCode) != 9 {
					t.Errorf("code %v", value(r.ExitCode))
				}
			default:
				t.Errorf("ended by %s", r.Reason)
			}
			if d := r.EndedAt.Sub(r.CreatedAt); d > 20*time.Second {
				t.Errorf("it took %v", d)
			}
		}
	})
	t.Run("an inner limit that is earlier wins", func(t *testing.T) { // TIME 114
		res := a.run(t, wire.Command{Text: "timeout 0.3 sleep 30", TimeoutMS: 30_000})
		if ended(t, &res.Receipt, wire.StateFailed, wire.ReasonExit); value(res.Receipt.ExitCode) != 124 {
			t.Errorf("code %v", value(res.Receipt.ExitCode))
		}
	})
	t.Run("silence ends a command and output keeps it", func(t *testing.T) {
		res := a.run(t, wire.Command{Text: "echo a; sleep 60; echo b", IdleTimeoutMS: 500})
		ended(t, &res.Receipt, wire.StateFailed, wire.ReasonIdleTimeout)
		if res.Stdout.Text != "a\n" || res.Receipt.CancelRequested {
			t.Errorf("%q, cancel requested %v", res.Stdout.Text, res.Receipt.CancelRequested)
		}
		res = a.run(t, wire.Command{Text: "for i in $(seq 10); do echo $i; sleep 0.2; done", IdleTimeoutMS: 1500})
		ended(t, &res.Receipt, wire.StateCompleted, wire.ReasonExit)
	})
	t.Run("a deadline during the end changes nothing", func(t *testing.T) {
		for range 10 {
			r := a.run(t, wire.Command{Text: "sleep 0.1", TimeoutMS: 100, GraceMS: 3000}).Receipt
			switch {
			case r.Reason == wire.ReasonTimeout && r.State == wire.StateFailed:
			case r.Reason == wire.ReasonExit && r.State == wire.StateCompleted && value(r.ExitCode) == 0:
			default:
				t.Errorf("%s by %s, code %v", r.State, r.Reason, value(r.ExitCode))
			}
		}
	})
}

func TestCaseTimeEnds(t *testing.T) {
	dir := t.TempDir()
	a := newAgent(t, start(t), wire.Open{Cwd: dir})

	t.Run("terminating twice and after the end is harmless", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "trap 'sleep 0.3; exit 3' TERM; echo ready; sleep 300 & wait"})
		a.until(t, id, "ready")
		ref := wire.ProcessRef{Process: id}
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				r, err := a.c.Terminate(t.Context(), wire.Terminate{ProcessRef: ref, By: fmt.Sprint(i)})
				if err != nil || r.State != wire.StateCancelled || value(r.ExitCode) != 3 {
					t.Errorf("%+v, %v", r, err)
				}
			})
		}
		all.Wait()
		for _, mode := range []string{"terminate", "kill", "interrupt"} {
			r := a.terminate(t, wire.Terminate{ProcessRef: ref, Mode: mode})
			if ended(t, r, wire.StateCancelled, wire.ReasonCancel); value(r.ExitCode) != 3 {
				t.Errorf("code %v", value(r.ExitCode))
			}
		}
		done := a.text(t, "exit 7").Receipt.Process
		r := a.terminate(t, wire.Terminate{ProcessRef: wire.ProcessRef{Process: done}})
		if ended(t, r, wire.StateFailed, wire.ReasonExit); value(r.ExitCode) != 7 || r.CancelRequested {
			t.Errorf("code %v, cancel requested %v", value(r.ExitCode), r.CancelRequested)
		}
	})
	t.Run("a command that ignores TERM is killed after the grace", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "trap '' TERM; echo ready; while :; do sleep 0.1; done", GraceMS: 700})
		a.until(t, id, "ready")
		began := time.Now()
		r := a.terminate(t, wire.Terminate{ProcessRef: wire.ProcessRef{Process: id}})
		took := time.Since(began)
		if ended(t, r, wire.StateCancelled, wire.ReasonCancel); r.Signal != "KILL" || value(r.ExitCode) != 137 {
			t.Errorf("signal %q, code %v", r.Signal, value(r.ExitCode))
		}
		if took < 600*time.Millisecond || took > 20*time.Second {
			t.Errorf("it took %v with a grace of 700 ms", took)
		}
		res := a.run(t, wire.Command{Text: "trap '' TERM; while :; do sleep 0.1; done", TimeoutMS: 300, GraceMS: 300})
		if ended(t, &res.Receipt, wire.StateFailed, wire.ReasonTimeout); res.Receipt.Signal != "KILL" {
			t.Errorf("signal %q", res.Receipt.Signal)
		}
	})
	t.Run("a stopped command is killed too", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "echo ready; kill -STOP $$; echo on", GraceMS: 300})
		a.until(t, id, "ready")
		ended(t, a.terminate(t, wire.Terminate{ProcessRef: wire.ProcessRef{Process: id}}), wire.StateCancelled, wire.ReasonCancel)
	})
	t.Run("an interrupt never escalates", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "trap 'echo caught' INT; echo ready; while :; do sleep 0.1; done", GraceMS: 100})
		a.until(t, id, "ready")
		ctx, cancel := context.WithTimeout(t.Context(), long)
		defer cancel()
		r, err := a.c.Terminate(ctx, wire.Terminate{ProcessRef: wire.ProcessRef{Process: id}, Mode: "interrupt"})
		if err != nil || r.State.Terminal() {
			t.Errorf("%+v, %v", r, err)
		}
		a.until(t, id, "caught")
		if r := a.status(t, id); r.State.Terminal() {
			t.Errorf("it ended as %s", r.State)
		}
		a.kill(t, id)
	})
	t.Run("a signal is delivered and the state stays", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "trap 'echo got' USR1; echo ready; while :; do sleep 0.05; done"})
		a.until(t, id, "ready")
		for _, s := range []string{"USR1", "SIGUSR1", "usr1", "10"} {
			if r, err := a.c.Signal(t.Context(), id, s); err != nil || r.State != wire.StateRunning {
				t.Errorf("%s: %+v, %v", s, r, err)
			}
		}
		a.until(t, id, "got")
		if _, err := a.c.Signal(t.Context(), id, "KILL"); err != nil {
			t.Error(err)
		}
		if r := a.end(t, id); r.Reason != wire.ReasonSignal || r.State != wire.StateFailed || r.Signal != "KILL" {
			t.Errorf("%s by %s, %q", r.State, r.Reason, r.Signal)
		}
		if r, err := a.c.Signal(t.Context(), id, "KILL"); err != nil || !r.State.Terminal() {
			t.Errorf("after the end: %+v, %v", r, err)
		}
	})
}

func TestCaseTimeHandles(t *testing.T) {
	a := newAgent(t, start(t), wire.Open{Cwd: t.TempDir()})

	t.Run("a run yields its handle and goes on", func(t *testing.T) {
		res, err := a.try(t, wire.Run{Command: wire.Command{Text: "echo one; sleep 1; echo two"}, YieldMS: 300})
		if err != nil || !res.Yielded || res.Receipt.State != wire.StateRunning || res.Stdout.Text != "one\n" {
			t.Fatalf("%+v, %v", res, err)
		}
		if r, out := a.end(t, res.Receipt.Process), a.output(t, res.Receipt.Process); r.State != wire.StateCompleted || out != "one\ntwo\n" {
			t.Errorf("%s, %q", r.State, out)
		}
		if res, err = a.try(t, wire.Run{Command: wire.Command{Text: "echo quick"}, YieldMS: 30_000}); err != nil || res.Yielded || res.Stdout.Text != "quick\n" {
			t.Errorf("%+v, %v", res, err)
		}
	})
	t.Run("what a timeout does is as asked and echoed", func(t *testing.T) {
		for _, tt := range []struct {
			on   wire.OnTimeout
			want wire.OnTimeout
			goes bool
		}{{"", wire.OnTimeoutKill, false}, {wire.OnTimeoutKill, wire.OnTimeoutKill, false}, {wire.OnTimeoutBackground, wire.OnTimeoutBackground, true}, {wire.OnTimeoutDetach, wire.OnTimeoutDetach, true}} {
			res, err := a.try(t, wire.Run{Command: wire.Command{Text: "echo one; sleep 2; echo two", TimeoutMS: 500}, OnTimeout: tt.on})
			if err != nil {
				t.Fatal(err)
			}
			if res.OnTimeout != tt.want || res.Yielded != tt.goes || res.Stdout.Text != "one\n" {
				t.Errorf("%q: echoed %q, yielded %v, %q", tt.on, res.OnTimeout, res.Yielded, res.Stdout.Text)
			}
			if r := a.end(t, res.Receipt.Process); tt.goes {
				if ended(t, r, wire.StateCompleted, wire.ReasonExit); a.output(t, r.Process) != "one\ntwo\n" {
					t.Errorf("%q: it did not go on", tt.on)
				}
			} else {
				ended(t, r, wire.StateFailed, wire.ReasonTimeout)
			}
		}
	})
	t.Run("waiting is bounded and cancels nothing", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "sleep 300"})
		ref := wire.ProcessRef{Process: id}
		r, err := a.c.Wait(t.Context(), wire.Wait{ProcessRef: ref, WaitMS: 200})
		if err != nil || r.State != wire.StateRunning {
			t.Errorf("%+v, %v", r, err)
		}
		p, err := a.c.Read(t.Context(), wire.Read{ProcessRef: ref, WaitMS: 200})
		if err != nil || p.End || p.State != wire.StateRunning {
			t.Errorf("%+v, %v", p, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if _, err := a.c.WaitEnd(ctx, id); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		if r := a.status(t, id); r.State != wire.StateRunning || r.CancelRequested {
			t.Errorf("%s, cancel requested %v", r.State, r.CancelRequested)
		}
		a.kill(t, id)
	})
	t.Run("a caller that goes away takes nothing along", func(t *testing.T) {
		m := wire.Run{ExecutionID: subjects.NewID(), Command: wire.Command{Text: "sleep 1; echo done"}}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		// The worker answers a little before the caller's deadline, with the handle.
		if res, err := a.s.Run(ctx, m); !errors.Is(err, context.DeadlineExceeded) && (err != nil || !res.Yielded) {
			t.Fatalf("%+v, %v", res, err)
		}
		res, err := a.try(t, m)
		if err != nil || res.Receipt.State != wire.StateCompleted || res.Stdout.Text != "done\n" {
			t.Errorf("%+v, %v", res, err)
		}
	})
	t.Run("a waiter wakes at the exit though the streams are held", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "sleep 300 & exit 5", Leftovers: wire.LeftoversKeep})
		r, err := a.c.Wait(t.Context(), wire.Wait{ProcessRef: wire.ProcessRef{Process: id}, For: "exit", WaitMS: 30_000})
		if err != nil || value(r.ExitCode) != 5 {
			t.Errorf("%+v, %v", r, err)
		}
		a.kill(t, id)
	})
}
