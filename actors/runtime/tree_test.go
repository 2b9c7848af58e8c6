package runtime

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
	"golang.org/x/sys/unix"
)

// proofOf is the proof that a forker can give.
func proofOf(f *Forker) wire.Proof {
	if f.tree != nil {
		return wire.ProofCgroup
	}
	return wire.ProofScan
}

// carriers counts live processes with the tag of c, whoever their parents are: the
// tests' own eye, independent of what Stop says.
func carriers(t testing.TB, c *Child) int {
	t.Helper()
	all, err := processes()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for pid, m := range all {
		env := readAll("/proc/"+strconv.Itoa(pid)+"/environ", nil)
		if m.live() && strings.Contains(string(env), TagVariable+"="+c.tag+"\x00") {
			n++
		}
	}
	return n
}

func gone(t *testing.T, f *Forker, r *running, got StopResult) {
	t.Helper()
	if !got.Gone || got.Proof != proofOf(f) || len(got.Unsignalled) > 0 {
		t.Errorf("got %+v, want gone with proof %s", got, proofOf(f))
	}
	if n := carriers(t, r.Child); n > 0 {
		t.Errorf("%d of the tree live after Stop answered", n)
	}
}

func TestLeftovers(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		for _, c := range []struct {
			name, text string
			left       int
		}{
			{"holds both streams (case 1)", "sleep 40 & echo started", 1},
			{"holds one stream (case 3)", "sleep 40 </dev/null >/dev/null & echo started", 1},
			{"holds none (case 12)", "sleep 40 </dev/null >/dev/null 2>&1 & echo started", 1},
			{"in a session of its own", "setsid sleep 40 & echo started", 1},
			{"nohup and disowned", "nohup sleep 40 >/dev/null 2>&1 & disown; echo started", 1},
			{"three", "for i in 1 2 3; do sleep 40 & done; echo started", 3},
			{"none", "echo started", 0},
			{"one that has ended", "sleep 0.01 & wait; echo started", 0},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := start(t, f, bash(t, c.text))
				began := time.Now()
				if e := r.end(); e.Code != 0 || time.Since(began) > 5*time.Second {
					t.Errorf("exit %+v after %v", e, time.Since(began))
				}
				// `setsid cmd &` may still be between fork and exec; it is a member all the same.
				if n, proof, err := r.Survivors(); n != c.left || proof != proofOf(f) || err != nil {
					t.Errorf("survivors %d by %s (%v), want %d", n, proof, err, c.left)
				}
				got := r.Stop(t.Context(), StopOptions{First: unix.SIGTERM, Grace: 5 * time.Second})
				gone(t, f, r, got)
				if got.Killed != 0 {
					t.Errorf("killed %d that TERM had ended", got.Killed)
				}
				if out := r.text(); out != "started\n" {
					t.Errorf("got %q", out)
				}
			})
		}
	})
}

func TestStop(t *testing.T) {
	_, python := exec.LookPath("python3")
	each(t, func(t *testing.T, f *Forker) {
		for _, c := range []struct {
			name, text string
			first      unix.Signal
			grace      time.Duration
			killed     int // -1: any
			shell      int
			python     bool
		}{
			{"TERM suffices (case 29)", "echo ready; sleep 300", unix.SIGTERM, 5 * time.Second, 0, 143, false},
			{"three shells above (case 18)", `bash -c 'bash -c "bash -c \"echo ready; sleep 88; :\"; :"; :'`, unix.SIGTERM, 5 * time.Second, 0, 143, false},
			{"a pipeline (case 8)", "echo ready; tail -f /dev/null | cat", unix.SIGTERM, 5 * time.Second, 0, 143, false},
			{"ignores TERM", "trap '' TERM; echo ready; while :; do sleep 0.05; done", unix.SIGTERM, 100 * time.Millisecond, -1, 137, false},
			{"KILL at once", "echo ready; sleep 300", 0, 0, 1, 137, false},
			{"is stopped", "echo ready; kill -STOP $$; echo went on", unix.SIGTERM, 5 * time.Second, 0, 143, false},
			{"a trap has its grace", "trap 'sleep 0.1; exit 3' TERM; echo ready; while :; do sleep 0.02; done", unix.SIGTERM, 5 * time.Second, 0, 3, false},
			{"INT", "trap 'exit 9' INT; echo ready; while :; do sleep 0.02; done", unix.SIGINT, 5 * time.Second, 0, 9, false},
			{"setsid below", "setsid bash -c 'echo ready; sleep 300; :' & wait", unix.SIGTERM, 5 * time.Second, 0, 143, false},
			{"a program below (case 14)", "python3 -c 'import time; print(\"ready\", flush=True); time.sleep(300)'; echo done", unix.SIGTERM, 5 * time.Second, 0, 143, true},
		} {
			t.Run(c.name, func(t *testing.T) {
				if c.python {
					need(t, "python3", python == nil, "python3 is not installed")
				}
				r := start(t, f, bash(t, c.text))
				r.await("ready")
				got := r.Stop(t.Context(), StopOptions{First: c.first, Grace: c.grace})
				gone(t, f, r, got)
				if c.killed >= 0 && got.Killed != c.killed || c.killed < 0 && got.Killed == 0 {
					t.Errorf("killed %d, want %d", got.Killed, c.killed)
				}
				if e := r.end(); e.Shell() != c.shell {
					t.Errorf("exit %+v, want %d", e, c.shell)
				}
				if strings.Contains(r.text(), "done") || strings.Contains(r.text(), "went on") {
					t.Errorf("got %q", r.text())
				}
			})
		}
	})
}

// TestDaemon is case 16: double fork and setsid, the parent gone before the stop.
func TestDaemon(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		r := start(t, f, bash(t, "(setsid bash -c 'sleep 77 & exit' </dev/null >/dev/null 2>&1 &) ; echo parent done"))
		if r.end().Code != 0 || r.text() != "parent done\n" {
			t.Fatal(r.end(), r.text())
		}
		eventually(t, "the daemon is on its own", func() bool { n, _, _ := r.Survivors(); return n == 1 })
		gone(t, f, r, r.Stop(t.Context(), StopOptions{First: unix.SIGTERM, Grace: 5 * time.Second}))
	})
}

// TestEnvironmentCleared: a descendant without the tag is found by session and by
// parent, and by the cgroup.
func TestEnvironmentCleared(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		for name, text := range map[string]string{
			"orphan of the session":      "env -i sleep 40 & exit",
			"session of its own, child":  "env -i setsid sleep 40 & echo ready; wait",
			"tagged parent, other group": "setsid bash -c 'env -i sleep 40 & wait' & exit",
		} {
			t.Run(name, func(t *testing.T) {
				r := start(t, f, bash(t, text))
				eventually(t, "sleep runs", func() bool { n, _, _ := r.Survivors(); return n > 0 })
				pids := r.members(t)
				gone(t, f, r, r.Stop(t.Context(), StopOptions{}))
				for _, m := range pids {
					if now, err := readStat(m.pid); err == nil && now.live() && now.start == m.start {
						t.Errorf("%d lives", m.pid)
					}
				}
			})
		}
	})
}

func (r *running) members(t *testing.T) []member {
	t.Helper()
	list, err := r.forker.scan(r.Child, r.isReaped())
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestForkingLoop is case 20. It kills at once, where a walk of a snapshot is outrun.
func TestForkingLoop(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		worst := time.Duration(0)
		for range 50 {
			r := start(t, f, bash(t, "while :; do (sleep 0.3 &); sleep 0.005; done"))
			eventually(t, "it forks", func() bool { n, _, _ := r.Survivors(); return n > 5 })
			began := time.Now()
			got := r.Stop(t.Context(), StopOptions{First: unix.SIGTERM, Grace: 0})
			worst = max(worst, time.Since(began))
			gone(t, f, r, got)
			r.end()
		}
		if worst > 5*time.Second { // 4 to 12 ms on a host that does nothing else
			t.Errorf("the slowest of 50 took %v", worst)
		}
		t.Log("slowest of 50:", worst)
	})
}

// TestStopEndsWithItsContext: the grace is cut short, the kill is not left out.
func TestStopEndsWithItsContext(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		r := start(t, f, bash(t, "trap '' TERM; echo ready; while :; do sleep 0.05; done"))
		r.await("ready")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		gone(t, f, r, r.Stop(ctx, StopOptions{First: unix.SIGTERM, Grace: time.Minute}))
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("took %v", d)
		}
	})
}

// TestEscape: root may write itself into another cgroup. The scan finds it, and the
// proof is a scan then.
func TestEscape(t *testing.T) {
	needBash(t)
	f := forker(t, "cgroup")
	parent := f.Cgroup()[:strings.LastIndexByte(f.Cgroup(), '/')]
	r := start(t, f, bash(t, "setsid bash -c 'echo $$ > "+parent+"/cgroup.procs && echo ready; sleep 50; :' & wait"))
	r.await("ready")
	got := r.Stop(t.Context(), StopOptions{})
	if !got.Gone || got.Proof != wire.ProofScan || got.Killed < 2 {
		t.Errorf("got %+v, want gone with proof scan", got)
	}
	if n := carriers(t, r.Child); n > 0 {
		t.Errorf("%d live", n)
	}
}

// TestOrphansAreReaped is case 33: no zombie stays with the subreaper.
func TestOrphansAreReaped(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		r := start(t, f, bash(t, "for i in $(seq 300); do (sleep 0.1 &); done; sleep 0.3; echo ready; sleep 30"))
		r.await("ready")
		eventually(t, "no zombies", func() bool {
			all, err := processes()
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range all {
				if m.parent == os.Getpid() && !m.live() {
					return false
				}
			}
			return true
		})
	})
}

func TestSignal(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		r := start(t, f, bash(t, "trap 'echo usr1' USR1; sleep 30 & echo ready; while :; do wait; done"))
		r.await("ready")
		if err := r.Signal(unix.SIGUSR1); err != nil {
			t.Error(err)
		}
		r.await("usr1")

		// After the end of the leader: the group's last member is reached, then nobody.
		r = start(t, f, bash(t, "sleep 30 & echo ready"))
		r.end()
		if err := r.Signal(unix.SIGTERM); err != nil {
			t.Error("a member is left:", err)
		}
		eventually(t, "the member is gone", func() bool {
			f.Sweep()
			return errors.Is(r.Signal(unix.SIGTERM), os.ErrProcessDone)
		})
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if err := r.Signal(unix.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
			t.Error("after Close:", err)
		}
	})
}

func TestCloseBeforeWait(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		r := start(t, f, bash(t, "sleep 30"))
		if err := r.Close(); !errors.Is(err, ErrRunning) {
			t.Errorf("got %v", err)
		}
		if err := r.Signal(unix.SIGKILL); err != nil {
			t.Errorf("the refused Close broke something: %v", err)
		}
		if e := r.end(); e.Signal != unix.SIGKILL || e.OOM {
			t.Errorf("got %+v", e)
		}
	})
}

// TestLeavesAreReused: and one in which something was left or made is not.
func TestLeavesAreReused(t *testing.T) {
	needBash(t)
	f := forker(t, "cgroup")
	used := func(text string) string {
		r := start(t, f, bash(t, text))
		r.end()
		path := r.leaf.path
		r.Stop(t.Context(), StopOptions{})
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first := used("true")
	if again := used("true"); again != first {
		t.Errorf("%s after %s", again, first)
	}
	// A leaf that was killed kills whatever is forked into it later.
	if killed := used("sleep 30 & exit"); killed != first {
		t.Fatalf("%s after %s", killed, first)
	}
	second := used("true")
	if second == first {
		t.Error("a killed leaf was used again")
	}
	first = second
	own := `$(sed -n 's/^0:://p' /proc/self/cgroup)`
	mount := strings.TrimSuffix(f.Cgroup(), "/"+f.Cgroup()[strings.LastIndexByte(f.Cgroup(), '/')+1:])
	if made := used("mkdir " + mount + own + "/sub"); made != first {
		t.Fatalf("%s after %s", made, first)
	}
	if _, err := os.Stat(first); !errors.Is(err, os.ErrNotExist) {
		t.Error("a leaf with a cgroup below it was kept:", err)
	}
	if next := used("true"); next == first {
		t.Error("it was used again")
	}
}

// TestManyTrees: waiting costs no thread, and beyond the bound a leaf no descriptor.
func TestManyTrees(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		before := measure(t, f)
		const n = 200
		trees := make([]*running, 0, n)
		var waiters sync.WaitGroup
		for range n {
			r := start(t, f, bash(t, "sleep 30 & wait"))
			waiters.Go(func() { _, _ = r.Wait() })
			trees = append(trees, r)
		}
		now := measure(t, f)
		if got := now.threads - before.threads; got > 10 {
			t.Errorf("%d threads more for %d children", got, n)
		}
		if got, most := now.descriptors-before.descriptors, 3*n+2*maxOpenLeaves; got > most {
			t.Errorf("%d descriptors more for %d children, want at most %d", got, n, most)
		}
		for _, r := range trees {
			eventually(t, "sleep runs", func() bool { k, _, _ := r.Survivors(); return k == 1 })
		}
		var spent time.Duration
		for _, r := range trees {
			began := time.Now()
			got := r.Stop(t.Context(), StopOptions{})
			spent += time.Since(began)
			gone(t, f, r, got)
		}
		t.Logf("%d trees, a stop took %v", n, spent/n)
		waiters.Wait()
	})
}
