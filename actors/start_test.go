package actors

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// A cancel that comes before the fork prevents it.
func TestCancelBeforeTheForkPreventsIt(t *testing.T) {
	inBubble(t, func(w *world) {
		w.store.set(func(s *fakeStore) { s.gate = make(chan struct{}) })
		start := w.send("start", startOf("e1", text("x")))
		synctest.Wait()
		cancel := w.send("cancel", cancelOf("e1"))
		synctest.Wait()
		w.store.set(func(s *fakeStore) { close(s.gate); s.gate = nil })
		if code := refusal(start); code != wire.CodeExecutionCancelled {
			t.Errorf("the start is answered %s", code)
		}
		wantEnd(t, take[wire.Receipt](cancel), wire.StateCancelled, wire.ReasonNeverStarted)
		if code := refusal(w.send("start", startOf("e1", text("x")))); code != wire.CodeExecutionCancelled {
			t.Errorf("a retry is answered %s", code)
		}
		synctest.Wait()
		if rc, ends := w.store.record("e1"); rc.State != wire.StateCancelled || ends != 1 || w.keeper.forks != 0 || w.session.live.Load() != 0 {
			t.Errorf("%s, %d ends, %d forks, %d live", rc.State, ends, w.keeper.forks, w.session.live.Load())
		}
		if len(w.feed.told) != 0 {
			t.Errorf("observers were told %v of what never was", w.feed.told)
		}
	})
}

func TestCancelReservesTheID(t *testing.T) {
	inBubble(t, func(w *world) {
		wantEnd(t, take[wire.Receipt](w.send("cancel", cancelOf("e1"))), wire.StateCancelled, wire.ReasonNeverStarted)
		if code := refusal(w.send("start", startOf("e1", text("x")))); code != wire.CodeExecutionCancelled {
			t.Errorf("a late start is answered %s", code)
		}
		wantEnd(t, take[wire.Receipt](w.send("cancel", cancelOf("e1"))), wire.StateCancelled, wire.ReasonNeverStarted)
	})
}

// Every failure of a start: what it answers, what the record says, that nothing is left.
func TestFailedStarts(t *testing.T) {
	for _, tt := range []struct {
		name    string
		command wire.Command
		arrange func(w *world)
		code    wire.Code
		state   wire.State // of the record; empty: there is none
	}{
		{name: "no directory", command: wire.Command{Text: "x", Cwd: "/does/not/exist"}, code: wire.CodeWorkdirNotFound},
		{name: "store away", arrange: func(w *world) { w.store.down = wire.Errorf(wire.CodeUnavailable, "away") }, code: wire.CodeUnavailable},
		{
			name: "spawn fails", code: wire.CodeSpawnFailed, state: wire.StateFailed,
			arrange: func(w *world) { w.keeper.err = wire.Errorf(wire.CodeSpawnFailed, "no such file") },
		},
		{name: "spawn panics", arrange: func(w *world) { w.keeper.panics = true }, code: wire.CodeInternal, state: wire.StateFailed},
		{
			name: "no process record", code: wire.CodeInternal, state: wire.StateFailed,
			arrange: func(w *world) { w.store.async = registry.ErrConflict },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				if tt.command.Text == "" {
					tt.command = text("x")
				}
				if tt.arrange != nil {
					tt.arrange(w)
				}
				if code := refusal(w.send("start", startOf("e1", tt.command))); code != tt.code {
					t.Errorf("answered %s, want %s", code, tt.code)
				}
				synctest.Wait()
				rc, ends := w.store.record("e1")
				if rc.State != tt.state || ends != min(1, len(tt.state)) {
					t.Errorf("recorded %q %d times, want %q", rc.State, ends, tt.state)
				}
				if n := w.session.live.Load(); n != 0 || len(w.session.members) != 0 || len(w.session.ended) != 0 {
					t.Errorf("%d live, %d members", n, len(w.session.members))
				}
				if len(w.feed.told) != 0 {
					t.Errorf("observers were told %v", w.feed.told)
				}
				if c := w.keeper.only(); c != nil {
					if stops, _, released := c.seen(); len(stops) == 0 || released != 1 {
						t.Errorf("the child was stopped %v, released %d times", stops, released)
					}
				}
				for id, life := range w.store.procs {
					if life != registry.Ended {
						t.Errorf("the record of process %s never expires", id)
					}
				}
				// The same id again: the same answer where it is recorded, else a start.
				w.store.set(func(s *fakeStore) { s.down, s.async = nil, nil })
				w.keeper.set(func(k *fakeKeeper) { k.err, k.panics = nil, false })
				if again := w.send("start", startOf("e1", tt.command)); tt.state != "" {
					if code := refusal(again); code != tt.code {
						t.Errorf("again: %s", code)
					}
				} else if _, err := got[wire.Receipt](again); tt.name == "store away" && err != nil {
					t.Errorf("again: %v", err)
				}
			})
		})
	}
}

// A failed start whose record cannot be written stays until it is, and answers.
func TestAFailedStartIsRecordedWhenTheStoreIsBack(t *testing.T) {
	inBubble(t, func(w *world) {
		w.keeper.set(func(k *fakeKeeper) { k.gate, k.err = make(chan struct{}), wire.Errorf(wire.CodeSpawnFailed, "no") })
		start := w.send("start", startOf("e1", text("x")))
		synctest.Wait()
		w.store.set(func(s *fakeStore) { s.down = bus.ErrDisconnected })
		close(w.keeper.gate)
		if code := refusal(start); code != wire.CodeSpawnFailed {
			t.Errorf("answered %s", code)
		}
		wantTime(t, "answered", w.after(), sealPatience)
		if code := refusal(w.send("start", startOf("e1", text("x")))); code != wire.CodeSpawnFailed {
			t.Errorf("a retry is answered %s", code)
		}
		if code := refusal(w.send("start", startOf("e1", text("y")))); code != wire.CodeExecutionConflict {
			t.Errorf("another command is answered %s", code)
		}
		time.Sleep(time.Minute)
		w.store.set(func(s *fakeStore) { s.down = nil })
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if rc, ends := w.store.record("e1"); rc.State != wire.StateFailed || ends != 1 || len(w.session.members) != 0 {
			t.Errorf("%s, %d ends, %d members", rc.State, ends, len(w.session.members))
		}
	})
}

// A create of unknown outcome may have reserved the id. The same start takes it over,
// and forks once; a cancel does, and nothing forks.
func TestACreateOfUnknownOutcome(t *testing.T) {
	inBubble(t, func(w *world) {
		w.store.unknown = 2
		for i, id := range []string{"e1", "e2"} {
			if _, err := got[wire.Receipt](w.send("start", startOf(id, text("x")))); err == nil || w.keeper.forks != 0 {
				t.Fatalf("start %d: %v, %d forks", i, err, w.keeper.forks)
			}
		}
		if code := refusal(w.send("start", startOf("e1", text("y")))); code != wire.CodeExecutionConflict {
			t.Errorf("another command is answered %s", code)
		}
		r := take[wire.Receipt](w.send("start", startOf("e1", text("x"))))
		if again := take[wire.Receipt](w.send("start", startOf("e1", text("x")))); again.Process != r.Process || w.keeper.forks != 1 {
			t.Errorf("%s and %s, %d forks", r.Process, again.Process, w.keeper.forks)
		}
		if rc, _ := w.store.record("e1"); rc.Process != r.Process {
			t.Errorf("the record is of process %s, the answer of %s", rc.Process, r.Process)
		}
		wantEnd(t, take[wire.Receipt](w.send("cancel", cancelOf("e2"))), wire.StateCancelled, wire.ReasonNeverStarted)
		if code := refusal(w.send("start", startOf("e2", text("x")))); code != wire.CodeExecutionCancelled {
			t.Errorf("a start after the cancel is answered %s", code)
		}
	})
}

// An execution id is one in all sessions: the same command gets the same process.
func TestExecutionIDsAcrossSessions(t *testing.T) {
	inBubble(t, func(w *world) {
		first := w.session
		r, _ := w.started(text("x"))
		w.session = w.open("s2")
		if again := take[wire.Receipt](w.send("start", startOf(r.ExecutionID, text("x")))); again.Process != r.Process || again.Session != "s1" {
			t.Errorf("%+v", again)
		}
		if code := refusal(w.send("start", startOf(r.ExecutionID, text("y")))); code != wire.CodeExecutionConflict {
			t.Errorf("another command is answered %s", code)
		}
		synctest.Wait()
		if w.session.live.Load() != 0 || len(w.session.members) != 0 || w.keeper.forks != 1 {
			t.Errorf("%d live in the second, %d forks", w.session.live.Load(), w.keeper.forks)
		}
		wantEnd(t, take[wire.Receipt](w.send("cancel", cancelOf(r.ExecutionID))), wire.StateCancelled, wire.ReasonCancel)
		w.session = first
	})
}
