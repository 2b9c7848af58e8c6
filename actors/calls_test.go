package actors

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/subjects/wire"
)

func TestRunYields(t *testing.T) {
	inBubble(t, func(w *world) {
		m := runOf("e1", text("x"))
		m.YieldMS = 3000
		res := take[wire.Result](w.send("run", m))
		wantTime(t, "yielded", w.after(), 3*time.Second)
		if !res.Yielded || res.Receipt.State != wire.StateRunning || res.OnTimeout != wire.OnTimeoutKill {
			t.Errorf("%+v", res)
		}
		again := take[wire.Result](w.send("run", m)) // a retry waits anew
		if !again.Yielded || again.Receipt.Process != res.Receipt.Process {
			t.Errorf("%+v", again)
		}
		synctest.Wait()
		if n, _ := w.feed.count("backgrounded"); n != 1 {
			t.Errorf("told as backgrounded %d times", n)
		}
	})
}

func TestRunGoesOnPastItsTimeout(t *testing.T) {
	for _, mode := range []wire.OnTimeout{wire.OnTimeoutBackground, wire.OnTimeoutDetach} {
		inBubble(t, func(w *world) {
			m := runOf("e1", wire.Command{Text: "x", TimeoutMS: 5000, Stdin: wire.StdinPipe})
			m.OnTimeout = mode
			res := take[wire.Result](w.send("run", m))
			wantTime(t, "yielded", w.after(), 5*time.Second)
			if !res.Yielded || res.OnTimeout != mode || res.Receipt.Deadline != nil {
				t.Errorf("%+v", res)
			}
			synctest.Wait()
			c := w.keeper.only()
			if c.spec.Timeout != 0 {
				t.Errorf("the keeper was told a timeout of %v", c.spec.Timeout)
			}
			c.mu.Lock()
			closed := c.closed
			c.mu.Unlock()
			if want := mode == wire.OnTimeoutDetach; closed != want {
				t.Errorf("%s: stdin is closed: %v", mode, closed)
			}
			if n, _ := w.feed.count("backgrounded"); n != 1 {
				t.Errorf("told as backgrounded %d times", n)
			}
		})
	}
}

func TestWaitExpiresAndCancelsNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		r, _ := w.started(text("x"))
		now := take[wire.Receipt](w.sendTo(r.Process, "wait", &wire.Wait{Version: wire.Version, ProcessRef: ref(r.Process), WaitMS: 7000}))
		wantTime(t, "expired", w.after(), 7*time.Second)
		if now.State != wire.StateRunning || now.CancelRequested {
			t.Errorf("%+v", now)
		}
	})
}

// Waiting calls are bounded, and so is the mailbox; what is refused is told.
func TestBoundsOfOneProcess(t *testing.T) {
	inBubble(t, func(w *world) {
		r, _ := w.started(text("x"))
		wait := &wire.Wait{Version: wire.Version, ProcessRef: ref(r.Process), WaitMS: 60_000}
		var calls []*pendingCall
		for range maxWaiters + 3 {
			calls = append(calls, w.sendTo(r.Process, "wait", wait))
			synctest.Wait()
		}
		for _, c := range calls[maxWaiters:] {
			if code := refusal(c); code != wire.CodeOverloaded {
				t.Errorf("one more is answered %s", code)
			}
		}
		if s := take[wire.Receipt](w.sendTo(r.Process, "status", &wire.Status{Version: wire.Version, ProcessRef: ref(r.Process)})); s.State != wire.StateRunning {
			t.Errorf("%+v", s)
		}
		for _, c := range calls[:maxWaiters] {
			take[wire.Receipt](c)
		}
		take[wire.Receipt](w.sendTo(r.Process, "wait", &wire.Wait{Version: wire.Version, ProcessRef: ref(r.Process), WaitMS: 1}))
	})
}

func TestAFullMailboxIsAnswered(t *testing.T) {
	inBubble(t, func(w *world) {
		w.store.set(func(s *fakeStore) { s.gate = make(chan struct{}) })
		first := w.send("start", startOf("e1", text("x")))
		synctest.Wait()
		p := w.session.byExec["e1"]
		var calls []*pendingCall
		for range maxWaiters + inboxSize { // retries, which wait for the first
			calls = append(calls, w.send("start", startOf("e1", text("x"))))
			synctest.Wait()
		}
		over := 0
		w.store.set(func(s *fakeStore) { close(s.gate); s.gate = nil })
		id := take[wire.Receipt](first).Process
		for _, c := range calls {
			r, err := got[wire.Receipt](c)
			switch {
			case errors.Is(err, &wire.Error{Code: wire.CodeOverloaded}):
				over++
			case err != nil || r.Process != id:
				t.Fatalf("%v, %v", r, err)
			}
		}
		if over != inboxSize+1 || p.id != id {
			t.Errorf("%d of %d are refused", over, len(calls))
		}
		if w.keeper.forks != 1 {
			t.Errorf("%d forks", w.keeper.forks)
		}
	})
}

// A write that waits for output does not hold up the next.
func TestWritesKeepTheirOrderAndDoNotWaitForPages(t *testing.T) {
	inBubble(t, func(w *world) {
		r, c := w.started(wire.Command{Text: "x", Stdin: wire.StdinPipe})
		write := func(s string, read *wire.Read) *pendingCall {
			return w.sendTo(r.Process, "write", &wire.Write{Version: wire.Version, ProcessRef: ref(r.Process), Text: s, Read: read})
		}
		slow := write("a", &wire.Read{Version: wire.Version, ProcessRef: ref(r.Process), WaitMS: 30_000})
		for i := range 5 {
			if rec := take[wire.Receipt](write(fmt.Sprint(i), nil)); rec.StdinBytes != int64(i+2) {
				t.Errorf("%d bytes after write %d", rec.StdinBytes, i)
			}
		}
		closing := w.sendTo(r.Process, "close_stdin", &wire.CloseStdin{Version: wire.Version, ProcessRef: ref(r.Process)})
		if rec := take[wire.Receipt](closing); rec.StdinOpen || w.after() != 0 {
			t.Errorf("%+v after %v", rec, w.after())
		}
		if !slices.Equal(c.written, []string{"a", "0", "1", "2", "3", "4"}) {
			t.Errorf("written %q", c.written)
		}
		if code := refusal(write("late", nil)); code != wire.CodeStdinClosed {
			t.Errorf("a write after the close is answered %s", code)
		}
		c.says("there")
		if rec := take[wire.Receipt](slow); rec.Page == nil || len(rec.Page.Chunks) != 1 {
			t.Errorf("%+v", rec)
		}
	})
}

func TestInlineInputComesFirst(t *testing.T) {
	inBubble(t, func(w *world) {
		w.keeper.set(func(k *fakeKeeper) { k.gate = make(chan struct{}) })
		start := w.send("start", startOf("e1", wire.Command{Text: "x", Input: []byte("first"), Stdin: wire.StdinPipe}))
		synctest.Wait()
		p := w.session.byExec["e1"]
		write := w.sendTo(p.id, "write", &wire.Write{Version: wire.Version, ProcessRef: ref(p.id), Text: "second"})
		synctest.Wait()
		close(w.keeper.gate)
		take[wire.Receipt](start)
		if rec := take[wire.Receipt](write); rec.StdinBytes != 11 || !rec.StdinOpen {
			t.Errorf("%+v", rec)
		}
		if c := w.keeper.only(); !slices.Equal(c.written, []string{"first", "second"}) {
			t.Errorf("written %q", c.written)
		}
	})
}

// What comes before the fork waits for it; nothing is answered and then not done.
func TestCallsBeforeTheFork(t *testing.T) {
	inBubble(t, func(w *world) {
		w.keeper.set(func(k *fakeKeeper) { k.gate = make(chan struct{}) })
		start := w.send("start", startOf("e1", text("x")))
		synctest.Wait()
		p := w.session.byExec["e1"]
		signal := w.sendTo(p.id, "signal", &wire.Signal{Version: wire.Version, ProcessRef: ref(p.id), Signal: "USR1"})
		status := w.sendTo(p.id, "status", &wire.Status{Version: wire.Version, ProcessRef: ref(p.id)})
		if r := take[wire.Receipt](status); r.State != wire.StateStarting {
			t.Errorf("%+v", r)
		}
		synctest.Wait()
		close(w.keeper.gate)
		take[wire.Receipt](start)
		take[wire.Receipt](signal)
		if c := w.keeper.only(); len(c.signals) != 1 {
			t.Errorf("signals %v", c.signals)
		}
	})
}

// A worker that leaves answers what waits, and waits for forks that are under way.
func TestLeave(t *testing.T) {
	inBubble(t, func(w *world) {
		w.keeper.set(func(k *fakeKeeper) { k.gate = make(chan struct{}) })
		starting := w.send("start", startOf("e1", text("x")))
		synctest.Wait()
		gate := w.keeper.gate
		w.keeper.set(func(k *fakeKeeper) { k.gate = nil })
		running, _ := w.started(text("x"))
		wait := w.sendTo(running.Process, "wait", &wire.Wait{Version: wire.Version, ProcessRef: ref(running.Process), WaitMS: 600_000})
		w.keeper.set(func(k *fakeKeeper) { k.gate = make(chan struct{}) })
		stuck := w.send("start", startOf("e3", text("x")))
		synctest.Wait()
		p := w.session.byExec["e1"]
		w.session.ending <- closing{keep: true}
		time.Sleep(time.Second)
		close(gate)
		if r := take[wire.Receipt](starting); r.State != wire.StateRunning {
			t.Errorf("%+v", r)
		}
		if code := refusal(stuck); code != wire.CodeSupervisorShuttingDown {
			t.Errorf("the stuck start is answered %s", code)
		}
		wantTime(t, "left", w.after(), collectLimit)
		if r := take[wire.Receipt](wait); r.State != wire.StateRunning {
			t.Errorf("%+v", r)
		}
		<-w.session.done
		for _, c := range w.keeper.children {
			if stops, _, released := c.seen(); len(stops) != 0 || released != 0 {
				t.Errorf("a child was stopped %v, released %d times", stops, released)
			}
		}
		late := w.send("list", &wire.List{Version: wire.Version, SessionRef: wire.SessionRef{Session: "s1"}})
		if code := refusal(late); code != wire.CodeSupervisorShuttingDown {
			t.Errorf("a late list is answered %s", code)
		}
		r, c := w.request("status", &wire.Status{Version: wire.Version, ProcessRef: ref(p.id)})
		p.deliver(r)
		if code := refusal(c); code != wire.CodeSupervisorShuttingDown {
			t.Errorf("a late status is answered %s", code)
		}
	})
}

// Whatever is asked of an evicted process, and however late, is answered.
func TestLateCallsAreAnswered(t *testing.T) {
	inBubble(t, func(w *world) {
		r, c := w.started(text("x"))
		p := w.worker.deps.dir.process(tenant, r.Process)
		c.exits(keeper.Exited{Gone: true})
		c.close()
		w.waitFor(r.Process)
		for range 2 {
			_, c := w.started(text("x"))
			c.exits(keeper.Exited{Gone: true})
			c.close()
			synctest.Wait()
		}
		if w.worker.deps.dir.process(tenant, r.Process) != nil || !isDone(p.done) {
			t.Fatal("it was not evicted")
		}
		q, call := w.request("read", &wire.Read{Version: wire.Version, ProcessRef: ref(r.Process)})
		p.deliver(q) // as a router that looked it up just before
		if code := refusal(call); code != wire.CodeExpired {
			t.Errorf("answered %s", code)
		}
	})
}
