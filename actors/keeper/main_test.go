package keeper

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// The test binary is its own keeper and its own worker.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "keeper":
			os.Exit(Main(os.Args[2:]))
		case "worker":
			os.Exit(workerMain(os.Args[2:]))
		case "produce":
			n, err := strconv.ParseInt(os.Args[3], 10, 64)
			if err == nil {
				err = produce(os.Args[2], n)
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(7)
		}
	}
	os.Exit(m.Run())
}

// newDir makes a state directory with a name too long for a socket address.
func newDir(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// newKeeper starts one and ends it with the test.
func startKeeper(t testing.TB, window time.Duration) string {
	t.Helper()
	dir := newDir(t)
	cmd, err := Ensure(t.Context(), Config{Dir: dir, Window: window, Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	if cmd == nil {
		t.Fatal("a keeper was there before")
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		select {
		case err := <-done:
			if err != nil && !t.Failed() {
				t.Errorf("keeper: %v", err)
			}
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Signal(syscall.SIGQUIT)
			t.Error("the keeper does not end")
			<-done
		}
	})
	return dir
}

// events collects what a client delivers.
type events struct {
	mu   sync.Mutex
	list []Event
	news chan struct{}
}

func newEvents() *events { return &events{news: make(chan struct{}, 1)} }

func (e *events) deliver(ev Event) {
	e.mu.Lock()
	e.list = append(e.list, ev)
	e.mu.Unlock()
	select {
	case e.news <- struct{}{}:
	default:
	}
}

func (e *events) find(match func(Event) bool) (Event, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.list {
		if match(ev) {
			return ev, true
		}
	}
	return Event{}, false
}

// wait waits for an event that matches.
func (e *events) wait(t testing.TB, what string, match func(Event) bool) Event {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		if ev, ok := e.find(match); ok {
			return ev
		}
		select {
		case <-e.news:
		case <-time.After(20 * time.Millisecond): // news went to another waiter
		case <-limit:
			t.Fatalf("no event: %s", what)
		}
	}
}

func (e *events) exited(t testing.TB, p *Process) *Exited {
	t.Helper()
	return e.wait(t, "exit of "+p.ID(), func(ev Event) bool { return ev.Exited != nil && ev.Exited.Process == p.ID() }).Exited
}

func (e *events) gone(t testing.TB, p *Process) *Gone {
	t.Helper()
	return e.wait(t, "end of "+p.ID(), func(ev Event) bool { return ev.Gone != nil && ev.Gone.Process == p.ID() }).Gone
}

// attach dials as incarnation e.
func attach(t testing.TB, dir string, e uint64) (*Client, *events, []*Process) {
	t.Helper()
	c, err := Dial(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	ev := newEvents()
	adopted, err := c.Attach(t.Context(), e, ev.deliver)
	if err != nil {
		t.Fatal(err)
	}
	return c, ev, adopted
}

// record is a sink that keeps everything.
type record struct {
	mu     sync.Mutex
	chunks []Chunk
	data   [wire.LastStream + 1][]byte // by stream
	raw    int64
	trim   func(int64)
	err    error
}

func (r *record) Append(c Chunk) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.Offset != r.raw {
		r.err = fmt.Errorf("chunk %d at offset %d, not %d", c.Number, c.Offset, r.raw)
	}
	r.raw = c.Offset + int64(len(c.Data))
	r.data[c.Stream] = append(r.data[c.Stream], c.Data...)
	c.Data = nil
	r.chunks = append(r.chunks, c)
	if r.trim != nil {
		r.trim(r.raw)
	}
	return r.err
}

func (r *record) text(s wire.Stream) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return string(r.data[s])
}

func (r *record) size() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.raw
}

var testEnv = []string{"PATH=/usr/local/bin:/usr/bin:/bin"}

func bash(id, script string) Spawn {
	return Spawn{
		Process: id, Path: "/bin/bash", Argv: []string{"bash", "-c", script}, Env: testEnv,
		Umask: 0o022, Grace: 2 * time.Second,
	}
}

func spawn(t testing.TB, c *Client, s Spawn) *Process {
	t.Helper()
	p, err := c.Spawn(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// pumped runs a pump beside the test and gives its result on demand.
func pumped(ctx context.Context, p *Process, s Sink, next int64) func() error {
	done := make(chan error, 1)
	go func() { done <- p.Pump(ctx, s, next) }()
	return func() error { return <-done }
}

// eventually waits for something that no event tells.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// alive reports whether pid runs, by /proc: a zombie does not.
func alive(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	rest := string(b[strings.LastIndexByte(string(b), ')')+1:])
	return !strings.HasPrefix(rest, " Z") && !strings.HasPrefix(rest, " X")
}

func keeperPID(t testing.TB, dir string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, pidName))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}
