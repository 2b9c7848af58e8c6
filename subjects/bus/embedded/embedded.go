// Package embedded runs a NATS server inside this process: in memory, or in a
// directory that one process at a time owns. Nothing else is needed on one host.
//
// The server has a CORE account with JetStream, where workers, gateways, observers and
// the provisioner live, and one account for each tenant. A tenant's account imports its
// own api subjects and its own live events and nothing else; the tenant's name in a
// subject is therefore written by the server, never by a client. Every user may use
// only what [subjects.Root.Permissions] gives its role.
//
// Clients come in process ([Server.Dial]), over a unix socket of this user, or over TCP
// where Listen says so. The first two skip TLS, and all authenticate.
//
// # Concurrency
//
// All methods of [Server] may be called from any goroutine. Close and Restart wait for
// each other and return when what they stopped has stopped.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/limpet-sh/limpet/subjects"
)

// Config of an embedded server.
type Config struct {
	// Dir keeps the streams, the secret that passwords come from, and the lock. Empty:
	// everything is in memory and ends with the server.
	Dir string
	// TempDir is where a server without Dir makes its temporary directory; os.TempDir
	// when empty.
	TempDir string
	// Name of the server; "limpet" when empty.
	Name string
	// Listen is a TCP address ("127.0.0.1:4222", port 0 for any); empty: none.
	Listen string
	// UnixSocket is the path of a socket for this user; empty: none. Its directory must exist.
	UnixSocket string
	// MaxUnix bounds the connections of the socket; default 1,024. One more is closed at once.
	MaxUnix int
	// ReservedSocket is the path of a second socket, for the host's own roles: 64
	// connections that clients of UnixSocket cannot use up. Empty: none.
	ReservedSocket string
	// MaxPayload of a message with its headers, in bytes; default 8 MiB.
	MaxPayload int
	// MaxMemory and MaxStore bound all streams together; defaults 1 GiB and 1 TiB.
	MaxMemory, MaxStore int64
	// SyncInterval is how often files are synced: what a power loss may take; default 1 s.
	SyncInterval time.Duration
	// SyncAlways syncs before each acknowledgement (0.2 to 0.4 ms a write).
	SyncAlways bool
	// Tenants get an account each; default "local".
	Tenants []string
	// Root of the subjects; [subjects.Default] when zero.
	Root subjects.Root
	// Secret that passwords are made from, at least 16 bytes; kept in Dir, or random,
	// when empty. All servers of a cluster share one.
	Secret []byte
	// Cluster joins servers, and needs Listen; nil: this one alone.
	Cluster *Cluster
	// Logger gets what the server logs; slog.Default when nil.
	Logger *slog.Logger
}

// Cluster says how a server joins others. Its streams can then have replicas.
type Cluster struct {
	Name   string
	Listen string   // address for routes, such as "127.0.0.1:6222"
	Routes []string // addresses of the others
}

func (c *Config) validate() error {
	if c.Name == "" {
		c.Name = "limpet"
	}
	if c.MaxUnix == 0 {
		c.MaxUnix = 1024
	}
	if c.MaxPayload == 0 {
		c.MaxPayload = 8 << 20
	}
	if c.MaxPayload < 64<<10 || c.MaxPayload > 64<<20 {
		return fmt.Errorf("MaxPayload: %d is not in 64 KiB to 64 MiB", c.MaxPayload)
	}
	if c.MaxMemory == 0 {
		c.MaxMemory = 1 << 30
	}
	if c.MaxStore == 0 {
		c.MaxStore = 1 << 40
	}
	if c.MaxUnix < 0 || c.MaxMemory < 0 || c.MaxStore < 0 {
		return errors.New("MaxUnix, MaxMemory and MaxStore must not be negative")
	}
	if c.Cluster != nil && c.Listen == "" {
		// The server opens its port for routes only after that for clients.
		//lint:ignore ST1005 it begins with the name of a field
		return errors.New("Listen: a server of a cluster needs an address")
	}
	if c.SyncInterval == 0 {
		c.SyncInterval = time.Second
	}
	if len(c.Tenants) == 0 {
		c.Tenants = []string{"local"}
	}
	for _, t := range c.Tenants {
		if err := subjects.CheckToken("Tenants", t); err != nil {
			return err
		}
	}
	if c.Root == (subjects.Root{}) {
		c.Root = subjects.Default()
	}
	if len(c.Secret) != 0 && len(c.Secret) < 16 {
		//lint:ignore ST1005 it begins with the name of a field
		return errors.New("Secret: fewer than 16 bytes")
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// Server is a running embedded server.
type Server struct {
	cfg  Config
	log  *slog.Logger
	dir  *directory
	unix []*unixListener // of UnixSocket and ReservedSocket, where there are such
	// clients is that of UnixSocket; nil without one.
	clients *unixListener

	change sync.Mutex // held by Restart and Close
	closed bool       // guarded by change

	mu  sync.Mutex
	srv *server.Server // guarded by mu; nil while none runs
	tcp string         // guarded by mu; the address once known, kept by a restart
}

// Start starts a server and returns when clients may connect. A directory that another
// process owns is a *[LockedError].
func Start(cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	dir, err := openDirectory(cfg.Dir, cfg.TempDir, cfg.Secret)
	if err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	s := &Server{cfg: cfg, log: cfg.Logger.With("server", cfg.Name), dir: dir, tcp: cfg.Listen}
	if err := s.run(); err != nil {
		dir.close()
		return nil, fmt.Errorf("embedded: %w", err)
	}
	if err := s.listen(); err != nil {
		s.Close()
		return nil, fmt.Errorf("embedded: %w", err)
	}
	return s, nil
}

// reserved bounds the connections of the reserved socket: a worker has two.
const reserved = 64

// listen opens the sockets.
func (s *Server) listen() error {
	for _, l := range []struct {
		path  string
		limit int
	}{{s.cfg.ReservedSocket, reserved}, {s.cfg.UnixSocket, s.cfg.MaxUnix}} {
		if l.path == "" {
			continue
		}
		u, err := listenUnix(l.path, l.limit, s.dial, s.log)
		if err != nil {
			return err
		}
		s.unix = append(s.unix, u)
		if l.path == s.cfg.UnixSocket {
			s.clients = u
		}
	}
	return nil
}

// run starts the server proper.
func (s *Server) run() error {
	opts, err := s.options()
	if err != nil {
		return err
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return fmt.Errorf("new server: %w", err)
	}
	srv.SetLoggerV2(logger{s.log}, false, false, false)
	opts.CustomClientAuthentication.(*authenticator).bind(srv)
	srv.Start()
	if !srv.ReadyForConnections(10 * time.Second) {
		srv.Shutdown()
		srv.WaitForShutdown()
		return errors.New("the server was not ready after 10 s; its log says why")
	}
	if s.cfg.Cluster == nil && !srv.JetStreamEnabled() {
		srv.Shutdown()
		srv.WaitForShutdown()
		return errors.New("the server runs without JetStream; its log says why")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.srv = srv
	if a, ok := srv.Addr().(*net.TCPAddr); ok && s.cfg.Listen != "" {
		s.tcp = a.String()
	}
	return nil
}

// stop ends the server proper. Its clients find their connections closed.
func (s *Server) stop() {
	s.mu.Lock()
	srv := s.srv
	s.srv = nil
	s.mu.Unlock()
	if srv != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
	}
}

// Restart stops the server and starts it again on the same directory, socket and
// address. Clients reconnect by themselves; streams in memory are gone.
func (s *Server) Restart(ctx context.Context) error {
	s.change.Lock()
	defer s.change.Unlock()
	if s.closed {
		return errors.New("embedded: restart: the server is closed")
	}
	s.stop()
	if ctx.Err() != nil {
		return fmt.Errorf("embedded: restart: %w", context.Cause(ctx))
	}
	if err := s.run(); err != nil {
		return fmt.Errorf("embedded: restart: %w", err)
	}
	return nil
}

// Close stops the socket and the server and gives the directory free. Close clients
// first: they would try to reconnect.
func (s *Server) Close() {
	s.change.Lock()
	defer s.change.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	for _, u := range s.unix {
		u.close()
	}
	s.stop()
	s.dir.close()
}

// Dial returns a dialer of in-process connections. It goes on working after a Restart.
func (s *Server) Dial() func() (net.Conn, error) {
	return func() (net.Conn, error) {
		conn, err := s.dial()
		if err != nil {
			return nil, err
		}
		return &greeting{Conn: conn}, nil
	}
}

// dial makes a connection to the server that runs now.
func (s *Server) dial() (net.Conn, error) {
	s.mu.Lock()
	srv := s.srv
	s.mu.Unlock()
	if srv == nil {
		return nil, fmt.Errorf("in-process connection: %w", net.ErrClosed)
	}
	return srv.InProcessConn()
}

// URL for TCP clients; empty without a listener.
func (s *Server) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cfg.Listen == "" {
		return ""
	}
	return "nats://" + s.tcp
}

// Clients counts the connections of Config.UnixSocket now.
func (s *Server) Clients() int {
	if s.clients == nil {
		return 0
	}
	return s.clients.count()
}

// Credentials are the user and password of one role and name, the same for as long as
// the secret is. The name of a tenant must be one of Config.Tenants.
func (s *Server) Credentials(role subjects.Role, name string) (user, password string) {
	user = string(role) + "." + name
	return user, s.dir.password(user)
}

// SecretFile is where the secret is kept, empty in memory. Who can read it can act as anyone.
func (s *Server) SecretFile() string { return s.dir.secretFile() }

// hostPort splits an address for the server's options.
func hostPort(addr string) (string, int, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	n, err := net.LookupPort("tcp", port)
	if err != nil {
		return "", 0, err
	}
	if n == 0 {
		n = server.RANDOM_PORT
	}
	return host, n, nil
}
