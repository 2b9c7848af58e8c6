package actors

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// The store is away for 30 s: the answer comes after two, with a note; the record is
// written when the store is back, once.
func TestSealPatience(t *testing.T) {
	for name, away := range map[string]func(*fakeStore){
		"refuses": func(s *fakeStore) { s.down = bus.ErrDisconnected },
		"hangs":   func(s *fakeStore) { s.hang = true },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				run := w.send("run", runOf("e1", text("x")))
				synctest.Wait()
				w.store.set(away)
				c := w.keeper.only()
				c.close()
				synctest.Wait()
				c.exits(keeper.Exited{Gone: true})
				// Something that publishes does not show an end that is not tried yet.
				w.worker.deps.dir.process(tenant, c.id).reports <- report{kind: reportWritten, write: writeCall{r: unasked()}}
				synctest.Wait()
				if now := take[wire.Receipt](w.sendTo(c.id, "status", &wire.Status{Version: wire.Version, ProcessRef: ref(c.id)})); now.State != wire.StateRunning || now.ExitCode == nil {
					t.Errorf("before the record is tried: %+v", now)
				}
				res := take[wire.Result](run)
				wantTime(t, "answered", w.after(), sealPatience)
				if res.Receipt.State != wire.StateCompleted || len(res.Receipt.Notes) == 0 || !strings.Contains(res.Receipt.Notes[0], "still to be written") {
					t.Errorf("%+v", res.Receipt)
				}
				if _, _, released := c.seen(); released != 0 {
					t.Error("the keeper was told to forget what is not recorded")
				}
				time.Sleep(28 * time.Second)
				if name == "hangs" {
					return // registry bounds a call; here it goes on until the actor leaves
				}
				w.store.set(func(s *fakeStore) { s.down = nil })
				time.Sleep(2 * time.Second)
				w.once("e1", wire.StateCompleted)
				if rc, _ := w.store.record("e1"); len(rc.Notes) != 0 {
					t.Errorf("the record says that it is not written: %v", rc.Notes)
				}
				if _, _, released := c.seen(); released != 1 {
					t.Errorf("released %d times", released)
				}
			})
		})
	}
}

// What is not recorded is not evicted: nothing else knows how it ended.
func TestWhatIsNotRecordedIsNotEvicted(t *testing.T) {
	inBubble(t, func(w *world) {
		var ids []string
		for range 4 {
			r, _ := w.started(text("x"))
			ids = append(ids, r.Process)
			time.Sleep(time.Millisecond)
		}
		w.store.set(func(s *fakeStore) { s.down = bus.ErrDisconnected })
		for _, id := range ids {
			c := w.keeper.child(id)
			c.exits(keeper.Exited{Gone: true})
			c.close()
			time.Sleep(time.Second)
		}
		time.Sleep(sealPatience)
		if l := take[wire.Processes](w.send("list", &wire.List{Version: wire.Version, SessionRef: wire.SessionRef{Session: "s1"}})); len(l.Processes) != 4 {
			t.Errorf("%d are listed", len(l.Processes))
		}
		w.store.set(func(s *fakeStore) { s.down = nil })
		time.Sleep(2 * time.Second)
		l := take[wire.Processes](w.send("list", &wire.List{Version: wire.Version, SessionRef: wire.SessionRef{Session: "s1"}}))
		if len(l.Processes) != 2 || l.Sessions[0].Retained != 2 || l.Processes[0].Process != ids[2] {
			t.Errorf("%d are listed, %d retained", len(l.Processes), l.Sessions[0].Retained)
		}
		if n, _ := w.feed.count("finished"); n != 4 {
			t.Errorf("%d are told as finished", n)
		}
	})
}

// A session whose store is away ends its processes, says within two seconds that it
// could not write, and writes when the store is back.
func TestCloseWhileTheStoreIsAway(t *testing.T) {
	inBubble(t, func(w *world) {
		r, _ := w.started(text("x"))
		w.store.set(func(s *fakeStore) { s.down = bus.ErrDisconnected })
		call := w.send("close", &wire.CloseSession{Version: wire.Version, SessionRef: wire.SessionRef{Session: "s1"}})
		if code := refusal(call); code != wire.CodeUnavailable {
			t.Errorf("answered %s", code)
		}
		wantTime(t, "answered", w.after(), 2*sealPatience)
		if code := refusal(w.send("start", startOf("", text("x")))); code != wire.CodeSessionClosed {
			t.Errorf("a start is answered %s", code)
		}
		w.store.set(func(s *fakeStore) { s.down = nil })
		<-w.session.done
		w.once(r.ExecutionID, wire.StateCancelled)
		if !slices.Equal(w.store.closed, []string{"s1"}) {
			t.Errorf("closed %v", w.store.closed)
		}
	})
}

// A stop of a long grace does not hold up a close, and what does not die is given up.
func TestCloseEscalatesAndGivesUp(t *testing.T) {
	inBubble(t, func(w *world) {
		w.keeper.set(func(k *fakeKeeper) { k.lazy = true })
		r, c := w.started(text("x"))
		call := w.send("close", &wire.CloseSession{Version: wire.Version, SessionRef: wire.SessionRef{Session: "s1"}})
		if s := take[wire.Session](call); !s.Closed {
			t.Errorf("%+v", s)
		}
		wantTime(t, "closed", w.after(), defaultGrace+2*collectLimit+goneLimit)
		stops, _, released := c.seen()
		if len(stops) != 2 || stops[1].mode != keeper.Kill || released == 0 {
			t.Errorf("stops %v, released %d times", stops, released)
		}
		w.once(r.ExecutionID, wire.StateOutcomeUnknown)
		if rc, _ := w.store.record(r.ExecutionID); rc.Reason != wire.ReasonSessionClosed || rc.Error == nil || rc.Error.Code != wire.CodeTeardownFailed {
			t.Errorf("%+v", rc)
		}
	})
}
