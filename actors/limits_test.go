package actors

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/subjects/wire"
)

func wantEnd(t *testing.T, r *wire.Receipt, state wire.State, reason wire.Reason) {
	t.Helper()
	if r.State != state || r.Reason != reason {
		t.Errorf("ended as %s, %s; want %s, %s (error %v)", r.State, r.Reason, state, reason, r.Error)
	}
}

func wantTime(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	if got < want || got > want+50*time.Millisecond {
		t.Errorf("%s after %v, want %v", what, got, want)
	}
}

// once holds that an execution has one end, and that it was told once.
func (w *world) once(execution string, state wire.State) {
	w.t.Helper()
	synctest.Wait()
	rc, ends := w.store.record(execution)
	n, last := w.feed.count("finished")
	if rc.State != state || ends != 1 || n != 1 || last.State != state {
		w.t.Errorf("recorded %s %d times, told %s %d times; want %s, once each", rc.State, ends, last.State, n, state)
	}
}

// The exit is told at once; what holds the streams is killed after the drain limit.
func TestLeftoversAreKilledAtTheDrainLimit(t *testing.T) {
	inBubble(t, func(w *world) {
		r, c := w.started(text("sleep 40 & :"))
		c.exits(keeper.Exited{Left: 1})
		exit := w.sendTo(r.Process, "wait", &wire.Wait{Version: wire.Version, ProcessRef: ref(r.Process), For: "exit", WaitMS: 60_000})
		if e := take[wire.Receipt](exit); e.ExitedAt == nil || e.State != wire.StateRunning || e.LeftoversLive != 1 || w.after() != 0 {
			t.Errorf("at the exit, after %v: %+v", w.after(), e)
		}
		end := w.waitFor(r.Process)
		wantEnd(t, end, wire.StateCompleted, wire.ReasonExit)
		if _, left, _ := c.seen(); len(left) != 1 || left[0] != drainLimit {
			t.Errorf("leftovers were asked to go at %v", left)
		}
		if !end.TreeGone || end.LeftoversKilled != 1 || !end.Output.Complete {
			t.Errorf("%+v", end)
		}
		w.once(r.ExecutionID, wire.StateCompleted)
	})
}

// Streams that something outside of the tree holds are given up, and the end says so.
func TestHeldStreamsAreGivenUpAtTheCollectLimit(t *testing.T) {
	inBubble(t, func(w *world) {
		r, c := w.started(text("x"))
		c.says("half")
		c.exits(keeper.Exited{Gone: true})
		end := w.waitFor(r.Process)
		wantTime(t, "ended", w.after(), collectLimit)
		wantEnd(t, end, wire.StateFailed, wire.ReasonExit)
		if end.Output.Complete || !strings.Contains(end.Output.Error, "incomplete") || end.Output.TotalBytes != 4 {
			t.Errorf("output %+v", end.Output)
		}
		c.says("late") // is let go
		w.once(r.ExecutionID, wire.StateFailed)
	})
}

// A tree of which the keeper proves nothing is given up ten seconds after the longest
// grace that was asked for, not sooner.
func TestAnUnprovenTreeIsGivenUpAfterTheGrace(t *testing.T) {
	for _, grace := range []time.Duration{2 * time.Second, time.Minute} {
		inBubble(t, func(w *world) {
			w.keeper.set(func(k *fakeKeeper) { k.lazy = true })
			r, c := w.started(text("x"))
			ms := grace.Milliseconds()
			call := w.sendTo(r.Process, "terminate", &wire.Terminate{Version: wire.Version, ProcessRef: ref(r.Process), GraceMS: &ms, By: "me"})
			synctest.Wait()
			c.exits(keeper.Exited{Left: 1, Cause: wire.ReasonCancel, Code: 143}) // and a leftover ignores TERM
			time.Sleep(time.Second)
			c.close()
			end := w.waitFor(r.Process)
			wantTime(t, "given up", w.after(), time.Second+grace+goneLimit)
			wantEnd(t, end, wire.StateFailed, wire.ReasonCancel)
			if end.Error == nil || end.Error.Code != wire.CodeTeardownFailed || end.TreeGone || end.CancelRequestedBy != "me" {
				t.Errorf("%+v", end)
			}
			take[wire.Receipt](call)
			if stops, _, _ := c.seen(); stops[0].grace != grace || stops[0].mode != keeper.Terminate {
				t.Errorf("stops %v", stops)
			}
		})
	}
}

// An interrupt ends the command alone; what it leaves behind is ended by the drain limit.
func TestAnInterruptedCommandLeavesNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		r, c := w.started(text("x"))
		call := w.sendTo(r.Process, "terminate", &wire.Terminate{Version: wire.Version, ProcessRef: ref(r.Process), Mode: "interrupt"})
		synctest.Wait()
		c.exits(keeper.Exited{Left: 1, Cause: wire.ReasonCancel, Code: 130, Signal: "INT"})
		end := take[wire.Receipt](call)
		wantTime(t, "ended", w.after(), drainLimit)
		wantEnd(t, end, wire.StateCancelled, wire.ReasonCancel)
		if !end.TreeGone || end.Error != nil {
			t.Errorf("%+v", end)
		}
	})
}

// A teardown that failed at first and then did not leaves no error behind.
func TestALaterProofTakesTheErrorBack(t *testing.T) {
	inBubble(t, func(w *world) {
		w.keeper.set(func(k *fakeKeeper) { k.lazy = true })
		r, c := w.started(text("x"))
		call := w.sendTo(r.Process, "terminate", &wire.Terminate{Version: wire.Version, ProcessRef: ref(r.Process)})
		synctest.Wait()
		w.worker.deliver(keeper.Event{Gone: &keeper.Gone{Process: r.Process, Unsignalled: []int{7}}})
		synctest.Wait()
		s := take[wire.Receipt](w.sendTo(r.Process, "status", &wire.Status{Version: wire.Version, ProcessRef: ref(r.Process)}))
		if s.Error == nil || s.State != wire.StateCancelRequested {
			t.Errorf("%+v", s)
		}
		c.end(wire.ReasonCancel)
		end := take[wire.Receipt](call)
		wantEnd(t, end, wire.StateCancelled, wire.ReasonCancel)
		if end.Error != nil || !end.TreeGone {
			t.Errorf("%+v", end)
		}
	})
}

// The deadline is the keeper's; its exit says timeout, and that is no cancel.
func TestDeadline(t *testing.T) {
	inBubble(t, func(w *world) {
		r, c := w.started(wire.Command{Text: "x", TimeoutMS: 1000})
		if c.spec.Timeout != time.Second || c.spec.Grace != defaultGrace || r.Deadline == nil {
			t.Errorf("spec %+v, deadline %v", c.spec, r.Deadline)
		}
		time.Sleep(time.Second)
		c.end(wire.ReasonTimeout)
		end := w.waitFor(r.Process)
		wantEnd(t, end, wire.StateFailed, wire.ReasonTimeout)
		if end.CancelRequested {
			t.Error("a timeout is no cancel")
		}
		w.once(r.ExecutionID, wire.StateFailed)
	})
}

func TestIdleTimeout(t *testing.T) {
	inBubble(t, func(w *world) {
		r, c := w.started(wire.Command{Text: "x", IdleTimeoutMS: 1000})
		for range 3 { // output keeps it alive
			time.Sleep(700 * time.Millisecond)
			c.says("tick")
		}
		end := w.waitFor(r.Process)
		wantTime(t, "ended", w.after(), 2100*time.Millisecond+time.Second)
		wantEnd(t, end, wire.StateFailed, wire.ReasonIdleTimeout)
		if stops, _, _ := c.seen(); len(stops) != 1 || stops[0].cause != wire.ReasonIdleTimeout || stops[0].grace != defaultGrace {
			t.Errorf("stops %v", stops)
		}
	})
}

func TestOutputLimit(t *testing.T) {
	inBubble(t, func(w *world) {
		r, c := w.started(wire.Command{Text: "x", Output: &wire.OutputLimits{KillOverBytes: 5000}})
		for range 3 {
			c.says(strings.Repeat("x", 2000))
		}
		wantEnd(t, w.waitFor(r.Process), wire.StateFailed, wire.ReasonOutputLimit)
	})
}

func TestIdleTTL(t *testing.T) {
	inBubble(t, func(w *world) {
		rec := *w.session.rec.Load()
		rec.ID, rec.Name, rec.IdleTTLMS = "s2", "s2", 60_000
		s := newSession(w.worker.deps, &rec, 1, func(*session) {})
		go s.run()
		w.session = s
		list := &wire.List{Version: wire.Version, SessionRef: wire.SessionRef{Session: "s2"}}
		for range 3 { // calls keep it alive, as the router does
			time.Sleep(40 * time.Second)
			s.touch()
			take[wire.Processes](w.send("list", list))
		}
		s.touch()
		r, c := w.started(text("x")) // a live process does
		time.Sleep(10 * time.Minute)
		if isDone(s.done) {
			t.Fatal("it ended with a live process in it")
		}
		c.exits(keeper.Exited{Gone: true})
		c.close()
		w.waitFor(r.Process)
		ended := time.Now()
		<-s.done
		if d := time.Since(ended); d < 59*time.Second || d > 61*time.Second {
			t.Errorf("ended %v after the last process", d)
		}
		if !slices.Equal(w.store.closed, []string{"s2"}) {
			t.Errorf("closed %v", w.store.closed)
		}
	})
}

// Kept leftovers live: they count, and do not keep an idle session.
func TestKeptLeftoversCount(t *testing.T) {
	inBubble(t, func(w *world) {
		var first string
		for range 4 {
			r, c := w.started(wire.Command{Text: "x", Leftovers: wire.LeftoversKeep})
			first = r.Process
			c.exits(keeper.Exited{Left: 1})
			end := w.waitFor(r.Process)
			wantEnd(t, end, wire.StateCompleted, wire.ReasonExit)
			if end.LeftoversLive != 1 {
				t.Errorf("%+v", end)
			}
		}
		synctest.Wait()
		if n := w.session.live.Load(); n != 0 {
			t.Errorf("%d live", n)
		}
		if code := refusal(w.send("start", startOf("", text("x")))); code != wire.CodeProcessQuotaExceeded {
			t.Errorf("a fifth is answered %s", code)
		}
		call := w.sendTo(first, "terminate", &wire.Terminate{Version: wire.Version, ProcessRef: ref(first)})
		synctest.Wait()
		w.keeper.child(first).goes(1)
		if r := take[wire.Receipt](call); r.State != wire.StateCompleted || r.LeftoversLive != 0 || !r.TreeGone {
			t.Errorf("%+v", r)
		}
		w.started(text("x"))
		for id, c := range w.keeper.children {
			if c.goes(1); id == first {
				continue
			}
		}
	})
}

// A pump that fails leaves a command that nobody reads: it is ended.
func TestACommandThatNobodyReadsIsEnded(t *testing.T) {
	inBubble(t, func(w *world) {
		w.keeper.set(func(k *fakeKeeper) { k.broken = errors.New("splice") })
		r, c := w.started(text("x"))
		end := w.waitFor(r.Process)
		wantEnd(t, end, wire.StateFailed, wire.ReasonInternal)
		if end.Output.Complete || end.Output.Error == "" {
			t.Errorf("%+v", end.Output)
		}
		if stops, _, _ := c.seen(); len(stops) != 1 {
			t.Errorf("stops %v", stops)
		}
	})
}

func TestKeeperLost(t *testing.T) {
	inBubble(t, func(w *world) {
		w.worker.lost = make(chan error, 1)
		r, _ := w.started(text("x"))
		exit := w.sendTo(r.Process, "wait", &wire.Wait{Version: wire.Version, ProcessRef: ref(r.Process), For: "exit", WaitMS: 60_000})
		synctest.Wait()
		w.worker.deliver(keeper.Event{Lost: &keeper.Lost{Err: errors.New("gone")}})
		wantEnd(t, take[wire.Receipt](exit), wire.StateOutcomeUnknown, wire.ReasonWorkerLost)
		end := w.waitFor(r.Process)
		wantEnd(t, end, wire.StateOutcomeUnknown, wire.ReasonWorkerLost)
		if end.ExitCode != nil || end.EndedAt == nil || end.Output.Complete {
			t.Errorf("%+v", end)
		}
		w.once(r.ExecutionID, wire.StateOutcomeUnknown)
	})
}
