package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects/wire"
)

const (
	// testIdle is long against what a test does between two looks.
	testIdle = 3 * time.Second
	patience = 30 * time.Second
)

// part is this binary re-executed as the up or the worker of the tests.
func part(name string, args []string) {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	flags := flag.NewFlagSet(name, flag.ExitOnError)
	state, idle := flags.String("state", "", ""), flags.Duration("until-idle", 0, "")
	file := flags.String("file", "", "")
	_ = flags.Parse(args)
	var err error
	if name == "up" {
		err = Up(ctx, UpOptions{State: State(*state), UntilIdle: *idle, Logger: log})
	} else {
		var o WorkerOptions
		if o, err = WorkerFromFile(*file); err == nil {
			o.Logger = log
			var w *Worker
			if w, err = NewWorker(o); err == nil {
				err = w.Run(ctx)
			}
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, name, "failed:", err)
		os.Exit(1)
	}
}

// eventually fails the test when f does not come true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// ensure finds or starts an up, which ends with the test at the latest.
func ensure(t *testing.T, s State, idle time.Duration) *Discovery {
	t.Helper()
	d, err := Ensure(t.Context(), EnsureOptions{State: s, UntilIdle: idle, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	endAtLast(t, s)
	return d
}

// endAtLast ends what is up in a state directory with the test.
func endAtLast(t *testing.T, s State) {
	t.Helper()
	t.Cleanup(func() {
		d, err := Discover(s)
		if err != nil {
			return
		}
		if err := syscall.Kill(d.PID, syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		gone(t, s)
	})
}

// gone waits until a state directory has no owner.
func gone(t *testing.T, s State) {
	t.Helper()
	o := EnsureOptions{State: s}
	eventually(t, "the end of up", func() bool { return !o.owned() && s.Ended() })
}

func tenant(t *testing.T, d *Discovery) *client.Client {
	t.Helper()
	b := d.Bus("test")
	b.Logger = quiet()
	c, err := client.Connect(t.Context(), clientOf(b, d.Tenant))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Of eight that want an owner at once one starts it, and all find that one.
func TestEnsureAtOnce(t *testing.T) {
	t.Parallel()
	s := State(filepath.Join(t.TempDir(), "state"))
	endAtLast(t, s)
	var (
		all  sync.WaitGroup
		said [8]string
	)
	for i := range said {
		all.Go(func() {
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
			cmd.Env = append(os.Environ(), "LIMPET_TEST_ENSURE="+string(s))
			out, err := cmd.CombinedOutput()
			said[i] = fmt.Sprint(string(out), err)
		})
	}
	all.Wait()
	for i := range said {
		if said[i] != said[0] || !strings.Contains(said[i], "<nil>") {
			t.Errorf("they do not agree:\n%s\n%s", said[0], said[i])
		}
	}
	log, err := os.ReadFile(s.upLog())
	if err != nil || strings.Contains(string(log), "failed") {
		t.Errorf("its log (%v): %s", err, log)
	}
}

// What is started in the background ends by itself, not before its time, and with all of
// its parts; then the next one starts.
func TestUntilIdle(t *testing.T) {
	t.Parallel()
	s := State(t.TempDir())
	const idle = 500 * time.Millisecond
	first := ensure(t, s, idle)
	c := tenant(t, first)
	cli, err := c.Open(t.Context(), wire.Open{Name: "cli", IdleTTLMS: -1})
	if err != nil {
		t.Fatal(err)
	}
	own, err := c.Open(t.Context(), wire.Open{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := cli.Start(t.Context(), wire.Start{Command: wire.Command{Text: "sleep 300"}})
	if err != nil {
		t.Fatal(err)
	}
	lives := func(why string) {
		t.Helper()
		for end := time.Now().Add(3 * idle); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if s.Ended() {
				t.Fatal("it ended though there is ", why)
			}
		}
	}
	lives("a client")
	again := func(f func(*client.Client)) { // a client comes and goes
		t.Helper()
		c := tenant(t, first)
		f(c)
		c.Close()
	}
	c.Close()
	lives("a process, and a session that ends by itself")
	again(func(c *client.Client) {
		if _, err := c.Session(own.Info().Name).Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	lives("a process of a session that never ends")
	again(func(c *client.Client) {
		if _, err := c.Terminate(t.Context(), wire.Terminate{ProcessRef: wire.ProcessRef{Process: r.Process}, Mode: "kill"}); err != nil {
			t.Fatal(err)
		}
	})
	gone(t, s)
	for _, lock := range []string{"keeper.lock", "worker.lock"} {
		if pid, _, err := holder(filepath.Join(s.Worker(), lock)); err == nil {
			t.Errorf("process %d still holds %s", pid, lock)
		}
	}
	if second := ensure(t, s, time.Minute); second.PID == first.PID {
		t.Error("the second is the first")
	}
}

// An owner that is just ending is waited for.
func TestEnsureWhileEnding(t *testing.T) {
	t.Parallel()
	s := State(t.TempDir())
	first := ensure(t, s, time.Minute)
	c := tenant(t, first)
	session, err := c.Open(t.Context(), wire.Open{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := session.Start(t.Context(), wire.Start{Command: wire.Command{Text: `trap "" TERM; echo deaf; while :; do sleep 1; done`, GraceMS: 1500}})
	if err != nil {
		t.Fatal(err)
	}
	page, err := c.Read(t.Context(), wire.Read{ProcessRef: wire.ProcessRef{Process: r.Process}, WaitMS: 20_000})
	if err != nil || len(page.Chunks) == 0 {
		t.Fatal(page, err)
	}
	if err := syscall.Kill(first.PID, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the discovery file to go", s.Ended)
	if second := ensure(t, s, time.Minute); second.PID == first.PID {
		t.Error("the one that ends was found")
	}
}

// An up that cannot start is told of, with what it said.
func TestEnsureCannotStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nats"), nil, 0o600); err != nil { // where a directory should be
		t.Fatal(err)
	}
	_, err := Ensure(t.Context(), EnsureOptions{State: State(dir), Logger: quiet()})
	if err == nil || !strings.Contains(err.Error(), "limpet up did not start") || !strings.Contains(err.Error(), "nats") {
		t.Error(err)
	}
}

// The file of settings is found from the directory of the owner, too.
func TestEnsureConfig(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, tt := range []struct{ flag, variable, want string }{
		{"", "", ""},
		{"a.toml", "b.toml", filepath.Join(dir, "a.toml")},
		{"", "b.toml", filepath.Join(dir, "b.toml")},
		{"", "/c.toml", "/c.toml"},
	} {
		t.Setenv("LIMPET_CONFIG", tt.variable)
		o := EnsureOptions{State: State(dir), Config: tt.flag}
		if err := o.validate(); err != nil || o.Config != tt.want {
			t.Errorf("%+v: %q, %v", tt, o.Config, err)
		}
	}
}

// A connection outlives its owner: the next is started, and has the same processes.
func TestDialOwnerRevives(t *testing.T) {
	t.Parallel()
	s := State(t.TempDir())
	first := ensure(t, s, time.Minute)
	o := EnsureOptions{State: s, UntilIdle: time.Minute, Logger: quiet()}
	if err := o.validate(); err != nil {
		t.Fatal(err)
	}
	b := first.Bus("test")
	b.Logger = quiet()
	b.Dial = dialOwner(t.Context(), o, first, func(err error) { t.Error("it gave up:", err) })
	c, err := client.Connect(t.Context(), clientOf(b, first.Tenant))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	session, err := c.Open(t.Context(), wire.Open{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := session.Start(t.Context(), wire.Start{Command: wire.Command{Text: "read line; echo got $line", Stdin: wire.StdinPipe}})
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its death", func() bool { _, err := Discover(s); return errors.Is(err, ErrNotUp) })
	ref := wire.ProcessRef{Process: r.Process}
	zero := int64(0)
	if _, err := c.Write(t.Context(), wire.Write{ProcessRef: ref, Text: "on\n", Offset: &zero}); err != nil {
		t.Fatal(err)
	}
	end, err := c.WaitEnd(t.Context(), r.Process)
	if err != nil || end.State != wire.StateCompleted {
		t.Fatal(end, err)
	}
	if second, err := Discover(s); err != nil || second.PID == first.PID {
		t.Error(second, err)
	}
}

// Where no owner can be had it gives up, and says why.
func TestDialOwnerGivesUp(t *testing.T) {
	t.Parallel()
	s := State(t.TempDir())
	o := EnsureOptions{State: s, Exe: "/bin/false", Logger: quiet()}
	if err := o.validate(); err != nil {
		t.Fatal(err)
	}
	var gave error
	dial := dialOwner(t.Context(), o, &Discovery{Socket: s.Socket()}, func(err error) { gave = err })
	tries := 0
	eventually(t, "the end of its patience", func() bool {
		tries++
		if _, err := dial(); err == nil {
			t.Fatal("it is connected")
		}
		return gave != nil
	})
	if !strings.Contains(gave.Error(), "limpet up did not start") {
		t.Error(gave)
	}
	if _, err := dial(); !errors.Is(err, gave) {
		t.Error("it tries on:", err)
	}
}

// One that is up and down again is not started for ever, and one whose directory was made
// anew is another's.
func TestDialOwnerIsBounded(t *testing.T) {
	t.Parallel()
	s := State(t.TempDir())
	l, err := net.Listen("unix", filepath.Join(string(s), "other.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	found := &Discovery{Version: 1, Socket: l.Addr().String(), Password: "p"} // it is up, but not at our socket
	if err := writeJSON(s.discovery(), found); err != nil {
		t.Fatal(err)
	}
	o := EnsureOptions{State: s, Logger: quiet()}
	if err := o.validate(); err != nil {
		t.Fatal(err)
	}
	for password, want := range map[string]string{"p": "ended 6 times within a minute", "q": "was made anew"} {
		var gave error
		dial := dialOwner(t.Context(), o, &Discovery{Socket: s.Socket(), Password: password}, func(err error) { gave = err })
		eventually(t, want, func() bool { _, _ = dial(); return gave != nil })
		if !strings.Contains(gave.Error(), want) {
			t.Error(gave)
		}
	}
}

// A log that is long is kept once.
func TestLogsAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "up.log")
	write := func(text string) {
		t.Helper()
		f, err := openLog(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	size := func(path string) int64 {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return -1
		}
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	write("a")
	write("b")
	if size(path) != 2 || size(path+".1") != -1 {
		t.Error("a short log was not appended to")
	}
	for range 2 {
		if err := os.Truncate(path, MaxLog+1); err != nil {
			t.Fatal(err)
		}
		write("c")
		if size(path) != 1 || size(path+".1") != MaxLog+1 {
			t.Errorf("the log has %d bytes, and the one before %d", size(path), size(path+".1"))
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Error(info.Mode(), err)
	}
}
