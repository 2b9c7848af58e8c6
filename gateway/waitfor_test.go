package gateway_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// waiters lets a worker answer wait_for: each process is met, ended or refused when the
// test says so, and not before.
type waiters struct {
	w    *worker
	mu   sync.Mutex
	done map[string]chan struct{}    // guarded by mu; closed when res counts
	res  map[string]wire.ProcessWait // guarded by mu
	seen map[string][]wire.WaitFor   // guarded by mu; what was asked
	open int                         // guarded by mu; waits under way
	quit chan struct{}
	all  sync.WaitGroup
}

func newWaiters(w *worker) *waiters {
	x := &waiters{w: w, done: map[string]chan struct{}{}, res: map[string]wire.ProcessWait{}, seen: map[string][]wire.WaitFor{}, quit: make(chan struct{})}
	w.answers(x.answer)
	w.tb.Cleanup(func() { // before its connection is closed
		x.mu.Lock()
		close(x.quit)
		x.mu.Unlock()
		x.all.Wait()
	})
	return x
}

func (x *waiters) channel(id string) chan struct{} {
	if x.done[id] == nil {
		x.done[id] = make(chan struct{})
	}
	return x.done[id]
}

// set lets a wait for a process be answered.
func (x *waiters) set(id string, res wire.ProcessWait) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.res[id] = res
	close(x.channel(id))
}

func (x *waiters) answer(r *bus.Request, t subjects.Target) bool {
	if t.Verb != wire.VerbWaitFor {
		return false
	}
	req, err := wire.DecodeRequest(t.Verb, r.ContentType(), r.Data)
	if err != nil {
		x.w.check(r.RespondError(err))
		return true
	}
	m := req.(*wire.WaitFor)
	x.mu.Lock()
	defer x.mu.Unlock()
	select {
	case <-x.quit:
		return true
	default:
	}
	done := x.channel(t.Process)
	x.seen[t.Process] = append(x.seen[t.Process], *m)
	x.open++
	x.all.Go(func() { // ends with the piece of the wait
		select {
		case <-done:
		case <-x.quit:
		case <-time.After(time.Duration(m.WaitMS) * time.Millisecond):
		}
		x.mu.Lock()
		res := wire.ProcessWait{}
		select {
		case <-done:
			res = x.res[t.Process]
		default:
		}
		x.open--
		x.mu.Unlock()
		if res.Error != nil {
			x.w.check(r.RespondError(res.Error))
			return
		}
		res.Process = t.Process
		respond(x.w, r, &wire.Waited{Version: 1, Met: res.Met, Results: []wire.ProcessWait{res}})
	})
	return true
}

func (x *waiters) under() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.open
}

func (x *waiters) asked(id string) []wire.WaitFor {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.seen[id])
}

// several is a world of two workers with two processes each.
func several(t *testing.T) (tenant *bus.Conn, one, two *waiters, ids []string) {
	t.Helper()
	s := server(t)
	w1, w2 := newWorker(t, s, "w1"), newWorker(t, s, "w2")
	for _, id := range []string{"a", "b"} {
		w1.record(wire.Receipt{Process: id, Tenant: "local", Session: "s1", State: wire.StateRunning})
	}
	for _, id := range []string{"c", "d"} {
		w2.record(wire.Receipt{Process: id, Tenant: "local", Session: "s1", State: wire.StateRunning})
	}
	serve(t, s, "g1")
	return connect(t, s, subjects.RoleTenant, "local"), newWaiters(w1), newWaiters(w2), []string{"c", "a", "d", "b"}
}

func waitForAll(t *testing.T, conn *bus.Conn, m wire.WaitFor) (*wire.Waited, time.Duration) {
	t.Helper()
	m.Version = 1
	began := time.Now()
	got := mustAsk[wire.Waited](t, conn, "local", wire.VerbWaitFor, &m)
	return got, time.Since(began)
}

func TestWaitForSeveral(t *testing.T) {
	met := wire.ProcessWait{Met: true, Match: &wire.Match{Line: "ready"}}
	ended := wire.ProcessWait{Ended: true}
	refused := wire.ProcessWait{Error: wire.Errorf(wire.CodeExpired, "gone")}
	for _, tt := range []struct {
		name, mode string
		set        map[string]wire.ProcessWait
		met        bool
		over       bool // before the time is up
	}{
		{"any, none", "", nil, false, false},
		{"any, the third", "any", map[string]wire.ProcessWait{"d": met}, true, true},
		{"any, one ended", "", map[string]wire.ProcessWait{"a": ended}, false, false},
		{"any, all ended or refused", "", map[string]wire.ProcessWait{"a": ended, "b": refused, "c": ended, "d": refused}, false, true},
		{"any, the last of all", "", map[string]wire.ProcessWait{"a": ended, "b": met, "c": refused}, true, true},
		{"all, but one", "all", map[string]wire.ProcessWait{"a": met, "b": met, "c": met}, false, false},
		{"all", "all", map[string]wire.ProcessWait{"a": met, "b": met, "c": met, "d": met}, true, true},
		{"all met or ended", "all", map[string]wire.ProcessWait{"a": met, "b": ended, "c": refused, "d": met}, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			conn, one, two, ids := several(t)
			for id, res := range tt.set {
				x := one
				if id >= "c" {
					x = two
				}
				time.AfterFunc(30*time.Millisecond, func() { x.set(id, res) })
			}
			wait := 700 * time.Millisecond
			if tt.over {
				wait = 50 * time.Second // and the answer comes long before
			}
			got, took := waitForAll(t, conn, wire.WaitFor{Processes: ids, Mode: tt.mode, For: "pattern", Pattern: "ready", WaitMS: wait.Milliseconds()})
			if got.Met != tt.met || len(got.Results) != 4 || tt.over != (took < wait-100*time.Millisecond) {
				t.Errorf("met %v after %v, %+v", got.Met, took, got.Results)
			}
			for i, r := range got.Results {
				want, set := tt.set[ids[i]]
				if r.Process != ids[i] {
					t.Errorf("result %d is of %s, want %s", i, r.Process, ids[i])
				}
				if tt.mode != "all" && tt.met && !r.Met {
					continue // the answer did not wait for it
				}
				if set && (r.Met != want.Met || r.Ended != want.Ended || (r.Error == nil) != (want.Error == nil)) || !set && (r.Met || r.Ended || r.Error != nil) {
					t.Errorf("%s: %+v, want %+v", r.Process, r, want)
				}
			}
		})
	}
}

// What the workers are asked is the request of each process, and ends soon after nobody
// needs it.
func TestWaitForSeveralLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	conn, one, two, ids := several(t)
	cursor := int64(7)
	time.AfterFunc(300*time.Millisecond, func() { one.set("b", wire.ProcessWait{Met: true}) })
	got, took := waitForAll(t, conn, wire.WaitFor{
		Processes: ids, ProcessRef: wire.ProcessRef{InSession: "s1"}, For: "pattern", Pattern: "x+", Stream: "stderr", Cursor: &cursor, WaitMS: 600_000,
	})
	if !got.Met || !got.Results[3].Met || took > patience/2 {
		t.Errorf("%+v after %v", got, took)
	}
	for until := time.Now().Add(patience); one.under()+two.under() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%d waits go on", one.under()+two.under())
		}
	}
	for _, m := range append(two.asked("c"), one.asked("a")...) {
		if m.Process == "" || len(m.Processes) > 0 || m.Mode != "" || m.InSession != "s1" || m.Pattern != "x+" || m.Stream != "stderr" || *m.Cursor != 7 ||
			m.WaitMS > 2*took.Milliseconds()+1000 {
			t.Errorf("%+v", m)
		}
	}
	// Quiet counts from the call: each piece says how long was waited before it.
	before := len(two.asked("d"))
	waitForAll(t, conn, wire.WaitFor{Processes: []string{"d"}, For: "quiet", QuietMS: 500, WaitedMS: 100, WaitMS: 600})
	waited := int64(100)
	for _, m := range two.asked("d")[before:] {
		if m.WaitedMS < waited {
			t.Errorf("%d were waited, and it says %d", waited, m.WaitedMS)
		}
		waited = m.WaitedMS + m.WaitMS
	}
	if waited < 600 {
		t.Errorf("%d were waited in all", waited)
	}
}

// One that is unknown, in another session, or on a worker that is gone, fails none of the
// others; and a worker that comes back is asked again.
func TestWaitForSeveralWithOneLost(t *testing.T) {
	t.Parallel()
	conn, one, two, _ := several(t)
	two.w.stop()
	time.AfterFunc(900*time.Millisecond, func() { one.set("a", wire.ProcessWait{Met: true}) })
	got, took := waitForAll(t, conn, wire.WaitFor{
		Processes: []string{"never", "c", "a"}, ProcessRef: wire.ProcessRef{InSession: "s1"}, For: "port", Port: 80, WaitMS: 30_000,
	})
	if !got.Met || took > 25*time.Second {
		t.Errorf("%+v after %v", got, took)
	}
	if e := got.Results[0].Error; e == nil || e.Code != wire.CodeNotFound {
		t.Errorf("never: %+v", e)
	}
	if e := got.Results[1].Error; e == nil || e.Code != wire.CodeUnreachable || e.Details["owner"] != wire.OwnerUnreachable || e.Details["state"] != "running" {
		t.Errorf("c: %+v", e)
	}
	booted := make(chan struct{})
	time.AfterFunc(100*time.Millisecond, func() { defer close(booted); two.w.boot() })
	two.set("c", wire.ProcessWait{Met: true})
	got, took = waitForAll(t, conn, wire.WaitFor{Processes: []string{"c", "b"}, For: "port", Port: 80, WaitMS: 30_000})
	if !got.Met || !got.Results[0].Met || got.Results[0].Error != nil || took > 25*time.Second {
		t.Errorf("%+v after %v", got, took)
	}
	<-booted
	// None can be asked: nobody is waited for.
	two.w.stop()
	got, took = waitForAll(t, conn, wire.WaitFor{Processes: []string{"d", "never"}, For: "file", Path: "x", WaitMS: 9000})
	if got.Met || took > patience/2 || got.Results[0].Error == nil || got.Results[1].Error == nil {
		t.Errorf("%+v after %v", got, took)
	}
}

// A worker that hangs is said not to have answered, in time for the caller's deadline.
func TestWaitForSeveralHeedsTheDeadline(t *testing.T) {
	t.Parallel()
	conn, one, two, ids := several(t)
	two.w.answers(func(_ *bus.Request, t subjects.Target) bool { return t.Verb == wire.VerbWaitFor }) // and never answers
	one.set("a", wire.ProcessWait{Ended: true})
	data, err := wire.Marshal("", &wire.WaitFor{Version: 1, Processes: ids, Mode: "all", WaitMS: 600_000})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(1500 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	m, err := conn.Request(ctx, conn.Root().API("local", wire.VerbWaitFor), bus.Header{subjects.HeaderDeadline: {time2ms(at)}}, data)
	if err != nil {
		t.Fatal(err)
	}
	got, err := wire.DecodeReply[wire.Waited]("", m.Data)
	if err != nil {
		t.Fatal(err)
	}
	if time.Until(at) > time.Second {
		t.Error("it was answered long before the deadline")
	}
	for i, want := range []bool{true, false, true, false} {
		e := got.Results[i].Error
		if (e != nil) != want || want && (e.Code != wire.CodeUnreachable || e.Details["owner"] != wire.OwnerUnreachable) {
			t.Errorf("%s: %+v", ids[i], got.Results[i])
		}
	}
	if !got.Results[1].Ended {
		t.Errorf("%+v", got.Results[1])
	}
}

// end and exit are answered from the record when the worker is gone.
func TestWaitForFromTheRecord(t *testing.T) {
	s := server(t)
	w := newWorker(t, s, "w1")
	w.process("local", "live", wire.StateRunning)
	w.process("local", "over", wire.StateFailed)
	serve(t, s, "g1")
	conn := connect(t, s, subjects.RoleTenant, "local")
	w.stop()
	for _, what := range []string{"", "end", "exit"} {
		for id, over := range map[string]bool{"live": false, "over": true} {
			got, took := waitForAll(t, conn, wire.WaitFor{ProcessRef: ref(id), For: what, WaitMS: 600_000})
			if r := got.Results[0]; got.Met != over || r.Met != over || r.Ended != over || r.Receipt == nil || (r.Receipt.State == wire.StateUnreachable) == over || took > patience/2 {
				t.Errorf("%s of %s: %+v after %v", what, id, got, took)
			}
		}
		got, _ := waitForAll(t, conn, wire.WaitFor{Processes: []string{"live", "over"}, For: what, WaitMS: 9000})
		if !got.Met || !got.Results[1].Met {
			t.Errorf("%s of both: %+v", what, got)
		}
	}
	for _, m := range []wire.WaitFor{{For: "pattern", Pattern: "x"}, {For: "port", Port: 1}, {For: "file", Path: "x"}, {For: "quiet", QuietMS: 1}} {
		m.Version, m.ProcessRef = 1, ref("live")
		_, err := ask[wire.Waited](t, conn, "local", wire.VerbWaitFor, &m)
		if e := wire.AsError(err); e == nil || e.Code != wire.CodeUnreachable || e.Details["state"] != "running" || e.Details["reached"] != false {
			t.Errorf("%s: %+v", m.For, e)
		}
	}
}
