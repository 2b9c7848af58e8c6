package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// soon bounds what is to happen at once, on a busy machine.
const soon = 5 * time.Second

// caller is a test with a session of its own.
type caller struct {
	testing.TB
	s *client.Session
	c *client.Client
}

func call(t testing.TB, l *Lab) *caller {
	t.Helper()
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, t.Name())
	s, err := l.Open(t.Context(), name[max(0, len(name)-64):])
	if err != nil {
		t.Fatal(err)
	}
	return &caller{t, s, l.Client}
}

// run runs a text to its end.
func (c *caller) run(text string) *wire.Result { c.Helper(); return c.runs(wire.Command{Text: text}) }

func (c *caller) runs(cmd wire.Command) *wire.Result {
	c.Helper()
	if cmd.TimeoutMS == 0 {
		cmd.TimeoutMS = 60_000 // a case that hangs fails by its reason
	}
	res, err := c.s.Run(c.Context(), wire.Run{Command: cmd})
	if err != nil {
		c.Fatalf("run %.200q: %v", cmd.Text, err)
	}
	return res
}

// start starts a text and gives the id of its process.
func (c *caller) start(text string) string { c.Helper(); return c.starts(wire.Command{Text: text}) }

func (c *caller) starts(cmd wire.Command) string {
	c.Helper()
	r, err := c.s.Start(c.Context(), wire.Start{Command: cmd})
	if err != nil {
		c.Fatalf("start %.200q: %v", cmd.Text, err)
	}
	return r.Process
}

// end waits for the end of a process, limit at the most.
func (c *caller) end(id string, limit time.Duration) *wire.Receipt {
	c.Helper()
	r, err := c.c.Wait(c.Context(), wire.Wait{ProcessRef: ref(id), WaitMS: limit.Milliseconds()})
	if err != nil {
		c.Fatal(err)
	}
	if !r.State.Terminal() {
		c.Fatalf("not ended within %v: %s", limit, show(r))
	}
	return r
}

func (c *caller) terminate(id string) *wire.Receipt {
	c.Helper()
	r, err := c.c.Terminate(c.Context(), wire.Terminate{ProcessRef: ref(id)})
	if err != nil {
		c.Fatal(err)
	}
	return r
}

// output reads what is retained of a process, exactly: all in read order, and each
// stream. It does not wait.
func (c *caller) output(id string) (all, stdout, stderr string) {
	c.Helper()
	m := wire.Read{ProcessRef: ref(id), View: wire.ViewBase64, MaxBytes: wire.MaxPageBytes}
	for {
		p, err := c.c.Read(c.Context(), m)
		if err != nil {
			c.Fatal(err)
		}
		for _, ch := range p.Chunks {
			b, err := client.Bytes(ch)
			if err != nil {
				c.Fatal(err)
			}
			all += string(b)
			if ch.Stream == "stderr" {
				stderr += string(b)
			} else {
				stdout += string(b)
			}
		}
		if !p.HasMore {
			return all, stdout, stderr
		}
		m.Cursor = &p.NextCursor
	}
}

// shows waits until a process has written text.
func (c *caller) shows(id, text string) {
	c.Helper()
	eventually(c, fmt.Sprintf("%q in the output", text), soon, func() bool {
		all, _, _ := c.output(id)
		return strings.Contains(all, text)
	})
}

func ref(id string) wire.ProcessRef { return wire.ProcessRef{Process: id} }

// eventually waits for a condition that no call waits for.
func eventually(t testing.TB, what string, limit time.Duration, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("no %s within %v", what, limit)
		}
	}
}

// tagged lists the live processes that carry the tag of a process.
func tagged(id string) []int {
	tag := []byte("LIMPET_PROCESS_ID=" + id + "\x00")
	return procs(func(dir string) bool {
		b, _ := os.ReadFile(filepath.Join(dir, "environ"))
		return bytes.Contains(b, tag)
	})
}

// marked lists the live processes with a marker in their argv.
func marked(marker string) []int {
	return procs(func(dir string) bool {
		b, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		return bytes.Contains(b, []byte(marker))
	})
}

// procs lists the processes that match and are no zombies.
func procs(match func(dir string) bool) (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if pid, _ := strconv.Atoi(filepath.Base(dir)); pid != os.Getpid() && match(dir) {
			if _, state := procStat(pid); state != 'Z' && state != 'X' && state != 0 {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// procStat gives the parent and the state of a process, zeros where there is none.
func procStat(pid int) (parent int, state byte) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if i := bytes.LastIndexByte(b, ')'); i > 0 {
		_, _ = fmt.Sscanf(string(b[i+1:]), " %c %d", &state, &parent)
	}
	return parent, state
}

// codeOf an error.
func codeOf(err error) wire.Code {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e.Code
	}
	return ""
}

// show is a receipt for a failure's text.
func show(r *wire.Receipt) string {
	exit := "none"
	if r.ExitCode != nil {
		exit = strconv.Itoa(*r.ExitCode)
	}
	return fmt.Sprintf("state %s reason %s code %s signal %q proof %s gone %t left %d killed %d unsignalled %v output %+v error %v",
		r.State, r.Reason, exit, r.Signal, r.Proof, r.TreeGone, r.LeftoversLive, r.LeftoversKilled, r.Unsignalled, r.Output, r.Error)
}

// ends checks how a process ended.
func ends(t testing.TB, r *wire.Receipt, state wire.State, reason wire.Reason, exit int) {
	t.Helper()
	if r.State != state || r.Reason != reason || r.ExitCode == nil || *r.ExitCode != exit {
		t.Errorf("want %s, %s, code %d; got %s", state, reason, exit, show(r))
	}
}

// within checks that something did not take long.
func within(t testing.TB, limit time.Duration, f func()) {
	t.Helper()
	began := time.Now()
	f()
	if took := time.Since(began); took > limit {
		t.Errorf("took %v, at most %v", took.Round(time.Millisecond), limit)
	}
}
