package chaos

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// TestHang: an answer never waits for who holds a stream open. Each command leaves
// something behind that sleeps for 40 s.
func TestHang(t *testing.T) {
	l := start(t)
	t.Run("leftovers do not delay the end and are killed", func(t *testing.T) {
		t.Parallel()
		for _, tt := range []struct{ name, text, out string }{
			{"a background child holds both streams", "sleep 40 & echo started", "started\n"}, // HANG 1
			{"only stderr", "sleep 40 </dev/null >/dev/null & echo ok", "ok\n"},               // HANG 3
			{"only stdout", "sleep 40 </dev/null 2>/dev/null & echo ok", "ok\n"},
			{"neither", "sleep 40 </dev/null >/dev/null 2>&1 & echo ok", "ok\n"},
			{"another descriptor", "exec 7>&1; sleep 40 >/dev/null 2>&1 & echo ok", "ok\n"},
			{"nohup", "nohup sleep 40 & sleep 0.1; echo ok", "ok\n"},
			{"setsid", "setsid sleep 40 & echo ok", "ok\n"},
			{"double fork", "(sleep 40 & ) ; (setsid sh -c 'sleep 40 & sleep 40' &) ; echo ok", "ok\n"},
			{"disown", "sleep 40 & disown -a; echo ok", "ok\n"},
			{"a job in a subshell", "(sleep 40; echo late) & echo ok", "ok\n"},
			{"a coprocess", "coproc { sleep 40; }; echo ok", "ok\n"},
			{"a process substitution", "exec 9> >(sleep 40); echo ok", "ok\n"},
			{"an input substitution", "exec 9< <(sleep 40); echo ok", "ok\n"},
			{"a pipeline in the background", "sleep 40 | cat & echo ok", "ok\n"},
			{"one that ignores TERM", "(trap '' TERM HUP INT; sleep 40; sleep 40) & sleep 0.1; echo ok", "ok\n"},
			{"a stopped one", "sleep 40 & kill -STOP $!; echo ok", "ok\n"},
			{"without its environment", "env -i setsid sleep 40 & echo ok", "ok\n"},
			{"many", "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 40 & done; echo ok", "ok\n"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				c := call(t, l)
				within(t, soon, func() {
					res := c.run(tt.text)
					r := &res.Receipt
					ends(t, r, wire.StateCompleted, wire.ReasonExit, 0)
					if res.Stdout.Text != tt.out {
						t.Errorf("stdout %q", res.Stdout.Text)
					}
					if r.LeftoversKilled == 0 || r.LeftoversLive != 0 {
						t.Errorf("leftovers are not told: %s", show(r))
					}
					if r.ExitedAt == nil || r.EndedAt == nil || r.EndedAt.Before(*r.ExitedAt) {
						t.Errorf("exit at %v, end at %v", r.ExitedAt, r.EndedAt)
					}
					if left := tagged(r.Process); len(left) > 0 {
						t.Errorf("left: %v", left)
					}
					if all, _, _ := c.output(r.Process); all != tt.out {
						t.Errorf("read later: %q", all)
					}
				})
			})
		}
	})

	// HANG 1: the exit is a fact of its own, told while the streams are held.
	t.Run("the exit is told while a kept child holds the streams", func(t *testing.T) {
		t.Parallel()
		c := call(t, l)
		id := c.starts(wire.Command{Text: "(sleep 1; echo later; sleep 39) & echo started", Leftovers: wire.LeftoversKeep})
		within(t, soon, func() {
			r, err := c.c.Wait(t.Context(), wire.Wait{ProcessRef: ref(id), For: "exit", WaitMS: 20_000})
			if err != nil || r.ExitedAt == nil || r.ExitCode == nil || *r.ExitCode != 0 {
				t.Fatalf("%v, %v", r, err)
			}
			if r.LeftoversLive == 0 {
				t.Errorf("nobody is said to live: %s", show(r))
			}
			r = c.end(id, soon)
			ends(t, r, wire.StateCompleted, wire.ReasonExit, 0)
			if r.LeftoversLive == 0 || r.LeftoversKilled != 0 {
				t.Errorf("kept, and told so? %s", show(r))
			}
		})
		if all, _, _ := c.output(id); all != "started\n" {
			t.Errorf("output %q", all)
		}
		if len(tagged(id)) == 0 {
			t.Error("kept leftovers were killed")
		}
		if _, err := c.s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "end of the kept with their session", soon, func() bool { return len(tagged(id)) == 0 })
	})

	// HANG 12
	t.Run("a fully redirected job is kept where that is asked for", func(t *testing.T) {
		t.Parallel()
		c := call(t, l)
		within(t, soon, func() {
			res := c.runs(wire.Command{Text: "sleep 41 </dev/null >/dev/null 2>&1 & echo ok", Leftovers: wire.LeftoversKeep})
			ends(t, &res.Receipt, wire.StateCompleted, wire.ReasonExit, 0)
			r := &res.Receipt
			if res.Stdout.Text != "ok\n" || r.LeftoversLive != 1 || !r.Output.Complete || len(tagged(r.Process)) != 1 {
				t.Errorf("%q, %v alive, %s", res.Stdout.Text, tagged(r.Process), show(r))
			}
			r = c.terminate(r.Process) // which has ended; the job goes
			ends(t, r, wire.StateCompleted, wire.ReasonExit, 0)
			if r.LeftoversKilled != 1 || len(tagged(r.Process)) > 0 {
				t.Errorf("terminated: %s", show(r))
			}
		})
	})

	// HANG 5, 8 and kin: a deadline ends the whole tree, and the call.
	t.Run("a deadline ends the call", func(t *testing.T) {
		t.Parallel()
		for _, tt := range []struct{ name, text, out string }{
			{"a shell with a child", "echo first; sleep 40; :", "first\n"}, // HANG 5
			{"a pipeline", "tail -f /dev/null | cat", ""},                  // HANG 8
			{"a pipeline whose last stage stays", "echo first; sleep 40 | (trap '' PIPE TERM; cat; sleep 40)", "first\n"},
			{"a shell that ignores TERM", "trap '' TERM; echo first; sleep 40; sleep 40", "first\n"},
			{"a stopped shell", "echo first; kill -STOP $$; sleep 40", "first\n"},
			{"a child in another session", "echo first; setsid sleep 40 & wait", "first\n"},
			{"a busy loop", "echo first; while :; do :; done", "first\n"},
			{"a stage that ignores SIGPIPE", "echo first; (trap '' PIPE; while :; do echo y 2>/dev/null; done) | true; sleep 40", "first\n"},
			{"an exec'd program", "echo first; exec sleep 40", "first\n"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				c := call(t, l)
				var res *wire.Result
				within(t, 1500*time.Millisecond+soon, func() {
					res = c.runs(wire.Command{Text: tt.text, TimeoutMS: 500, GraceMS: 300})
				})
				r := &res.Receipt
				if r.State != wire.StateFailed || r.Reason != wire.ReasonTimeout || r.ExitCode == nil || *r.ExitCode < 128 {
					t.Errorf("no timeout: %s", show(r))
				}
				if res.Stdout.Text != tt.out {
					t.Errorf("stdout %q", res.Stdout.Text)
				}
				if took := r.ExitedAt.Sub(*r.StartedAt); took < 400*time.Millisecond || took > soon {
					t.Errorf("ended after %v", took)
				}
				if left := tagged(r.Process); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
				p, err := c.c.Read(t.Context(), wire.Read{ProcessRef: ref(r.Process), Cursor: &r.Output.LatestCursor, WaitMS: 30_000})
				if err != nil || !p.End {
					t.Errorf("a read at the end: %+v, %v", p, err)
				}
			})
		}
	})

	// HANG 10
	t.Run("a job does not hold the terminal of a shell that has left", func(t *testing.T) {
		t.Parallel()
		for _, job := range []string{"sleep 40 &", "nohup sleep 40 &", "setsid sleep 40 & disown", "trap '' HUP; sleep 40 &"} {
			t.Run(job, func(t *testing.T) {
				c := call(t, l)
				id := c.starts(wire.Command{Text: "bash --norc -i", TTY: &wire.WindowSize{}})
				for _, line := range []string{job, "echo rea''dy"} {
					if _, err := c.c.Write(t.Context(), wire.Write{ProcessRef: ref(id), Text: line + "\n"}); err != nil {
						t.Fatal(err)
					}
				}
				c.shows(id, "ready")
				if _, err := c.c.Write(t.Context(), wire.Write{ProcessRef: ref(id), Text: "exit 3\n"}); err != nil {
					t.Fatal(err)
				}
				within(t, soon, func() {
					r := c.end(id, 20*time.Second)
					ends(t, r, wire.StateFailed, wire.ReasonExit, 3)
				})
				if left := tagged(id); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			})
		}
	})

	t.Run("a wait, a read and a run that wait all return at one end", func(t *testing.T) {
		t.Parallel()
		c := call(t, l)
		id := c.start("sleep 40 & echo a; read x < <(sleep 0.5)")
		c.shows(id, "a\n")
		answers := make(chan string, 3)
		cl := c.c
		ctx := t.Context()
		go func() { // all three end with their answer, for which we wait
			r, err := cl.Wait(ctx, wire.Wait{ProcessRef: ref(id), WaitMS: 30_000})
			answers <- fmt.Sprint("wait: ", err == nil && r.State.Terminal())
		}()
		go func() {
			r, err := cl.Wait(ctx, wire.Wait{ProcessRef: ref(id), For: "exit", WaitMS: 30_000})
			answers <- fmt.Sprint("exit: ", err == nil && r.ExitedAt != nil)
		}()
		go func() {
			one := int64(1)
			p, err := cl.Read(ctx, wire.Read{ProcessRef: ref(id), Cursor: &one, WaitMS: 30_000})
			answers <- fmt.Sprint("read: ", err == nil && p.End)
		}()
		within(t, soon, func() {
			for range 3 {
				if a := <-answers; strings.HasSuffix(a, "false") {
					t.Error(a)
				}
			}
		})
	})
}
