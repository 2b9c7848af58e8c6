package registry_test

import (
	"context"
	"testing"

	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/bus/embedded/embeddedtest"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// A record that cannot be decoded is left out of lists and counted; the others are there.
func TestUnreadableRecordHidesNoOther(t *testing.T) {
	s := single(t)
	conn := embeddedtest.Connect(t, s, subjects.RoleWorker, "W1")
	w := registry.New(conn, "W1")
	gw := registry.New(embeddedtest.Connect(t, s, subjects.RoleGateway, "g"), "")
	ctx := t.Context()
	root := conn.Root()
	spoil := func(subject string) {
		t.Helper()
		for _, data := range []string{"\xc1 no msgpack", "\x93\x01\x02\x03"} {
			if _, err := conn.Append(ctx, subject, nil, []byte(data), bus.ExpectAny()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, id := range []string{"e1", "e2"} {
		if _, _, err := w.CreateExecution(ctx, tenant, execution(id, "W1")); err != nil {
			t.Fatal(err)
		}
		rec := &wire.SessionRecord{Version: 1, ID: "id-" + id, Name: id, Tenant: tenant, Worker: "W1"}
		if _, _, err := w.CreateSession(ctx, tenant, rec); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Boot(ctx, wire.BootRecord{Version: 1, Worker: "W1"}); err != nil {
		t.Fatal(err)
	}
	spoil(root.Record("W1", tenant, subjects.KindExecution, "e2"))
	spoil(root.Record("W1", tenant, subjects.KindExecution, "e3"))
	spoil(root.Record("W1", tenant, subjects.KindSession, "e1"))
	spoiler := embeddedtest.Connect(t, s, subjects.RoleWorker, "W2")
	if _, err := spoiler.Append(ctx, root.Boot("W2"), nil, []byte("x"), bus.ExpectAny()); err != nil {
		t.Fatal(err)
	}

	for counted, r := range map[int64]*registry.Registry{3: w, 4: gw} {
		before := r.Unreadable()
		executions, err := r.Executions(ctx, tenant)
		if err != nil || len(executions) != 1 || executions[0].Record.ExecutionID != "e1" {
			t.Errorf("%d executions, %v", len(executions), err)
		}
		sessions, err := r.Sessions(context.WithoutCancel(ctx), "")
		if err != nil || len(sessions) != 1 || sessions[0].Record.Name != "e2" {
			t.Errorf("%d sessions, %v", len(sessions), err)
		}
		if r == gw { // a worker does not read the boots of others
			workers, err := r.Workers(ctx)
			if err != nil || len(workers) != 1 || workers[0].Name != "W1" {
				t.Errorf("%d workers, %v", len(workers), err)
			}
		}
		if n := r.Unreadable() - before; n != counted {
			t.Errorf("%d counted, want %d", n, counted)
		}
	}
	// Asked for by itself it is an error, and nothing may be forked on it.
	if _, _, err := gw.Execution(ctx, tenant, "e2"); err == nil {
		t.Error("an unreadable record was read")
	}
	if _, existing, err := w.CreateExecution(ctx, tenant, execution("e2", "W1")); err == nil || existing != nil {
		t.Errorf("%v, %v", existing, err)
	}
}
