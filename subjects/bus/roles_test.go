package bus_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/bus/embedded"
	"github.com/limpet-sh/limpet/subjects/bus/embedded/embeddedtest"
)

// TestRoles: each role can do its job, and nothing else. A refusal comes at once, not
// at a deadline.
func TestRoles(t *testing.T) {
	s := embeddedtest.Start(t, embedded.Config{Tenants: []string{"local", "other"}})
	embeddedtest.Provision(t, s, bus.StreamOptions{Memory: true})
	r := subjects.Default()
	conn := map[string]*bus.Conn{
		"w1":       embeddedtest.Connect(t, s, subjects.RoleWorker, "W1"),
		"w2":       embeddedtest.Connect(t, s, subjects.RoleWorker, "W2"),
		"gateway":  embeddedtest.Connect(t, s, subjects.RoleGateway, "g1"),
		"local":    embeddedtest.Connect(t, s, subjects.RoleTenant, "local"),
		"other":    embeddedtest.Connect(t, s, subjects.RoleTenant, "other"),
		"observer": embeddedtest.Connect(t, s, subjects.RoleObserver, "o1"),
	}
	serveEcho(t, conn["gateway"], r.APIAll(), "gw")
	serveEcho(t, conn["w1"], r.WorkerAll("W1", 7), "")
	serveEcho(t, conn["local"], r.QuestionsAdmit("local"), "")

	ask := func(subject string) func(context.Context, *bus.Conn) error {
		return func(ctx context.Context, c *bus.Conn) error {
			m, err := c.Request(ctx, subject, nil, []byte("x"))
			if err == nil && string(m.Data) != subject {
				return errors.New("answered as " + string(m.Data))
			}
			return err
		}
	}
	add := func(subject string) func(context.Context, *bus.Conn) error {
		return func(ctx context.Context, c *bus.Conn) error {
			_, err := c.Append(ctx, subject, nil, []byte("x"), bus.ExpectAny())
			return err
		}
	}
	last := func(stream string) func(context.Context, *bus.Conn) error {
		return func(ctx context.Context, c *bus.Conn) error {
			_, err := c.Last(ctx, r.Stream(stream), ">")
			if errors.Is(err, bus.ErrNotFound) {
				return nil
			}
			return err
		}
	}
	list := func(stream, filter string) func(context.Context, *bus.Conn) error {
		return func(ctx context.Context, c *bus.Conn) error {
			_, err := c.LastPerSubject(ctx, r.Stream(stream), filter)
			return err
		}
	}
	watch := func(subject string) func(context.Context, *bus.Conn) error {
		return func(_ context.Context, c *bus.Conn) error {
			sub, err := c.Subscribe(subject, 16, func(*bus.Msg) {})
			if err == nil {
				return sub.Stop(t.Context())
			}
			return err
		}
	}
	streams := func(ctx context.Context, c *bus.Conn) error {
		return c.EnsureStreams(ctx, bus.StreamOptions{Memory: true})
	}

	for _, tt := range []struct {
		name, who string
		do        func(context.Context, *bus.Conn) error
		want      error // nil: allowed
	}{
		{"a tenant calls its api", "local", ask(r.API("local", "start")), nil},
		{"another tenant calls its own", "other", ask(r.API("other", "start")), nil},
		{"a tenant calls another's api", "other", ask(r.API("local", "start")), bus.ErrDenied},
		{"a tenant talks to a worker", "local", ask(r.Process("local", "W1", 7, "p", "read")), bus.ErrDenied},
		{"a tenant talks to a worker's control", "local", ask(r.Control("W1", "drain")), bus.ErrDenied},
		{"a tenant reads records", "local", last(subjects.StreamRecords), bus.ErrDenied},
		{"a tenant reads output", "local", last(subjects.StreamOutput), bus.ErrDenied},
		{"a tenant lists records", "local", list(subjects.StreamRecords, ">"), bus.ErrDenied},
		{"a tenant writes a record", "local", add(r.Record("W1", "local", "execution", "e")), bus.ErrDenied},
		{"a tenant writes an event", "local", add(r.Event("local", "W1", "p", "started")), bus.ErrDenied},
		{"a tenant follows its live events", "local", watch(r.Live("local")), nil},
		{"a tenant follows another's", "other", watch(r.Live("local")), bus.ErrDenied},
		{"a tenant follows all", "other", watch(r.LiveAll()), bus.ErrDenied},
		{"a tenant serves another's api", "other", watch(r.API("local", "start")), bus.ErrDenied},
		{"a tenant listens to answers of others", "other", watch("_INBOX.>"), bus.ErrDenied},
		{"a tenant listens to everything", "other", watch(">"), bus.ErrDenied},

		{"a worker writes its output", "w1", add(r.Output("local", "W1", "p")), nil},
		{"a worker writes another's output", "w1", add(r.Output("local", "W2", "p")), bus.ErrDenied},
		{"a worker writes its event", "w1", add(r.Event("local", "W1", "p", "started")), nil},
		{"a worker writes another's event", "w1", add(r.Event("local", "W2", "p", "started")), bus.ErrDenied},
		{"a worker writes its record", "w1", add(r.Record("W1", "local", "execution", "e")), nil},
		{"a worker writes another's record", "w1", add(r.Record("W2", "local", "execution", "e")), bus.ErrDenied},
		{"a worker writes its boot", "w1", add(r.Boot("W1")), nil},
		{"a worker writes another's boot", "w1", add(r.Boot("W2")), bus.ErrDenied},
		{"a worker reads records", "w1", last(subjects.StreamRecords), nil},
		{"a worker lists its records", "w1", list(subjects.StreamRecords, "limpet.v1.reg.0.W1.>"), nil},
		{"a worker lists all records", "w1", list(subjects.StreamRecords, ">"), bus.ErrDenied},
		{"a worker calls the api", "w1", ask(r.API("local", "start")), bus.ErrDenied},
		{"a worker talks to another worker", "w2", ask(r.Process("local", "W1", 7, "p", "read")), bus.ErrDenied},
		{"a worker serves as another", "w2", watch(r.WorkerAll("W1", 7)), bus.ErrDenied},
		{"a worker makes streams", "w1", streams, bus.ErrDenied},
		{"a worker asks for admission", "w1", ask(r.QuestionsAdmit("local")), nil},

		{"a gateway talks to a worker", "gateway", ask(r.Process("local", "W1", 7, "p", "read")), nil},
		{"a gateway talks to an old incarnation", "gateway", ask(r.Process("local", "W1", 6, "p", "read")), bus.ErrNoResponders},
		{"a gateway lists records", "gateway", list(subjects.StreamRecords, ">"), nil},
		{"a gateway reads output", "gateway", last(subjects.StreamOutput), nil},
		{"a gateway writes a boot", "gateway", add(r.Boot("W1")), bus.ErrDenied},
		{"a gateway makes streams", "gateway", streams, bus.ErrDenied},

		{"an observer lists events", "observer", list(subjects.StreamEvents, ">"), nil},
		{"an observer follows live", "observer", watch(r.LiveAll()), nil},
		{"an observer reads records", "observer", last(subjects.StreamRecords), bus.ErrDenied},
		{"an observer reads output", "observer", last(subjects.StreamOutput), bus.ErrDenied},
		{"an observer writes an event", "observer", add(r.Event("local", "W1", "p", "started")), bus.ErrDenied},
		{"an observer calls the api", "observer", ask(r.API("local", "start")), bus.ErrDenied},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			began := time.Now()
			err := tt.do(ctx, conn[tt.who])
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// TestLiveReachesItsTenant: events are republished, and only to whom they belong.
func TestLiveReachesItsTenant(t *testing.T) {
	s := embeddedtest.Start(t, embedded.Config{Tenants: []string{"local", "other"}})
	embeddedtest.Provision(t, s, bus.StreamOptions{Memory: true})
	r := subjects.Default()
	got := make(chan string, 16)
	for _, tenant := range []string{"local", "other"} {
		c := embeddedtest.Connect(t, s, subjects.RoleTenant, tenant)
		if _, err := c.Subscribe(r.Live(tenant), 16, func(m *bus.Msg) { got <- tenant + " " + m.Subject + " " + string(m.Data) }); err != nil {
			t.Fatal(err)
		}
	}
	w := embeddedtest.Connect(t, s, subjects.RoleWorker, "W1")
	for _, tenant := range []string{"local", "other", "local"} {
		if _, err := w.Append(t.Context(), r.Event(tenant, "W1", "p", "started"), nil, []byte("e"), bus.ExpectAny()); err != nil {
			t.Fatal(err)
		}
	}
	counts := map[string]int{}
	for range 3 {
		select {
		case m := <-got:
			counts[m]++
		case <-time.After(5 * time.Second):
			t.Fatalf("no event; so far %v", counts)
		}
	}
	if counts["local limpet.v1.live.local.W1.p.started e"] != 2 || counts["other limpet.v1.live.other.W1.p.started e"] != 1 {
		t.Errorf("got %v", counts)
	}
	select {
	case m := <-got:
		t.Errorf("one more: %s", m)
	case <-time.After(50 * time.Millisecond):
	}
}

func TestWrongPassword(t *testing.T) {
	s := embeddedtest.Start(t, embedded.Config{})
	for _, tt := range []struct{ name, user, password string }{
		{"none", "", ""},
		{"wrong", "worker.W1", "guess"},
		{"of another user", "worker.W1", second(s.Credentials(subjects.RoleWorker, "W2"))},
		{"unknown role", "admin.x", second(s.Credentials("admin", "x"))},
		{"unknown tenant", "tenant.x", second(s.Credentials(subjects.RoleTenant, "x"))},
		{"not a name", "worker.*", second(s.Credentials(subjects.RoleWorker, "*"))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			c, err := bus.Connect(ctx, bus.Config{User: tt.user, Password: tt.password, Dial: s.Dial(), Logger: embeddedtest.Quiet()})
			if err == nil {
				c.Close()
				t.Fatal("connected")
			}
			if !strings.Contains(err.Error(), "Authorization Violation") || ctx.Err() != nil {
				t.Errorf("not refused at once: %v", err)
			}
		})
	}
}

func second(_, b string) string { return b }
