package runtime

import (
	"flag"
	"os"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
)

var leakStarts = flag.Int("starts", 500, "starts of the leak test; 10000 for the long form")

// usage is what a start may leave behind.
type usage struct {
	descriptors, threads, goroutines, zombies, children, leaves int
}

func measure(t testing.TB, f *Forker) usage {
	t.Helper()
	f.Sweep()
	count := func(dir string) int {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	u := usage{descriptors: count("/proc/self/fd"), threads: count("/proc/self/task"), goroutines: goruntime.NumGoroutine()}
	all, err := processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if m.parent == os.Getpid() {
			u.children++
			if !m.live() {
				u.zombies++
			}
		}
	}
	if f.tree != nil {
		entries, err := os.ReadDir(f.tree.path)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.IsDir() {
				u.leaves++
			}
		}
	}
	return u
}

// compare waits until no more is in use than before. Idle leaves are kept on purpose,
// and Go keeps a few threads of its own.
func (before usage) compare(t testing.TB, f *Forker) {
	t.Helper()
	idle := 0
	if f.tree != nil {
		f.tree.mu.Lock()
		idle = len(f.tree.idle)
		f.tree.mu.Unlock()
		if idle > maxIdleLeaves {
			t.Errorf("%d idle leaves are kept, at most %d may be", idle, maxIdleLeaves)
		}
	}
	var now usage
	eventually(t, "nothing is left behind", func() bool {
		now = measure(t, f)
		return now.descriptors <= before.descriptors+2*maxIdleLeaves && now.threads <= before.threads+8 &&
			now.goroutines <= before.goroutines && now.zombies == 0 && now.children <= before.children && now.leaves <= maxIdleLeaves
	})
	t.Logf("before %+v, after %+v, idle leaves %d", before, now, idle)
}

// TestLeaks starts children of all forms; what counts is what is there afterwards.
func TestLeaks(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		before := measure(t, f)
		var callers sync.WaitGroup
		for caller := range 4 {
			callers.Go(func() {
				for i := range *leakStarts / 4 {
					s := bash(t, "exit 0")
					switch (i + caller) % 9 {
					case 1:
						s.TTY = &Size{}
					case 2:
						s.Stdin = true
					case 3:
						s.Argv = []string{"/no/such/program"}
					case 4:
						s = bash(t, "sleep 60 & exit 0")
					case 5:
						s.Dir = "/no/such/directory"
					case 6:
						s.Merged, s.Stdin = true, true
					case 7:
						s = bash(t, "cat <&64 >&3; echo state >&65")
						s.Descriptors = []wire.Descriptor{{Number: 3, Output: true}, {Number: 64, Input: []byte("x")}}
						s.State = true
					}
					c, err := f.Start(s)
					if err != nil {
						if s.Argv[0][0] != '/' || s.Dir == "" && !strings.HasPrefix(s.Argv[0], "/no/") {
							t.Error(err)
						}
						continue
					}
					if _, err := c.Wait(); err != nil {
						t.Error(err)
					}
					if n, _, err := c.Survivors(); err != nil {
						t.Error(err)
					} else if n > 0 {
						if r := c.Stop(t.Context(), StopOptions{}); !r.Gone {
							t.Errorf("not gone: %+v", r)
						}
					}
					if err := c.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		callers.Wait()
		before.compare(t, f)
	})
}
