package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/app"
)

// agent is a host that runs limpet mcp and speaks to it.
type agent struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr *lockedBuffer
	last   int
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// mcpCommand is limpet mcp with a state directory, whose owner ends with the test.
func mcpCommand(t *testing.T, state string, args ...string) (*exec.Cmd, *lockedBuffer) {
	t.Helper()
	t.Cleanup(func() { killParts(state) }) // of a test that failed
	cmd := exec.CommandContext(t.Context(), "limpet", append([]string{"mcp", "--until-idle", "2s"}, args...)...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "LIMPET_STATE="+state, "HOME="+cmd.Dir, "TMPDIR="+cmd.Dir)
	stderr := &lockedBuffer{}
	cmd.Stderr = stderr
	cmd.WaitDelay = patience
	return cmd, stderr
}

// ends waits until nothing is up in a state directory.
func ends(t *testing.T, state string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		pid := partPID(state, "up")
		if pid == 0 && app.State(state).Ended() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("limpet up (process %d) has not ended by itself", pid)
		}
	}
}

func newAgent(t *testing.T, state string, args ...string) *agent {
	t.Helper()
	a := &agent{t: t}
	a.cmd, a.stderr = mcpCommand(t, state, args...)
	in, err := a.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = a.cmd.Process.Kill() // fails for one that has ended
		_ = a.cmd.Wait()
	})
	a.in, a.out = in, bufio.NewReader(out)
	a.call("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}`, nil)
	a.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return a
}

func (a *agent) send(line string) {
	a.t.Helper()
	if _, err := io.WriteString(a.in, line+"\n"); err != nil {
		a.t.Fatalf("write to limpet mcp: %v; stderr: %s", err, a.stderr)
	}
}

// call waits for the answer. Everything on stdout must be of the protocol.
func (a *agent) call(method, params string, result any) {
	a.t.Helper()
	a.last++
	a.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, a.last, method, params))
	for {
		line, err := a.out.ReadString('\n')
		if err != nil {
			a.t.Fatalf("read from limpet mcp: %v; stderr: %s", err, a.stderr)
		}
		var m struct {
			Version string `json:"jsonrpc"`
			ID      int    `json:"id"`
			Result  json.RawMessage
			Error   json.RawMessage
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil || m.Version != "2.0" {
			a.t.Fatalf("stdout has %q: %v", line, err)
		}
		if m.ID != a.last {
			continue // a notification
		}
		if m.Error != nil {
			a.t.Fatalf("%s: %s", method, m.Error)
		}
		if result != nil {
			if err := json.Unmarshal(m.Result, result); err != nil {
				a.t.Fatal(err)
			}
		}
		return
	}
}

// answer of the tool, as far as these tests look.
type answer struct {
	IsError bool `json:"isError"`
	Content []struct {
		Text string `json:"text"`
	} `json:"content"`
	Structured struct {
		ProcessID string `json:"process_id"`
		State     string `json:"state"`
		Reason    string `json:"reason"`
		ExitCode  *int   `json:"exit_code"`
		Stdout    string `json:"stdout"`
		Output    string `json:"output"`
	} `json:"structuredContent"`
}

// bash calls the tool with arguments in JSON.
func (a *agent) bash(arguments string) *answer {
	a.t.Helper()
	var r answer
	a.call("tools/call", `{"name":"bash","arguments":`+arguments+`}`, &r)
	if r.IsError {
		a.t.Fatalf("bash %s: %+v", arguments, r)
	}
	return &r
}

// pid waits for a file of the agent's directory that holds a process id.
func (a *agent) pid(name string) (pid int) {
	a.t.Helper()
	for end := time.Now().Add(patience); pid == 0; time.Sleep(10 * time.Millisecond) {
		b, _ := os.ReadFile(filepath.Join(a.cmd.Dir, name)) // not there yet
		_, _ = fmt.Sscan(string(b), &pid)
		if time.Now().After(end) {
			a.t.Fatal("the command did not start")
		}
	}
	return pid
}

// leaves closes stdin and waits for the exit code.
func (a *agent) leaves(want int) {
	a.t.Helper()
	_ = a.in.Close()
	_ = a.cmd.Wait()
	if got := a.cmd.ProcessState.ExitCode(); got != want {
		a.t.Errorf("limpet mcp ended with %d, not %d; stderr: %s", got, want, a.stderr)
	}
}

// A client gets a shell, in the directory that it was started in; when it goes, its
// commands go with it, and a little later what was started in the background.
func TestMCP(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state")
	a := newAgent(t, state, "--env", "GREETING=hello", "--env-allow", "PATH,LIMPET_TEST_ALLOWED")
	if got := a.bash(`{"command":"echo $GREETING; pwd; exit 3"}`).Structured; got.ExitCode == nil || *got.ExitCode != 3 || got.Stdout != "hello\n"+a.cmd.Dir+"\n" {
		t.Errorf("%+v", got)
	}
	a.bash(`{"command":"sleep 300 & echo $! >child; echo $$ >shell; wait","action":"start"}`)
	pids := []int{a.pid("shell"), a.pid("child")}
	a.leaves(0)
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d is left", pid)
		}
	}
	if a.stderr.String() != "" {
		t.Errorf("stderr: %s", a.stderr)
	}
	ends(t, state)
}

// What is started in the background has nothing of whoever started us: not a lock, and
// not a pipe that somebody waits at for its end.
func TestMCPPassesNothingOn(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd, stderr := mcpCommand(t, state)
	cmd.ExtraFiles = []*os.File{w}
	cmd.Stdin = strings.NewReader("") // it starts an owner, and its client has gone
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	if partPID(state, "up") == 0 {
		t.Error("nothing is up; was it ever?")
	}
	if err := errors.Join(w.Close(), r.SetReadDeadline(time.Now().Add(patience))); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("somebody still holds the pipe: %v", err)
	}
	ends(t, state)
}

// Eight at once share an owner that one of them starts, and none sees another's.
func TestMCPAtOnce(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state")
	var all sync.WaitGroup
	owners := make([]int, 8)
	for i := range owners {
		all.Go(func() {
			a := newAgent(t, state)
			if got := a.bash(fmt.Sprintf(`{"command":"echo I am %d"}`, i)).Structured.Stdout; got != fmt.Sprintf("I am %d\n", i) {
				t.Errorf("%d got %q", i, got)
			}
			owners[i] = partPID(state, "up")
			var list struct {
				Structured struct {
					Processes []any `json:"processes"`
				} `json:"structuredContent"`
			}
			a.call("tools/call", `{"name":"bash","arguments":{"action":"list"}}`, &list)
			if n := len(list.Structured.Processes); n != 1 {
				t.Errorf("%d sees %d processes", i, n)
			}
			a.leaves(0)
		})
	}
	all.Wait()
	for _, pid := range owners {
		if pid == 0 || pid != owners[0] {
			t.Errorf("they have owners %v", owners)
		}
	}
	ends(t, state)
}

// kill -9 of the owner: another is started, and the processes are there by their ids.
func TestMCPOwnerKilled(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state")
	a, b := newAgent(t, state), newAgent(t, state)
	first := a.bash(`{"action":"start","command":"echo begun; read line; echo got $line; exit 4","close_stdin":false}`).Structured.ProcessID
	other := b.bash(`{"action":"start","command":"sleep 300"}`).Structured.ProcessID
	owner := partPID(state, "up")
	if err := syscall.Kill(owner, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); alive(owner); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not die")
		}
	}
	// Until the worker has found the new owner its processes are unreachable, which is not
	// final.
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		got := a.bash(`{"action":"status","process_id":"` + first + `"}`).Structured
		if got.State == "running" {
			break
		}
		if got.State != "unreachable" || time.Now().After(end) {
			t.Fatalf("%+v", got)
		}
	}
	a.bash(`{"action":"write","process_id":"` + first + `","stdin":"on\n"}`)
	if got := a.bash(`{"action":"wait","process_id":"` + first + `","offset":0}`).Structured; got.ExitCode == nil || *got.ExitCode != 4 || got.Output != "begun\ngot on\n" {
		t.Errorf("%+v", got)
	}
	if got := b.bash(`{"action":"status","process_id":"` + other + `"}`).Structured; got.State != "running" {
		t.Errorf("%+v", got)
	}
	for end := time.Now().Add(patience); partPID(state, "up") == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("there is no next owner")
		}
	}
	if now := partPID(state, "up"); now == owner {
		t.Errorf("the owner is %d, and was %d", now, owner)
	}
	a.leaves(0)
	b.leaves(0)
	ends(t, state)
}

// TERM ends the session as the end of stdin does, within a bound.
func TestMCPTerminated(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state")
	a := newAgent(t, state)
	a.bash(`{"action":"start","command":"trap '' TERM; echo $$ >pid; while :; do sleep 1; done","grace_s":0.5}`)
	pid := a.pid("pid")
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = a.cmd.Wait()
	if got := a.cmd.ProcessState.ExitCode(); got != 0 {
		t.Errorf("limpet mcp ended with %d; stderr: %s", got, a.stderr)
	}
	if alive(pid) {
		t.Errorf("process %d is left", pid)
	}
	ends(t, state)
}

// A named session is kept, with its processes, for the next client.
func TestMCPKeptSession(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state")
	a := newAgent(t, state, "--session-name", "kept", "--idle-ttl", "1s")
	id := a.bash(`{"action":"start","command":"read line; echo $line","close_stdin":false}`).Structured.ProcessID
	a.leaves(0)
	b := newAgent(t, state, "--session-name", "kept", "--idle-ttl", "1s")
	b.bash(`{"action":"write","process_id":"` + id + `","stdin":"from b\n"}`)
	if got := b.bash(`{"action":"wait","process_id":"` + id + `","offset":0}`).Structured; got.Output != "from b\n" || got.State != "completed" {
		t.Errorf("%+v", got)
	}
	b.leaves(0)
	ends(t, state)
}

// A private one has no state directory, and a kill -9 of it ends its commands.
func TestMCPPrivate(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state")
	a := newAgent(t, state, "--private")
	a.bash(`{"action":"start","command":"echo $$ >pid; exec sleep 300"}`)
	pid := a.pid("pid")
	if _, err := os.Stat(state); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a state directory: %v", err)
	}
	if err := a.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = a.cmd.Wait()
	for end := time.Now().Add(patience); alive(pid); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d is left", pid)
		}
	}
}
