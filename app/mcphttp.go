package app

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/limpet-sh/limpet/gateway/mcp"
)

// MCPPath is where MCP is served; everything else is 404.
const MCPPath = "/mcp"

// DefaultMCP is where a gateway serves MCP.
const DefaultMCP = "127.0.0.1:7774"

// minToken is how long a token has to be that somebody gives, in bytes.
const minToken = 16

// MCPHTTP says how MCP is served over HTTP.
type MCPHTTP struct {
	// Addr is "127.0.0.1:7774"; port 0 for any. Without Public it must be of loopback.
	Addr   string
	Public bool
	// Token that clients send as a bearer. Without it TokenFile is read; without that the
	// token of State is used, and made where there is none; without State one is made that
	// ends with us.
	Token, TokenFile string
	State            State
	// NoToken asks for none, which loopback only allows.
	NoToken bool
	// Origins are the web origins whose pages may call.
	Origins []string
	// OnServing is told once what to connect to. It may be nil.
	OnServing func(MCPServing)
}

// MCPServing is what to connect to.
type MCPServing struct {
	URL string
	// Token, where it is ours; one that was given to us is not repeated.
	Token string
	// From says where the token is: a file, or an environment variable.
	From string
	// Open asks for no token.
	Open bool
}

func (h *MCPHTTP) validate() error {
	host, _, err := net.SplitHostPort(h.Addr)
	if err != nil {
		return fmt.Errorf("%q is no address such as 127.0.0.1:7774: %w", h.Addr, err)
	}
	ip, err := netip.ParseAddr(host)
	loopback := host == "localhost" || err == nil && ip.IsLoopback()
	switch {
	case !loopback && !h.Public:
		return fmt.Errorf("%s is no address of loopback: whoever reaches it could try to run commands here; to serve it nonetheless, say so (--public), and put TLS before it", h.Addr)
	case !loopback && h.NoToken:
		return fmt.Errorf("%s is no address of loopback: without a token whoever reaches it could run commands here", h.Addr)
	case h.Token != "" && h.TokenFile != "":
		return fmt.Errorf("$%s and a token file (%s) are both given; which?", TokenVariable, h.TokenFile)
	case h.NoToken && cmp.Or(h.Token, h.TokenFile) != "":
		return errors.New("a token is given, and none is to be asked for; which?")
	}
	return nil
}

// token is the one that clients have to send, and what to say of it.
func (h *MCPHTTP) token() (token string, at MCPServing, err error) {
	switch {
	case h.NoToken:
		return "", MCPServing{Open: true}, nil
	case h.Token != "":
		token, at.From = strings.TrimSpace(h.Token), "$"+TokenVariable
	case h.TokenFile != "":
		token, err = readToken(h.TokenFile)
		at.From = h.TokenFile
	case h.State != "":
		token, err = keptToken(h.State)
		at = MCPServing{Token: token, From: h.State.mcpToken()}
	default:
		token = newToken()
		at.Token = token
	}
	if err == nil && len(token) < minToken {
		err = fmt.Errorf("the token has %d bytes; give %d or more, none of them easy to guess", len(token), minToken)
	}
	return token, at, err
}

func newToken() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return base64.RawURLEncoding.EncodeToString(b)
}

func readToken(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// keptToken is that of a state directory: clients keep it over restarts. Of two who make
// it at once one makes it.
func keptToken(s State) (string, error) {
	if err := os.MkdirAll(string(s), 0o700); err != nil {
		return "", fmt.Errorf("state directory: %w", err)
	}
	fresh, err := os.CreateTemp(string(s), "mcp.token.") // 0600
	if err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	defer os.Remove(fresh.Name())
	_, err = fresh.WriteString(newToken() + "\n")
	if err = errors.Join(err, fresh.Close()); err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	if err := os.Link(fresh.Name(), s.mcpToken()); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("token: %w", err)
	}
	return readToken(s.mcpToken())
}

// serve serves until ctx ends, then closes the sessions of its clients.
func (h *MCPHTTP) serve(ctx context.Context, s *mcp.Server, log *slog.Logger) error {
	token, at, err := h.token()
	if err != nil {
		return err
	}
	cfg := mcp.HTTPConfig{Origins: h.Origins}
	if !h.NoToken {
		cfg.Authorize = mcp.BearerToken(token)
	}
	handler, err := s.Handler(cfg)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", h.Addr)
	if err != nil {
		return fmt.Errorf("serve MCP: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle(MCPPath, handler)
	srv := &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug), // who does not speak HTTP
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }() // ends with Close, below
	if h.OnServing != nil {
		at.URL = "http://" + l.Addr().String() + MCPPath
		h.OnServing(at)
	}
	select {
	case err = <-ended:
		err = fmt.Errorf("serve MCP: %w", err)
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), mcpEnd)
	defer cancel()
	err = errors.Join(err, s.Close(closing))
	_ = srv.Close() // what is left has nothing to say any more
	return err
}
