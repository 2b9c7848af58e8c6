package actors

import (
	"context"
	stdflag "flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	goroutines "runtime"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/observer"
	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/bus/embedded"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// TestMain makes the test binary the keeper, or a worker to be killed, when it is
// re-executed as one. After the tests no goroutine may be left.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == "keeper":
		os.Exit(keeper.Main(os.Args[2:]))
	case len(os.Args) > 1 && os.Args[1] == "worker":
		os.Exit(workerMain(os.Args[2:]))
	}
	before := goroutines.NumGoroutine()
	code := m.Run()
	if stdflag.Lookup("test.fuzz").Value.String() != "" {
		os.Exit(code) // the fuzzer leaves a goroutine for signals
	}
	if left := leaked(before); left != "" && code == 0 {
		fmt.Fprintln(os.Stderr, "goroutines are left:\n"+left)
		code = 1
	}
	os.Exit(code)
}

// leaked gives the stacks when there are more goroutines than before, also after a while.
func leaked(before int) string {
	for range 100 {
		if goroutines.NumGoroutine() <= before {
			return ""
		}
		time.Sleep(50 * time.Millisecond)
	}
	b := make([]byte, 1<<20)
	return string(b[:goroutines.Stack(b, true)])
}

// workerMain is a worker in a process of its own: DIR URL USER PASSWORD CWD. It says
// its incarnation when it is up.
func workerMain(args []string) int {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	connect := func() *bus.Conn {
		c, err := bus.Connect(context.Background(), bus.Config{
			URL: args[1], User: args[2], Password: args[3], InboxPrefix: subjects.InboxPrefix(subjects.RoleWorker, "w1"), Logger: log,
		})
		if err != nil {
			log.Error("connect", "err", err)
			os.Exit(1)
		}
		return c
	}
	var w *Worker
	w, err := New(Config{
		Name: "w1", Dir: args[0], Control: connect(), Events: connect(), Cwd: args[4], Environ: os.Environ(), Logger: log,
		OnUp: func() { fmt.Println(w.e) },
	})
	if err == nil {
		err = w.Run(context.Background())
	}
	log.Error("the worker ended", "err", err)
	return 1
}

// bench is a worker on an embedded NATS with a real keeper, and a caller with a
// gateway's rights.
type bench struct {
	t      testing.TB
	server *embedded.Server
	dir    string
	caller *bus.Conn
	worker *Worker
	e      uint64 // incarnation of the worker, wherever it is
	cancel context.CancelCauseFunc
	victim *exec.Cmd // a worker in a process of its own
	ran    chan error
	log    *slog.Logger
	cfg    func(*Config)
	cwd    string
}

func newBench(t testing.TB, cfg func(*Config)) *bench {
	t.Helper()
	b := &bench{t: t, dir: filepath.Join(t.TempDir(), "worker"), cfg: cfg}
	b.log = slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	var err error
	if b.server, err = embedded.Start(embedded.Config{Listen: "127.0.0.1:0", Logger: b.log}); err != nil {
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
	b.cwd = t.TempDir()
	b.boot()
	return b
}

// bootVictim starts an incarnation in a process of its own.
func (b *bench) bootVictim() {
	b.t.Helper()
	user, password := b.server.Credentials(subjects.RoleWorker, "w1")
	cmd := exec.Command("/proc/self/exe", "worker", b.dir, b.server.URL(), user, password, b.cwd)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.t.Fatal(err)
	}
	b.victim = cmd
	b.t.Cleanup(b.kill)
	if _, err := fmt.Fscanln(out, &b.e); err != nil {
		b.t.Fatalf("the worker did not come up: %v", err)
	}
}

// kill is the hard stop: kill -9.
func (b *bench) kill() {
	if b.victim != nil {
		_ = b.victim.Process.Kill()
		_ = b.victim.Wait()
		b.victim = nil
	}
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

// records is a registry with a worker's rights, for what a test arranges behind it.
func (b *bench) records() *registry.Registry {
	return registry.New(b.connect(subjects.RoleWorker, "w1"), "w1")
}

// events are the phases that EVENTS holds of a process, when want of them are there.
func (b *bench) events(process string, want int) (phases []wire.Phase, all []wire.Event) {
	b.t.Helper()
	conn := b.connect(subjects.RoleObserver, "test")
	for range 100 {
		phases, all = nil, nil
		err := observer.Replay(b.t.Context(), conn, tenant, process, func(e wire.Event) error {
			if e.Phase != wire.PhaseOutput && e.Phase != wire.PhaseState {
				phases, all = append(phases, e.Phase), append(all, e)
			}
			return nil
		})
		if err != nil {
			b.t.Fatal(err)
		}
		if len(phases) >= want {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	return phases, all
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
		Cwd: b.cwd, Environ: os.Environ(), Logger: b.log, OnUp: func() { close(up) },
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
	b.t.Cleanup(func() { b.stop(nil) }) // before its connections are closed
	go func() { b.ran <- w.Run(ctx) }()
	select {
	case <-up:
		b.e = w.e
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
	return must[wire.Session](b)(ask[wire.Session](b, b.root().WorkerOpen(tenant, "w1", b.e), &m))
}

func (b *bench) session(s *wire.Session, verb string) string {
	return b.root().Session(tenant, "w1", b.e, s.ID, verb)
}

func (b *bench) process(id, verb string) string {
	return b.root().Process(tenant, "w1", b.e, id, verb)
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
