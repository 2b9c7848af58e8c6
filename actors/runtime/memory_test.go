package runtime

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
	"golang.org/x/sys/unix"
)

// TestMemoryLimit is case 35: the end is told at once, and why.
func TestMemoryLimit(t *testing.T) {
	needBash(t)
	f := forker(t, "cgroup")
	need(t, "memory", f.limit != nil || f.tree.memory, "neither a v2 leaf with the memory controller nor a v1 memory hierarchy")
	t.Logf("by v2: %t", f.tree.memory)
	hungry := "x=$(head -c 300M /dev/zero | tr '\\0' x); echo done"
	limited := func(t *testing.T, text string) *running {
		s := bash(t, text)
		s.MemoryBytes = 64 << 20
		return start(t, f, s)
	}
	t.Run("the leader", func(t *testing.T) {
		r := limited(t, hungry)
		began := time.Now()
		e := r.end()
		if e.Shell() != 137 || !e.OOM || strings.Contains(r.text(), "done") {
			t.Errorf("got %+v and %q", e, r.text())
		}
		t.Log("told after", time.Since(began))
		gone(t, f, r, r.Stop(t.Context(), StopOptions{}))
	})
	t.Run("a member", func(t *testing.T) {
		r := limited(t, "bash -c "+"'"+strings.ReplaceAll(hungry, "'", `'\''`)+"'; exit 5")
		if e := r.end(); e.Code != 5 || !e.OOM {
			t.Errorf("got %+v", e)
		}
	})
	t.Run("enough", func(t *testing.T) {
		r := limited(t, "echo fits")
		if e := r.end(); e.Code != 0 || e.OOM || r.text() != "fits\n" {
			t.Errorf("got %+v and %q", e, r.text())
		}
	})
	t.Run("the next has no limit", func(t *testing.T) {
		r := start(t, f, bash(t, "cat /proc/self/cgroup"))
		if out := r.text(); strings.Count(out, subtreePrefix) != 1 {
			t.Errorf("the forking thread stayed in a memory cgroup:\n%s", out)
		}
	})
	if m := f.limit; m != nil {
		eventually(t, "no v1 leaf is left", func() bool {
			entries, err := os.ReadDir(m.path)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if e.IsDir() {
					return false
				}
			}
			return true
		})
	}
}

func TestNoMemoryLimit(t *testing.T) {
	needBash(t)
	f := forker(t, "scan")
	before := measure(t, f)
	s := bash(t, "true")
	s.MemoryBytes = 64 << 20
	_, err := f.Start(s)
	var typed *wire.Error
	if !errors.Is(err, ErrNoMemoryLimit) || !errors.As(err, &typed) || typed.Code != wire.CodeCapabilityMissing || typed.Field != "limits.memory_bytes" {
		t.Errorf("got %v", err)
	}
	before.compare(t, f)
}

// TestKilledIsNotOOM: a KILL from elsewhere is no want of memory.
func TestKilledIsNotOOM(t *testing.T) {
	needBash(t)
	f := forker(t, "cgroup")
	r := start(t, f, bash(t, "kill -KILL $$"))
	if e := r.end(); e.OOM || e.Signal != unix.SIGKILL {
		t.Errorf("got %+v", e)
	}
}
