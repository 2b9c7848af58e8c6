package main

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// served is limpet mcp over HTTP.
type served struct {
	t          *testing.T
	cmd        *exec.Cmd
	url, token string
}

func serveMCP(t *testing.T, state string, args ...string) *served {
	t.Helper()
	cmd, stderr := mcpCommand(t, state, append(args, "--http", "127.0.0.1:0")...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // fails for one that has ended
		_ = cmd.Wait()
	})
	re := regexp.MustCompile(`serving MCP at (http://\S+)\n.*(?:Authorization: Bearer (\S+)|all users)`)
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if m := re.FindStringSubmatch(stderr.String()); m != nil {
			return &served{t, cmd, m[1], m[2]}
		}
		if time.Now().After(end) {
			t.Fatalf("it does not serve: %s", stderr)
		}
	}
}

// post says hello with a token.
func (s *served) post(url, token string) (int, string) {
	s.t.Helper()
	body := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func (s *served) stop() {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("limpet mcp: %v", err)
	}
}

// Over HTTP a token is asked for; it is told once, lies in a file for this user, and is
// that of the next one, too: clients have it in their settings.
func TestMCPOverHTTP(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state")
	s := serveMCP(t, state)
	for _, wrong := range []string{"", "x", s.token + "x", s.token[1:]} {
		if status, body := s.post(s.url, wrong); status != http.StatusUnauthorized || strings.Contains(body, `"limpet"`) {
			t.Errorf("the token %q is answered %d %s", wrong, status, body)
		}
	}
	if status, body := s.post(s.url, s.token); status != http.StatusOK || !strings.Contains(body, `"name":"limpet"`) {
		t.Errorf("its own token is answered %d %s", status, body)
	}
	if status, _ := s.post(strings.TrimSuffix(s.url, "/mcp")+"/other", s.token); status != http.StatusNotFound {
		t.Errorf("another path is answered %d", status)
	}
	s.stop()
	file := filepath.Join(state, "mcp.token")
	kept, err := os.ReadFile(file)
	info, serr := os.Stat(file)
	if err != nil || serr != nil || info.Mode() != 0o600 || strings.TrimSpace(string(kept)) != s.token {
		t.Errorf("the file holds %q (%v, %v)", kept, err, serr)
	}
	again := serveMCP(t, state)
	if again.token != s.token {
		t.Error("the second has another token")
	}
	again.stop()
	open := serveMCP(t, state, "--no-token")
	if status, body := open.post(open.url, ""); status != http.StatusOK {
		t.Errorf("without a token it answers %d %s", status, body)
	}
	open.stop()
	ends(t, state)
}
