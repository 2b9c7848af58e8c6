package limpet_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/limpet-sh/limpet/app"
)

const mcpPage = "docs/mcp.md"

// blocks of a page that are in a language.
func blocks(t *testing.T, page, language string) (all []string) {
	t.Helper()
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(documents(t)[page], -1) {
		all = append(all, m[1])
	}
	return all
}

// servers are all objects below v that name a command or a URL.
func servers(v any) (found []map[string]any) {
	m, ok := v.(map[string]any)
	if !ok {
		return nil
	}
	if m["command"] != nil || m["url"] != nil {
		return []map[string]any{m}
	}
	for _, inner := range m {
		found = append(found, servers(inner)...)
	}
	return found
}

// Each block that a reader copies parses, and what it starts is a limpet mcp whose flags
// there are, or it names the address that is served.
func TestTheBlocksOfMCP(t *testing.T) {
	var found []map[string]any
	quick := regexp.MustCompile(`(?m)^    (\{"mcpServers".*\})$`).FindStringSubmatch(documents(t)["README.md"])
	if quick == nil {
		t.Fatal("README has no line for an agent's host")
	}
	for _, text := range append(blocks(t, mcpPage, "json"), quick[1]) {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		found = append(found, servers(v)...)
	}
	for _, text := range blocks(t, mcpPage, "toml") {
		var v map[string]any
		if err := toml.Unmarshal([]byte(text), &v); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		found = append(found, servers(v)...)
	}
	if len(found) < 9 {
		t.Fatalf("only %d servers were found: the test looks past them", len(found))
	}
	exe := build(t, "limpet")
	for _, s := range found {
		if url, ok := s["url"].(string); ok {
			if url != "http://"+app.DefaultMCP+app.MCPPath {
				t.Errorf("%v: not the address that is served", s)
			}
			continue
		}
		words := []string{s["command"].(string)}
		for _, a := range s["args"].([]any) {
			words = append(words, a.(string))
		}
		at := slices.IndexFunc(words, func(w string) bool { return path.Base(w) == "limpet" })
		if at < 0 || at+1 >= len(words) || words[at+1] != "mcp" || at > 0 && words[0] != "ssh" {
			t.Errorf("%v starts no limpet mcp", s)
			continue
		}
		out, err := exec.CommandContext(t.Context(), exe, append(words[at+1:], "--help")...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "Model Context Protocol") {
			t.Errorf("%q: %v\n%s", words, err, out)
		}
	}
	// What a reader types has the same words.
	for _, m := range regexp.MustCompile("`(?:claude|codex) mcp add limpet -- /home/me/.local/bin/limpet ([^`]*)`").FindAllStringSubmatch(documents(t)[mcpPage], -1) {
		if m[1] != "mcp" {
			t.Errorf("%q is no way to add it", m[0])
		}
	}
}

// Every flag that the page names is one of limpet mcp.
func TestTheFlagsOfMCP(t *testing.T) {
	flags := help(t, "mcp")
	named := regexp.MustCompile("`(--[a-z-]+)").FindAllStringSubmatch(documents(t)[mcpPage], -1)
	if len(named) < 15 {
		t.Fatalf("only %d flags were found: the test looks past them", len(named))
	}
	for _, m := range named {
		if !strings.Contains(flags, m[1]+" ") {
			t.Errorf("%s names %s, which limpet mcp --help does not", mcpPage, m[1])
		}
	}
}

// The limits are those of the code.
func TestTheLimitsOfMCP(t *testing.T) {
	rows := strings.Split(documents(t)[mcpPage], "\n")
	for _, l := range []struct {
		what, dir, name string
		form            func(int64) string
	}{
		{"a call answers within (`--yield-max`), then with a handle", "gateway/mcp", "DefaultYieldMax", duration},
		{"limit of a `run` that gives none (`--timeout`)", "gateway/mcp", "defaultTimeoutMS", milliseconds},
		{"output in one answer of a `run`, head and tail; the rest is there to read", "actors/output", "DefaultRender", bytes},
		{"a message over stdio", "gateway/mcp", "maxLine", bytes},
		{"a message over HTTP", "gateway/mcp", "BodyBytes", bytes},
		{"calls at once on a connection; more wait up to 10 s", "gateway/mcp", "maxCalls", number},
		{"connections over HTTP", "gateway/mcp", "Sessions", number},
	} {
		if row := fmt.Sprintf("| %s | %s |", l.what, l.form(valueOf(t, l.dir, l.name))); !slices.Contains(rows, row) {
			t.Errorf("%s lacks the row\n%s", mcpPage, row)
		}
	}
}

// mcpClient is a client of one limpet mcp.
type mcpClient struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Scanner
	id  int
}

func (c *mcpClient) call(method, params string, result any) {
	c.t.Helper()
	c.id++
	if _, err := fmt.Fprintf(c.in, "{\"jsonrpc\":\"2.0\",\"id\":%d,\"method\":%q,\"params\":%s}\n", c.id, method, params); err != nil {
		c.t.Fatal(err)
	}
	for c.out.Scan() {
		var m struct {
			ID     int             `json:"id"`
			Result json.RawMessage `json:"result"`
		}
		if err := json.Unmarshal(c.out.Bytes(), &m); err != nil {
			c.t.Fatal(err)
		}
		if m.ID == c.id {
			if err := json.Unmarshal(m.Result, result); err != nil {
				c.t.Fatalf("%s: %v", c.out.Bytes(), err)
			}
			return
		}
	}
	c.t.Fatalf("limpet mcp has gone: %v", c.out.Err())
}

// newMCPClient starts a limpet mcp and says hello; end closes its stdin and waits for it.
func newMCPClient(t *testing.T) (_ *mcpClient, end func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), build(t, "limpet"), "mcp", "--private", "--cwd", t.TempDir())
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
	c := &mcpClient{t: t, in: in, out: bufio.NewScanner(out)}
	c.out.Buffer(nil, 1<<20)
	var ignored any
	c.call("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}`, &ignored)
	if _, err := io.WriteString(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	return c, func() {
		if err := in.Close(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// The conversation of the page is one that was had: P1, P2 … stand for the ids of
// processes. With UPDATE_DOCS set it is written anew.
func TestTheConversationOfMCP(t *testing.T) {
	script := blocks(t, mcpPage, "transcript")
	if len(script) != 1 {
		t.Fatalf("%d conversations", len(script))
	}
	c, end := newMCPClient(t)
	names := map[string]string{} // of processes, by id
	var had strings.Builder
	calls := strings.Split("\n"+strings.TrimSuffix(script[0], "\n"), "\n> ")[1:]
	for _, call := range calls {
		arguments, want, _ := strings.Cut(call, "\n")
		had.WriteString("> " + arguments + "\n")
		for id, name := range names {
			arguments = strings.ReplaceAll(arguments, `"`+name+`"`, `"`+id+`"`)
		}
		var r struct {
			Content []struct {
				Text string `json:"text"`
			} `json:"content"`
			Structured struct {
				ProcessID string `json:"process_id"`
				State     string `json:"state"`
			} `json:"structuredContent"`
		}
		c.call("tools/call", `{"name":"bash","arguments":`+arguments+`}`, &r)
		if id := r.Structured.ProcessID; r.Structured.State == "running" && names[id] == "" {
			names[id] = fmt.Sprintf("P%d", len(names)+1)
		}
		got := strings.TrimSpace(r.Content[0].Text)
		for id, name := range names {
			got = strings.ReplaceAll(got, id, name)
		}
		had.WriteString(got + "\n")
		if got != want && os.Getenv("UPDATE_DOCS") == "" {
			t.Errorf("bash %s answers\n%s\nand the page says\n%s", arguments, got, want)
		}
	}
	end()
	if page := documents(t)[mcpPage]; os.Getenv("UPDATE_DOCS") != "" {
		if err := os.WriteFile(mcpPage, []byte(strings.Replace(page, script[0], had.String(), 1)), 0o600); err != nil {
			t.Error(err)
		}
	}
}
