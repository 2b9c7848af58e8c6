package chaos

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/limpet-sh/limpet/gateway/mcp"
)

// mcpProcess is a client of an MCP server that is a process of its own, over its stdin
// and stdout, as hosts have it. leave closes them, whatever is under way, and waits for
// the end of the server.
func mcpProcess(t *testing.T, l *Lab) (c *mcpClient, leave func() error) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "mcp", string(l.State))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	leave = sync.OnceValue(func() error {
		_ = in.Close()
		late := time.AfterFunc(long, func() { _ = cmd.Process.Kill() })
		defer late.Stop()
		return cmd.Wait()
	})
	t.Cleanup(func() { _ = leave() })
	return connectMCP(t, &sdk.IOTransport{Reader: out, Writer: in}, nil), leave
}

// frontOf is a front end, in this process, of a host that is up.
func frontOf(t *testing.T, l *Lab, change ...func(*mcp.Config)) *mcpHost {
	t.Helper()
	h := &mcpHost{c: l.Client}
	h.Server = h.serve(t, change...)
	return h
}

// TestCaseMCPProcess: a server whose stdin and stdout are the connection.
func TestCaseMCPProcess(t *testing.T) {
	l := start(t)
	for name, f := range map[string]func(*testing.T, *mcpClient, func() error){
		"Stdin56InputOfTheServer": func(t *testing.T, c *mcpClient, _ func() error) {
			c.ok(run("cat; cat /dev/stdin; read x; echo rc=$?")).is(t, "rc=1\n", nil)
			c.ok(run("echo '{\"jsonrpc\":\"2.0\"}' > /proc/$PPID/fd/1; echo on")).is(t, "", params{"exit_code": 0})
			c.ok(run("echo still here")).is(t, "still here\n", nil)
		},
		"Stdin62TerminalOfTheServer": func(t *testing.T, c *mcpClient, _ func() error) {
			c.ok(run("echo y > /dev/tty; echo rc=$?")).is(t, "", params{"stdout": "rc=1\n"})
		},
		"Tree24KillsWhatItCan": func(t *testing.T, c *mcpClient, _ func() error) {
			c.ok(run("kill -TERM 0")).is(t, "(no output)\n[ended by SIGTERM, exit code 143]", nil)
			c.ok(run("kill -TERM -$$; kill -HUP -- -$$")).is(t, "", params{"state": "failed"})
			c.ok(run("echo still here")).is(t, "still here\n", nil)
		},
		"Hang1ClientLeaves": func(t *testing.T, c *mcpClient, leave func() error) {
			ids := []string{
				c.begin(params{"command": "echo up; sleep 300"}, "up"),
				c.begin(params{"command": "trap '' TERM HUP; echo up; while :; do sleep 0.1; done", "grace_s": 0.3}, "up"),
				c.begin(params{"command": "(setsid sleep 300 &); echo up; sleep 300"}, "up"),
			}
			within(t, 4*soon, func() {
				if err := leave(); err != nil {
					t.Errorf("the server ended badly: %v", err)
				}
			})
			for _, id := range ids {
				if left := tagged(id); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			}
		},
		"Hang1ClientLeavesAmidACall": func(t *testing.T, c *mcpClient, leave func() error) {
			began := filepath.Join(t.TempDir(), "began")
			gone := make(chan error, 1)
			go func() { // ends with the connection
				_, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "bash", Arguments: run("echo $LIMPET_PROCESS_ID > " + began + "; sleep 300 & sleep 300")})
				gone <- err
			}()
			var id string
			until(t, "the command", func() bool { id = strings.TrimSpace(tryFile(began)); return id != "" })
			within(t, 4*soon, func() {
				if err := leave(); err != nil {
					t.Errorf("the server ended badly: %v", err)
				}
			})
			<-gone
			if left := tagged(id); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		},
		"Res115FloodWhileOthersWork": func(t *testing.T, c *mcpClient, _ func() error) {
			id := c.begin(params{"command": "yes"}, "")
			for range 5 {
				within(t, 2*soon, func() { c.ok(run("echo quick")).is(t, "", params{"stdout": "quick\n"}) })
			}
			r := c.does("terminate", id, "mode", "kill")
			if len(r.text) > 20_000 || !strings.Contains(r.text, "bytes before this were not shown; action read, process_id "+id) {
				t.Errorf("%d bytes: %.200q", len(r.text), r.text)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, leave := mcpProcess(t, l)
			f(t, c, leave)
		})
	}
}

// TestCaseMCPSupervisor: SUP 123, SUP 127, TREE 26. Handles and offsets outlive the worker
// and the front end, and nothing is made up meanwhile.
func TestCaseMCPSupervisor(t *testing.T) {
	l := start(t)
	kept := func(c *mcp.Config) { c.Session.Name = "kept" }
	h := frontOf(t, l, kept)
	in, out := pipes(t, h.Server)
	c := connectMCP(t, &sdk.IOTransport{Reader: out, Writer: in}, nil)
	id := c.begin(params{"command": "for i in $(seq 600); do echo $i; sleep 0.05; done", "description": "counts"}, "^2$")
	before := c.does("read", id)

	ended := make(chan result, 1)
	go func() { // ends with the command
		r, err := c.try(run("echo a; sleep 1.5; echo b; exit 4"))
		if err != nil {
			t.Error(err)
		}
		ended <- r
	}()
	until(t, "the second command", func() bool { return strings.Count(c.ok(params{"action": "list"}).text, "  running  ") == 2 })
	dead := l.PID("worker")
	if err := l.Kill("worker"); err != nil {
		t.Fatal(err)
	}
	waitWorker(t, l, dead)
	r := <-ended
	if r.str("state") == "running" { // it may have been given the handle instead
		r = c.does("wait", r.str("process_id"), "offset", 0, "wait_s", 30)
	}
	if r.num("exit_code") != 4 || !strings.HasPrefix(r.text, "a\nb\n[") {
		t.Errorf("through a kill of the worker: %s", r.text)
	}
	next := c.does("read", id, "offset", before.num("next_offset"), "wait_s", 30)
	if next.str("state") != "running" || next.num("exit_code") != -1 || !strings.HasPrefix(before.str("output")+next.str("output"), "1\n2\n3\n4\n") {
		t.Errorf("%q, then %q: %s", before.str("output"), next.str("output"), next.text)
	}

	_ = in.Close() // the front end goes without a word
	d := stdio(t, frontOf(t, l, kept).Server, nil)
	if r := d.ok(params{"action": "list"}); !strings.Contains(r.text, id+"  running  ") || !strings.Contains(r.text, "  counts") {
		t.Errorf("%s", r.text)
	}
	again := d.does("read", id, "offset", before.num("offset"))
	if !strings.HasPrefix(again.str("output"), before.str("output")) {
		t.Errorf("%q, once %q", again.str("output"), before.str("output"))
	}
	d.stopped(id, "", "mode", "kill")
}

// TestCaseMCPTree22: a process that may not be ended is named, and the command is not said
// to be gone.
func TestCaseMCPTree22(t *testing.T) {
	need(t, "root")
	need(t, "setpriv")
	l, dir := startAsNobody(t)
	// A setuid copy makes what a sudo makes: a process that its supervisor may not signal.
	foreign := filepath.Join(dir, "foreign")
	if out, err := exec.Command("sh", "-c", `cp "$(command -v setpriv)" "$1" && chmod 4755 "$1"`, "sh", foreign).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c := stdio(t, frontOf(t, l).Server, nil)
	id := c.begin(params{"command": foreign + " --reuid=65533 --regid=65533 --clear-groups sleep 67 & sleep 67", "grace_s": 0.2}, "")
	var other []int
	until(t, "the other user's process", func() bool {
		other = slices.DeleteFunc(marked("sleep\x0067"), func(pid int) bool { return !ownedBy(pid, 65533) })
		return len(other) == 1
	})
	t.Cleanup(func() { _ = syscall.Kill(other[0], syscall.SIGKILL) })
	within(t, 4*soon, func() {
		r := c.call(followUp("terminate", id, nil))
		r.is(t, "", params{"state": "failed", "reason": "cancel", "leftovers_live": 1, "output_incomplete": true})
		if !strings.HasSuffix(r.text, fmt.Sprintf("\n[could not be ended: pid %d]", other[0])) || r.code() != "teardown_failed" || !r.failed {
			t.Errorf("%s: %v", r.text, r.data)
		}
	})
}
