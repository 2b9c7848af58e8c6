package mcp

import (
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"time"

	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// OnCancel says what becomes of a command whose call is cancelled before its handle was
// returned.
type OnCancel string

// What cancelling does.
const (
	CancelKill OnCancel = "kill" // default: the whole tree ends
	CancelKeep OnCancel = "keep" // it goes on; list finds it
)

// Notices says how a connection learns of the end of what it left running.
type Notices string

// How ends are told.
const (
	NoticesInject Notices = "inject" // default: a line each in the next result
	NoticesNotify Notices = "notify" // a notification of the resource of its record
	NoticesSilent Notices = "silent" // not at all
)

// Bounds of Config.YieldMax. Most clients give up after 60 s.
const (
	DefaultYieldMax = 50 * time.Second
	maxYieldMax     = 54 * time.Second
	minYieldMax     = time.Second
)

// Config of a Server. Client is required.
type Config struct {
	// Client is whose sessions are used; the caller keeps and closes it.
	Client *client.Client
	// Session is how the session of a connection is opened. With a Name, connections share
	// that session and it is kept; without, each connection gets a fresh one, which is
	// closed with it.
	Session wire.Open
	// OnCancel is kill (default) or keep.
	OnCancel OnCancel
	// Notices is inject (default), notify or silent; on_end of a call goes before it.
	Notices Notices
	// YieldMax is the longest that a call takes before it answers with a handle; 1 s to
	// 54 s, default 50 s.
	YieldMax time.Duration
	// NonzeroIsError marks the result of a run that exited nonzero as an error. By default
	// it is none: the tool did its work, and the model reads the exit code.
	NonzeroIsError bool
	// Version is told to clients; "dev" when empty.
	Version string
	// Logger; slog.Default when nil. Nothing is ever logged to stdout.
	Logger *slog.Logger
}

func (c *Config) validate() error {
	if c.Client == nil {
		return wire.Invalid("Client", "missing")
	}
	if c.OnCancel == "" {
		c.OnCancel = CancelKill
	}
	if c.OnCancel != CancelKill && c.OnCancel != CancelKeep {
		return wire.Invalid("OnCancel", "%.40q is neither kill nor keep", c.OnCancel)
	}
	if c.Notices == "" {
		c.Notices = NoticesInject
	}
	if !c.Notices.valid() {
		return wire.Invalid("Notices", "%.40q is none of inject, notify, silent", c.Notices)
	}
	if c.YieldMax == 0 {
		c.YieldMax = DefaultYieldMax
	}
	if c.YieldMax < minYieldMax || c.YieldMax > maxYieldMax {
		return wire.Invalid("YieldMax", "%v is not in %v to %v", c.YieldMax, minYieldMax, maxYieldMax)
	}
	if c.Version == "" {
		c.Version = "dev"
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Session.Version = wire.Version
	return c.Session.Validate()
}

func (n Notices) valid() bool {
	return n == NoticesInject || n == NoticesNotify || n == NoticesSilent
}

// HTTPConfig of the streamable HTTP handler. The zero value is usable on loopback only.
type HTTPConfig struct {
	// Authorize decides about the bearer token of each request; nil asks for none. It must
	// compare in constant time, as [BearerToken] does.
	Authorize func(token string) bool
	// Session is the name of the session of requests in protocol versions without
	// connections (2026-07-28) that name none in the header [SessionHeader]. Empty:
	// Config.Session.Name. With neither, such requests are asked to come in an older
	// version, in which every client has a session of its own.
	Session string
	// Origins are the web origins, "https://host:port", whose pages may call; by default
	// none but the server's own.
	Origins []string
	// Sessions bounds the connections at once; default 1,000. One more is answered 503.
	Sessions int
	// IdleTimeout ends a connection without a request for so long; default 30 min.
	IdleTimeout time.Duration
	// BodyBytes bounds one request; default 1 MiB. More is answered 413.
	BodyBytes int64
}

func (c *HTTPConfig) validate() error {
	if c.Session != "" && !subjects.ValidToken(c.Session) {
		return wire.Invalid("Session", "%.40q is no name of a session", c.Session)
	}
	if c.Sessions == 0 {
		c.Sessions = 1000
	}
	if c.Sessions < 1 || c.Sessions > 100_000 {
		return wire.Invalid("Sessions", "%d is not in 1 to 100,000", c.Sessions)
	}
	if c.IdleTimeout == 0 {
		c.IdleTimeout = 30 * time.Minute
	}
	if c.IdleTimeout < time.Second {
		return wire.Invalid("IdleTimeout", "%v is below 1 s", c.IdleTimeout)
	}
	if c.BodyBytes == 0 {
		c.BodyBytes = 1 << 20
	}
	if c.BodyBytes < 4<<10 || c.BodyBytes > 64<<20 {
		return wire.Invalid("BodyBytes", "%d is not in 4 KiB to 64 MiB", c.BodyBytes)
	}
	return nil
}

// BearerToken is an Authorize that takes one token. It compares in constant time.
func BearerToken(token string) func(string) bool {
	want := sha256.Sum256([]byte(token))
	return func(given string) bool {
		got := sha256.Sum256([]byte(given))
		return token != "" && subtle.ConstantTimeCompare(got[:], want[:]) == 1
	}
}
