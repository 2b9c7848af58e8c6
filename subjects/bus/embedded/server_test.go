package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/bus/embedded"
	"github.com/limpet-sh/limpet/subjects/bus/embedded/embeddedtest"
)

// TestMain also serves as the child that dials a socket as another user.
func TestMain(m *testing.M) {
	if path := os.Getenv("LIMPET_TEST_DIAL"); path != "" {
		c, err := net.Dial("unix", path)
		if err != nil {
			fmt.Println("dial:", err)
			os.Exit(2)
		}
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		n, err := c.Read(make([]byte, 16))
		fmt.Println("read:", n, err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestDirectoryHasOneOwner(t *testing.T) {
	dir := t.TempDir()
	s := embeddedtest.Start(t, embedded.Config{Dir: dir})
	_, err := embedded.Start(embedded.Config{Dir: dir, Logger: embeddedtest.Quiet()})
	locked, ok := errors.AsType[*embedded.LockedError](err)
	if !ok || locked.PID != os.Getpid() || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Fatal(err)
	}
	_, password := s.Credentials(subjects.RoleWorker, "W1")
	s.Close()
	s.Close()
	again := embeddedtest.Start(t, embedded.Config{Dir: dir})
	if _, p := again.Credentials(subjects.RoleWorker, "W1"); p != password {
		t.Error("the password did not outlive the server")
	}
	fi, err := os.Stat(again.SecretFile())
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Error(fi.Mode(), err)
	}
	for _, bad := range []embedded.Config{
		{Tenants: []string{"a.b"}},
		{MaxPayload: 1},
		{Secret: []byte("short")},
		{Listen: "nowhere"},
		{Cluster: &embedded.Cluster{}},
		{UnixSocket: "/nonexistent/dir/socket"},
		{Dir: "/proc/none"},
	} {
		bad.Logger = embeddedtest.Quiet()
		if s, err := embedded.Start(bad); err == nil {
			s.Close()
			t.Errorf("%+v was taken", bad)
		}
	}
}

// TestStoredSurvives: streams in a directory are there after a restart.
func TestStoredSurvives(t *testing.T) {
	dir := t.TempDir()
	s := embeddedtest.Start(t, embedded.Config{Dir: dir})
	embeddedtest.Provision(t, s, bus.StreamOptions{})
	w := embeddedtest.Connect(t, s, subjects.RoleWorker, "W1")
	if _, err := w.Append(t.Context(), root.Boot("W1"), nil, []byte("b"), bus.ExpectAny()); err != nil {
		t.Fatal(err)
	}
	w.Close()
	s.Close()
	s = embeddedtest.Start(t, embedded.Config{Dir: dir})
	w = embeddedtest.Connect(t, s, subjects.RoleWorker, "W1")
	if m, err := w.Last(t.Context(), root.Stream(subjects.StreamBoot), root.Boot("W1")); err != nil || string(m.Data) != "b" {
		t.Fatal(m, err)
	}
}

func unixConn(tb testing.TB, s *embedded.Server, path string) *bus.Conn {
	return embeddedtest.Connect(tb, s, subjects.RoleGateway, "u", func(c *bus.Config) { c.Dial = bus.DialUnix(path) })
}

func TestUnixSocket(t *testing.T) {
	for _, dir := range []string{t.TempDir(), filepath.Join(t.TempDir(), strings.Repeat("long/", 40))} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "nats.sock")
		s := embeddedtest.Start(t, embedded.Config{UnixSocket: path, Tenants: []string{"local"}})
		if fi, err := os.Stat(path); err != nil || fi.Mode() != os.ModeSocket|0o600 {
			t.Fatal(fi.Mode(), err)
		}
		c := unixConn(t, s, path)
		w := embeddedtest.Connect(t, s, subjects.RoleWorker, "W1")
		serveEcho(t, w, root.WorkerAll("W1", 1), "")
		ask := func() error {
			_, err := c.Request(within(t, 5*time.Second), root.Process("local", "W1", 1, "p", "x"), nil, make([]byte, 1<<20))
			return err
		}
		if err := ask(); err != nil {
			t.Fatal(err)
		}
		// A password is asked for here too.
		_, err := bus.Connect(within(t, 5*time.Second), bus.Config{User: "gateway.g", Password: "x", Dial: bus.DialUnix(path), Logger: embeddedtest.Quiet()})
		if err == nil || !strings.Contains(err.Error(), "Authorization Violation") {
			t.Fatal(err)
		}
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		for ask() != nil { // until both are back; TestMain's timeout is the bound
			runtime.Gosched()
		}
		s.Close()
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Error("the socket is left:", err)
		}
	}
}

func TestUnixSocketInTheWay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nats.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close() // what a killed owner leaves
	s := embeddedtest.Start(t, embedded.Config{UnixSocket: path, MaxUnix: 1})
	c := unixConn(t, s, path)
	extra, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := extra.Read(make([]byte, 1)); err == nil {
		t.Error("one more than MaxUnix was served")
	}
	c.Close()
	s.Close()
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := embedded.Start(embedded.Config{UnixSocket: path, Logger: embeddedtest.Quiet()}); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Fatal(err)
	}
}

// TestReservedSocket: clients that use up their socket do not shut out the host's own
// roles, and who is refused in a loop fills no log.
func TestReservedSocket(t *testing.T) {
	dir := t.TempDir()
	path, own := filepath.Join(dir, "nats.sock"), filepath.Join(dir, "worker.sock")
	var logged lockedBuffer
	s := embeddedtest.Start(t, embedded.Config{
		UnixSocket: path, ReservedSocket: own, MaxUnix: 2, Logger: slog.New(slog.NewTextHandler(&logged, nil)),
	})
	for range 2 {
		unixConn(t, s, path)
	}
	began := time.Now()
	for range 50 {
		extra, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := extra.Read(make([]byte, 1)); err == nil {
			t.Fatal("one more than MaxUnix was served")
		}
		extra.Close()
	}
	most := 1 + int(time.Since(began)/time.Second)
	if n := strings.Count(logged.String(), "refused connections"); n < 1 || n > most {
		t.Errorf("50 refusals are told in %d lines, not in 1 to %d", n, most)
	}
	unixConn(t, s, own)
	if n := s.Clients(); n != 2 {
		t.Errorf("%d clients are counted; those of the reserved socket are none", n)
	}
	s.Close()
	if _, err := os.Lstat(own); !errors.Is(err, os.ErrNotExist) {
		t.Error("the reserved socket is left:", err)
	}
}

// TestUnixSocketIsOurs: another user is turned away even where modes were loosened.
func TestUnixSocketIsOurs(t *testing.T) {
	if os.Geteuid() != 0 {
		if strings.Contains(os.Getenv("LIMPET_REQUIRE"), "root") {
			t.Fatal("needs root")
		}
		t.Skip("needs root, to become another user")
	}
	dir, err := os.MkdirTemp("/tmp", "limpet-test-") //nolint:usetesting // t.TempDir may not be entered by others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	exe := filepath.Join(dir, "test")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "nats.sock")
	embeddedtest.Start(t, embedded.Config{UnixSocket: path})
	if err := errors.Join(os.WriteFile(exe, self, 0o755), os.Chmod(dir, 0o755), os.Chmod(path, 0o666)); err != nil {
		t.Fatal(err)
	}
	dial := func(uid uint32) string {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, exe)
		cmd.Dir, cmd.Env = "/", []string{"LIMPET_TEST_DIAL=" + path}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if got := dial(65534); got != "read: 0 EOF" {
		t.Errorf("another user: %s", got)
	}
	if got := dial(0); got != "read: 16 <nil>" {
		t.Errorf("ourselves: %s", got)
	}
}

// TestNothingLeft: after Close no goroutine and no descriptor of ours is there.
func TestNothingLeft(t *testing.T) {
	once := func() {
		dir := t.TempDir()
		path := filepath.Join(dir, "s")
		s := embeddedtest.Start(t, embedded.Config{Dir: dir, UnixSocket: path})
		embeddedtest.Provision(t, s, bus.StreamOptions{})
		c, w := unixConn(t, s, path), embeddedtest.Connect(t, s, subjects.RoleWorker, "W1")
		serveEcho(t, w, root.WorkerAll("W1", 1), "")
		if _, err := c.Request(t.Context(), root.Process("local", "W1", 1, "p", "x"), nil, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := c.LastPerSubject(t.Context(), root.Stream(subjects.StreamRecords), ">"); err != nil {
			t.Fatal(err)
		}
		c.Close()
		w.Close()
		s.Close()
	}
	once()
	count := func() (int, int) {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return runtime.NumGoroutine(), len(fds)
	}
	g0, f0 := count()
	for range 5 {
		once()
	}
	var g, f int
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); { // the server's last goroutines end behind Shutdown
		if g, f = count(); g <= g0 && f <= f0 {
			return
		}
		runtime.Gosched()
	}
	buf := make([]byte, 1<<20)
	t.Fatalf("%d goroutines, were %d; %d descriptors, were %d\n%s", g, g0, f, f0, buf[:runtime.Stack(buf, true)])
}
