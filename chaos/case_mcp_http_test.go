package chaos

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/limpet-sh/limpet/gateway/mcp"
	"github.com/limpet-sh/limpet/subjects/wire"
)

const (
	initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`
	callTrue   = `{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"bash","arguments":{"command":"true"}}}`
)

// TestMCPVersions speaks every version over both transports.
func TestMCPVersions(t *testing.T) {
	h := newMCPHost(t)
	s := h.http(t, mcp.HTTPConfig{Session: "modern"})
	for _, version := range sdk.SupportedProtocolVersions() {
		for name, connect := range map[string]func() *mcpClient{
			"stdio": func() *mcpClient { return stdio(t, h.serve(t), nil, version) },
			"http":  func() *mcpClient { return overHTTP(t, s.URL, nil, nil, version) },
		} {
			t.Run(version+"/"+name, func(t *testing.T) {
				c := connect()
				if r := c.ok(params{"command": "echo hello"}); r.str("stdout") != "hello\n" {
					t.Errorf("%v", r.data)
				}
				id := c.ok(params{"action": "start", "command": "echo from the start; sleep 1000"}).str("process_id")
				if r := c.ok(params{"action": "wait_for", "process_id": id, "pattern": "start"}); r.data["met"] != true {
					t.Errorf("%v", r.data)
				}
				tools, err := c.ListTools(t.Context(), nil)
				if err != nil || len(tools.Tools) != 1 {
					t.Errorf("%+v, %v", tools, err)
				}
				resources(t, c, id)
				c.ok(params{"action": "terminate", "process_id": id, "mode": "kill"})
			})
		}
	}
	if _, ok := h.sessions(t)["modern"]; !ok {
		t.Errorf("%v", h.sessions(t))
	}
}

// resources lists and reads those of a process that has said "from the start".
func resources(t *testing.T, c *mcpClient, id string) {
	t.Helper()
	list, err := c.ListResources(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var uris []string
	for _, r := range list.Resources {
		uris = append(uris, r.URI)
	}
	output, record := "limpet://process/"+id+"/output", "limpet://process/"+id+"/record"
	if all := strings.Join(uris, " "); !strings.Contains(all, output) || !strings.Contains(all, record) {
		t.Errorf("%s, %s are not in %s", output, record, all)
	}
	templates, err := c.ListResourceTemplates(t.Context(), nil)
	if err != nil || len(templates.ResourceTemplates) != 2 {
		t.Errorf("%+v, %v", templates, err)
	}
	for uri, want := range map[string]string{output: "from the start\n", output + "?after=5": "the start\n", record: `"process":"` + id + `"`} {
		res, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri})
		if err != nil || len(res.Contents) != 1 || !strings.Contains(res.Contents[0].Text, want) || res.Contents[0].URI != uri {
			t.Errorf("%s: %+v, %v", uri, res, err)
			continue
		}
		if next, ok := res.Contents[0].Meta["next_offset"].(float64); uri != record && (!ok || next != 15) {
			t.Errorf("%s: %v", uri, res.Contents[0].Meta)
		}
	}
}

// TestMCPGuards: who may not call is told so and nothing else.
func TestMCPGuards(t *testing.T) {
	h := newMCPHost(t)
	s := h.http(t, mcp.HTTPConfig{Authorize: mcp.BearerToken("secret"), Origins: []string{"https://good.example"}})
	token := func(kv ...string) http.Header {
		all := http.Header{"Authorization": {"Bearer secret"}}
		for i := 0; i < len(kv); i += 2 {
			all[kv[i]] = []string{kv[i+1]}
		}
		return all
	}
	for _, tt := range []struct {
		name   string
		header http.Header
		body   string
		status int
	}{
		{"no token", http.Header{}, initialize, 401},
		{"another token", http.Header{"Authorization": {"Bearer Secret"}}, initialize, 401},
		{"an empty token", http.Header{"Authorization": {"Bearer "}}, initialize, 401},
		{"another kind of token", http.Header{"Authorization": {"Basic secret"}}, initialize, 401},
		{"another origin", token("Origin", "https://evil.example"), initialize, 403},
		{"no origin", token("Origin", "null"), initialize, 403},
		{"another page of this host", token("Origin", "http://127.0.0.1:1"), initialize, 403},
		{"a known origin", token("Origin", "https://good.example"), initialize, 200},
		{"our origin", token("Origin", s.URL), initialize, 200},
		{"none", token(), initialize, 200},
		{"another type", token("Content-Type", "text/plain"), initialize, 415},
		{"a broken body", token(), `{"jsonrpc":`, 400},
		{"no session", token(), callTrue, 200}, // with an error in it
		{"a session that is none", token("Mcp-Session-Id", "xyz"), callTrue, 404},
		{"a bad name", token(mcp.SessionHeader, "a.b"), initialize, 400},
		{"a long name", token(mcp.SessionHeader, strings.Repeat("x", 49)), initialize, 400},
		{"an old version that is none", token("Mcp-Protocol-Version", "2020-01-01"), callTrue, 400},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res := post(t, s.URL, tt.header, tt.body)
			b, _ := io.ReadAll(res.Body)
			if res.StatusCode != tt.status {
				t.Errorf("%d; want %d: %s", res.StatusCode, tt.status, b)
			}
			if tt.status == 401 && res.Header.Get("WWW-Authenticate") == "" {
				t.Error("what is asked for is not told")
			}
			if tt.name == "no session" && !bytes.Contains(b, []byte(`"error"`)) {
				t.Errorf("%s", b)
			}
		})
	}
	// DNS rebinding: a name that leads to loopback.
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader(initialize))
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "evil.example"
	r.Header = token("Content-Type", "application/json", "Accept", "application/json, text/event-stream")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusForbidden {
		t.Errorf("the host evil.example is answered %d", res.StatusCode)
	}
	if n := len(h.sessions(t)); n != 0 {
		t.Errorf("%d sessions were opened", n)
	}
}

// TestMCPSessionsOverHTTP: one for each connection, which ends with it; by name, one for
// all who name it.
func TestMCPSessionsOverHTTP(t *testing.T) {
	h := newMCPHost(t)
	s := h.http(t, mcp.HTTPConfig{Sessions: 4, IdleTimeout: 2 * time.Second})
	// Without a name the newest version has no session: the client comes with one that has.
	a := overHTTP(t, s.URL, nil, nil)
	if v := a.InitializeResult().ProtocolVersion; v != "2025-11-25" {
		t.Errorf("version %s", v)
	}
	b := overHTTP(t, s.URL, nil, nil)
	session := func(c *mcpClient) string { return c.ok(params{"action": "list"}).str("session") }
	if session(a) == session(b) {
		t.Errorf("both have %s", session(a))
	}
	id := a.ok(params{"action": "start", "command": "sleep 1000"}).str("process_id")
	if r := b.call(params{"action": "status", "process_id": id}); r.code() != string(wire.CodeNotFound) {
		t.Errorf("%v", r.data)
	}
	name := session(a)
	if err := a.Close(); err != nil { // sends DELETE
		t.Fatal(err)
	}
	h.ended(t, id)
	until(t, "the end of the session", func() bool { _, ok := h.sessions(t)[name]; return !ok })

	named := func(n string) http.Header { return http.Header{mcp.SessionHeader: {n}} }
	one := overHTTP(t, s.URL, named("team"), nil, "2026-07-28")
	two := overHTTP(t, s.URL, named("team"), nil, "2025-06-18")
	id = one.ok(params{"action": "start", "command": "sleep 1000"}).str("process_id")
	if r := two.ok(params{"action": "status", "process_id": id}); r.str("state") != "running" {
		t.Errorf("%v", r.data)
	}
	if session(one) != "http-team" || session(two) != "http-team" {
		t.Errorf("%s, %s", session(one), session(two))
	}
	other := overHTTP(t, s.URL, named("other"), nil, "2026-07-28")
	if r := other.call(params{"action": "status", "process_id": id}); r.code() != string(wire.CodeNotFound) {
		t.Errorf("%v", r.data)
	}

	// b, two, team and other: that is full.
	res := post(t, s.URL, nil, initialize)
	if text, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusServiceUnavailable || !bytes.Contains(text, []byte("4 connections are open")) || res.Header.Get("Retry-After") == "" {
		t.Errorf("%d: %s", res.StatusCode, text)
	}
	// Who is idle makes room, and a session that is its own ends; one with a name stays.
	name = session(b)
	until(t, "the end of an idle session", func() bool { _, ok := h.sessions(t)[name]; return !ok })
	until(t, "room", func() bool { return post(t, s.URL, nil, initialize).StatusCode == http.StatusOK })
	if _, ok := h.sessions(t)["http-team"]; !ok {
		t.Errorf("%v", h.sessions(t))
	}
	if r := one.ok(params{"action": "status", "process_id": id}); r.str("state") != "running" {
		t.Errorf("%v", r.data)
	}
}

// TestMCPLostRequests: a request that is lost on its way is asked again with its id; one
// without connections is cancelled by its loss.
func TestMCPLostRequests(t *testing.T) {
	h := newMCPHost(t)
	s := h.http(t, mcp.HTTPConfig{Session: "modern"})
	res := post(t, s.URL, nil, initialize)
	_, _ = io.Copy(io.Discard, res.Body)
	header := http.Header{"Mcp-Session-Id": {res.Header.Get("Mcp-Session-Id")}, "Mcp-Protocol-Version": {"2025-11-25"}}
	post(t, s.URL, header, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)

	lose := func(header http.Header, body string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = header.Clone()
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		if res, err := http.DefaultClient.Do(r); err == nil {
			_, err = io.ReadAll(res.Body)
			_ = res.Body.Close()
			if err == nil {
				t.Fatal("it is not lost")
			}
		}
	}
	const slow = `{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"bash","arguments":{"command":"echo once; sleep 2; echo twice"}}}`
	lose(header, slow)
	var text []byte
	until(t, "the answer of what was lost", func() bool { // 400 as long as the first is in work
		res := post(t, s.URL, header, slow)
		text, _ = io.ReadAll(res.Body)
		return res.StatusCode == http.StatusOK
	})
	if !bytes.Contains(text, []byte(`once\ntwice\n`)) {
		t.Errorf("%s", text)
	}
	list := post(t, s.URL, header, `{"jsonrpc":"2.0","id":10,"method":"tools/call","params":{"name":"bash","arguments":{"action":"list"}}}`)
	if b, _ := io.ReadAll(list.Body); bytes.Count(b, []byte(`"duration_s"`)) != 1 {
		t.Errorf("it ran again: %s", b)
	}

	modern := http.Header{"Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {"tools/call"}, "Mcp-Name": {"bash"}}
	lose(modern, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bash","arguments":{"command":"sleep 1000"},`+
		`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`)
	until(t, "the end of what was lost", func() bool {
		l, err := h.c.Session("modern").List(t.Context())
		return err == nil && len(l.Processes) == 1 && l.Processes[0].State == wire.StateCancelled
	})
}

// TestMCPManyClients: none of many answers is lost, and none comes to another client.
func TestMCPManyClients(t *testing.T) {
	notShort(t)
	h := newMCPHost(t)
	s := h.http(t, mcp.HTTPConfig{})
	crowd(t, s.URL, 20, 10)
}

// crowd lets clients call at once, each several times in a row.
func crowd(t testing.TB, url string, clients, calls int) {
	t.Helper()
	all := make([]*mcpClient, clients)
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			c := sdk.NewClient(&sdk.Implementation{Name: "crowd", Version: "1"}, nil)
			cs, err := c.Connect(t.Context(), httpTransport(url, nil), nil)
			if err != nil {
				t.Errorf("client %d: %v", i, err)
				return
			}
			all[i] = &mcpClient{cs, t}
		})
	}
	wg.Wait()
	for i, c := range all {
		if c == nil {
			continue
		}
		wg.Go(func() {
			defer c.Close() //nolint:errcheck // what it said counts
			for n := range calls {
				want := fmt.Sprintf("%d.%d", i, n)
				r, err := c.try(params{"command": "echo " + want})
				if err != nil || r.str("stdout") != want+"\n" {
					t.Errorf("%s: %v, %v", want, r.data, err)
				}
			}
		})
	}
	wg.Wait()
}
