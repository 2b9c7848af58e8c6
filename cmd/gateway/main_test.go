package main

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const patience = 30 * time.Second

// TestMain lets this binary be the gateway, and the keeper that it re-executes.
func TestMain(m *testing.M) {
	if os.Getenv("LIMPET_TEST_GATEWAY") != "" || len(os.Args) > 1 && os.Args[1] == "keeper" {
		main()
		return
	}
	os.Exit(m.Run())
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

func gateway(t *testing.T, dir string, args ...string) (*exec.Cmd, *lockedBuffer) {
	t.Helper()
	cmd, said := exec.CommandContext(t.Context(), "/proc/self/exe", args...), &lockedBuffer{}
	cmd.Dir, cmd.Stderr, cmd.WaitDelay = dir, said, patience
	cmd.Env = append(os.Environ(), "LIMPET_TEST_GATEWAY=1", "HOME="+dir, "TMPDIR="+dir, "XDG_CONFIG_HOME="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // fails for one that has ended
		_ = cmd.Wait()
	})
	return cmd, said
}

// Without a URL it is a whole host, which serves MCP; it ends in order, and leaves nothing.
func TestEmbedded(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"private": nil, "with a state directory": {"--state", "state"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			cmd, said := gateway(t, dir, append(args, "--mcp", "127.0.0.1:0")...)
			re := regexp.MustCompile(`serving MCP at (http://\S+)\n.*Authorization: Bearer (\S+)\n`)
			var m []string
			for end := time.Now().Add(patience); m == nil; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("it does not serve: %s", said)
				}
				m = re.FindStringSubmatch(said.String())
			}
			for token, want := range map[string]int{m[2]: http.StatusOK, "": http.StatusUnauthorized} {
				if status, body := initialize(t, m[1], token); status != want {
					t.Errorf("with token %q it answers %d %s", token, status, body)
				}
			}
			_, err := os.Stat(filepath.Join(dir, "state", "limpet.json"))
			if found := err == nil; found != (args != nil) {
				t.Errorf("other commands find it: %v", found)
			}
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v: %s", err, said)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "limpet-*")); left != nil {
				t.Errorf("%q is left", left)
			}
			if _, err := os.Stat(filepath.Join(dir, "state", "limpet.json")); err == nil {
				t.Error("the discovery file is left")
			}
		})
	}
}

func initialize(t *testing.T, url, token string) (int, string) {
	t.Helper()
	body := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// Settings that contradict each other, or do not suffice, are refused.
func TestRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--embedded", "--url", "nats://x"}, "give one of them"},
		{[]string{"--url", "nats://x", "--state", "s"}, "with --url there is none"},
		{[]string{"--mcp", "0.0.0.0:1"}, "no address of loopback"},
		{[]string{"--mcp-cwd", "nowhere"}, "nowhere is no directory"},
		{[]string{"--url", "nats://x", "--name", "a.b"}, "name"},
		{[]string{"words"}, `"words" is no flag`},
		{[]string{"--config", "missing"}, "missing: no such file"},
	} {
		dir := t.TempDir()
		cmd, said := gateway(t, dir, c.args...)
		if err := cmd.Wait(); err == nil || !strings.Contains(said.String(), c.want) {
			t.Errorf("%q: %v: %s", c.args, err, said)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("%q left %v (%v)", c.args, entries, err)
		}
	}
}
