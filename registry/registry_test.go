package registry_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/bus/embedded"
	"github.com/limpet-sh/limpet/subjects/bus/embedded/embeddedtest"
	"github.com/limpet-sh/limpet/subjects/wire"
)

const tenant = "local"

func execution(id, worker string) *wire.ExecutionRecord {
	return &wire.ExecutionRecord{
		Version: wire.Version, ExecutionID: id, RequestHash: "h-" + worker,
		Receipt: wire.Receipt{
			Version: wire.Version, Process: subjects.NewID(), ExecutionID: id, Session: "s", Tenant: tenant,
			Worker: worker, Incarnation: 1, State: wire.StateStarting, CreatedAt: time.Now().UTC(), Cwd: "/", Confinement: "none",
		},
	}
}

func single(tb testing.TB) *embedded.Server {
	s := embeddedtest.Start(tb, embedded.Config{})
	embeddedtest.Provision(tb, s, bus.StreamOptions{Memory: true})
	return s
}

func open(tb testing.TB, s *embedded.Server, worker string) *registry.Registry {
	return registry.New(embeddedtest.Connect(tb, s, subjects.RoleWorker, worker), worker)
}

func TestExecutionLife(t *testing.T) {
	s := single(t)
	w1, w2 := open(t, s, "W1"), open(t, s, "W2")
	gw := registry.New(embeddedtest.Connect(t, s, subjects.RoleGateway, "g"), "")
	ctx := t.Context()

	rec := execution("e1", "W1")
	rev, existing, err := w1.CreateExecution(ctx, tenant, rec)
	if err != nil || existing != nil || rev == 0 {
		t.Fatal(rev, existing, err)
	}
	// Another worker finds it, and so does the same.
	for _, w := range []*registry.Registry{w1, w2} {
		r2, existing, err := w.CreateExecution(ctx, tenant, execution("e1", "W2"))
		if err != nil || existing == nil || r2 != rev || existing.Receipt.Process != rec.Receipt.Process {
			t.Fatal(r2, existing, err)
		}
	}
	// Another tenant's id is another execution.
	if _, existing, err := w2.CreateExecution(ctx, "other", execution("e1", "W2")); err != nil || existing != nil {
		t.Fatal(existing, err)
	}
	rec.Receipt.State = wire.StateRunning
	rev2, err := w1.UpdateExecution(ctx, tenant, rec, rev)
	if err != nil || rev2 <= rev {
		t.Fatal(rev2, err)
	}
	rec.Receipt.State = wire.StateFailed
	if _, err := w1.UpdateExecution(ctx, tenant, rec, rev); !errors.Is(err, registry.ErrConflict) {
		t.Fatalf("a stale update: %v", err)
	}
	rec.Receipt.State = wire.StateCompleted
	if _, err := w1.UpdateExecution(ctx, tenant, rec, rev2); err != nil {
		t.Fatal(err)
	}
	got, _, err := gw.Execution(ctx, tenant, "e1")
	if err != nil || got.Receipt.State != wire.StateCompleted {
		t.Fatal(got, err)
	}
	if _, _, err := gw.Execution(ctx, tenant, "none"); !errors.Is(err, registry.ErrNotFound) {
		t.Fatal(err)
	}
	if we, ok := errors.AsType[*wire.Error](func() error { _, _, err := gw.Execution(ctx, tenant, "a.b"); return err }()); !ok || we.Field != "execution_id" {
		t.Fatal(we)
	}
	for name, tt := range map[string]struct {
		reg    *registry.Registry
		tenant string
		want   int
	}{"gateway, one tenant": {gw, tenant, 1}, "gateway, all": {gw, "", 2}, "worker, its own": {w1, "", 1}, "worker, none": {w1, "other", 0}} {
		if all, err := tt.reg.Executions(ctx, tt.tenant); err != nil || len(all) != tt.want {
			t.Errorf("%s: %d, %v", name, len(all), err)
		}
	}
	// A worker cannot change what another wrote, and learns it at once.
	if _, err := w2.UpdateExecution(ctx, tenant, rec, rev2+1); !errors.Is(err, bus.ErrDenied) {
		t.Fatal(err)
	}
}

// TestTerminalRecordsExpire: only ended records carry a time to live.
func TestTerminalRecordsExpire(t *testing.T) {
	s := single(t)
	w := open(t, s, "W1")
	c := embeddedtest.Connect(t, s, subjects.RoleGateway, "g")
	ctx := t.Context()
	ttl := func(kind, key string) string {
		t.Helper()
		m, err := c.Last(ctx, c.Root().Stream(subjects.StreamRecords), c.Root().RecordFilter(tenant, kind, key))
		if err != nil {
			t.Fatal(err)
		}
		return m.Header.Get(bus.HeaderTTL)
	}
	rec := execution("e", "W1")
	rev, _, err := w.CreateExecution(ctx, tenant, rec)
	if err != nil || ttl(subjects.KindExecution, "e") != "" {
		t.Fatal(err)
	}
	rec.Receipt.State = wire.StateFailed
	if _, err := w.UpdateExecution(ctx, tenant, rec, rev); err != nil || ttl(subjects.KindExecution, "e") != "168h0m0s" {
		t.Fatal(err, ttl(subjects.KindExecution, "e"))
	}
	p := &wire.ProcessRecord{Version: 1, Process: "p", Tenant: tenant, Session: "s", Worker: "W1"}
	wait, err := w.CreateProcessAsync(ctx, tenant, p, registry.Live)
	if err != nil {
		t.Fatal(err)
	}
	if rev, err = wait(ctx); err != nil || ttl(subjects.KindProcess, "p") != "" {
		t.Fatal(err)
	}
	if _, err := w.UpdateProcess(ctx, tenant, p, rev, registry.Ended); err != nil || ttl(subjects.KindProcess, "p") == "" {
		t.Fatal(err)
	}
	if _, err := w.CreateProcess(ctx, tenant, p, registry.Live); !errors.Is(err, registry.ErrConflict) {
		t.Fatal(err)
	}
	if got, _, err := w.Process(ctx, tenant, "p"); err != nil || got.Session != "s" {
		t.Fatal(got, err)
	}
}

func TestSessions(t *testing.T) {
	s := single(t)
	w1, w2 := open(t, s, "W1"), open(t, s, "W2")
	gw := registry.New(embeddedtest.Connect(t, s, subjects.RoleGateway, "g"), "")
	ctx := t.Context()
	rec := &wire.SessionRecord{Version: 1, ID: "id1", Name: "main", Tenant: tenant, Worker: "W1", Incarnation: 1}
	rev, existing, err := w1.CreateSession(ctx, tenant, rec)
	if err != nil || existing != nil {
		t.Fatal(existing, err)
	}
	if _, existing, err = w2.CreateSession(ctx, tenant, &wire.SessionRecord{Version: 1, ID: "id2", Name: "main", Worker: "W2"}); err != nil || existing == nil || existing.ID != "id1" {
		t.Fatal(existing, err)
	}
	got, _, err := gw.SessionByID(ctx, tenant, "id1")
	if err != nil || got.Name != "main" {
		t.Fatal(got, err)
	}
	rec.Closed = true
	if rev, err = w1.UpdateSession(ctx, tenant, rec, rev); err != nil {
		t.Fatal(err)
	}
	// A closed name is taken over by another worker: once.
	take := func(w *registry.Registry, worker, id string) error {
		_, err := w.UpdateSession(ctx, tenant, &wire.SessionRecord{Version: 1, ID: id, Name: "main", Tenant: tenant, Worker: worker}, rev)
		return err
	}
	if err := take(w2, "W2", "id3"); err != nil {
		t.Fatal(err)
	}
	if err := take(w1, "W1", "id4"); !errors.Is(err, registry.ErrConflict) {
		t.Fatal(err)
	}
	if got, _, err := gw.Session(ctx, tenant, "main"); err != nil || got.ID != "id3" || got.Worker != "W2" {
		t.Fatal(got, err)
	}
	if _, _, err := gw.SessionByID(ctx, tenant, "id1"); !errors.Is(err, registry.ErrNotFound) {
		t.Fatal(err)
	}
	all, err := gw.Sessions(ctx, tenant)
	if err != nil || len(all) != 1 || all[0].Record.ID != "id3" {
		t.Fatal(all, err)
	}
	if _, _, err := w1.CreateSession(ctx, tenant, &wire.SessionRecord{Name: "no spaces", ID: "x"}); err == nil {
		t.Fatal("a name that is no token was taken")
	}
}

// TestSessionByIDReadsNoList: an id without a pointer is unknown, whatever sessions
// there are, and a pointer that cannot be written leaves no session behind.
func TestSessionByIDReadsNoList(t *testing.T) {
	s := single(t)
	c := embeddedtest.Connect(t, s, subjects.RoleWorker, "W1")
	w := registry.New(c, "W1")
	ctx := t.Context()
	data, err := wire.Marshal(subjects.TypeMsgpack, &wire.SessionRecord{Version: 1, ID: "bare", Name: "bare", Tenant: tenant, Worker: "W1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Append(ctx, c.Root().Record("W1", tenant, subjects.KindSession, "bare"), nil, data, bus.ExpectAny()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.SessionByID(ctx, tenant, "bare"); !errors.Is(err, registry.ErrNotFound) {
		t.Errorf("found without a pointer, by listing all: %v", err)
	}
	rec := &wire.SessionRecord{Version: 1, ID: "id1", Name: "n1", Tenant: tenant, Worker: "W1"}
	if _, _, err := w.CreateSession(ctx, tenant, rec); err != nil {
		t.Fatal(err)
	}
	stream := c.Root().Stream(subjects.StreamRecords)
	p, err := c.Last(ctx, stream, c.Root().RecordFilter(tenant, "session-id", "id1"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Last(ctx, stream, c.Root().RecordFilter(tenant, subjects.KindSession, "n1"))
	if err != nil || p.Seq >= r.Seq {
		t.Errorf("the pointer is at %d, its record at %d: %v", p.Seq, r.Seq, err)
	}
}

func TestBoots(t *testing.T) {
	s := single(t)
	w1, w2 := open(t, s, "W1"), open(t, s, "W2")
	gw := registry.New(embeddedtest.Connect(t, s, subjects.RoleGateway, "g"), "")
	ctx := t.Context()
	var last uint64
	for i := range 12 { // more than the stream keeps
		e, err := w1.Boot(ctx, wire.BootRecord{Version: 1, Worker: "W1", PID: i})
		if err != nil || e <= last {
			t.Fatal(e, last, err)
		}
		last = e
	}
	e, err := w2.Boot(ctx, wire.BootRecord{Version: 1, Worker: "W2", MinIncarnation: 900})
	if err != nil || e != 900 {
		t.Fatal(e, err)
	}
	ws, err := gw.Workers(ctx)
	if err != nil || len(ws) != 2 || ws[0].Name != "W1" || ws[0].Incarnation != last || ws[0].Boot.PID != 11 || ws[1].Incarnation != 900 {
		t.Fatalf("%+v %v", ws, err)
	}
	if _, err := w1.Boot(ctx, wire.BootRecord{Worker: "W2"}); err == nil {
		t.Fatal("W1 booted as W2")
	}
}

// TestCreateRace: of 64 creates of one id over two workers one wins, and all others
// are told who. On one server, and on a cluster of three.
func TestCreateRace(t *testing.T) {
	t.Run("R1", func(t *testing.T) {
		s := single(t)
		race(t, 20, open(t, s, "W1"), open(t, s, "W2"))
	})
	t.Run("R3", func(t *testing.T) {
		nodes := embeddedtest.Cluster(t, 3)
		embeddedtest.Provision(t, nodes[0], bus.StreamOptions{Replicas: 3})
		race(t, 10, open(t, nodes[1], "W1"), open(t, nodes[2], "W2"))
	})
}

func race(t *testing.T, rounds int, regs ...*registry.Registry) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for round := range rounds {
		id := fmt.Sprintf("race-%d", round)
		var wg sync.WaitGroup
		var wins atomic.Int64
		winners := make([]string, 64)
		begin := make(chan struct{})
		for i := range 64 {
			wg.Go(func() {
				worker := fmt.Sprintf("W%d", i%2+1)
				rec := execution(id, worker)
				<-begin
				_, existing, err := regs[i%2].CreateExecution(ctx, tenant, rec)
				switch {
				case err != nil:
					t.Errorf("%s: %v", id, err)
				case existing != nil:
					winners[i] = existing.Receipt.Process
				default:
					wins.Add(1)
					winners[i] = rec.Receipt.Process
				}
			})
		}
		close(begin)
		wg.Wait()
		if wins.Load() != 1 {
			t.Fatalf("%s: %d winners", id, wins.Load())
		}
		for _, w := range winners {
			if w != winners[0] {
				t.Fatalf("%s: two winners: %v", id, winners)
			}
		}
	}
}
