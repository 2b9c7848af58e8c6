package runtime

import (
	"errors"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// daemon is a text that prints the number of a daemon which no scan of its tree finds.
const daemon = "env -i setsid sleep 60 >/dev/null 2>&1 & echo $!"

// TestStrays: at the end nothing is left of a daemon that cleared its environment, took a
// session of its own and outlived its ancestors; what this process started by other means
// is left alone.
func TestStrays(t *testing.T) {
	needBash(t)
	f := forker(t, "scan")
	own := exec.Command("sleep", "60")
	if err := own.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = own.Process.Kill(); _ = own.Wait() }()
	c, err := f.Start(bash(t, daemon+"; "+daemon))
	if err != nil {
		t.Fatal(err)
	}
	out := readToEnd(t, c)
	if _, err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	var daemons []int
	for word := range strings.FieldsSeq(out) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			t.Fatal(err)
		}
		daemons = append(daemons, pid)
	}
	eventually(t, "the daemons have their own sessions", func() bool {
		return !slices.ContainsFunc(daemons, func(pid int) bool {
			m, err := readStat(pid)
			return err != nil || m.session != pid || m.parent != f.self
		})
	})
	if r := c.Stop(t.Context(), StopOptions{}); r.Killed != 0 {
		t.Fatalf("a scan found a daemon, so this test shows nothing: %+v", r)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	for _, pid := range daemons {
		if m, err := readStat(pid); err == nil {
			t.Errorf("daemon %d is still there: %+v", pid, m)
		}
	}
	if err := own.Process.Signal(unix.Signal(0)); err != nil {
		t.Error("a process of our own session is gone:", err)
	}
}

func readToEnd(t *testing.T, c *Child) string {
	t.Helper()
	r := &running{Child: c, t: t}
	buf := make([]byte, 4096)
	for {
		n, err := c.Stdout.Read(buf)
		_, _ = r.out.Write(buf[:n])
		if err != nil {
			return r.out.String()
		}
	}
}

// TestIdentified: a number that changed hands between the list and the look is not
// signalled, whatever its new owner is.
func TestIdentified(t *testing.T) {
	stat := func(pid int) (member, error) {
		if pid == 3 {
			return member{}, unix.ENOENT
		}
		return member{pid: pid, start: uint64(100 * pid)}, nil
	}
	for name, c := range map[string]struct {
		lists [][]int
		want  []int
	}{
		"all stay":               {[][]int{{1, 2}, {2, 1}}, []int{1, 2}},
		"one ended":              {[][]int{{1, 2, 3}, {1, 2}}, []int{1, 2}},
		"one ended after a look": {[][]int{{1, 2}, {1}}, []int{1}},
		"one came":               {[][]int{{1}, {1, 2}}, []int{1}},
		"all ended":              {[][]int{{1, 2}, nil}, nil},
		"no second list":         {[][]int{{1, 2}}, nil},
	} {
		looks := 0
		got := identified(func() ([]int, error) {
			if looks++; looks > len(c.lists) {
				return nil, errors.New("gone")
			}
			return c.lists[looks-1], nil
		}, stat)
		var pids []int
		for _, m := range got {
			if m.start != uint64(100*m.pid) {
				t.Errorf("%s: %+v", name, m)
			}
			pids = append(pids, m.pid)
		}
		if !slices.Equal(pids, c.want) {
			t.Errorf("%s: %v, want %v", name, pids, c.want)
		}
	}
}
