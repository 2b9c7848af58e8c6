package app

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// TestMain also serves as the parts that are re-executed, and as the children that the
// tests kill.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "keeper":
			os.Exit(keeper.Main(os.Args[2:]))
		case "worker", "up":
			part(os.Args[1], os.Args[2:])
			return
		}
	}
	switch path := os.Getenv("LIMPET_TEST_LOCK"); {
	case path != "":
		signal.Ignore(syscall.SIGTERM)
		if _, err := lock(path); err != nil {
			panic(err)
		}
		fmt.Println("up")
		select {}
	case os.Getenv("LIMPET_TEST_LOCAL") != "":
		if _, err := StartLocal(context.Background(), LocalOptions{Logger: quiet()}); err != nil {
			panic(err)
		}
		fmt.Println("up")
		select {}
	case os.Getenv("LIMPET_TEST_ENSURE") != "":
		d, err := Ensure(context.Background(), EnsureOptions{State: State(os.Getenv("LIMPET_TEST_ENSURE")), UntilIdle: testIdle, Logger: quiet()})
		fmt.Println(d, err)
		if err == nil {
			fmt.Println(d.PID)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// spawn runs this test binary with env and returns when it says that it is up.
func spawn(t *testing.T, env string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), env)
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = time.Second // its keeper has our pipe for a moment longer
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	return cmd
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// TestKilledLocalLeavesNothing: a private limpet has one directory; after a kill -9 the
// next one removes it.
func TestKilledLocalLeavesNothing(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	cmd := spawn(t, "LIMPET_TEST_LOCAL=1")
	left := names(t, tmp)
	if len(left) != 1 {
		t.Fatalf("it has %q, not one directory", left)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	// Its keeper ends by itself; until then the directory stays.
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		unlock, err := lock(filepath.Join(tmp, left[0], "worker", "keeper.lock"))
		if err == nil {
			unlock()
			break
		}
		if time.Now().After(end) {
			t.Fatal("the keeper outlives its owner:", err)
		}
	}
	l, err := StartLocal(t.Context(), LocalOptions{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	if now := names(t, tmp); len(now) != 1 || now[0] == left[0] {
		t.Errorf("beside it there is %q; the dead one's is %q", now, left)
	}
	if err := l.Stop(); err != nil {
		t.Error(err)
	}
	if now := names(t, tmp); len(now) != 0 {
		t.Errorf("%q is left", now)
	}
}

// TestRemoveDead: nothing is removed that is held, or that is not ours.
func TestRemoveDead(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	fresh := func(alive bool) string {
		dir, unlock, err := newPrivate()
		if err != nil {
			t.Fatal(err)
		}
		if !alive {
			unlock()
		} else {
			t.Cleanup(unlock)
		}
		return dir
	}
	dead, lives, kept := fresh(false), fresh(true), fresh(false)
	if err := os.Mkdir(filepath.Join(kept, "worker"), 0o700); err != nil {
		t.Fatal(err)
	}
	unlock, err := lock(filepath.Join(kept, "worker", "keeper.lock"))
	if err != nil {
		t.Fatal(err)
	}
	other, link := filepath.Join(tmp, "limpet-other"), filepath.Join(tmp, privatePrefix+"link")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, link); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{dead: false, lives: true, kept: true, other: true, link: true}
	if os.Geteuid() == 0 {
		foreign := fresh(false)
		if err := os.Chown(foreign, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		want[foreign] = true
	}
	check := func() {
		t.Helper()
		removeDead(quiet())
		for dir, there := range want {
			if _, err := os.Lstat(dir); (err == nil) != there {
				t.Errorf("%s: there %v, want %v", dir, err == nil, there)
			}
		}
	}
	check()
	unlock()
	want[kept] = false
	check()
}

// TestEndKeeperIsBounded: a keeper that does not heed TERM is killed.
func TestEndKeeperIsBounded(t *testing.T) {
	dir := t.TempDir()
	cmd := spawn(t, "LIMPET_TEST_LOCK="+filepath.Join(dir, "keeper.lock"))
	w, err := NewWorker(WorkerOptions{Name: "w", Dir: dir, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	w.endKeeper(200 * time.Millisecond)
	_ = cmd.Wait()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		t.Error(cmd.ProcessState)
	}
}
