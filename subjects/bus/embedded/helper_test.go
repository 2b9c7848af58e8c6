package embedded_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/bus/embedded"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func start(tb testing.TB, cfg embedded.Config) *embedded.Server {
	tb.Helper()
	if cfg.Logger == nil {
		cfg.Logger = quiet()
	}
	s, err := embedded.Start(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

// connect as a role, with its permissions on.
func connect(tb testing.TB, s *embedded.Server, role subjects.Role, name string, change ...func(*bus.Config)) *bus.Conn {
	tb.Helper()
	user, password := s.Credentials(role, name)
	cfg := bus.Config{
		Name: user, User: user, Password: password, InboxPrefix: subjects.InboxPrefix(role, name),
		Dial: s.Dial(), Logger: quiet(),
	}
	for _, f := range change {
		f(&cfg)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), 10*time.Second)
	defer cancel()
	c, err := bus.Connect(ctx, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

func provision(tb testing.TB, s *embedded.Server, opts bus.StreamOptions) {
	tb.Helper()
	c := connect(tb, s, subjects.RoleProvisioner, "test")
	defer c.Close()
	if err := c.EnsureStreams(tb.Context(), opts); err != nil {
		tb.Fatal(err)
	}
	if err := c.EnsureStreams(tb.Context(), opts); err != nil {
		tb.Fatalf("again: %v", err)
	}
}

func must[T any](tb testing.TB) func(T, error) T {
	return func(v T, err error) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return v
	}
}
