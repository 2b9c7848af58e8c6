package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// TestExit: how a command ended is told as the kernel saw it.
func TestExit(t *testing.T) {
	l := start(t)
	t.Run("a death by signal is no success", func(t *testing.T) {
		t.Parallel()
		c := call(t, l)
		res := c.run("echo building; kill -s KILL $BASHPID") // EXIT 27
		ends(t, &res.Receipt, wire.StateFailed, wire.ReasonSignal, 137)
		if res.Receipt.Signal != "KILL" || res.Stdout.Text != "building\n" {
			t.Errorf("%q, %s", res.Stdout.Text, show(&res.Receipt))
		}
		// Every signal that ends a process by default: all but CHLD, CONT, STOP, TSTP,
		// TTIN, TTOU, URG and WINCH, and the two that glibc keeps for itself.
		for n := 1; n <= wire.MaxSignal; n++ {
			switch n {
			case 17, 18, 19, 20, 21, 22, 23, 28, 32, 33:
				continue
			}
			// bash ignores or handles some for itself; the program it becomes does not.
			res := c.run(fmt.Sprintf("echo building; exec env --default-signal sh -c 'kill -%d $$; echo survived'", n))
			ends(t, &res.Receipt, wire.StateFailed, wire.ReasonSignal, 128+n)
			if want := wire.SignalName(n); res.Receipt.Signal != want || res.Stdout.Text != "building\n" {
				t.Errorf("signal %d: %q, %q, want %q", n, res.Stdout.Text, res.Receipt.Signal, want)
			}
		}
	})

	t.Run("every exit code is told", func(t *testing.T) {
		t.Parallel()
		c := call(t, l)
		for n := range 256 {
			res := c.run(fmt.Sprint("exit ", n))
			state := wire.StateFailed
			if n == 0 {
				state = wire.StateCompleted
			}
			ends(t, &res.Receipt, state, wire.ReasonExit, n)
			if res.Receipt.Signal != "" {
				t.Errorf("exit %d: signal %s", n, res.Receipt.Signal)
			}
		}
		for text, exit := range map[string]int{
			"exit 256": 0, "exit 257": 1, "exit -1": 255,
			"no-such-command-here": 127, "/etc/passwd": 126, "if then": 2,
			"exec bash -c 'exit 7'": 7, "exec sh -c 'exec bash -c \"exit 9\"'": 9,
			"bash -c 'kill -9 $$'; exit $?":                  137,
			"(exit 3)":                                       3,
			"false | true":                                   0,
			"set -o pipefail; (exit 4) | true":               4,
			"set -e; false; echo no":                         1,
			"trap 'exit 5' EXIT; exit 6":                     5,
			"trap 'echo x' EXIT; exit 6":                     6,
			"sleep 300 & exit 8":                             8,
			"exec /proc/self/fd/0":                           126,
			"sleep 0.2 & kill -STOP $!; kill -CONT $!; wait": 0,
		} {
			res := c.run(text)
			if r := &res.Receipt; r.ExitCode == nil || *r.ExitCode != exit || r.Reason != wire.ReasonExit {
				t.Errorf("%q: want %d, got %s", text, exit, show(r))
			}
		}
	})

	// EXIT 29
	t.Run("an end that was asked for is no failure", func(t *testing.T) {
		t.Parallel()
		for _, tt := range []struct {
			text, mode, signal string
			exit               int
		}{
			{"echo up; exec sleep 300", "", "TERM", 143},
			{"echo up; exec sleep 300", "kill", "KILL", 137},
			{"echo up; exec sleep 300", "interrupt", "INT", 130},
			{"echo up; sleep 300; :", "", "TERM", 143},
			{"trap 'exit 0' TERM; echo up; sleep 300 & wait", "", "", 0},
			{"trap 'exit 9' TERM; echo up; sleep 300 & wait", "", "", 9},
			{"trap '' TERM; echo up; sleep 300; sleep 300", "", "KILL", 137},
			{"echo up; kill -STOP $$; sleep 300", "", "TERM", 143},
		} {
			t.Run(tt.text+" "+tt.mode, func(t *testing.T) {
				c := call(t, l)
				id := c.starts(wire.Command{Text: tt.text, GraceMS: 500})
				c.shows(id, "up\n")
				r, err := c.c.Terminate(t.Context(), wire.Terminate{ProcessRef: ref(id), Mode: tt.mode, By: "a person"})
				if err != nil {
					t.Fatal(err)
				}
				ends(t, r, wire.StateCancelled, wire.ReasonCancel, tt.exit)
				if r.Signal != tt.signal || !r.CancelRequested || r.CancelRequestedBy != "a person" || r.Error != nil {
					t.Errorf("signal %q by %q: %s", r.Signal, r.CancelRequestedBy, show(r))
				}
			})
		}
	})

	t.Run("a signal that was sent is no request to end", func(t *testing.T) {
		t.Parallel()
		c := call(t, l)
		id := c.start("echo up; exec sleep 300")
		c.shows(id, "up\n")
		if _, err := c.c.Signal(t.Context(), id, "TERM"); err != nil {
			t.Fatal(err)
		}
		ends(t, c.end(id, soon), wire.StateFailed, wire.ReasonSignal, 143)
	})

	// EXIT 31
	t.Run("nothing is claimed of the stages of a pipeline", func(t *testing.T) {
		t.Parallel()
		need(t, "python3")
		dir := t.TempDir()
		gate := filepath.Join(dir, "gate.py")
		if err := os.WriteFile(gate, []byte(`
import os, sys
try:
    for i in range(50000): print("line", i)
    sys.stdout.flush()
except BrokenPipeError:
    os._exit(0)
os._exit(4)
`), 0o600); err != nil {
			t.Fatal(err)
		}
		c := call(t, l)
		res := c.runs(wire.Command{Cwd: dir, Text: `python3 gate.py | head -1; echo "${PIPESTATUS[*]}"`})
		ends(t, &res.Receipt, wire.StateCompleted, wire.ReasonExit, 0)
		if res.Stdout.Text != "line 0\n0 0\n" || len(res.Receipt.Notes) > 0 {
			t.Errorf("%q, notes %q", res.Stdout.Text, res.Receipt.Notes)
		}
		res = c.runs(wire.Command{Cwd: dir, Text: "python3 gate.py >/dev/null"})
		ends(t, &res.Receipt, wire.StateFailed, wire.ReasonExit, 4)
		doc, err := os.ReadFile("../subjects/PROTOCOL.md")
		if err != nil || !strings.Contains(string(doc), "pipeline") {
			t.Errorf("the protocol does not say what an exit code of a pipeline is worth: %v", err)
		}
	})

	t.Run("a core is told where it was dumped", func(t *testing.T) {
		t.Parallel()
		c := call(t, l)
		dir := t.TempDir()
		for _, limit := range []int64{0, 100 << 20} {
			res := c.runs(wire.Command{
				Cwd: dir, Text: "exec sh -c 'kill -SEGV $$'",
				Limits: &wire.Limits{CoreBytes: limit},
			})
			ends(t, &res.Receipt, wire.StateFailed, wire.ReasonSignal, 139)
			if res.Receipt.CoreDumped != (limit > 0) || res.Receipt.Signal != "SEGV" {
				t.Errorf("limit %d: core %t, %s", limit, res.Receipt.CoreDumped, show(&res.Receipt))
			}
		}
	})

	// EXIT 33
	t.Run("orphans do not pile up as zombies", func(t *testing.T) {
		t.Parallel()
		c := call(t, l)
		for _, text := range []string{
			"for i in $(seq 300); do (sleep 0.1 &); done; sleep 1",
			"for i in $(seq 300); do (setsid sh -c 'sleep 0.1' &); done; sleep 1.5",
		} {
			id := c.start(text)
			r := c.end(id, 4*soon)
			ends(t, r, wire.StateCompleted, wire.ReasonExit, 0)
			eventually(t, "reaping", soon, func() bool { return len(zombies(l)) == 0 })
		}
		// Also while their command goes on.
		id := c.start("for i in $(seq 100); do (sleep 0.05 &); done; sleep 0.5; echo made; sleep 300")
		c.shows(id, "made")
		eventually(t, "reaping under way", soon, func() bool { return len(zombies(l)) == 0 })
		c.terminate(id)
	})
}

// zombies lists those in the subtree of the host's parts that nobody reaped.
func zombies(l *Lab) (out []int) {
	ours := map[int]bool{l.PID("up"): true, l.PID("worker"): true, l.PID("keeper"): true}
	parents, states := map[int]int{}, map[int]byte{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		parents[pid], states[pid] = procStat(pid)
	}
	for pid, state := range states {
		for p := pid; state == 'Z' && p > 1; p = parents[p] {
			if ours[p] {
				out = append(out, pid)
				break
			}
		}
	}
	return out
}

// TestExitWithoutMemory: EXIT 35.
func TestExitWithoutMemory(t *testing.T) {
	need(t, "python3")
	need(t, "root")
	l := start(t)
	const hog = `python3 -c "b=bytearray(10**9); print(len(b))"`
	limit := &wire.Limits{MemoryBytes: 64 << 20}
	for _, tt := range []struct {
		name, text, out string
		state           wire.State
		reason          wire.Reason
		exit            int
	}{
		{"the command itself", "echo first; exec " + hog, "first\n", wire.StateFailed, wire.ReasonOOM, 137},
		{"a child of the shell", "echo first; " + hog + "; exit $?", "first\n", wire.StateFailed, wire.ReasonOOM, 137},
		{"a child in the background", hog + " & wait $!", "", wire.StateFailed, wire.ReasonOOM, 137},
		{"a child in another session", "setsid -w " + hog + "; exit 137", "", wire.StateFailed, wire.ReasonOOM, 137},
		{"a child whose end the command answers", hog + "; echo rc=$?", "rc=137\n", wire.StateCompleted, wire.ReasonExit, 0},
		{"one that stays within", "python3 -c 'b=bytearray(10**6); print(len(b))'", "1000000\n", wire.StateCompleted, wire.ReasonExit, 0},
		{"a KILL of another kind", "kill -9 $$", "", wire.StateFailed, wire.ReasonSignal, 137},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := call(t, l)
			within(t, 2*soon, func() {
				res := c.runs(wire.Command{Text: tt.text, Limits: limit})
				ends(t, &res.Receipt, tt.state, tt.reason, tt.exit)
				if res.Stdout.Text != tt.out || len(tagged(res.Receipt.Process)) > 0 {
					t.Errorf("%q, %s", res.Stdout.Text, show(&res.Receipt))
				}
				noted := strings.Contains(strings.Join(res.Receipt.Notes, "\n"), "memory")
				if want := tt.reason == wire.ReasonOOM || tt.out == "rc=137\n"; noted != want {
					t.Errorf("notes %q", res.Receipt.Notes)
				}
				if res.Receipt.ExitedAt == nil || res.Receipt.EndedAt.Sub(*res.Receipt.ExitedAt) > time.Second {
					t.Errorf("told late: %v, %v", res.Receipt.ExitedAt, res.Receipt.EndedAt)
				}
			})
			for _, ask := range []func() error{
				func() error { _, err := c.s.List(t.Context()); return err },
				func() error {
					_, err := c.s.Run(t.Context(), wire.Run{Command: wire.Command{Text: "true"}})
					return err
				},
			} {
				within(t, soon, func() {
					if err := ask(); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
}
