package runtime

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// otherwise is what the test binary does as a supervisor of its own (see child).
func otherwise(what string) int {
	switch what {
	case "root": // set-uid: become root altogether and stay
		if err := unix.Setresuid(0, 0, 0); err != nil {
			fmt.Println("no root:", err)
			return 1
		}
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
		<-time.After(time.Minute)
	case "supervise": // start a set-uid child and fail to stop it
		result, err := superviseRoot(os.Getenv("LIMPET_TEST_ROOT"))
		if err != nil {
			fmt.Println(err)
			return 1
		}
		return exitOn(json.NewEncoder(os.Stdout).Encode(result))
	case "keeper": // start something, say where it is, and wait to be killed
		f, err := NewForker(Config{})
		if err != nil {
			return exitOn(err)
		}
		c, err := f.Start(Spec{Argv: []string{"/bin/sh", "-c", "sleep 60 & echo $!; wait"}, Tag: "stale", Umask: DefaultUmask, Env: os.Environ()})
		if err != nil {
			return exitOn(err)
		}
		fmt.Println(f.Cgroup())
		_, _ = io.Copy(os.Stdout, c.Stdout)
	}
	return 0
}

func exitOn(err error) int {
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

type refusal struct {
	Child  int
	Result StopResult
}

func superviseRoot(root string) (refusal, error) {
	f, err := NewForker(Config{Cgroup: "off"})
	if err != nil {
		return refusal{}, err
	}
	c, err := f.Start(Spec{Argv: []string{root}, Env: []string{"LIMPET_TEST_CHILD=root"}, Tag: "t", Umask: DefaultUmask})
	if err != nil {
		return refusal{}, err
	}
	line := make([]byte, 64)
	n, err := c.Stdout.Read(line)
	if err != nil || !strings.HasPrefix(string(line[:n]), "ready") {
		return refusal{}, fmt.Errorf("the child says %q: %w", line[:n], err)
	}
	// No deadline of the context: the answer must come by itself, and soon.
	return refusal{Child: c.PID, Result: c.Stop(context.Background(), StopOptions{First: unix.SIGTERM, Grace: 100 * time.Millisecond})}, nil
}

// TestRefused is case 22: a member that may not be signalled is named, and not gone.
func TestRefused(t *testing.T) {
	need(t, "root", os.Getuid() == 0, "making a set-uid program takes root")
	dir, err := os.MkdirTemp("/var/tmp", "runtime-") //nolint:usetesting // t.TempDir may not be entered by others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	plain, root := filepath.Join(dir, "plain"), filepath.Join(dir, "root")
	for path, mode := range map[string]os.FileMode{plain: 0o755, root: 0o755 | os.ModeSetuid, dir: 0o755} {
		if path != dir {
			if err := os.WriteFile(path, binary, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(plain)
	cmd.Dir = dir
	cmd.Env = []string{"LIMPET_TEST_CHILD=supervise", "LIMPET_TEST_ROOT=" + root}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.Output()
	need(t, "root", !strings.Contains(string(out), "no root"), "set-uid does nothing here: "+string(out))
	var got refusal
	if jerr := json.Unmarshal(out, &got); err != nil || jerr != nil {
		t.Fatalf("%v, %v: %s", err, jerr, out)
	}
	_ = unix.Kill(got.Child, unix.SIGKILL) // ours: its supervisor said so
	if r := got.Result; r.Gone || len(r.Unsignalled) != 1 || r.Unsignalled[0] != got.Child {
		t.Errorf("got %+v, want not gone, and %d unsignalled", r, got.Child)
	}
}

// TestStaleSubtree kills a keeper: the next one ends what it left and removes it.
func TestStaleSubtree(t *testing.T) {
	needBash(t)
	f := forker(t, "cgroup")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "LIMPET_TEST_CHILD=keeper")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var path string
	var sleeper int
	if _, err := fmt.Fscanln(out, &path); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscanln(out, &sleeper); err != nil {
		t.Fatal(err)
	}
	next := func() {
		other, err := NewForker(Config{})
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	}
	next()
	if _, err := os.Stat(path); err != nil {
		t.Fatal("the subtree of a living keeper was taken away:", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if m, err := readStat(sleeper); err != nil || !m.live() {
		t.Fatal("the sleeper died with its keeper; nothing to clean up:", m, err)
	}
	next()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Error("the stale subtree is still there:", err)
	}
	eventually(t, "the sleeper is gone", func() bool {
		f.Sweep()
		m, err := readStat(sleeper)
		return err != nil || !m.live()
	})
}
