package keeper

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// usage is what a process holds, by /proc.
type usage struct{ fds, threads, children, zombies int }

func usageOf(t testing.TB, pid int) (u usage) {
	t.Helper()
	count := func(dir string) int {
		list, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), dir))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	u.fds, u.threads = count("fd"), count("task")
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		b, _ := os.ReadFile(list)
		for child := range strings.FieldsSeq(string(b)) {
			u.children++
			if n, _ := strconv.Atoi(child); !alive(n) {
				u.zombies++
			}
		}
	}
	return u
}

// memory is what a process has of its own, and its share of what it has in common
// with others, in bytes.
func memory(t testing.TB, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatal("no Pss")
	return 0
}

func spawns(t *testing.T) int {
	if n, err := strconv.Atoi(os.Getenv("LIMPET_SPAWNS")); err == nil {
		return n // 10000 takes a minute or two
	}
	if testing.Short() {
		return 300
	}
	return 1000
}

// Nothing is left of commands that were released, whatever their kind and end.
func TestNothingIsLeftBehind(t *testing.T) {
	dir := startKeeper(t, time.Minute)
	c, ev, _ := attach(t, dir, 1)
	pid := keeperPID(t, dir)
	round := func(from, to int) {
		var all sync.WaitGroup
		turns := make(chan struct{}, 8)
		for i := from; i < to; i++ {
			turns <- struct{}{}
			all.Go(func() {
				defer func() { <-turns }()
				one(t, c, ev, i)
			})
		}
		all.Wait()
	}
	round(0, 40)
	settle := func() (u usage, goroutines int) {
		eventually(t, "the keeper has forgotten all", func() bool {
			u = usageOf(t, pid)
			return u.children == 0
		})
		return u, runtime.NumGoroutine()
	}
	before, goroutines := settle()
	fds := descriptors(t)
	n := spawns(t)
	round(40, 40+n)
	after, goroutinesAfter := settle()
	if after.fds > before.fds+16 || // pooled cgroup leaves hold some
		after.threads > before.threads+8 || after.threads > 24 || after.zombies > 0 {
		t.Errorf("keeper: %+v, before %+v", after, before)
	}
	if n := holding(t, pid, "limpet-state") + holding(t, pid, "limpet-input"); n != 0 {
		t.Errorf("keeper: %d files of commands that are forgotten", n)
	}
	if now := descriptors(t); now > fds+4 {
		t.Errorf("worker: %d descriptors, before %d", now, fds)
	}
	if goroutinesAfter > goroutines+2 {
		t.Errorf("worker: %d goroutines, before %d", goroutinesAfter, goroutines)
	}
	if free := c.journals.size(); free < 1 || free > journalSpare {
		t.Errorf("%d journals in the pool", free)
	}
	for _, j := range c.journals.free {
		if at, err := j.position(); at != 0 || err != nil {
			t.Errorf("journal %d at %d: %v", j.number, at, err)
		}
	}
	if leaves, _ := filepath.Glob("/sys/fs/cgroup/unified/limpet-" + strconv.Itoa(pid) + "-*/*"); len(leaves) > 100 {
		t.Errorf("%d cgroup leaves", len(leaves))
	}
	t.Logf("%d spawns; keeper %+v, journals %d", n, after, c.journals.size())
}

func one(t *testing.T, c *Client, ev *events, i int) {
	s := bash(fmt.Sprintf("p%d", i), []string{
		"true", "echo some output; echo more >&2", "head -c 200000 /dev/zero", "sleep 60 & disown; echo x", "exec sleep 60", "exit 3",
	}[i%6])
	if i%7 == 0 {
		s.TTY = &wire.WindowSize{Rows: 5, Cols: 5}
	}
	s.Stdin = i%5 == 0
	s.CaptureState = i%4 == 0
	if i%3 == 0 && s.TTY == nil {
		s.Descriptors = []wire.Descriptor{
			{Number: 3, Output: true}, {Number: 64, Output: true}, {Number: 30, Input: []byte("input")},
		}
		s.Argv[2] = "echo three >&3; cat <&30 >&64; " + s.Argv[2]
	}
	if i%11 == 0 {
		s.Timeout = 30 * time.Millisecond
	}
	p, err := c.Spawn(t.Context(), s)
	if err != nil {
		t.Error(err)
		return
	}
	var sink record
	sink.trim = p.Trim
	done := pumped(t.Context(), p, &sink, 0)
	if i%6 == 4 && i%11 != 0 {
		_ = p.Stop(t.Context(), wire.ReasonCancel, Kill, 0)
	}
	e := ev.exited(t, p)
	if !e.Gone && i%2 == 1 {
		if err := p.KillLeftovers(t.Context()); err != nil {
			t.Error(err)
		}
		ev.gone(t, p)
	}
	if e.Gone {
		if err := done(); err != nil {
			t.Error(err)
		}
	}
	if err := p.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if !e.Gone {
		_ = done()
	}
}

// Idle processes are cheap: descriptors, threads and memory of keeper and worker.
func TestIdleProcessesAreCheap(t *testing.T) {
	n := 300
	if v, err := strconv.Atoi(os.Getenv("LIMPET_IDLE")); err == nil {
		n = v
	}
	dir := startKeeper(t, time.Minute)
	c, _, _ := attach(t, dir, 1)
	pid, self := keeperPID(t, dir), os.Getpid()
	start := func(from, to int) {
		for i := from; i < to; i++ {
			p := spawn(t, c, bash(fmt.Sprintf("p%d", i), "exec sleep 600"))
			go func() { _ = p.Pump(t.Context(), &record{}, 0) }() // ends with the test
		}
	}
	start(0, 10)
	runtime.GC()
	before, beforeFDs := memory(t, pid)+memory(t, self), usageOf(t, pid).fds+usageOf(t, self).fds
	start(10, 10+n)
	runtime.GC()
	bytes := (memory(t, pid) + memory(t, self) - before) / int64(n)
	k, w := usageOf(t, pid), usageOf(t, self)
	fds := float64(k.fds+w.fds-beforeFDs) / float64(n)
	t.Logf("%d idle processes: %d bytes and %.2f descriptors each, %d threads in all", n, bytes, fds, k.threads+w.threads)
	if (bytes > 64<<10 && !raceEnabled) || fds > 6 || k.threads+w.threads > 24 {
		t.Error("too much")
	}
}

func (l *pool) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.free)
}
