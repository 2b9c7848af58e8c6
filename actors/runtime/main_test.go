package runtime

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain makes the test binary a child on demand: with LIMPET_TEST_CHILD it does
// what that says and never runs a test.
func TestMain(m *testing.M) {
	if what := os.Getenv("LIMPET_TEST_CHILD"); what != "" {
		os.Exit(child(what))
	}
	os.Exit(m.Run())
}

// child is the behaviour of the test binary as a child.
func child(what string) int {
	switch what {
	case "echo": // stdin to stdout
		_, _ = io.Copy(os.Stdout, os.Stdin)
	case "streams":
		fmt.Fprint(os.Stdout, "out")
		fmt.Fprint(os.Stderr, "err")
	case "blocking": // are 0, 1 and 2 as a program expects them?
		for fd := range 3 {
			flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
			fmt.Printf("%d:%t:%v ", fd, flags&unix.O_NONBLOCK != 0, err)
		}
	default:
		return otherwise(what)
	}
	return 0
}

// need skips a test for want of something, and fails it where LIMPET_REQUIRE says that
// this must not be wanting.
func need(t testing.TB, word string, have bool, why string) {
	t.Helper()
	if have {
		return
	}
	if strings.Contains(os.Getenv("LIMPET_REQUIRE"), word) {
		t.Fatalf("LIMPET_REQUIRE demands %s: %s", word, why)
	}
	t.Skipf("NOT RUN for want of %s: %s", word, why)
}

func needBash(t testing.TB) {
	t.Helper()
	_, err := exec.LookPath("bash")
	need(t, "bash", err == nil, fmt.Sprint(err))
}

// forker gives a Forker of a kind, closed at the end of the test.
func forker(t testing.TB, kind string) *Forker {
	t.Helper()
	cfg := Config{Logger: slog.New(slog.NewTextHandler(testLog{t}, nil))}
	if kind == "scan" {
		cfg.Cgroup = "off"
	}
	f, err := NewForker(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error("close the forker:", err)
		}
	})
	if kind == "cgroup" {
		need(t, "cgroup", f.Cgroup() != "", "no cgroup v2 leaf could be had")
	}
	return f
}

type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// each runs a test with a forker of either kind: one contract, two implementations.
func each(t *testing.T, test func(t *testing.T, f *Forker)) {
	t.Helper()
	for _, kind := range []string{"cgroup", "scan"} {
		t.Run(kind, func(t *testing.T) {
			needBash(t)
			test(t, forker(t, kind))
		})
	}
}

// bash is the Spec of a shell text.
func bash(t testing.TB, text string) Spec {
	t.Helper()
	argv, err := ShellArgv(ShellText{Text: text})
	if err != nil {
		t.Fatal(err)
	}
	return Spec{Argv: argv, Env: os.Environ(), Umask: DefaultUmask, Tag: tagFor(t)}
}

// self is the Spec of the test binary as a child.
func self(t testing.TB, what string) Spec {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Spec{Argv: []string{exe}, Env: append(os.Environ(), "LIMPET_TEST_CHILD="+what), Umask: DefaultUmask, Tag: tagFor(t)}
}

func tagFor(t testing.TB) string {
	return fmt.Sprintf("%.90s-%d", t.Name(), time.Now().UnixNano())
}

// running is a started child whose streams are read to their end.
type running struct {
	*Child
	t           testing.TB
	out, errOut buffer
	extra       map[int]*buffer // of the captured descriptors
	streams     sync.WaitGroup
}

// buffer is a bytes.Buffer that can be looked at while it is written.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// await waits until the child has printed text.
func (r *running) await(text string) {
	r.t.Helper()
	eventually(r.t, "the child says "+text, func() bool { return strings.Contains(r.out.String(), text) })
}

// start starts s; the tree is stopped and closed at the end of the test.
func start(t testing.TB, f *Forker, s Spec) *running {
	t.Helper()
	c, err := f.Start(s)
	if err != nil {
		t.Fatal(err)
	}
	r := &running{Child: c, t: t, extra: map[int]*buffer{}}
	for _, o := range c.Outputs {
		into := new(buffer)
		r.extra[o.Number] = into
		r.streams.Go(func() { _, _ = io.Copy(into, o.File) }) // as below
	}
	for file, into := range map[*os.File]*buffer{c.Stdout: &r.out, c.Stderr: &r.errOut, c.Master: &r.out} {
		if file != nil {
			r.streams.Go(func() { _, _ = io.Copy(into, file) }) // ends at end of file or Close
		}
	}
	t.Cleanup(func() {
		// Not t.Context: it has ended by now.
		c.Stop(context.Background(), StopOptions{})
		if _, err := c.Wait(); err != nil {
			t.Error("wait:", err)
		}
		if err := c.Close(); err != nil {
			t.Error("close:", err)
		}
		r.streams.Wait()
	})
	return r
}

// end waits for the leader, at most 10 s.
func (r *running) end() Exit {
	r.t.Helper()
	got := make(chan Exit, 1)
	go func() { // ends with the child, at the latest in the test's clean-up
		e, err := r.Wait()
		if err != nil {
			r.t.Error("wait:", err)
		}
		got <- e
	}()
	select {
	case e := <-got:
		return e
	case <-time.After(10 * time.Second):
		r.t.Fatal("the child does not end")
		return Exit{}
	}
}

// text waits for the streams and gives stdout.
func (r *running) text() string {
	r.streams.Wait()
	return r.out.String()
}

// eventually waits for a condition, at most 5 s.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if err := poll(nil, 5*time.Second, 5*time.Millisecond, func() (bool, error) { return ok(), nil }); err != nil {
		t.Fatalf("never came true: %s", what)
	}
}
