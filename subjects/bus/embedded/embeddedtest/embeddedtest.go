// Package embeddedtest starts real servers, alone or as a cluster on loopback, and
// connects to them as a role with its permissions on. It is for tests.
//
// # Concurrency
//
// The functions are called from the test's goroutine, as testing.TB demands.
package embeddedtest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/bus/embedded"
)

// Quiet drops everything.
func Quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// Start starts a server that ends with the test.
func Start(tb testing.TB, cfg embedded.Config) *embedded.Server {
	tb.Helper()
	if cfg.Logger == nil {
		cfg.Logger = Quiet()
	}
	s, err := embedded.Start(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

// Cluster starts n servers that know each other, each in a directory of its own.
func Cluster(tb testing.TB, n int) []*embedded.Server {
	tb.Helper()
	routes := make([]string, n)
	for i := range routes {
		// The port is free now and named to the others before its server listens: a
		// race with other programs that a test may take.
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		routes[i] = l.Addr().String()
		l.Close()
	}
	dir := tb.TempDir()
	servers, errs := make([]*embedded.Server, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range servers {
		wg.Go(func() {
			servers[i], errs[i] = embedded.Start(embedded.Config{
				Name: fmt.Sprintf("n%d", i), Dir: filepath.Join(dir, fmt.Sprint(i)), Secret: []byte("one secret for all servers"),
				Listen: "127.0.0.1:0", Logger: Quiet(),
				Cluster: &embedded.Cluster{Name: "test", Listen: routes[i], Routes: routes},
			})
		})
	}
	wg.Wait()
	for _, s := range servers {
		if s != nil {
			tb.Cleanup(s.Close)
		}
	}
	if err := errors.Join(errs...); err != nil {
		tb.Fatal(err)
	}
	return servers
}

// Connect connects as a role. change may alter the configuration.
func Connect(tb testing.TB, s *embedded.Server, role subjects.Role, name string, change ...func(*bus.Config)) *bus.Conn {
	tb.Helper()
	user, password := s.Credentials(role, name)
	cfg := bus.Config{
		Name: user, User: user, Password: password, InboxPrefix: subjects.InboxPrefix(role, name),
		Dial: s.Dial(), Logger: Quiet(),
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

// Provision makes the streams; in a cluster it waits until one can be made.
func Provision(tb testing.TB, s *embedded.Server, opts bus.StreamOptions) {
	tb.Helper()
	c := Connect(tb, s, subjects.RoleProvisioner, "test")
	defer c.Close()
	ctx, cancel := context.WithTimeout(tb.Context(), 30*time.Second)
	defer cancel()
	for {
		attempt, done := context.WithTimeout(ctx, 2*time.Second)
		err := c.EnsureStreams(attempt, opts)
		done()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			tb.Fatalf("streams: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
