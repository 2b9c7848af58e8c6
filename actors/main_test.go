package actors

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/bus/embedded"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// TestMain makes the test binary the keeper when it is re-executed as one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "keeper" {
		os.Exit(keeper.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// bench is a worker on an embedded NATS with a real keeper, and a caller with a
// gateway's rights.
type bench struct {
	t      testing.TB
	server *embedded.Server
	dir    string
	caller *bus.Conn
	worker *Worker
	cancel context.CancelCauseFunc
	ran    chan error
	log    *slog.Logger
	cfg    func(*Config)
}

func newBench(t testing.TB, cfg func(*Config)) *bench {
	t.Helper()
	b := &bench{t: t, dir: filepath.Join(t.TempDir(), "worker"), cfg: cfg}
	b.log = slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	var err error
	if b.server, err = embedded.Start(embedded.Config{Logger: b.log}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.server.Close)
	prov := b.connect(subjects.RoleProvisioner, "test")
	if err := prov.EnsureStreams(t.Context(), bus.StreamOptions{Memory: true}); err != nil {
		t.Fatal(err)
	}
	cmd, err := keeper.Ensure(t.Context(), keeper.Config{Dir: b.dir, Window: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	b.caller = b.connect(subjects.RoleGateway, "test")
	b.boot()
	t.Cleanup(func() { b.stop(nil) })
	return b
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

func (b *bench) connect(role subjects.Role, name string) *bus.Conn {
	b.t.Helper()
	user, password := b.server.Credentials(role, name)
	c, err := bus.Connect(b.t.Context(), bus.Config{
		Dial: b.server.Dial(), User: user, Password: password, InboxPrefix: subjects.InboxPrefix(role, name), Logger: b.log,
	})
	if err != nil {
		b.t.Fatalf("connect as %s: %v", role, err)
	}
	b.t.Cleanup(c.Close)
	return c
}

// boot starts an incarnation and waits until it serves.
func (b *bench) boot() {
	b.t.Helper()
	up := make(chan struct{})
	cfg := Config{
		Name: "w1", Dir: b.dir, Control: b.connect(subjects.RoleWorker, "w1"), Events: b.connect(subjects.RoleWorker, "w1"),
		Cwd: b.t.TempDir(), Environ: os.Environ(), Logger: b.log, OnUp: func() { close(up) },
	}
	if b.cfg != nil {
		b.cfg(&cfg)
	}
	w, err := New(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	b.worker, b.cancel, b.ran = w, cancel, make(chan error, 1)
	go func() { b.ran <- w.Run(ctx) }()
	select {
	case <-up:
	case err := <-b.ran:
		b.t.Fatalf("the worker ended: %v", err)
	case <-time.After(20 * time.Second):
		b.t.Fatal("the worker did not come up")
	}
}

func (b *bench) stop(cause error) {
	if b.cancel == nil {
		return
	}
	b.cancel(cause)
	b.cancel = nil
	select {
	case err := <-b.ran:
		if err != nil {
			b.t.Errorf("the worker ended: %v", err)
		}
	case <-time.After(30 * time.Second):
		b.t.Error("the worker did not end")
	}
}

const tenant = "local"

// ask sends a request to the worker and decodes the answer.
func ask[T any](b *bench, subject string, m any) (*T, error) {
	b.t.Helper()
	data, err := wire.Marshal(subjects.TypeMsgpack, m)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), 30*time.Second)
	defer cancel()
	msg, err := b.caller.Request(ctx, subject, nil, data)
	if err != nil {
		return nil, err
	}
	return wire.DecodeReply[T](subjects.TypeMsgpack, msg.Data)
}

func must[T any](b *bench) func(*T, error) *T {
	return func(v *T, err error) *T {
		b.t.Helper()
		if err != nil {
			b.t.Fatal(err)
		}
		return v
	}
}

func (b *bench) root() subjects.Root { return b.caller.Root() }

func (b *bench) open(m wire.Open) *wire.Session {
	b.t.Helper()
	m.Version = wire.Version
	return must[wire.Session](b)(ask[wire.Session](b, b.root().WorkerOpen(tenant, "w1", b.worker.e), &m))
}

func (b *bench) session(s *wire.Session, verb string) string {
	return b.root().Session(tenant, "w1", b.worker.e, s.ID, verb)
}

func (b *bench) process(id, verb string) string {
	return b.root().Process(tenant, "w1", b.worker.e, id, verb)
}

func (b *bench) run(s *wire.Session, text string) *wire.Result {
	b.t.Helper()
	return must[wire.Result](b)(ask[wire.Result](b, b.session(s, "run"), &wire.Run{Version: wire.Version, SessionRef: wire.SessionRef{Session: s.ID}, Command: wire.Command{Text: text}}))
}

func (b *bench) start(s *wire.Session, c wire.Command) *wire.Receipt {
	b.t.Helper()
	return must[wire.Receipt](b)(ask[wire.Receipt](b, b.session(s, "start"), &wire.Start{Version: wire.Version, SessionRef: wire.SessionRef{Session: s.ID}, Command: c}))
}

func ref(id string) wire.ProcessRef { return wire.ProcessRef{Process: id} }

func (b *bench) wait(id string) *wire.Receipt {
	b.t.Helper()
	return must[wire.Receipt](b)(ask[wire.Receipt](b, b.process(id, "wait"), &wire.Wait{Version: wire.Version, ProcessRef: ref(id), WaitMS: 20_000}))
}
