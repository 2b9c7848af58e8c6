package embedded

import (
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/limpet-sh/limpet/subjects"
)

// coreAccount is where everything of ours lives. The dot keeps it out of the space of
// tenants' names.
const coreAccount = "limpet.core"

// tenantAccount of a tenant.
func tenantAccount(tenant string) string { return "tenant." + tenant }

func (s *Server) options() (*server.Options, error) {
	cfg := &s.cfg
	o := &server.Options{}
	if err := o.ProcessConfigString(accounts(cfg.Root, cfg.Tenants)); err != nil {
		return nil, fmt.Errorf("accounts: %w", err)
	}
	o.ServerName = cfg.Name
	o.NoSigs = true
	o.NoLog = true
	o.DisableJetStreamBanner = true
	o.MaxPayload = int32(cfg.MaxPayload)
	o.JetStream = true
	o.StoreDir = s.dir.path
	o.JetStreamMaxMemory, o.JetStreamMaxStore = cfg.MaxMemory, cfg.MaxStore
	o.SyncAlways, o.SyncInterval = cfg.SyncAlways, cfg.SyncInterval
	o.JetStreamLimits.DefaultMaxConsumers = -1 // 1,000 a stream otherwise
	o.CustomClientAuthentication = &authenticator{root: cfg.Root, tenants: cfg.Tenants, password: s.dir.password, log: s.log}
	o.DontListen = true
	var err error
	if addr := s.address(); addr != "" {
		o.DontListen = false
		if o.Host, o.Port, err = hostPort(addr); err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
	}
	if c := cfg.Cluster; c != nil {
		o.Cluster.Name = c.Name
		if o.Cluster.Host, o.Cluster.Port, err = hostPort(c.Listen); err != nil {
			return nil, fmt.Errorf("cluster: listen: %w", err)
		}
		for _, r := range c.Routes {
			o.Routes = append(o.Routes, &url.URL{Scheme: "nats-route", Host: r})
		}
	}
	return o, nil
}

func (s *Server) address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tcp
}

// accounts is the account part of a server configuration. All that goes into it are
// validated tokens.
func accounts(root subjects.Root, tenants []string) string {
	var imports, exports, all strings.Builder
	for _, t := range tenants {
		api, live, admit := root.API(t, "*"), root.Live(t), root.QuestionsAdmit(t)
		fmt.Fprintf(&exports, "      { service: %q, response_type: Singleton, threshold: \"24h\", accounts: [%q] }\n", api, tenantAccount(t))
		fmt.Fprintf(&exports, "      { stream: %q, accounts: [%q] }\n", live, tenantAccount(t))
		fmt.Fprintf(&imports, "      { service: { account: %q, subject: %q } }\n", tenantAccount(t), admit)
		fmt.Fprintf(&all, `  %q: {
    exports: [ { service: %q, response_type: Singleton, threshold: "24h", accounts: [%q] } ]
    imports: [
      { service: { account: %q, subject: %q } }
      { stream: { account: %q, subject: %q } }
    ]
  }
`, tenantAccount(t), admit, coreAccount, coreAccount, api, coreAccount, live)
	}
	return fmt.Sprintf("accounts {\n  %q: {\n    jetstream: enabled\n    exports: [\n%s    ]\n    imports: [\n%s    ]\n  }\n%s}\n",
		coreAccount, exports.String(), imports.String(), all.String())
}

// authenticator knows no list of users: a password is made from the secret and the
// user's name, and the name says the role. So credentials outlive a restart, and a new
// worker needs no change of configuration.
type authenticator struct {
	root     subjects.Root
	tenants  []string
	password func(user string) string
	log      *slog.Logger
	srv      atomic.Pointer[server.Server]
}

func (a *authenticator) bind(s *server.Server) { a.srv.Store(s) }

// Check implements server.Authentication.
func (a *authenticator) Check(c server.ClientAuthentication) bool {
	opts := c.GetOpts()
	if subtle.ConstantTimeCompare([]byte(opts.Password), []byte(a.password(opts.Username))) != 1 {
		a.log.Warn("refused a connection: wrong password", "user", opts.Username, "name", opts.Name)
		return false
	}
	user, err := a.user(opts.Username)
	if err != nil {
		a.log.Warn("refused a connection", "user", opts.Username, "name", opts.Name, "err", err)
		return false
	}
	c.RegisterUser(user)
	return true
}

func (a *authenticator) user(username string) (*server.User, error) {
	role, name, _ := strings.Cut(username, ".")
	perms, err := a.root.Permissions(subjects.Role(role), name)
	if err != nil {
		return nil, err
	}
	account := coreAccount
	if subjects.Role(role) == subjects.RoleTenant {
		account = tenantAccount(name)
	}
	srv := a.srv.Load()
	if srv == nil {
		return nil, fmt.Errorf("the server is starting")
	}
	acc, err := srv.LookupAccount(account)
	if err != nil {
		return nil, fmt.Errorf("account %s: %w", account, err)
	}
	p := &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: perms.Publish},
		Subscribe: &server.SubjectPermission{Allow: perms.Subscribe},
	}
	if perms.Responses > 0 {
		p.Response = &server.ResponsePermission{MaxMsgs: perms.Responses, Expires: perms.ResponseAge}
	}
	return &server.User{Username: username, Account: acc, Permissions: p}, nil
}

// logger gives the server's lines to slog. Its notices are details to us.
type logger struct{ log *slog.Logger }

func (l logger) Noticef(f string, v ...any) { l.log.Debug(fmt.Sprintf(f, v...)) }
func (l logger) Warnf(f string, v ...any)   { l.log.Warn(fmt.Sprintf(f, v...)) }
func (l logger) Fatalf(f string, v ...any)  { l.log.Error(fmt.Sprintf(f, v...)) }
func (l logger) Errorf(f string, v ...any)  { l.log.Error(fmt.Sprintf(f, v...)) }
func (l logger) Debugf(f string, v ...any)  { l.log.Debug(fmt.Sprintf(f, v...)) }
func (l logger) Tracef(f string, v ...any)  { l.log.Debug(fmt.Sprintf(f, v...)) }
