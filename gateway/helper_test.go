package gateway_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/gateway"
	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/bus/embedded"
	"github.com/limpet-sh/limpet/subjects/wire"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func server(tb testing.TB) *embedded.Server {
	tb.Helper()
	s, err := embedded.Start(embedded.Config{Tenants: []string{"local", "other"}, Logger: quiet()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	prov := connect(tb, s, subjects.RoleProvisioner, "test")
	defer prov.Close()
	if err := prov.EnsureStreams(tb.Context(), bus.StreamOptions{Memory: true}); err != nil {
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
		Dial: s.Dial(), Logger: quiet(),
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// serve runs a gateway until the test ends.
func serve(tb testing.TB, s *embedded.Server, name string, change ...func(*gateway.Config)) *gateway.Gateway {
	tb.Helper()
	cfg := gateway.Config{Conn: connect(tb, s, subjects.RoleGateway, name), Logger: quiet()}
	for _, f := range change {
		f(&cfg)
	}
	g, err := gateway.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := g.Run(ctx); err != nil {
			tb.Error(err)
		}
	})
	tb.Cleanup(func() { cancel(); running.Wait() })
	select {
	case <-g.Serving():
	case <-time.After(10 * time.Second):
		tb.Fatal("the gateway does not serve")
	}
	return g
}

// worker is a stand-in for the actors: it boots, holds sessions and processes by id,
// and answers with what it was asked.
type worker struct {
	tb   testing.TB
	name string
	conn *bus.Conn
	reg  *registry.Registry
	e    uint64
	sub  *bus.Subscription

	seen atomic.Int64
	hold chan struct{} // when not nil, wait is answered after it is closed
	// own, when not nil, answers instead when it returns true; it must not block.
	own atomic.Pointer[func(*bus.Request, subjects.Target) bool]

	mu       sync.Mutex
	sessions map[string]bool   // guarded by mu; ids that are here
	last     map[string]string // guarded by mu; headers of the last request
}

func newWorker(tb testing.TB, s *embedded.Server, name string) *worker {
	tb.Helper()
	conn := connect(tb, s, subjects.RoleWorker, name)
	w := &worker{tb: tb, name: name, conn: conn, reg: registry.New(conn, name), sessions: map[string]bool{}}
	w.boot()
	return w
}

func (w *worker) boot() {
	w.tb.Helper()
	e, err := w.reg.Boot(w.tb.Context(), wire.BootRecord{Version: 1, Worker: w.name, Host: "h", StartedAt: time.Now()})
	if err != nil {
		w.tb.Fatal(err)
	}
	w.e = e
	if w.sub, err = w.conn.Serve(w.conn.Root().WorkerAll(w.name, e), "", 1024, w.handle); err != nil {
		w.tb.Fatal(err)
	}
}

func (w *worker) stop() {
	w.tb.Helper()
	if err := w.sub.Stop(w.tb.Context()); err != nil {
		w.tb.Fatal(err)
	}
}

func (w *worker) handle(r *bus.Request) {
	w.seen.Add(1)
	t, err := w.conn.Root().ParseWorker(r.Subject)
	if err != nil {
		w.tb.Error(err)
		return
	}
	if own := w.own.Load(); own != nil && (*own)(r, t) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = map[string]string{}
	for k := range r.Header {
		w.last[k] = r.Header.Get(k)
	}
	switch {
	case t.Verb == wire.VerbOpen:
		w.open(r, t)
	case t.Session != "" && !w.sessions[t.Tenant+t.Session]:
		w.check(r.RespondError(wire.Errorf(wire.CodeNotFound, "there is no such session here; open it again")))
	case t.Verb == wire.VerbList:
		s := wire.Session{Version: 1, ID: t.Session, Tenant: t.Tenant, Worker: w.name, Incarnation: w.e}
		respond(w, r, &wire.Processes{Version: 1, Sessions: []wire.Session{s}, Processes: []wire.Receipt{w.receipt(t, "listed-"+t.Session)}})
	case t.Verb == wire.VerbRun:
		respond(w, r, &wire.Result{Version: 1, Receipt: w.receipt(t, "p")})
	case t.Verb == wire.VerbWait && w.hold != nil:
		hold := w.hold
		go func() { // ends when the test closes hold
			<-hold
			respond(w, r, new(w.receipt(t, t.Process)))
		}()
	default:
		respond(w, r, new(w.receipt(t, t.Process)))
	}
}

func (w *worker) receipt(t subjects.Target, process string) wire.Receipt {
	return wire.Receipt{
		Version: 1, Process: process, Tenant: t.Tenant, Session: t.Session, Worker: w.name, Incarnation: t.Incarnation,
		State: wire.StateRunning, Description: t.Verb,
	}
}

func (w *worker) open(r *bus.Request, t subjects.Target) {
	req, err := wire.DecodeRequest(t.Verb, r.ContentType(), r.Data)
	if err != nil {
		w.check(r.RespondError(err))
		return
	}
	m := req.(*wire.Open)
	if m.Name == "" {
		m.Name = subjects.NewID()
	}
	rec := &wire.SessionRecord{Version: 1, ID: subjects.NewID(), Name: m.Name, Tenant: t.Tenant, Worker: w.name, Incarnation: w.e, CreatedAt: time.Now()}
	go func() { // ends with the answer of the store
		_, existing, err := w.reg.CreateSession(context.Background(), t.Tenant, rec)
		switch {
		case err != nil:
			w.check(r.RespondError(err))
			return
		case existing != nil && existing.Worker != w.name:
			w.check(r.RespondError(&wire.Error{Code: wire.CodeNotFound, Message: "elsewhere", Details: map[string]any{"worker": existing.Worker}}))
			return
		case existing != nil:
			rec = existing
		}
		w.mu.Lock()
		w.sessions[t.Tenant+rec.ID] = true
		w.mu.Unlock()
		respond(w, r, &wire.Session{Version: 1, ID: rec.ID, Name: rec.Name, Tenant: t.Tenant, Worker: w.name, Incarnation: w.e, Created: existing == nil})
	}()
}

// process records a process as the actors would.
func (w *worker) process(tenant, id string, state wire.State) {
	w.tb.Helper()
	w.record(wire.Receipt{Process: id, Tenant: tenant, State: state})
}

// record records a process with a receipt.
func (w *worker) record(r wire.Receipt) {
	w.tb.Helper()
	r.Version, r.ExecutionID, r.Worker, r.CreatedAt = 1, "x-"+r.Process, w.name, time.Now()
	_, _, err := w.reg.CreateExecution(w.tb.Context(), r.Tenant, &wire.ExecutionRecord{Version: 1, ExecutionID: r.ExecutionID, Receipt: r})
	if err != nil {
		w.tb.Fatal(err)
	}
	_, err = w.reg.CreateProcess(w.tb.Context(), r.Tenant, &wire.ProcessRecord{
		Version: 1, Process: r.Process, Tenant: r.Tenant, Session: r.Session, ExecutionID: r.ExecutionID, Worker: w.name, CreatedAt: r.CreatedAt,
	}, registry.Live)
	if err != nil {
		w.tb.Fatal(err)
	}
}

// answers lets f answer in the place of the worker where it returns true.
func (w *worker) answers(f func(*bus.Request, subjects.Target) bool) { w.own.Store(&f) }

func (w *worker) check(err error) {
	if err != nil && !errors.Is(err, bus.ErrClosed) { // the test is over
		w.tb.Error(err)
	}
}

func respond[T any](w *worker, r *bus.Request, result *T) {
	data, err := wire.EncodeReply(r.ContentType(), result, nil)
	w.check(err)
	w.check(r.Respond(data))
}

// patience is the deadline of a call; what must come long before it is seen to.
const patience = 60 * time.Second

// ask calls the api as a tenant's connection would.
func ask[T any](tb testing.TB, conn *bus.Conn, tenant, verb string, m any) (*T, error) {
	tb.Helper()
	data, err := wire.Marshal(subjects.TypeMsgpack, m)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	r, err := conn.Request(ctx, conn.Root().API(tenant, verb), nil, data)
	if err != nil {
		tb.Fatalf("%s: %v", verb, err)
	}
	return wire.DecodeReply[T](r.Header.Get(subjects.HeaderContentType), r.Data)
}

func mustAsk[T any](tb testing.TB, conn *bus.Conn, tenant, verb string, m any) *T {
	tb.Helper()
	v, err := ask[T](tb, conn, tenant, verb, m)
	if err != nil {
		tb.Fatalf("%s: %v", verb, err)
	}
	return v
}

func code(err error) wire.Code {
	if err == nil {
		return ""
	}
	return wire.AsError(err).Code
}
