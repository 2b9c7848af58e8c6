package app

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/limpet-sh/limpet/gateway/mcp"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// TokenVariable holds the token that HTTP clients of MCP send, where it is no file's.
const TokenVariable = "LIMPET_MCP_TOKEN"

// MCPFlags are the flags of every program of ours that serves MCP.
type MCPFlags struct {
	name     string
	cwd      string
	env      []string
	allow    []string
	shell    string
	login    bool
	capture  bool
	timeout  time.Duration
	idleTTL  time.Duration
	onCancel string
	notices  string
	yield    time.Duration
	nonzero  bool

	public    bool
	tokenFile string
	noToken   bool
	origins   []string
}

// Add defines the flags, each with prefix before its name.
func (f *MCPFlags) Add(fs *pflag.FlagSet, prefix string) {
	fs.StringVar(&f.name, prefix+"session-name", "", "share and keep the session of this name (default: a fresh one for each connection, which ends with it)")
	fs.StringVar(&f.cwd, prefix+"cwd", "", "directory of the session (default: this one)")
	fs.StringArrayVar(&f.env, prefix+"env", nil, "set NAME=VALUE for all commands; may be repeated")
	fs.StringSliceVar(&f.allow, prefix+"env-allow", []string{"PATH"}, "variables of this environment that commands get too, comma separated")
	fs.StringVar(&f.shell, prefix+"shell", "", `shell of commands: "bash" (default), "sh", or a path`)
	fs.BoolVar(&f.login, prefix+"login", false, "run commands in a login shell, which reads the profile first")
	fs.BoolVar(&f.capture, prefix+"capture-state", true, "start each command in the directory and with the exported variables that the one before ended with")
	fs.DurationVar(&f.timeout, prefix+"timeout", 0, "end commands that give no limit after this long (default 2m)")
	fs.DurationVar(&f.idleTTL, prefix+"idle-ttl", 0, "close a session after this long without a call and without a process (default 30m)")
	fs.StringVar(&f.onCancel, prefix+"on-cancel", "kill", `what becomes of the command of a call that the client cancels: "kill" or "keep"`)
	fs.StringVar(&f.notices, prefix+"notices", "inject", `how the end of a background command is told: "inject" (into the next result), "notify" or "silent"`)
	fs.DurationVar(&f.yield, prefix+"yield-max", 0, "answer with a handle after this long at the latest, 1s to 54s (default 50s)")
	fs.BoolVar(&f.nonzero, prefix+"nonzero-is-error", false, "mark the result of a command that exits nonzero as an error")

	fs.BoolVar(&f.public, prefix+"public", false, "HTTP: allow an address that other hosts reach; put TLS before it")
	fs.StringVar(&f.tokenFile, prefix+"token-file", "", "HTTP: file with the token that clients send (default: $"+TokenVariable+", else mcp.token in the state directory, made where missing)")
	fs.BoolVar(&f.noToken, prefix+"no-token", false, "HTTP: ask for no token; all users of this host can then run commands as you")
	fs.StringSliceVar(&f.origins, prefix+"origin", nil, "HTTP: web origins whose pages may call, comma separated")
}

// Front is what clients get, as the flags say.
func (f *MCPFlags) Front() (MCPFront, error) {
	m := MCPFront{OnCancel: f.onCancel, Notices: f.notices, YieldMax: f.yield, NonzeroIsError: f.nonzero}
	for name, d := range map[string]time.Duration{"timeout": f.timeout, "idle-ttl": f.idleTTL, "yield-max": f.yield} {
		if d != 0 && d < time.Millisecond {
			return m, wire.Invalid(name, "%v is below 1 ms", d)
		}
	}
	// Package mcp checks again; by then what serves would have been started for nothing.
	if f.onCancel != string(mcp.CancelKill) && f.onCancel != string(mcp.CancelKeep) {
		return m, wire.Invalid("on-cancel", "%.40q is neither kill nor keep", f.onCancel)
	}
	switch mcp.Notices(f.notices) {
	case mcp.NoticesInject, mcp.NoticesNotify, mcp.NoticesSilent:
	default:
		return m, wire.Invalid("notices", "%.40q is none of inject, notify, silent", f.notices)
	}
	cwd, err := filepath.Abs(f.cwd)
	if err != nil {
		return m, wire.Invalid("cwd", "this directory is gone: %v", err)
	}
	if info, err := os.Stat(cwd); err != nil || !info.IsDir() {
		return m, wire.Invalid("cwd", "%s is no directory", cwd)
	}
	m.Session = wire.Open{
		Version: wire.Version, Name: f.name, Cwd: cwd, Shell: f.shell, Login: f.login, CaptureState: f.capture,
		DefaultTimeoutMS: f.timeout.Milliseconds(), IdleTTLMS: f.idleTTL.Milliseconds(),
	}
	for _, name := range f.allow {
		if value, ok := os.LookupEnv(name); ok {
			m.Session.Env = append(m.Session.Env, wire.EnvVar{Name: name, Value: value})
		}
	}
	for _, e := range f.env {
		name, value, ok := strings.Cut(e, "=")
		if !ok || name == "" {
			return m, wire.Invalid("env", "%q is not NAME=VALUE", e)
		}
		m.Session.Env = append(m.Session.Env, wire.EnvVar{Name: name, Value: value})
	}
	return m, m.Session.Validate()
}

// HTTP is how it is served at an address, as the flags say; the token may be one of a
// state directory. Once it is served, tell gets lines for a person.
func (f *MCPFlags) HTTP(addr string, s State, tell func(line string)) MCPHTTP {
	return MCPHTTP{
		Addr: addr, Public: f.public, NoToken: f.noToken, Origins: f.origins, State: s,
		Token: os.Getenv(TokenVariable), TokenFile: f.tokenFile, // never in our argv
		OnServing: func(at MCPServing) {
			tell("serving MCP at " + at.URL)
			switch {
			case at.Open:
				tell("no token is asked for: all users of this host can run commands as you")
			case at.Token != "":
				tell("clients send the header: Authorization: Bearer " + at.Token)
			default:
				tell("clients send the header: Authorization: Bearer, and the token")
			}
			if at.From != "" {
				tell(fmt.Sprintf("the token is that of %s", at.From))
			}
		},
	}
}
