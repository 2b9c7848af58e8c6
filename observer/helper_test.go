package observer_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/observer"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/bus/embedded"
	"github.com/limpet-sh/limpet/subjects/wire"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// server runs NATS in a directory, so that it can restart, with the streams made.
func server(tb testing.TB, dir string) *embedded.Server {
	tb.Helper()
	s, err := embedded.Start(embedded.Config{Dir: dir, Logger: quiet()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	prov := connect(tb, s, subjects.RoleProvisioner, "test")
	defer prov.Close()
	if err := prov.EnsureStreams(tb.Context(), bus.StreamOptions{Memory: dir == ""}); err != nil {
		tb.Fatal(err)
	}
	return s
}

// connect as a role, with its permissions on.
func connect(tb testing.TB, s *embedded.Server, role subjects.Role, name string) *bus.Conn {
	tb.Helper()
	user, password := s.Credentials(role, name)
	ctx, cancel := context.WithTimeout(tb.Context(), 10*time.Second)
	defer cancel()
	c, err := bus.Connect(ctx, bus.Config{
		Name: user, User: user, Password: password, InboxPrefix: subjects.InboxPrefix(role, name),
		Dial: s.Dial(), Logger: quiet(), AckWait: 2 * time.Second,
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

func publisher(tb testing.TB, conn *bus.Conn, cfg observer.Config) *observer.Publisher {
	tb.Helper()
	cfg.Logger = quiet()
	p, err := observer.New(conn, "w1", 7, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = p.Close(ctx)
	})
	return p
}

func meta(process string) observer.Meta {
	return observer.Meta{
		Tenant: "acme", Session: "s1", Process: process, ExecutionID: "x-" + process,
		Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
}

func status(state wire.State) wire.EventStatus { return wire.EventStatus{State: state} }

func ended() wire.EventStatus {
	code := 0
	return wire.EventStatus{State: wire.StateCompleted, Reason: wire.ReasonExit, ExitCode: &code}
}

// stored reads all observations of a process in EVENTS, up to its end.
func stored(tb testing.TB, conn *bus.Conn, process string) []wire.Event {
	tb.Helper()
	var out []wire.Event
	ctx, cancel := context.WithTimeout(tb.Context(), 20*time.Second)
	defer cancel()
	err := observer.Follow(ctx, conn, "acme", process, true, func(ev wire.Event) error {
		out = append(out, ev)
		return nil
	})
	if err != nil {
		tb.Fatalf("follow %s after %d: %v", process, len(out), err)
	}
	return out
}

func closeNow(tb testing.TB, p *observer.Publisher) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 20*time.Second)
	defer cancel()
	if err := p.Close(ctx); err != nil {
		tb.Fatal(err)
	}
}
