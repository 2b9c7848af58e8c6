package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/limpet-sh/limpet/app"
	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/gateway/mcp"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// mcpHost is everything in one process, with MCP before it.
type mcpHost struct {
	*mcp.Server
	c *client.Client
}

func newMCPHost(t testing.TB, change ...func(*mcp.Config)) *mcpHost {
	t.Helper()
	need(t, "bash")
	quiet := slog.New(slog.DiscardHandler)
	local, err := app.StartLocal(t.Context(), app.LocalOptions{Cwd: t.TempDir(), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	b := local.Bus("mcp test")
	c, err := client.Connect(t.Context(), client.Config{Dial: b.Dial, User: b.User, Password: b.Password, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		if err := local.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	h := &mcpHost{c: c}
	h.Server = h.serve(t, change...)
	return h
}

// serve makes one more front end of the same host.
func (h *mcpHost) serve(t testing.TB, change ...func(*mcp.Config)) *mcp.Server {
	t.Helper()
	cfg := mcp.Config{Client: h.c, Logger: slog.New(slog.NewTextHandler(testWriter{t}, nil)), Version: "test"}
	for _, f := range change {
		f(&cfg)
	}
	s, err := mcp.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), long)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// sessions are the open sessions of the host, by name.
func (h *mcpHost) sessions(t testing.TB) map[string]wire.Session {
	t.Helper()
	l, err := h.c.ListAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]wire.Session)
	for _, s := range l.Sessions {
		all[s.Name] = s
	}
	return all
}

// testWriter writes a log into the test's, as long as that takes it.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	if w.t.Context().Err() == nil {
		w.t.Logf("%s", b)
	}
	return len(b), nil
}

// mcpClient is a connected client of the SDK.
type mcpClient struct {
	*sdk.ClientSession
	t testing.TB
}

// stdio connects a client over pipes.
func stdio(t testing.TB, s *mcp.Server, o *sdk.ClientOptions, version ...string) *mcpClient {
	t.Helper()
	in, out := pipes(t, s)
	return connectMCP(t, &sdk.IOTransport{Reader: out, Writer: in}, o, version...)
}

// pipes serves one connection; closing in ends it, for which the test waits.
func pipes(t testing.TB, s *mcp.Server) (in io.WriteCloser, out io.ReadCloser) {
	t.Helper()
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { // ends with inW
		err := s.ServeStdio(context.WithoutCancel(t.Context()), inR, outW)
		_ = outW.Close()
		ended <- err
	}()
	t.Cleanup(func() {
		_ = inW.Close()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the server ended: %v", err)
			}
		case <-time.After(long):
			t.Error("the server does not end with its input")
		}
		_ = outR.Close()
	})
	return inW, outR
}

func connectMCP(t testing.TB, tr sdk.Transport, o *sdk.ClientOptions, version ...string) *mcpClient {
	t.Helper()
	c := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, o)
	var so *sdk.ClientSessionOptions
	if len(version) > 0 {
		so = &sdk.ClientSessionOptions{ProtocolVersion: version[0]}
	}
	s, err := c.Connect(t.Context(), tr, so)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if len(version) > 0 && s.InitializeResult().ProtocolVersion != version[0] {
		t.Fatalf("version %s; want %s", s.InitializeResult().ProtocolVersion, version[0])
	}
	return &mcpClient{s, t}
}

// result is a result of the tool as a test looks at it.
type result struct {
	failed bool
	text   string
	data   map[string]any
	raw    *sdk.CallToolResult
}

func resultOf(t testing.TB, r *sdk.CallToolResult) result {
	t.Helper()
	if len(r.Content) != 1 {
		t.Fatalf("%d contents", len(r.Content))
	}
	res := result{failed: r.IsError, text: r.Content[0].(*sdk.TextContent).Text, raw: r}
	res.data, _ = r.StructuredContent.(map[string]any)
	if res.data == nil {
		t.Fatalf("no structured content in %+v", r)
	}
	return res
}

func (r result) str(name string) string { s, _ := r.data[name].(string); return s }

func (r result) num(name string) float64 {
	n, ok := r.data[name].(float64)
	if !ok {
		return -1
	}
	return n
}

// code is that of the error, or "".
func (r result) code() string {
	e, _ := r.data["error"].(map[string]any)
	s, _ := e["code"].(string)
	return s
}

func (r result) field() string {
	e, _ := r.data["error"].(map[string]any)
	s, _ := e["field"].(string)
	return s
}

type params = map[string]any

// try calls the tool and gives what comes.
func (c *mcpClient) try(args params) (result, error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*long)
	defer cancel()
	r, err := c.CallTool(ctx, &sdk.CallToolParams{Name: "bash", Arguments: args})
	if err != nil {
		return result{}, err
	}
	return resultOf(c.t, r), nil
}

// call calls the tool, which must answer.
func (c *mcpClient) call(args params) result {
	c.t.Helper()
	r, err := c.try(args)
	if err != nil {
		c.t.Fatalf("%v: %v", args, err)
	}
	return r
}

// ok calls the tool, which must do it.
func (c *mcpClient) ok(args params) result {
	c.t.Helper()
	r := c.call(args)
	if r.failed {
		c.t.Fatalf("%v: %s", args, r.text)
	}
	return r
}

// httpServer serves a host over streamable HTTP on loopback.
func (h *mcpHost) http(t testing.TB, cfg mcp.HTTPConfig) *httptest.Server {
	t.Helper()
	handler, err := h.Handler(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(handler)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), long)
		defer cancel()
		if err := h.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func overHTTP(t testing.TB, url string, header http.Header, o *sdk.ClientOptions, version ...string) *mcpClient {
	t.Helper()
	return connectMCP(t, httpTransport(url, header), o, version...)
}

func httpTransport(url string, header http.Header) *sdk.StreamableClientTransport {
	return &sdk.StreamableClientTransport{Endpoint: url, MaxRetries: -1, HTTPClient: &http.Client{Transport: withHeader{header}}}
}

type withHeader struct{ http.Header }

func (h withHeader) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	maps.Copy(r.Header, h.Header)
	return http.DefaultTransport.RoundTrip(r)
}

// rawLines speaks JSON-RPC by hand.
type rawLines struct {
	t   testing.TB
	in  io.WriteCloser
	out *bufio.Scanner
}

func rawStdio(t testing.TB, s *mcp.Server) *rawLines {
	t.Helper()
	in, out := pipes(t, s)
	sc := bufio.NewScanner(out)
	sc.Buffer(nil, 64<<20)
	return &rawLines{t, in, sc}
}

func (l *rawLines) send(format string, args ...any) {
	l.t.Helper()
	if _, err := fmt.Fprintf(l.in, format+"\n", args...); err != nil {
		l.t.Fatal(err)
	}
}

// next is the next message from the server.
func (l *rawLines) next() (m struct {
	ID     any                 `json:"id"`
	Method string              `json:"method"`
	Params map[string]any      `json:"params"`
	Result *sdk.CallToolResult `json:"result"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
},
) {
	l.t.Helper()
	if !l.out.Scan() {
		l.t.Fatalf("the server ended: %v", l.out.Err())
	}
	if err := json.Unmarshal(l.out.Bytes(), &m); err != nil {
		l.t.Fatalf("%v in %s", err, l.out.Bytes())
	}
	return m
}

// begin speaks the handshake of a version.
func (l *rawLines) begin(version string) {
	l.t.Helper()
	l.send(`{"jsonrpc":"2.0","id":"begin","method":"initialize","params":{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`, version)
	if m := l.next(); m.Error != nil || m.ID != "begin" {
		l.t.Fatalf("initialize: %+v", m)
	}
	l.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

func (l *rawLines) tool(id any, args params) {
	l.t.Helper()
	i, _ := json.Marshal(id)
	a, err := json.Marshal(args)
	if err != nil {
		l.t.Fatal(err)
	}
	l.send(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"bash","arguments":%s}}`, i, a)
}

// playMCP is `limpet mcp` for a host that is up.
func playMCP(dir string) error {
	defer profile("mcp")()
	d, err := app.Discover(app.State(dir))
	if err != nil {
		return err
	}
	app.Modest()
	b := d.Bus("mcp")
	c, err := client.Connect(context.Background(), client.Config{
		Dial: b.Dial, User: b.User, Password: b.Password, InboxPrefix: b.InboxPrefix, Tenant: d.Tenant,
	})
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := mcp.New(mcp.Config{Client: c, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return err
	}
	return s.ServeStdio(context.Background(), os.Stdin, os.Stdout)
}

func tryFile(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(b)
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
