package chaos

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// TIME 112: pids are used again soon where there are few. What has ended is terminated
// and signalled then, and nobody else may feel it.
func TestCaseTimePidsUsedAgain(t *testing.T) {
	if os.Getenv("LIMPET_CHAOS_FEW_PIDS") != "" {
		fewPids(t)
		return
	}
	need(t, "unshare")
	args := []string{"-pf", "--mount-proc", "--kill-child", "/proc/self/exe"}
	if os.Geteuid() != 0 {
		args = append([]string{"-Ur"}, args...)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args[len(args)-1] = exe
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", append(args, "-test.run=^"+t.Name()+"$", "-test.v")...)
	cmd.Env = append(os.Environ(), "LIMPET_CHAOS_FEW_PIDS=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if bytes.Contains(out, []byte("--- SKIP")) {
		need(t, "few-pids")
	}
	t.Logf("%s", out)
}

// fewPids runs as pid 1 of a namespace of its own.
func fewPids(t *testing.T) {
	const most = "600" // 300 and fewer are not used again, and our threads have pids too
	if err := os.WriteFile("/proc/sys/kernel/pid_max", []byte(most), 0o600); err != nil {
		t.Skipf("pid_max is not ours: %v", err)
	}
	if b, _ := os.ReadFile("/proc/sys/kernel/pid_max"); strings.TrimSpace(string(b)) != most {
		t.Skipf("pid_max is %s", b)
	}
	a := newAgent(t, start(t), wire.Open{Cwd: t.TempDir(), Limits: &wire.SessionLimits{RetainedProcesses: 300}})
	victims := map[int]*exec.Cmd{}
	defer func() {
		for _, v := range victims {
			_ = v.Process.Kill()
			_ = v.Wait()
		}
	}()
	victim := func() {
		v := exec.Command("sleep", "1000")
		v.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a group of its pid: what a stored group id would hit
		if err := v.Start(); err != nil {
			t.Fatal(err)
		}
		victims[v.Process.Pid] = v
	}
	used := map[int]bool{}
	again := 0
	var over []string
	for i := range 900 {
		id := a.start(t, wire.Command{Text: "echo $$"})
		if r := a.end(t, id); r.State != wire.StateCompleted {
			t.Fatalf("start %d ended as %s", i, r.State)
		}
		var pid int
		_, _ = fmt.Sscan(a.output(t, id), &pid)
		if used[pid] {
			again++
		}
		used[pid] = true
		over = append(over, id)
		if i%10 == 0 && len(victims) < 60 {
			victim()
		}
		if len(over) > 100 {
			for _, id := range over[:50] {
				a.terminate(t, wire.Terminate{ProcessRef: wire.ProcessRef{Process: id}, Mode: "kill"})
				if _, err := a.c.Signal(t.Context(), id, "KILL"); err != nil {
					t.Fatal(err)
				}
			}
			over = over[50:]
		}
	}
	hit := 0
	for pid := range victims {
		if used[pid] {
			hit++ // a victim with the pid of a command that has ended
		}
		if b, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "stat")); err != nil || bytes.Contains(b, []byte(") Z ")) {
			t.Errorf("victim %d was signalled: %s", pid, b)
		}
	}
	if again == 0 || hit == 0 {
		t.Errorf("%d pids came again, %d of them as victims: this proves nothing", again, hit)
	}
	t.Logf("%d pids came again, %d victims had the pid of an ended command", again, hit)
}
