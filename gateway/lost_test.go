package gateway_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/gateway"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// swallow lets a worker take requests of some verbs and never answer them.
func (w *worker) swallow(verbs ...string) (taken *atomic.Int64) {
	taken = new(atomic.Int64)
	w.answers(func(_ *bus.Request, t subjects.Target) bool {
		if !slices.Contains(verbs, t.Verb) || t.Session == "-" {
			return false
		}
		taken.Add(1)
		return true
	})
	return taken
}

func (w *worker) obey() { w.answers(func(*bus.Request, subjects.Target) bool { return false }) }

func awaitCount(t *testing.T, n *atomic.Int64, want int64) {
	t.Helper()
	for until := time.Now().Add(patience); n.Load() < want; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%d of %d", n.Load(), want)
		}
	}
}

// A worker that dies with requests in hand: what may be repeated is asked of the next
// incarnation, the rest is told that nobody knows.
func TestWorkerDiesWithRequests(t *testing.T) {
	t.Parallel()
	s := server(t)
	w := newWorker(t, s, "w1")
	w.process("local", "p1", wire.StateRunning)
	serve(t, s, "g1")
	tenant := connect(t, s, subjects.RoleTenant, "local")
	mustAsk[wire.Session](t, tenant, "local", wire.VerbOpen, &wire.Open{Version: 1, Name: "one"})
	calls := map[string]struct {
		verb string
		m    any
		safe bool
	}{
		"wait":              {wire.VerbWait, &wire.Wait{Version: 1, ProcessRef: ref("p1")}, true},
		"start with id":     {wire.VerbStart, &wire.Start{Version: 1, SessionRef: named("one"), ExecutionID: "x", Command: wire.Command{Text: "true"}}, true},
		"start without":     {wire.VerbStart, &wire.Start{Version: 1, SessionRef: named("one"), Command: wire.Command{Text: "true"}}, false},
		"run with id":       {wire.VerbRun, &wire.Run{Version: 1, SessionRef: named("one"), ExecutionID: "y", Command: wire.Command{Text: "true"}}, true},
		"write with offset": {wire.VerbWrite, &wire.Write{Version: 1, ProcessRef: ref("p1"), Text: "x", Offset: new(int64(0))}, true},
		"write without":     {wire.VerbWrite, &wire.Write{Version: 1, ProcessRef: ref("p1"), Text: "x"}, false},
		"signal":            {wire.VerbSignal, &wire.Signal{Version: 1, ProcessRef: ref("p1"), Signal: "INT"}, false},
		"terminate":         {wire.VerbTerminate, &wire.Terminate{Version: 1, ProcessRef: ref("p1")}, true},
	}
	taken := w.swallow(wire.VerbWait, wire.VerbStart, wire.VerbRun, wire.VerbWrite, wire.VerbSignal, wire.VerbTerminate)
	var all sync.WaitGroup
	for name, c := range calls {
		all.Go(func() {
			_, err := ask[struct{}](t, tenant, "local", c.verb, c.m)
			switch e := wire.AsError(err); {
			case c.safe && err != nil:
				t.Errorf("%s: %v", name, err)
			case !c.safe && (err == nil || e.Code != wire.CodeUnreachable || e.Details["reached"] != true || e.Details["owner"] != wire.OwnerUnreachable):
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	awaitCount(t, taken, int64(len(calls)))
	w.obey()
	w.stop()
	w.boot()
	all.Wait()
}

// A worker that dies and does not come back: whoever waits is answered from the record
// within seconds, and not at the end of its own time.
func TestWorkerDiesForGood(t *testing.T) {
	t.Parallel()
	s := server(t)
	w := newWorker(t, s, "w1")
	w.process("local", "p1", wire.StateRunning)
	serve(t, s, "g1")
	tenant := connect(t, s, subjects.RoleTenant, "local")
	taken := w.swallow(wire.VerbWait, wire.VerbRead, wire.VerbSignal)
	var all sync.WaitGroup
	all.Go(func() {
		if r := mustAsk[wire.Receipt](t, tenant, "local", wire.VerbWait, &wire.Wait{Version: 1, ProcessRef: ref("p1"), WaitMS: 600_000}); r.State != wire.StateUnreachable {
			t.Errorf("wait: %+v", r)
		}
	})
	all.Go(func() {
		p := mustAsk[wire.Page](t, tenant, "local", wire.VerbRead, &wire.Read{Version: 1, ProcessRef: ref("p1"), WaitMS: 60_000})
		if p.Owner != wire.OwnerUnreachable || p.End {
			t.Errorf("read: %+v", p)
		}
	})
	all.Go(func() {
		_, err := ask[wire.Receipt](t, tenant, "local", wire.VerbSignal, &wire.Signal{Version: 1, ProcessRef: ref("p1"), Signal: "INT"})
		if e := wire.AsError(err); e == nil || e.Code != wire.CodeUnreachable || e.Details["reached"] != true {
			t.Errorf("signal: %v", err)
		}
	})
	awaitCount(t, taken, 3)
	w.stop()
	began := time.Now()
	all.Wait()
	if d := time.Since(began); d > patience/2 {
		t.Errorf("it took %v", d)
	}
}

// A worker that hangs holds up neither the calls of another nor the list of all.
func TestAHungWorkerHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	s := server(t)
	hung, well := newWorker(t, s, "hung"), newWorker(t, s, "well")
	serve(t, s, "g1", func(c *gateway.Config) { c.MaxInFlight, c.MaxPerTenant = 300, 200 })
	tenant := connect(t, s, subjects.RoleTenant, "local")
	// Forty sessions on each.
	for i := range 80 {
		w := []*worker{hung, well}[i%2]
		id := fmt.Sprintf("s%02d", i)
		rec := &wire.SessionRecord{Version: 1, ID: id, Name: id, Tenant: "local", Worker: w.name, Incarnation: w.e, CreatedAt: time.Unix(int64(i), 0)}
		if _, _, err := w.reg.CreateSession(t.Context(), "local", rec); err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		w.sessions["local"+id] = true
		w.mu.Unlock()
	}
	hung.record(wire.Receipt{Process: "there", Tenant: "local", Session: "s00", State: wire.StateRunning})
	hung.record(wire.Receipt{Process: "over", Tenant: "local", Session: "s02", State: wire.StateCompleted})
	well.record(wire.Receipt{Process: "here", Tenant: "local", Session: "s01", State: wire.StateRunning})
	hung.answers(func(*bus.Request, subjects.Target) bool { return true }) // and never answers

	began := time.Now()
	list := mustAsk[wire.Processes](t, tenant, "local", wire.VerbList, &wire.List{Version: 1, All: true})
	if d := time.Since(began); d > patience/3 {
		t.Errorf("the list took %v", d)
	}
	processes := map[string]wire.State{}
	for _, p := range list.Processes {
		processes[p.Process] = p.State
	}
	if len(list.Sessions) != 80 || len(processes) != 42 || processes["there"] != wire.StateUnreachable || processes["over"] != wire.StateCompleted || processes["listed-s01"] != wire.StateRunning {
		t.Errorf("%d sessions, processes %v", len(list.Sessions), processes)
	}
	for _, got := range list.Sessions {
		if (got.Owner == wire.OwnerUnreachable) != (got.Worker == "hung") {
			t.Errorf("%+v", got)
		}
	}

	// As many calls to the one that hangs as a tenant may make, and more.
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	data, err := wire.Marshal("", &wire.Status{Version: 1, ProcessRef: ref("there")})
	if err != nil {
		t.Fatal(err)
	}
	before := hung.seen.Load()
	for range 190 {
		all.Go(func() { _, _ = tenant.Request(ctx, tenant.Root().API("local", wire.VerbStatus), nil, data) })
	}
	awaitCount(t, &hung.seen, before+150)
	for range 20 {
		began := time.Now()
		mustAsk[wire.Receipt](t, tenant, "local", wire.VerbStatus, &wire.Status{Version: 1, ProcessRef: ref("here")})
		mustAsk[wire.Result](t, tenant, "local", wire.VerbRun, &wire.Run{Version: 1, SessionRef: wire.SessionRef{Session: "s01"}, Command: wire.Command{Text: "true"}})
		if d := time.Since(began); d > patience/3 {
			t.Errorf("a call took %v", d)
		}
	}
	if _, err := ask[wire.Receipt](t, tenant, "local", wire.VerbStatus, &wire.Status{Version: 1, ProcessRef: ref("there")}); code(err) != wire.CodeOverloaded {
		t.Errorf("one more to the worker that hangs: %v", err)
	}
}

// A new session goes to a worker that answers, also while another hangs.
func TestOpenPassesByAHungWorker(t *testing.T) {
	t.Parallel()
	s := server(t)
	hung := newWorker(t, s, "hung")
	newWorker(t, s, "well")
	serve(t, s, "g1")
	tenant := connect(t, s, subjects.RoleTenant, "local")
	hung.answers(func(*bus.Request, subjects.Target) bool { return true })
	for range 6 { // the first that meets it waits, the others know
		if got := mustAsk[wire.Session](t, tenant, "local", wire.VerbOpen, &wire.Open{Version: 1}); got.Worker != "well" {
			t.Errorf("%+v", got)
		}
	}
}

// A session whose worker is gone is listed from the records.
func TestListWithoutTheWorker(t *testing.T) {
	s := server(t)
	w := newWorker(t, s, "w1")
	serve(t, s, "g1")
	tenant := connect(t, s, subjects.RoleTenant, "local")
	o := mustAsk[wire.Session](t, tenant, "local", wire.VerbOpen, &wire.Open{Version: 1, Name: "one"})
	w.record(wire.Receipt{Process: "p1", Tenant: "local", Session: o.ID, State: wire.StateRunning})
	w.record(wire.Receipt{Process: "p2", Tenant: "local", Session: "another", State: wire.StateRunning})
	// What cannot be decoded hides nothing.
	for _, kind := range []string{subjects.KindExecution, subjects.KindSession} {
		if _, err := w.conn.Append(t.Context(), w.conn.Root().Record("w1", "local", kind, "broken"), nil, []byte("\xc1"), bus.ExpectAny()); err != nil {
			t.Fatal(err)
		}
	}
	w.stop()
	for _, m := range []wire.List{{SessionRef: named("one")}, {SessionRef: wire.SessionRef{Session: o.ID}}, {All: true}} {
		m.Version = 1
		got := mustAsk[wire.Processes](t, tenant, "local", wire.VerbList, &m)
		if len(got.Sessions) != 1 || got.Sessions[0].Owner != wire.OwnerUnreachable || len(got.Processes) != 1 || got.Processes[0].State != wire.StateUnreachable {
			t.Errorf("%+v: %+v", m, got)
		}
	}
}
