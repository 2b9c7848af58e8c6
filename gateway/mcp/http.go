package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

const (
	// SessionHeader names the Limpet session of a request, and keeps it: 1 to 48 letters,
	// digits, '_' or '-'. Who knows the name shares the session.
	SessionHeader = "Limpet-Session"
	// headerPrefix keeps what clients name apart from all sessions that others name.
	headerPrefix  = "http-"
	maxHeaderName = 48

	versionHeader   = "Mcp-Protocol-Version"
	sessionIDHeader = "Mcp-Session-Id"
	// withoutSessions is the first protocol version that knows no connections over HTTP.
	withoutSessions = "2026-07-28"

	// bodyLimit is how long a client may take to send its request.
	bodyLimit = 10 * time.Second

	codeRefused = -32000 // JSON-RPC's for a server's own refusals
)

// handler serves streamable HTTP: older protocols with a session for each connection,
// those that have none with a session by name.
type handler struct {
	s         *Server
	cfg       HTTPConfig
	stateful  http.Handler
	stateless http.Handler
	lobby     *conn // of requests that belong to no connection; the SDK refuses or ignores them

	mu     sync.Mutex
	byID   map[string]*conn   // guarded by mu; connections by Mcp-Session-Id
	byName map[string]*shared // guarded by mu; sessions by name
}

// shared is a session that requests name.
type shared struct {
	c     *conn
	uses  int         // guarded by handler.mu; requests in work
	timer *time.Timer // ends it when it is idle
}

// Handler serves streamable HTTP at any path. Close ends what it serves.
func (s *Server) Handler(cfg HTTPConfig) (http.Handler, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	lobby, err := s.admit("", false, false)
	if err != nil {
		return nil, err
	}
	lobby.cancel(errEnded) // nothing is ever run in it
	h := &handler{s: s, cfg: cfg, lobby: lobby, byID: make(map[string]*conn), byName: make(map[string]*shared)}
	options := sdk.StreamableHTTPOptions{
		Logger: lobby.quietLog(), SessionTimeout: cfg.IdleTimeout, MaxRequestBodyBytes: cfg.BodyBytes,
	}
	h.stateful = sdk.NewStreamableHTTPHandler(h.sdkOf, &options)
	options.Stateless, options.SessionTimeout, options.PropagateRequestCancellation = true, 0, true
	h.stateless = sdk.NewStreamableHTTPHandler(h.sdkOf, &options)
	return h, nil
}

type connKey struct{}

// sdkOf is the SDK's server of a request's connection.
func (h *handler) sdkOf(r *http.Request) *sdk.Server {
	if c, ok := r.Context().Value(connKey{}).(*conn); ok {
		return c.sdk
	}
	return h.lobby.sdk
}

func as(r *http.Request, c *conn) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), connKey{}, c))
}

// head is as much of a message as its way depends on.
type head struct {
	ID     json.RawMessage
	Method string
	batch  bool
}

// UnmarshalJSON takes names as they are written, as the SDK does: one that takes "Method"
// for "method" sends elsewhere what the SDK then answers.
func (m *head) UnmarshalJSON(b []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(b, &fields); err != nil {
		return err
	}
	m.ID = fields["id"]
	_ = json.Unmarshal(fields["method"], &m.Method) // what is none, the SDK refuses
	return nil
}

// ServeHTTP serves one request.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !h.mayCall(w, r) {
		return
	}
	// A writer that has no connection has no deadline either.
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyLimit))
	m, ok := h.readHead(w, r)
	if !ok {
		return
	}
	_ = rc.SetReadDeadline(time.Time{})
	r.Header.Del(requestIDKey)
	name, ok := h.sessionName(w, r, m)
	switch {
	case !ok:
	case r.Header.Get(versionHeader) >= withoutSessions && name != "":
		h.serveShared(w, r, m, name)
	case r.Header.Get(sessionIDHeader) != "":
		h.serveKnown(w, r, m)
	case m.Method == "initialize":
		h.serveNew(w, r, m, name)
	case m.batch:
		// One with an initialize in it would begin a connection that is nobody's.
		refuseHTTP(w, http.StatusBadRequest, nil, wire.Errorf(wire.CodeInvalidArguments,
			"a batch belongs to a connection, which %s names; begin one with initialize, alone", sessionIDHeader))
	default:
		// Also version 2026-07-28 without a name: the SDK answers which versions are spoken,
		// and the client comes back with one that has connections.
		h.stateful.ServeHTTP(w, r)
	}
}

// mayCall checks where a request comes from and whether it has the token.
func (h *handler) mayCall(w http.ResponseWriter, r *http.Request) bool {
	h.s.mu.Lock()
	closed := h.s.closed
	h.s.mu.Unlock()
	if closed {
		refuseHTTP(w, http.StatusServiceUnavailable, nil, wire.Errorf(wire.CodeSupervisorShuttingDown, "the server is shutting down"))
		return false
	}
	if origin := r.Header.Get("Origin"); origin != "" && !slices.Contains(h.cfg.Origins, origin) {
		if u, err := url.Parse(origin); err != nil || u.Host == "" || u.Host != r.Host {
			refuseHTTP(w, http.StatusForbidden, nil, wire.Errorf(wire.CodeDenied, "pages of other origins may not call"))
			return false
		}
	}
	if h.cfg.Authorize == nil {
		return true
	}
	kind, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(kind, "bearer") && h.cfg.Authorize(strings.TrimSpace(token)) {
		return true
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="limpet"`)
	refuseHTTP(w, http.StatusUnauthorized, nil, wire.Errorf(wire.CodeDenied, "a bearer token is needed, and this is none of ours"))
	return false
}

// readHead reads the body, within its bound, and looks at its head.
func (h *handler) readHead(w http.ResponseWriter, r *http.Request) (m head, ok bool) {
	if r.Method != http.MethodPost {
		return m, true
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.cfg.BodyBytes))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		refuseHTTP(w, http.StatusRequestEntityTooLarge, idOf(body), wire.Errorf(wire.CodeInvalidArguments,
			"a request may have %d bytes at most; a command has %d at most: write what is larger to a file", tooLarge.Limit, wire.MaxArgument))
		return m, false
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		refuseHTTP(w, http.StatusRequestTimeout, nil, wire.Errorf(wire.CodeTimedOut, "the request did not come within %v", bodyLimit))
		return m, false
	}
	if err != nil {
		return m, false // the client is gone
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if trimmed := bytes.TrimSpace(body); len(trimmed) > 0 && trimmed[0] == '[' && json.Valid(body) {
		m.batch = true // its ids are not told, so each command has a fresh execution id
		return m, true
	}
	if json.Unmarshal(body, &m) != nil {
		writeRPC(w, http.StatusBadRequest, nil, &jsonrpc.Error{Code: jsonrpc.CodeParseError, Message: "no JSON-RPC message"})
		return m, false
	}
	return m, true
}

// sessionName is the name of the session that a request is for: what the header says,
// or what is configured, or "".
func (h *handler) sessionName(w http.ResponseWriter, r *http.Request, m head) (name string, ok bool) {
	given := r.Header.Get(SessionHeader)
	if given == "" {
		if r.Header.Get(versionHeader) >= withoutSessions && h.cfg.Session != "" {
			return h.cfg.Session, true
		}
		return h.s.cfg.Session.Name, true
	}
	if len(given) > maxHeaderName || !subjects.ValidToken(given) {
		refuseHTTP(w, http.StatusBadRequest, m.ID, wire.Invalid(SessionHeader, "no name of a session: 1 to %d letters, digits, '_' or '-'", maxHeaderName))
		return "", false
	}
	return headerPrefix + given, true
}

// serveKnown serves a request of a connection.
func (h *handler) serveKnown(w http.ResponseWriter, r *http.Request, m head) {
	h.mu.Lock()
	c := h.byID[r.Header.Get(sessionIDHeader)]
	h.mu.Unlock()
	switch {
	case c == nil: // the SDK says so
	case r.Method == http.MethodDelete:
		h.drop(c)
		c.cancel(errEnded) // calls in work answer, the SDK's session ends, and then ours
		w.WriteHeader(http.StatusNoContent)
		return
	default:
		r = as(r, c)
		tellID(r, m)
	}
	h.stateful.ServeHTTP(w, r)
}

// tellID carries the id of a request to its handler.
func tellID(r *http.Request, m head) {
	if len(m.ID) > 0 && len(m.ID) <= 256 {
		r.Header[requestIDKey] = []string{string(m.ID)}
	}
}

// serveNew begins a connection.
func (h *handler) serveNew(w http.ResponseWriter, r *http.Request, m head, name string) {
	h.mu.Lock()
	if len(h.byID)+len(h.byName) >= h.cfg.Sessions {
		h.mu.Unlock()
		h.refuseFull(w, m)
		return
	}
	c, err := h.s.admit(name, name != "", true)
	if err == nil {
		c.id = subjects.NewID()
		h.byID[c.id] = c
	}
	h.mu.Unlock()
	if err != nil {
		refuseHTTP(w, http.StatusServiceUnavailable, m.ID, err)
		return
	}
	var began atomic.Bool
	c.onInitialize = func(s *sdk.ServerSession) {
		began.Store(true)
		context.AfterFunc(c.ctx, func() { _ = s.Close() })
		go func() { // ends with the connection: at a DELETE, when it is idle, or with the server
			_ = s.Wait()
			h.drop(c)
			c.end()
		}()
	}
	h.stateful.ServeHTTP(w, as(r, c))
	if !began.Load() {
		h.drop(c)
		c.end()
	}
}

func (h *handler) refuseFull(w http.ResponseWriter, m head) {
	w.Header().Set("Retry-After", "10")
	refuseHTTP(w, http.StatusServiceUnavailable, m.ID, wire.Errorf(wire.CodeOverloaded,
		"%d connections are open, which is the limit; one ends when it is closed, or after %v without a request", h.cfg.Sessions, h.cfg.IdleTimeout))
}

func (h *handler) drop(c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.byID, c.id)
}

// serveShared serves a request of a session by name.
func (h *handler) serveShared(w http.ResponseWriter, r *http.Request, m head, name string) {
	s, err := h.use(name)
	if err != nil {
		if wire.AsError(err).Code == wire.CodeOverloaded {
			h.refuseFull(w, m)
		} else {
			refuseHTTP(w, http.StatusServiceUnavailable, m.ID, err)
		}
		return
	}
	defer h.unuse(s)
	h.stateless.ServeHTTP(w, as(r, s.c))
}

func (h *handler) use(name string) (*shared, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.byName[name]
	if s == nil {
		if len(h.byID)+len(h.byName) >= h.cfg.Sessions {
			return nil, wire.Errorf(wire.CodeOverloaded, "full")
		}
		// Ids of requests repeat from client to client, so they name no executions here.
		c, err := h.s.admit(name, true, false)
		if err != nil {
			return nil, err
		}
		s = &shared{c: c}
		s.timer = time.AfterFunc(h.cfg.IdleTimeout, func() { h.idle(name, s) })
		h.byName[name] = s
	}
	s.uses++
	return s, nil
}

func (h *handler) unuse(s *shared) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.uses--; s.uses == 0 {
		s.timer.Reset(h.cfg.IdleTimeout)
	}
}

// idle forgets a session that nobody used for a while. It lives on, as long as its own
// time without a call allows.
func (h *handler) idle(name string, s *shared) {
	h.mu.Lock()
	if s.uses > 0 || h.byName[name] != s {
		h.mu.Unlock()
		return // the end of the last use sets the timer again
	}
	delete(h.byName, name)
	h.mu.Unlock()
	s.c.end()
}

// refuseHTTP answers a request that goes no further.
// The connection ends with it, so that nobody waits for a body that is not read.
func refuseHTTP(w http.ResponseWriter, status int, id json.RawMessage, err error) {
	w.Header().Set("Connection", "close")
	e := public(err)
	data, _ := json.Marshal(e) //nolint:errchkjson // plain types
	writeRPC(w, status, id, &jsonrpc.Error{Code: codeRefused, Message: fmt.Sprintf("%s (%s)", e.Message, e.Code), Data: data})
}

func writeRPC(w http.ResponseWriter, status int, id json.RawMessage, e *jsonrpc.Error) {
	if len(id) == 0 {
		id = json.RawMessage("null")
	}
	b, _ := json.Marshal(struct { //nolint:errchkjson // plain types
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   *jsonrpc.Error  `json:"error"`
	}{"2.0", id, e})
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // the client may be gone
}
