package chaos

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// SUP 125
func TestCaseSupervisorStalePids(t *testing.T) {
	victim := func(t *testing.T) (pid string, alive func() bool) {
		t.Helper()
		v := exec.Command("sleep", "1000")
		if err := v.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = v.Process.Kill(); _ = v.Wait() })
		return fmt.Sprintln(v.Process.Pid), func() bool {
			_, state := procStat(v.Process.Pid)
			return state == 'S'
		}
	}
	point := func(t *testing.T, l *Lab, pid string) {
		t.Helper()
		found := 0
		err := filepath.WalkDir(string(l.State), func(path string, d fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".pid") {
				found++
				err = os.WriteFile(path, []byte(pid), 0o600)
			}
			return err
		})
		if err != nil || found < 2 {
			t.Fatalf("%d pid files, %v", found, err)
		}
	}
	t.Run("all killed", func(t *testing.T) {
		l := start(t)
		a := newAgent(t, l, wire.Open{Cwd: t.TempDir(), DefaultTimeoutMS: -1})
		id := a.start(t, wire.Command{Text: "echo before; sleep 987654"})
		a.until(t, id, "before")
		worker, keeper := l.PID("worker"), l.PID("keeper")
		for _, part := range []string{"up", "worker", "keeper"} {
			if err := l.Kill(part); err != nil {
				t.Fatal(err)
			}
		}
		pid, alive := victim(t)
		point(t, l, pid)
		if err := l.Up(t.Context()); err != nil {
			t.Fatal(err)
		}
		if w := l.PID("worker"); w == worker || l.PID("keeper") == keeper {
			t.Error("dead parts were taken for alive")
		}
		if !alive() {
			t.Error("an unrelated process was ended")
		}
		r := a.end(t, id)
		if r.State != wire.StateOutcomeUnknown || r.ExitCode != nil || r.Reason != wire.ReasonWorkerLost {
			t.Errorf("the record says %s by %s, code %v", r.State, r.Reason, value(r.ExitCode))
		}
		if kept, _ := a.retained(t, id); string(kept) != "before\n" {
			t.Logf("output %q: it was in memory only", kept)
		}
		exited(t, a.text(t, "echo on"), 0, "on\n")
		eventually(t, "end of what the dead keeper held", 20*time.Second, func() bool { return len(marked("sleep\x00987654")) == 0 })
		if err := l.Stop(); err != nil {
			t.Error(err)
		}
		if !alive() {
			t.Error("an unrelated process was ended by the stop")
		}
	})
	t.Run("only up killed", func(t *testing.T) { // worker and keeper live, and their pid files lie
		l := start(t)
		a := newAgent(t, l, wire.Open{Cwd: t.TempDir()})
		id := a.start(t, wire.Command{Text: counting})
		a.until(t, id, "1\n")
		worker, keeper := l.PID("worker"), l.PID("keeper")
		if err := l.Kill("up"); err != nil {
			t.Fatal(err)
		}
		pid, alive := victim(t)
		point(t, l, pid)
		if err := l.Up(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := a.status(t, id); r.State != wire.StateRunning {
			t.Errorf("%s by %s", r.State, r.Reason)
		}
		if err := l.Stop(); err != nil {
			t.Error(err)
		}
		if !alive() {
			t.Error("an unrelated process was ended by the stop")
		}
		for _, pid := range []int{worker, keeper} {
			if _, state := procStat(pid); state != 0 && state != 'Z' {
				t.Errorf("process %d outlived the stop", pid)
			}
		}
	})
}

func TestCaseSupervisorStop(t *testing.T) {
	dir := t.TempDir()
	temp := t.TempDir()
	before := leaves(t)
	l, err := Start(t.Context(), dir, "TMPDIR="+temp)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Stop() }) // where the test ends before its own stop
	a := newAgent(t, l, wire.Open{Cwd: t.TempDir()})
	marker := "limpet-case-" + strconv.Itoa(os.Getpid())
	sleeps := func() []int { return marked(marker + "\x00300") }
	for _, c := range []wire.Command{
		{Text: "exec -a " + marker + " sleep 300"},
		{Text: "(exec -a " + marker + " sleep 300) & wait", TTY: tty},
		{Text: "setsid bash -c 'exec -a " + marker + " sleep 300' & sleep 300"},
		{Text: "trap '' TERM HUP INT; exec -a " + marker + " sleep 300", GraceMS: 300},
		{Text: "(exec -a " + marker + " sleep 300) & exit 0", Leftovers: wire.LeftoversKeep},
	} {
		a.start(t, c)
	}
	eventually(t, "five sleeps", 20*time.Second, func() bool { return len(sleeps()) == 5 })

	t.Run("a second up in the same directory is refused and harms nothing", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), long)
		defer cancel()
		second, err := Start(ctx, dir)
		if err == nil {
			_ = second.Stop()
			t.Fatal("a second up came up")
		}
		if !strings.Contains(err.Error(), "up already") || !strings.Contains(err.Error(), strconv.Itoa(l.PID("up"))) {
			t.Errorf("%v", err)
		}
		exited(t, a.text(t, "echo on"), 0, "on\n")
		if n := len(sleeps()); n != 5 {
			t.Errorf("%d sleeps are left", n)
		}
	})
	t.Run("a clean stop leaves nothing", func(t *testing.T) {
		up, worker, keeper := l.PID("up"), l.PID("worker"), l.PID("keeper")
		if err := l.Stop(); err != nil {
			t.Error(err)
		}
		if left := marked(marker); len(left) != 0 {
			t.Errorf("processes %v are left", left)
		}
		if left := marked(dir); len(left) != 0 {
			t.Errorf("our own %v are left", left)
		}
		for _, pid := range []int{up, worker, keeper} {
			if _, state := procStat(pid); state != 0 {
				t.Errorf("process %d is left as %c", pid, state)
			}
		}
		if now := leaves(t); now > before {
			t.Errorf("%d cgroups, %d before", now, before)
		}
		if left, _ := os.ReadDir(temp); len(left) != 0 {
			t.Errorf("temporary files are left: %v", left)
		}
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && (d.Type()&fs.ModeSocket != 0 || strings.HasSuffix(path, ".pid") || strings.Contains(path, "/spool/") && d.Type().IsRegular() || strings.HasSuffix(path, "limpet.json")) {
				t.Errorf("%s is left", strings.TrimPrefix(path, dir))
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
	t.Run("and the next up knows how it ended", func(t *testing.T) {
		next, err := Start(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := next.Stop(); err != nil {
				t.Error(err)
			}
		}()
		b := newAgent(t, next, wire.Open{Cwd: t.TempDir(), Name: a.s.Info().Name}) // the old one is closed
		exited(t, b.text(t, "echo on"), 0, "on\n")
		if b.s.Info().ID == a.s.Info().ID {
			t.Error("a closed session came back")
		}
	})
}

// leaves counts the cgroups of this host.
func leaves(t testing.TB) (n int) {
	t.Helper()
	_ = filepath.WalkDir("/sys/fs/cgroup", func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(d.Name(), "limpet") {
			n++
		}
		return nil
	})
	return n
}

func TestCaseSupervisorKeeperKilled(t *testing.T) {
	l := start(t)
	a := newAgent(t, l, wire.Open{Cwd: t.TempDir(), DefaultTimeoutMS: -1})
	id := a.start(t, wire.Command{Text: "echo before; sleep 876543"})
	a.until(t, id, "before")
	done := a.run(t, wire.Command{Text: "echo done; exit 4"}).Receipt.Process
	keeper := l.PID("keeper")
	if err := l.Kill("keeper"); err != nil {
		t.Fatal(err)
	}
	l.another(t, "keeper", keeper)
	r := a.end(t, id)
	t.Logf("the product says %s by %s, code %v, signal %q, tree gone %v by %q, output %+v", r.State, r.Reason, value(r.ExitCode), r.Signal, r.TreeGone, r.Proof, r.Output)
	if r.State == wire.StateCompleted || r.State == wire.StateRunning {
		t.Errorf("a made-up %s", r.State)
	}
	if r.State == wire.StateOutcomeUnknown && (r.ExitCode != nil || r.Reason != wire.ReasonWorkerLost) {
		t.Errorf("unknown, with code %v by %s", value(r.ExitCode), r.Reason)
	}
	eventually(t, "end of what the keeper held", 20*time.Second, func() bool { return len(marked("sleep\x00876543")) == 0 })
	if r := a.status(t, done); value(r.ExitCode) != 4 {
		t.Errorf("what had ended: %s, code %v", r.State, value(r.ExitCode))
	}
	exited(t, a.text(t, "echo on"), 0, "on\n")
}
