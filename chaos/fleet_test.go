package chaos

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/bus/embedded"
	"github.com/limpet-sh/limpet/subjects/bus/embedded/embeddedtest"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// fleet is NATS in the test, with workers and gateways in processes of their own that
// nobody restarts but the test.
type fleet struct {
	t       testing.TB
	dir     string
	server  *embedded.Server
	client  *client.Client
	parts   map[string]*exec.Cmd
	keepers map[string]*exec.Cmd
}

func newFleet(t testing.TB, workers, gateways []string) *fleet {
	t.Helper()
	f := &fleet{t: t, dir: t.TempDir(), parts: map[string]*exec.Cmd{}, keepers: map[string]*exec.Cmd{}}
	f.server = embeddedtest.Start(t, embedded.Config{UnixSocket: f.socket()})
	embeddedtest.Provision(t, f.server, bus.StreamOptions{Memory: true})
	t.Cleanup(f.end)
	for _, w := range workers {
		f.startKeeper(w)
		f.startWorker(w)
	}
	for _, g := range gateways {
		f.startGateway(g)
	}
	f.client = f.connect(0)
	return f
}

func (f *fleet) socket() string { return filepath.Join(f.dir, "nats.sock") }

// connect is a client. Where its requests are short, a gateway that dies with one in hand
// is soon given up.
func (f *fleet) connect(request time.Duration) *client.Client {
	f.t.Helper()
	user, password := f.server.Credentials(subjects.RoleTenant, "local")
	c, err := client.Connect(f.t.Context(), client.Config{
		Socket: f.socket(), User: user, Password: password, MaxRequest: request, Patience: long, Logger: embeddedtest.Quiet(),
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(c.Close)
	return c
}

func (f *fleet) file(name string, v any) string {
	f.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		f.t.Fatal(err)
	}
	path := filepath.Join(f.dir, name+".json")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		f.t.Fatal(err)
	}
	return path
}

func (f *fleet) play(name string, args ...string) {
	f.t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Stderr = os.Stderr
	if !testing.Verbose() {
		cmd.Stderr = nil
	}
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.parts[name] = cmd
}

func (f *fleet) startKeeper(name string) {
	f.t.Helper()
	cmd, err := keeper.Ensure(f.t.Context(), keeper.Config{Dir: filepath.Join(f.dir, name), Window: time.Minute})
	if err != nil {
		f.t.Fatal(err)
	}
	f.keepers[name] = cmd
}

func (f *fleet) startWorker(name string) {
	f.t.Helper()
	user, password := f.server.Credentials(subjects.RoleWorker, name)
	f.play(name, "worker", "--file", f.file(name, map[string]any{
		"version": 1, "name": name, "dir": filepath.Join(f.dir, name), "socket": f.socket(), "user": user, "password": password,
	}))
}

func (f *fleet) startGateway(name string) {
	f.t.Helper()
	user, password := f.server.Credentials(subjects.RoleGateway, name)
	f.play(name, "gateway", f.file(name, gatewayFile{f.socket(), name, user, password}))
}

// kill ends a part with -9.
func (f *fleet) kill(name string) {
	f.t.Helper()
	cmd := f.parts[name]
	delete(f.parts, name)
	if err := cmd.Process.Kill(); err != nil {
		f.t.Fatal(err)
	}
	_ = cmd.Wait()
}

func (f *fleet) signal(name string, sig syscall.Signal) {
	f.t.Helper()
	if err := f.parts[name].Process.Signal(sig); err != nil {
		f.t.Fatal(err)
	}
}

// end ends everything: the keepers end what they still hold.
func (f *fleet) end() {
	for name, cmd := range f.parts {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		delete(f.parts, name)
	}
	for _, cmd := range f.keepers {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		t := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		t.Stop()
	}
}

// on opens a session on one worker.
func (f *fleet) on(worker string) agent {
	f.t.Helper()
	for until := time.Now().Add(long); time.Now().Before(until); {
		s, err := f.client.Open(f.t.Context(), wire.Open{Cwd: f.dir, DefaultTimeoutMS: -1})
		if err != nil {
			f.t.Fatal(err)
		}
		if s.Info().Worker == worker {
			return agent{s, f.client}
		}
	}
	f.t.Fatalf("no session on %s", worker)
	return agent{}
}
