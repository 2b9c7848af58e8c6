package actors

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// A panic ends its process (tree killed, record failed, end told) and nothing else.
func TestPanics(t *testing.T) {
	for _, tt := range []struct {
		name    string
		arrange func(w *world)
		ends    func(w *world, c *fakeChild) // what makes it panic, once it runs
		reason  wire.Reason
		state   wire.State
		noFeed  bool // what panics is the observer, which is not told then
	}{
		{
			name: "when it begins", reason: wire.ReasonInternal, state: wire.StateFailed,
			arrange: func(w *world) { w.feed.set("started", 1) },
		},
		{
			name: "in the pump", reason: wire.ReasonInternal, state: wire.StateFailed,
			arrange: func(w *world) { w.keeper.broken = errors.New("panic") },
		},
		{
			name: "at the exit", reason: wire.ReasonInternal, state: wire.StateFailed,
			arrange: func(w *world) { w.feed.set("state", 1) },
			ends:    func(_ *world, c *fakeChild) { c.exits(keeper.Exited{Left: 1}) },
		},
		{
			name: "twice", reason: wire.ReasonInternal, state: wire.StateFailed,
			arrange: func(w *world) { w.feed.set("state", 2) },
			ends: func(w *world, c *fakeChild) {
				w.send("cancel", cancelOf("e1"))
				synctest.Wait()
				c.exits(keeper.Exited{Left: 1})
			},
		},
		{
			name: "at the end", reason: wire.ReasonExit, state: wire.StateCompleted, noFeed: true,
			arrange: func(w *world) { w.feed.set("finished", 0) },
			ends:    func(_ *world, c *fakeChild) { c.exits(keeper.Exited{Gone: true}); c.close() },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				other, o := w.started(text("x"))
				tt.arrange(w)
				start := w.send("start", startOf("e1", text("x")))
				synctest.Wait()
				w.keeper.set(func(k *fakeKeeper) { k.broken = nil })
				p := w.worker.deps.dir.process(tenant, w.session.byExecOf("e1"))
				if p == nil {
					t.Fatal("it is gone")
				}
				wait := w.sendTo(p.id, "wait", &wire.Wait{Version: wire.Version, ProcessRef: ref(p.id), WaitMS: 600_000})
				synctest.Wait()
				c := w.keeper.child(p.id)
				if tt.ends != nil {
					take[wire.Receipt](start)
					tt.ends(w, c)
				}
				end, err := got[wire.Receipt](wait)
				if err == nil {
					wantEnd(t, end, tt.state, tt.reason)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				rc, ends := w.store.record("e1")
				if wantEnd(t, &rc, tt.state, tt.reason); ends != 1 {
					t.Errorf("%d ends are recorded", ends)
				}
				if tt.reason == wire.ReasonInternal {
					if rc.Error == nil || rc.Error.Code != wire.CodeInternal {
						t.Errorf("error %v", rc.Error)
					}
					if stops, left, _ := c.seen(); len(stops)+len(left) == 0 {
						t.Error("nothing was killed")
					}
				}
				if n, _ := w.feed.count("finished"); n != 1 && !tt.noFeed {
					t.Errorf("finished was told %d times", n)
				}
				// The session goes on, and so does the other process.
				if _, again := w.started(text("x")); again == nil {
					t.Error("no start after it")
				}
				if stops, _, _ := o.seen(); len(stops) != 0 {
					t.Errorf("the other was stopped: %v", stops)
				}
				if s := take[wire.Receipt](w.sendTo(other.Process, "status", &wire.Status{Version: wire.Version, ProcessRef: ref(other.Process)})); s.State != wire.StateRunning {
					t.Errorf("the other is %s", s.State)
				}
			})
		})
	}
}

// byExecOf is for tests that have waited for the session to be idle.
func (s *session) byExecOf(execution string) string {
	if p := s.byExec[execution]; p != nil {
		return p.id
	}
	return ""
}

// A store that panics costs nothing but the record, which is written at the next try.
func TestAPanicOfTheWriterOfTheRecord(t *testing.T) {
	inBubble(t, func(w *world) {
		r, c := w.started(text("x"))
		w.store.set(func(s *fakeStore) { s.panics = 1 })
		c.exits(keeper.Exited{Gone: true})
		c.close()
		wantEnd(t, w.waitFor(r.Process), wire.StateCompleted, wire.ReasonExit)
		w.once(r.ExecutionID, wire.StateCompleted)
	})
}

// A panic in one call is that call's: the process goes on.
func TestAPanicOfACall(t *testing.T) {
	inBubble(t, func(w *world) {
		r, c := w.started(text("x"))
		p := w.worker.deps.dir.process(tenant, r.Process)
		q, call := w.request("read", &wire.Read{Version: wire.Version, ProcessRef: ref(r.Process)})
		p.reports <- report{kind: reportBackgrounded} // something harmless first
		synctest.Wait()
		done := make(chan struct{})
		p.owned(func() { close(done) })
		<-done
		p.waiting(q, func() { panic("render") })
		if code := refusal(call); code != wire.CodeInternal {
			t.Errorf("answered %s", code)
		}
		c.exits(keeper.Exited{Gone: true})
		c.close()
		wantEnd(t, w.waitFor(r.Process), wire.StateCompleted, wire.ReasonExit)
	})
}

// A panic of a session ends it, with all it owns, and no other.
func TestAPanicOfASession(t *testing.T) {
	inBubble(t, func(w *world) {
		other := w.open("s2")
		r, c := w.started(text("x"))
		w.worker.deps.aside = func(request, func(context.Context)) { panic("aside") }
		if code := refusal(w.send("cancel", cancelOf("e9"))); code != wire.CodeInternal {
			t.Errorf("answered %s", code)
		}
		<-w.session.done
		if stops, _, _ := c.seen(); len(stops) == 0 || stops[0].cause != wire.ReasonSessionClosed {
			t.Errorf("its process was stopped %v", stops)
		}
		w.once(r.ExecutionID, wire.StateCancelled)
		w.session = other
		w.started(text("x"))
	})
}
