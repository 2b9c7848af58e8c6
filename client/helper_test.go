package client_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/bus/embedded"
	"github.com/limpet-sh/limpet/subjects/wire"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func server(tb testing.TB) *embedded.Server {
	tb.Helper()
	return serverAt(tb, "")
}

func serverAt(tb testing.TB, socket string) *embedded.Server {
	tb.Helper()
	s, err := embedded.Start(embedded.Config{Logger: quiet(), UnixSocket: socket})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

// api stands in for a gateway: answer gets each request with its decoded message and
// how many of its verb came before.
type api struct {
	tb     testing.TB
	conn   *bus.Conn
	answer func(r *request)

	mu   sync.Mutex
	sub  *bus.Subscription // guarded by mu
	seen []*request        // guarded by mu
}

type request struct {
	*bus.Request
	tb   testing.TB
	verb string
	msg  wire.Request
	nth  int // 0 for the first of its verb
}

func newAPI(tb testing.TB, s *embedded.Server, answer func(r *request)) *api {
	tb.Helper()
	user, password := s.Credentials(subjects.RoleGateway, "g")
	conn, err := bus.Connect(tb.Context(), bus.Config{
		Dial: s.Dial(), User: user, Password: password, InboxPrefix: subjects.InboxPrefix(subjects.RoleGateway, "g"), Logger: quiet(),
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(conn.Close)
	a := &api{tb: tb, conn: conn, answer: answer}
	a.start()
	return a
}

func (a *api) start() {
	a.tb.Helper()
	sub, err := a.conn.Serve(a.conn.Root().APIAll(), "gw", 1000, a.handle)
	if err != nil {
		a.tb.Error(err)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sub = sub
}

func (a *api) stop() {
	a.tb.Helper()
	a.mu.Lock()
	sub := a.sub
	a.mu.Unlock()
	if err := sub.Stop(a.tb.Context()); err != nil {
		a.tb.Error(err)
	}
}

// all returns the requests so far.
func (a *api) all() []*request {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.seen)
}

func (a *api) handle(r *bus.Request) {
	_, verb, err := a.conn.Root().ParseAPI(r.Subject)
	if err != nil {
		a.tb.Error(err)
	}
	req := &request{Request: r, tb: a.tb, verb: verb}
	if req.msg, err = wire.DecodeRequest(verb, r.ContentType(), r.Data); err != nil {
		a.tb.Errorf("%s: %v", verb, err)
	}
	a.mu.Lock()
	for _, p := range a.seen {
		if p.verb == verb {
			req.nth++
		}
	}
	a.seen = append(a.seen, req)
	a.mu.Unlock()
	a.answer(req)
}

func (a *api) count(verb string) (n int) {
	for _, r := range a.all() {
		if r.verb == verb {
			n++
		}
	}
	return n
}

func reply[T any](r *request, v *T) {
	data, err := wire.EncodeReply(r.ContentType(), v, nil)
	if err != nil {
		r.tb.Error(err)
	}
	_ = r.Respond(data) // a server that restarts meanwhile is part of the tests
}

func (r *request) fail(code wire.Code) { _ = r.RespondError(wire.Errorf(code, "on purpose")) }

// dial connects as the tenant.
func dial(tb testing.TB, s *embedded.Server, change ...func(*client.Config)) *client.Client {
	tb.Helper()
	cfg := client.Config{Dial: s.Dial(), Logger: quiet(), InboxPrefix: subjects.InboxPrefix(subjects.RoleTenant, "local")}
	cfg.User, cfg.Password = s.Credentials(subjects.RoleTenant, "local")
	for _, f := range change {
		f(&cfg)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), 10*time.Second)
	defer cancel()
	c, err := client.Connect(ctx, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

func code(err error) wire.Code {
	if err == nil {
		return ""
	}
	return wire.AsError(err).Code
}
