package chaos

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/limpet-sh/limpet/gateway/mcp"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// begin starts a command and waits for its first line, if it has to have one.
func (c *mcpClient) begin(args params, line string) (id string) {
	c.t.Helper()
	args["action"] = "start"
	id = c.ok(args).str("process_id")
	if line != "" {
		r := c.ok(params{"action": "wait_for", "process_id": id, "pattern": line, "wait_s": 30})
		if r.data["met"] != true {
			c.t.Fatalf("no %q: %s", line, r.text)
		}
	}
	return id
}

// does calls an action on a process, which must be done.
func (c *mcpClient) does(action, id string, more ...any) result {
	c.t.Helper()
	args := params{"action": action, "process_id": id}
	for i := 0; i < len(more); i += 2 {
		args[more[i].(string)] = more[i+1]
	}
	return c.ok(args)
}

// lives runs each function over a connection of its own.
func lives(t *testing.T, s *mcp.Server, cases map[string]func(t *testing.T, c *mcpClient)) {
	t.Helper()
	for name, f := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, stdio(t, s, nil))
		})
	}
}

// stopped: the whole tree is gone when the answer comes, and the text says why it ended.
func (c *mcpClient) stopped(id, text string, more ...any) {
	c.t.Helper()
	within(c.t, 2*soon, func() {
		c.does("terminate", id, more...).is(c.t, text, params{"state": "cancelled", "reason": "cancel", "cancel_requested_by": "agent", "error": nil})
	})
	if left := tagged(id); len(left) > 0 {
		c.t.Errorf("left: %v", left)
	}
}

// TestCaseMCPStops: what is stopped is gone when the answer comes, however deep it sits.
func TestCaseMCPStops(t *testing.T) {
	const byTERM = "(no new output)\n[process P: cancelled by agent (SIGTERM, exit code 143)]"
	lives(t, newMCPHost(t).Server, map[string]func(*testing.T, *mcpClient){
		"Hang10JobAtATerminal": func(t *testing.T, c *mcpClient) {
			need(t, "pty")
			id := c.begin(params{"command": "bash --norc -i", "tty": true}, "")
			c.does("write", id, "stdin", "sleep 40 &\necho rea''dy\n", "wait_s", 0)
			c.does("wait_for", id, "pattern", "^ready", "wait_s", 30)
			c.does("write", id, "stdin", "exit 3\n", "wait_s", 0)
			within(t, 2*soon, func() {
				c.does("wait", id, "wait_s", 30).is(t, "", params{"exit_code": 3, "reason": "exit", "state": "failed", "leftovers_killed": 1})
			})
		},
		"Tree16Daemon": func(t *testing.T, c *mcpClient) {
			need(t, "python3")
			id := c.begin(params{"command": daemon + "; sleep 77"}, "")
			until(t, "the daemon", func() bool { return len(tagged(id)) >= 3 })
			c.stopped(id, "")
		},
		"Tree16DaemonOfWhatHasEnded": func(t *testing.T, c *mcpClient) {
			need(t, "python3")
			r := c.ok(run(daemon))
			r.is(t, "", params{"exit_code": 0, "leftovers_killed": 1})
			c.does("terminate", r.str("process_id")).is(t, "", params{"exit_code": 0, "state": "completed"})
			if left := tagged(r.str("process_id")); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		},
		"Tree18ChainOfShells": func(t *testing.T, c *mcpClient) {
			id := c.begin(params{"command": `bash -c 'bash -c "bash -c \"echo up; sleep 88; :\"; :"; :'; :`}, "up")
			c.stopped(id, byTERM)
		},
		"Tree20ForkingLoop": func(_ *testing.T, c *mcpClient) {
			for range 3 {
				id := c.begin(params{"command": "echo up; while :; do (sleep 0.3 &); sleep 0.02; done"}, "up")
				c.stopped(id, byTERM)
			}
		},
		"Exit29StopIsNoFailure": func(t *testing.T, c *mcpClient) {
			id := c.begin(params{"command": "echo part; sleep 300"}, "part")
			c.stopped(id, byTERM)
			c.ok(run("true")).is(t, "(no output)", params{"notices": nil})
		},
		"Exit29ProgramThatEndsWell": func(_ *testing.T, c *mcpClient) {
			id := c.begin(params{"command": "trap 'echo bye; exit 0' TERM; echo up; sleep 300 & wait"}, "up")
			c.stopped(id, "bye\n[process P: cancelled by agent (exit code 0)]")
		},
		"StopThatIsIgnored": func(_ *testing.T, c *mcpClient) {
			id := c.begin(params{"command": "trap '' TERM; echo up; while :; do sleep 0.1; done"}, "up")
			c.stopped(id, "(no new output)\n[process P: cancelled by agent (SIGKILL, exit code 137)]", "grace_s", 0.3)
		},
		"StopOfAStoppedCommand": func(_ *testing.T, c *mcpClient) {
			c.stopped(c.begin(params{"command": "echo up; kill -STOP $$; sleep 300"}, "up"), "", "grace_s", 0.3)
		},
		"P30InterruptNeverEscalates": func(t *testing.T, c *mcpClient) {
			id := c.begin(params{"command": "trap 'echo caught' INT; echo up; while :; do sleep 0.05; done", "grace_s": 0.2}, "up")
			r := c.does("terminate", id, "mode", "interrupt")
			if r.str("state") != "cancel_requested" || !strings.Contains(r.text, "[asked to end, still running: process "+id) {
				t.Errorf("%s", r.text)
			}
			c.does("wait_for", id, "pattern", "caught", "offset", 0, "wait_s", 30).is(t, "", params{"met": true})
			c.stopped(id, "", "mode", "kill")
		},
		"A34StopAgain": func(t *testing.T, c *mcpClient) {
			id := c.begin(params{"command": "echo out; exit 7"}, "")
			c.does("wait", id)
			for _, mode := range []string{"terminate", "kill", "interrupt", "terminate"} {
				c.does("terminate", id, "mode", mode).is(t, "(no new output)\n[process P: exit code 7]", params{"exit_code": 7, "state": "failed", "reason": "exit", "cancel_requested_by": nil})
			}
			id = c.begin(params{"command": "sleep 300"}, "")
			for range 3 {
				c.stopped(id, "(no output)\n[process P: cancelled by agent (SIGTERM, exit code 143)]")
			}
		},
		"StopsAtOnce": func(t *testing.T, c *mcpClient) {
			id := c.begin(params{"command": "trap 'sleep 0.2; exit 3' TERM; echo up; sleep 300 & wait"}, "up")
			var all sync.WaitGroup
			for range 6 {
				all.Go(func() {
					r, err := c.try(params{"action": "terminate", "process_id": id})
					if err != nil || r.num("exit_code") != 3 || r.str("state") != "cancelled" {
						t.Errorf("%v, %v", r.data, err)
					}
				})
			}
			all.Wait()
		},
		"Pty77ControlC": func(t *testing.T, c *mcpClient) {
			need(t, "pty")
			id := c.begin(params{"command": "echo rea''dy; exec sleep 100", "tty": true}, "^ready")
			c.does("write", id, "stdin", "\x03", "wait_s", 0)
			c.does("wait", id, "wait_s", 30).is(t, "", params{"exit_code": 130, "signal": "INT", "reason": "signal", "state": "failed"})
		},
	})
}

// TestCaseMCPTimes: a call answers before its client gives up, a limit ends what it
// should, and waiting ends nothing.
func TestCaseMCPTimes(t *testing.T) {
	h := newMCPHost(t, func(c *mcp.Config) { c.YieldMax = time.Second })
	refuses(t, stdio(t, h.Server, nil), []mcpRefused{
		{"Time104MillisecondsForSeconds", params{"command": "sleep 1", "timeout_s": 180_000}, "invalid_arguments", "timeout_s", "did you mean 180 seconds?"},
		{"Time104MillisecondsOfAWait", params{"action": "wait", "process_id": "x", "wait_s": 30_000}, "invalid_arguments", "wait_s", "did you mean 30 seconds?"},
		{"Time104MillisecondsOfAYield", params{"command": "sleep 1", "yield_s": 10_000}, "invalid_arguments", "yield_s", "did you mean 10 seconds?"},
		{"Time104Absurd", params{"command": "sleep 1", "timeout_s": 1e12}, "invalid_arguments", "timeout_s", "not within 0 to 3600 seconds"},
		{"Time104Negative", params{"command": "sleep 1", "timeout_s": -1}, "invalid_arguments", "timeout_s", "0 is no limit"},
		{"Time104OtherUnit", params{"command": "sleep 1", "timeout_ms": 5000}, "unknown_field", "timeout_ms", "the nearest is timeout_s, in seconds"},
		{"Time104OtherUnitOfAWait", params{"action": "wait", "process_id": "x", "wait_ms": 5000}, "unknown_field", "wait_ms", "the nearest is wait_s, in seconds"},
		{"Time104NoUnit", params{"command": "sleep 1", "timeout": 5}, "unknown_field", "timeout", "the nearest is timeout_s, in seconds"},
		{"Time104Text", params{"command": "sleep 1", "timeout_s": "5s"}, "invalid_arguments", "timeout_s", "give a number of seconds"},
		{"Time104Bool", params{"command": "sleep 1", "timeout_s": true}, "invalid_arguments", "timeout_s", "give a number of seconds"},
	})
	const alive = "[still running: process P; wait, wait_for or read follow it, terminate ends it]\n"
	lives(t, h.Server, map[string]func(*testing.T, *mcpClient){
		"Time104DeadlineIsTold": func(t *testing.T, c *mcpClient) {
			c.ok(params{"command": "sleep 1.5", "timeout_s": 180, "yield_s": 0.05}).is(t, "(no output yet)\n"+alive+"[its timeout of 180 s still holds, and will end it]", params{"timeout_s": 180, "yielded": true})
			c.ok(params{"command": "sleep 1.5", "yield_s": 0.05}).is(t, "", params{"timeout_s": 120}) // M4: the default
			if r := c.ok(params{"command": "sleep 1.5", "timeout_s": 0, "yield_s": 0.05}); r.data["timeout_s"] != nil || strings.Contains(r.text, "timeout") {
				t.Errorf("%s", r.text)
			}
		},
		"Time60SecondTransport": func(t *testing.T, c *mcpClient) {
			var r result
			within(t, 2*soon, func() { r = c.ok(params{"command": "echo a; sleep 2.5; echo b", "timeout_s": 600}) })
			r.is(t, "a\n"+alive+"[its timeout of 600 s still holds, and will end it]", params{"yielded": true, "state": "running", "exit_code": nil, "stdout": "a\n"})
			id, rest := r.str("process_id"), ""
			for r.str("state") == "running" {
				within(t, 2*soon, func() { r = c.does("wait", id, "wait_s", 600) })
				rest += r.str("output")
			}
			if r.is(t, "", params{"exit_code": 0, "notices": nil}); rest != "b\n" || !strings.HasSuffix(r.text, "\n[process "+id+": exit code 0]") {
				t.Errorf("%q: %s", rest, r.text)
			}
			c.ok(run("true")).is(t, "(no output)", params{"notices": nil}) // told by the wait, and not again
		},
		"A31WaitCancelsNothing": func(t *testing.T, c *mcpClient) {
			id := c.begin(params{"command": "echo up; sleep 300"}, "up")
			c.does("wait", id, "wait_s", 0.1).is(t, "(no new output)\n"+alive[:len(alive)-1], params{"state": "running", "exit_code": nil})
			c.does("read", id, "offset", 3, "wait_s", 0.1).is(t, "(no new output)\n[still running; later output: action read, process_id P, offset 3]", nil)
			r := c.does("wait_for", id, "pattern", "never", "wait_s", 0.1)
			if r.data["met"] != false || !strings.HasSuffix(r.text, "[not met within 0.1 s; nothing was cancelled]") {
				t.Errorf("%s", r.text)
			}
			c.does("status", id).is(t, "", params{"state": "running", "cancel_requested_by": nil})
		},
		"Time106BackgroundAtTheDeadline": func(t *testing.T, c *mcpClient) {
			r := c.ok(params{"command": "echo a; sleep 1; echo b", "timeout_s": 0.2, "on_timeout": "background"})
			r.is(t, "a\n"+alive[:len(alive)-1], params{"yielded": true, "on_timeout": "background", "exit_code": nil})
			c.does("wait_for", r.str("process_id"), "for", "end", "wait_s", 30).is(t, "", params{"met": true})
			c.does("read", r.str("process_id")).is(t, "a\nb\n[end of output; completed, exit code 0]", nil)
		},
		"Time110CancelIsNoTimeout": func(t *testing.T, c *mcpClient) {
			ctx, cancel := context.WithCancel(t.Context())
			gone := make(chan error, 1)
			go func() { // ends with cancel
				_, err := c.CallTool(ctx, &sdk.CallToolParams{Name: "bash", Arguments: params{"command": "echo part; tail -f /dev/null", "timeout_s": 500, "execution_id": "part-110"}})
				gone <- err
			}()
			var id string
			until(t, "the output", func() bool {
				for _, p := range c.ok(params{"action": "list"}).data["processes"].([]any) {
					if h := p.(map[string]any); h["total_bytes"] == 5.0 {
						id = h["process_id"].(string)
					}
				}
				return id != ""
			})
			cancel()
			if err := <-gone; err == nil {
				t.Error("a cancelled call has a result")
			}
			within(t, 2*soon, func() {
				c.does("wait", id, "wait_s", 30).is(t, "part\n[process P: cancelled (SIGTERM, exit code 143)]", params{"state": "cancelled", "reason": "cancel", "output": "part\n"})
			})
			if left := tagged(id); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		},
		"ToldOnceOfAllCalls": func(t *testing.T, c *mcpClient) {
			id := c.begin(params{"command": "read x; exit 3", "close_stdin": false}, "")
			if _, err := h.c.CloseStdin(t.Context(), id); err != nil { // beside the connection
				t.Fatal(err)
			}
			h.ended(t, id)
			told := make(chan int, 12)
			for range cap(told) {
				go func() { // all are waited for
					r, err := c.try(run("true"))
					if err != nil {
						t.Error(err)
					}
					told <- len(r.noticed())
				}()
			}
			n := 0
			for range cap(told) {
				n += <-told
			}
			if n != 1 {
				t.Errorf("told %d times", n)
			}
		},
	})
}

// TestCaseMCPSlots: RES 119, A48. Slots come back, and where there is none it is said
// what holds them.
func TestCaseMCPSlots(t *testing.T) {
	h := newMCPHost(t, func(c *mcp.Config) { c.Session.Limits = &wire.SessionLimits{LiveProcesses: 2, RetainedProcesses: 3} })
	c := stdio(t, h.Server, nil)
	var ids []string
	for i := range 12 {
		ids = append(ids, c.ok(run(fmt.Sprint("echo ", i))).str("process_id"))
	}
	for range 3 {
		if r := c.call(params{"command": "true", "cwd": "/no/such"}); !r.failed {
			t.Fatal("it ran")
		}
	}
	a, b := c.begin(params{"command": "sleep 300"}, ""), c.begin(params{"command": "sleep 300"}, "")
	r := c.call(run("echo x > quota"))
	if !r.failed || r.code() != "process_quota_exceeded" || !strings.HasPrefix(r.text, "[process_quota_exceeded: ") || !strings.Contains(r.text, "there may be 2, and action list") {
		t.Errorf("%s", r.text)
	}
	if got := c.ok(params{"action": "list"}); strings.Count(got.text, "\n") != 4 { // two that live, three that are retained
		t.Errorf("%s", got.text)
	}
	c.stopped(a, "")
	c.ok(run("ls quota 2>/dev/null; true")).is(t, "", params{"stdout": "", "exit_code": 0})
	c.stopped(b, "")
	// A28, OUT 51: of what was evicted the receipt stays, and the output or a word for it.
	if r := c.does("status", ids[0]); r.num("exit_code") != 0 || r.num("total_bytes") != 2 {
		t.Errorf("%v", r.data)
	}
	if r := c.call(params{"action": "read", "process_id": ids[0]}); r.failed && r.code() != "expired" || !r.failed && r.str("output") != "0\n" {
		t.Errorf("%s", r.text)
	}
}
