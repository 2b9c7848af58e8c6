package chaos

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/limpet-sh/limpet/app"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// daemon forks, leaves the session, forks again and sleeps, holding nothing.
const daemon = `python3 -c '
import os, sys, time
if os.fork(): print("parent done"); sys.stdout.flush(); os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.chdir("/")
n = os.open("/dev/null", os.O_RDWR)
for i in range(3): os.dup2(n, i)
time.sleep(77)
'`

// TestTree: whatever a command made of its tree, nothing of it outlives its end.
func TestTree(t *testing.T) {
	l := start(t)
	t.Run("a deadline leaves nothing", func(t *testing.T) {
		t.Parallel()
		for _, tt := range []struct{ name, text, want string }{
			{"an interpreter below the shell", "python3 -c 'import time; time.sleep(300)'; echo done", ""}, // TREE 14
			{"one that burns", "python3 -c 'while True: pass'; echo done", ""},
			{"one that ignores TERM", "python3 -c 'import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 3, 15)]; time.sleep(300)'; echo done", ""},
			{"a daemon", daemon + "; sleep 300", "parent done\n"},
			{"one of another group", "set -m; sleep 300 & sleep 300", ""},
			{"a make of shells", "for i in 1 2 3; do (bash -c 'sleep 300; :'; :) & done; wait", ""},
		} {
			t.Run(tt.name, func(t *testing.T) {
				need(t, "python3")
				c := call(t, l)
				limit := int64(700)
				if tt.want != "" {
					limit = 3000 // an interpreter has to start first
				}
				res := c.runs(wire.Command{Text: tt.text, TimeoutMS: limit, GraceMS: 200})
				left := tagged(res.Receipt.Process)
				if res.Receipt.Reason != wire.ReasonTimeout || res.Stdout.Text != tt.want || len(left) > 0 {
					t.Errorf("%q, left %v, %s", res.Stdout.Text, left, show(&res.Receipt))
				}
				proven(t, &res.Receipt)
			})
		}
	})

	// TREE 16
	t.Run("a daemon is ended after its parent", func(t *testing.T) {
		t.Parallel()
		need(t, "python3")
		c := call(t, l)
		res := c.run(daemon)
		if r := &res.Receipt; r.LeftoversKilled < 1 || len(tagged(r.Process)) > 0 {
			t.Errorf("by default: %s", show(r))
		}
		id := c.starts(wire.Command{Text: daemon, Leftovers: wire.LeftoversKeep})
		r := c.end(id, soon)
		if r.LeftoversLive < 1 || len(tagged(id)) == 0 { // the one between may be there still
			t.Errorf("kept: %v, %s", tagged(id), show(r))
		}
		r = c.terminate(id)
		ends(t, r, wire.StateCompleted, wire.ReasonExit, 0) // which it did before
		if r.LeftoversLive != 0 || r.LeftoversKilled < 1 || len(tagged(id)) > 0 {
			t.Errorf("terminated: %v, %s", tagged(id), show(r))
		}
		proven(t, r)
		if again := c.terminate(id); show(again) != show(r) {
			t.Errorf("again: %s", show(again))
		}
		if all, _, _ := c.output(id); all != "parent done\n" {
			t.Errorf("output %q", all)
		}
	})

	t.Run("kept leftovers write on and are not held up", func(t *testing.T) {
		t.Parallel()
		c := call(t, l)
		mark := filepath.Join(t.TempDir(), "mark")
		id := c.starts(wire.Command{
			Text:      "(sleep 1; head -c 30000000 /dev/zero; echo $? > " + mark + ".new; mv " + mark + ".new " + mark + "; sleep 300) & echo ok",
			Leftovers: wire.LeftoversKeep,
		})
		ends(t, c.end(id, soon), wire.StateCompleted, wire.ReasonExit, 0)
		eventually(t, "all written", 2*soon, func() bool { _, err := os.Stat(mark); return err == nil })
		if b, _ := os.ReadFile(mark); string(b) != "0\n" {
			t.Errorf("the writer ended with %q", b)
		}
		if all, _, _ := c.output(id); all != "ok\n" {
			t.Errorf("%d bytes in the log", len(all))
		}
		if _, err := c.s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left := tagged(id); len(left) > 0 {
			t.Errorf("outlived their session: %v", left)
		}
	})

	// TREE 18
	t.Run("terminate answers when nothing is left", func(t *testing.T) {
		t.Parallel()
		for _, tt := range []struct {
			name, text string
			n          int
		}{
			{"a chain of shells", `bash -c 'bash -c "bash -c \"sleep 88; :\"; :"; :'; :`, 5},
			{"all ignore TERM", `trap "" TERM; bash -c 'bash -c "bash -c \"sleep 88; :\"; :"; :'; :`, 5},
			{"the middle has its own session", `setsid -w bash -c 'bash -c "sleep 88; :"; :'; :`, 4},
			{"stopped by themselves", `bash -c 'kill -STOP $$; :' & sleep 88; :`, 3},
			{"a pipeline of jobs", "set -m; sleep 88 | cat | cat & wait; :", 4},
			{"a coprocess and substitutions", "coproc sleep 88; exec 8> >(sleep 88); exec 9< <(sleep 88); wait; :", 4},
		} {
			t.Run(tt.name, func(t *testing.T) {
				c := call(t, l)
				id := c.starts(wire.Command{Text: tt.text, GraceMS: 300})
				eventually(t, fmt.Sprint(tt.n, " processes"), soon, func() bool { return len(tagged(id)) >= tt.n })
				within(t, soon, func() {
					r := c.terminate(id)
					if left := tagged(id); len(left) > 0 || r.State != wire.StateCancelled || r.Reason != wire.ReasonCancel {
						t.Errorf("left %v, %s", left, show(r))
					}
					proven(t, r)
				})
			})
		}
	})

	// TREE 20
	t.Run("a tree that forks all the while is ended in 50 of 50 runs", func(t *testing.T) {
		t.Parallel()
		c := call(t, l)
		texts := []string{
			"echo go; while :; do (sleep 0.3 &); sleep 0.02; done",
			"echo go; while :; do (setsid sleep 0.3 &); sleep 0.02; done",
			"trap '' TERM; echo go; while :; do (trap '' TERM; sleep 0.3 &); sleep 0.02; done",
		}
		const runs, lanes = 50, 5
		bad := make(chan string, runs)
		done := make(chan bool, lanes)
		for lane := range lanes {
			go func() { // ends after its runs, for which we wait
				defer func() { done <- true }()
				for i := lane; i < runs; i += lanes {
					id := c.starts(wire.Command{Text: texts[i%len(texts)], GraceMS: 100})
					eventually(t, "forks", soon, func() bool { return len(tagged(id)) > 3 })
					r := c.terminate(id)
					if left := tagged(id); len(left) > 0 || !r.TreeGone {
						bad <- fmt.Sprint(i, ": left ", left, " ", show(r))
					}
				}
			}()
		}
		for range lanes {
			<-done
		}
		close(bad)
		for b := range bad {
			t.Error(b)
		}
	})

	// TREE 24
	t.Run("a command that signals its group ends itself and nobody else", func(t *testing.T) {
		t.Parallel()
		worker, keeper := l.PID("worker"), l.PID("keeper")
		other := call(t, l).start("sleep 300")
		for _, tt := range []struct {
			text, signal string
			exit         int
		}{
			{"kill -TERM 0; echo survived", "TERM", 143},
			{"kill -KILL 0; echo survived", "KILL", 137},
			{"kill -HUP -- -$$; echo survived", "HUP", 129},
			{"kill -9 $$; echo survived", "KILL", 137},
			{"sleep 300 & kill -INT 0; echo survived", "INT", 130},
			{"bash -c 'kill -TERM 0'; echo survived", "TERM", 143},
		} {
			t.Run(tt.text, func(t *testing.T) {
				c := call(t, l)
				res := c.run(tt.text)
				ends(t, &res.Receipt, wire.StateFailed, wire.ReasonSignal, tt.exit)
				if res.Receipt.Signal != tt.signal || res.Stdout.Text != "" {
					t.Errorf("signal %s, %q", res.Receipt.Signal, res.Stdout.Text)
				}
			})
		}
		if l.PID("worker") != worker || l.PID("keeper") != keeper {
			t.Error("the supervisor was ended")
		}
		if r, err := l.Client.Status(t.Context(), other); err != nil || r.State != wire.StateRunning {
			t.Errorf("another session: %v, %v", r, err)
		}
	})
}

// proven checks that a receipt claims the end of its tree, as this host can prove it.
func proven(t testing.TB, r *wire.Receipt) {
	t.Helper()
	if r.TreeGone != (r.Proof == wire.ProofCgroup) || r.Proof == wire.ProofNone {
		t.Errorf("proof of the end: %s", show(r))
	}
}

// TestTreeOutlivesItsSupervisor: TREE 26.
func TestTreeOutlivesItsSupervisor(t *testing.T) {
	l := start(t)
	c := call(t, l)
	plain := c.start("echo one; sleep 600")
	c.shows(plain, "one")
	kept := c.starts(wire.Command{Text: "(sleep 600; echo late) & echo kept", Leftovers: wire.LeftoversKeep})
	c.end(kept, soon)
	before := slices.Concat(tagged(plain), tagged(kept))
	check := func(what string) {
		t.Helper()
		eventually(t, "owner after "+what, 4*soon, func() bool {
			r, err := l.Client.Status(t.Context(), plain)
			if err != nil || r.State != wire.StateRunning && r.State != wire.StateUnreachable {
				t.Fatalf("after %s: %v, %v", what, r, err)
			}
			return r.State == wire.StateRunning
		})
		if now := slices.Concat(tagged(plain), tagged(kept)); !slices.Equal(now, before) {
			t.Errorf("after %s: %v live, before %v", what, now, before)
		}
		if all, _, _ := c.output(plain); all != "one\n" {
			t.Errorf("after %s: output %q", what, all)
		}
	}
	for range 3 {
		old := l.PID("worker")
		if err := l.Kill("worker"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "new worker", 4*soon, func() bool { return l.PID("worker") != old })
		check("kill -9 of the worker")
	}
	if err := l.Kill("up"); err != nil {
		t.Fatal(err)
	}
	if err := l.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("kill -9 of up")
	// What an adopter releases in its first seconds is not released behind our back.
	if r, err := l.Client.Wait(t.Context(), wire.Wait{ProcessRef: ref(plain), WaitMS: 3000}); err != nil || r.State != wire.StateRunning {
		t.Fatalf("%v, %v", r, err)
	}
	check("a while")
	if r := c.terminate(kept); r.State != wire.StateCompleted || r.LeftoversLive != 0 || len(tagged(kept)) > 0 {
		t.Errorf("kept: %v, %s", tagged(kept), show(r))
	}
	if r := c.terminate(plain); r.State != wire.StateCancelled || len(tagged(plain)) > 0 {
		t.Errorf("plain: %v, %s", tagged(plain), show(r))
	}
}

// TestTreeOfAnotherUser: TREE 22, and the ends of trees where the supervisor is nobody
// and has no cgroup: found by scans, and said so.
func TestTreeOfAnotherUser(t *testing.T) {
	need(t, "root")
	need(t, "setpriv")
	l, dir := startAsNobody(t)

	t.Run("what may not be signalled is named", func(t *testing.T) {
		// A setuid copy makes what a sudo or a container tool makes: a member of the
		// tree that its supervisor may not signal.
		foreign := filepath.Join(dir, "foreign")
		program, err := exec.LookPath("setpriv")
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(foreign, b, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(foreign, 0o755|os.ModeSetuid); err != nil {
			t.Fatal(err)
		}
		c := call(t, l)
		id := c.starts(wire.Command{Text: foreign + " --reuid=65533 --regid=65533 --clear-groups sleep 66 & sleep 66", GraceMS: 200})
		var other []int
		eventually(t, "the other user's process", soon, func() bool {
			other = slices.DeleteFunc(marked("sleep\x0066"), func(pid int) bool { return !ownedBy(pid, 65533) })
			return len(other) == 1
		})
		t.Cleanup(func() { _ = syscall.Kill(other[0], syscall.SIGKILL) })
		within(t, 2*soon, func() {
			r := c.terminate(id)
			if !slices.Equal(r.Unsignalled, other) || r.TreeGone || r.State == wire.StateCancelled || r.Error == nil || r.Error.Code != wire.CodeTeardownFailed {
				t.Errorf("%v may not be signalled: %s", other, show(r))
			}
			if r.LeftoversLive != 1 {
				t.Errorf("nobody is said to live: %s", show(r))
			}
		})
	})

	t.Run("a scan finds the tree and claims no more", func(t *testing.T) {
		need(t, "python3")
		for _, text := range []string{
			"sleep 88 & setsid sleep 88 & wait",
			daemon + "; sleep 88 & wait",
			`bash -c 'bash -c "bash -c \"sleep 88; :\"; :"; :'; :`,
			"trap '' TERM; while :; do (trap '' TERM; sleep 0.3 &); sleep 0.02; done",
			"while :; do (setsid sleep 0.3 &); sleep 0.02; done",
		} {
			c := call(t, l)
			id := c.starts(wire.Command{Text: text, GraceMS: 200})
			eventually(t, "tree of "+text, soon, func() bool { return len(tagged(id)) >= 3 })
			r := c.terminate(id)
			if left := tagged(id); len(left) > 0 || r.Proof != wire.ProofScan || r.TreeGone || r.State != wire.StateCancelled {
				t.Errorf("%q: left %v, %s", text, left, show(r))
			}
			res := c.run("sleep 88 & (setsid sleep 88 &) ; echo ok")
			if r := &res.Receipt; res.Stdout.Text != "ok\n" || r.LeftoversKilled != 2 || len(tagged(r.Process)) > 0 || r.Proof != wire.ProofScan {
				t.Errorf("leftovers: %s", show(r))
			}
		}
	})
}

func ownedBy(pid int, uid uint32) bool {
	st, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	return err == nil && st.Sys().(*syscall.Stat_t).Uid == uid
}

// startAsNobody brings a host up as a user without rights, in a throwaway directory.
func startAsNobody(t *testing.T) (*Lab, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "limpet-nobody") //nolint:usetesting // t.TempDir may not be entered by others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "limpet.test")
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, b, 0o755); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(state, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	l := &Lab{State: app.State(state), program: program, user: &syscall.Credential{Uid: 65534, Gid: 65534, Groups: []uint32{}}}
	if err := l.start(t.Context(), "HOME="+state); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return l, dir
}
