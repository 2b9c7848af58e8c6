package actors

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// permutations of the letters of s.
func permutations(s string) []string {
	if len(s) <= 1 {
		return []string{s}
	}
	var out []string
	for i := range s {
		for _, rest := range permutations(s[:i] + s[i+1:]) {
			out = append(out, s[i:i+1]+rest)
		}
	}
	return out
}

// TestEveryOrder runs what can happen to a process in every order there is:
//
//	S the fork is answered     E the command exits      G the tree is gone
//	P the streams end          C cancel by its id       T terminate
//	X the session closes       L the keeper is lost     D the store comes back, from away
//
// Whatever the order: one terminal state, written once, told once; one answer a call;
// nothing left of the actor. The keeper tells an exit before it tells gone.
func TestEveryOrder(t *testing.T) {
	sets := []string{"SEGPC", "SEGPT", "SEGPX", "SEGPL", "SEGPCX", "SEGPD"}
	if testing.Short() {
		sets = sets[:4]
	}
	for _, set := range sets {
		t.Run(set, func(t *testing.T) {
			for _, order := range permutations(set) {
				if strings.Index(order, "E") > strings.Index(order, "G") {
					continue
				}
				for _, whole := range []bool{false, true} { // the exit says that nothing is left
					playOrder(t, order, whole)
				}
			}
		})
	}
}

func playOrder(t *testing.T, order string, whole bool) {
	inBubble(t, func(w *world) {
		w.worker.lost = make(chan error, 1)
		w.keeper.set(func(k *fakeKeeper) { k.gate, k.lazy = make(chan struct{}), true })
		gate := w.keeper.gate
		start := w.send("start", startOf("e1", text("x")))
		synctest.Wait()
		id := w.session.byExecOf("e1")
		p, c := w.session.members[id], w.keeper.child(id)
		c.lazy = true
		if strings.Contains(order, "D") {
			w.store.set(func(s *fakeStore) { s.down = wire.Errorf(wire.CodeUnavailable, "away") })
		}
		var call *pendingCall
		for _, e := range order {
			switch e {
			case 'S':
				close(gate)
			case 'E':
				c.exits(keeper.Exited{Cause: c.cause(), Gone: whole, Left: 1})
			case 'G':
				c.goes(1)
			case 'P':
				c.close()
			case 'C':
				if !isDone(w.session.done) {
					call = w.send("cancel", cancelOf("e1"))
				}
			case 'T':
				call = w.sendTo(id, "terminate", &wire.Terminate{Version: wire.Version, ProcessRef: ref(id), Mode: "kill"})
			case 'X':
				w.send("close", &wire.CloseSession{Version: wire.Version, SessionRef: wire.SessionRef{Session: "s1"}})
			case 'L':
				w.worker.deliver(keeper.Event{Lost: &keeper.Lost{}})
			case 'D':
				w.store.set(func(s *fakeStore) { s.down = nil })
			}
			synctest.Wait()
		}
		_, _ = got[wire.Receipt](start)
		if call != nil {
			_, _ = got[wire.Receipt](call)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		what := fmt.Sprintf("%s, whole %v", order, whole)
		rc, ends := w.store.record("e1")
		finished, last := w.feed.count("finished")
		started, _ := w.feed.count("started")
		if !rc.State.Terminal() || ends != 1 {
			t.Errorf("%s: recorded as %s, %d ends", what, rc.State, ends)
		}
		if started != 1 || finished != 1 || last.State != rc.State {
			t.Errorf("%s: told as started %d times, as finished %d times with %s; recorded is %s", what, started, finished, last.State, rc.State)
		}
		if seen := p.seen(); seen.State != rc.State || !isDone(p.ended) || !isDone(p.exited) {
			t.Errorf("%s: seen as %s, recorded as %s", what, seen.State, rc.State)
		}
		if !strings.Contains(order, "L") && rc.State == wire.StateOutcomeUnknown {
			t.Errorf("%s: outcome unknown", what)
		}
		if _, _, released := c.seen(); released == 0 {
			t.Errorf("%s: the keeper was never told to forget", what)
		}
		if n := w.session.live.Load(); n != 0 {
			t.Errorf("%s: %d live", what, n)
		}
	})
}

// cause is why the keeper would say that the command ended now.
func (c *fakeChild) cause() wire.Reason {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.stops) > 0 {
		return c.stops[0].cause
	}
	return wire.ReasonExit
}
