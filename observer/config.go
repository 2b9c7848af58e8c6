package observer

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// Bounds that A62 fixes.
const (
	// mailbox is how many output and state observations a process may have waiting.
	mailbox = 32
	// mergeBytes is the size up to which adjacent chunks become one observation.
	mergeBytes = 16 << 10
	// liveRate is how many bytes of output of one process are observed in a second.
	liveRate = 256 << 10
	// roundFeeds is how many processes' boxes a sender takes at once.
	roundFeeds = 64
	// maxSenders times roundFeeds is what a connection has in flight at most, by default.
	maxSenders = 4
	// adoptedShift places the numbers of an adopting incarnation above all earlier ones,
	// and keeps them exact in JSON for two million incarnations.
	adoptedShift = 32
)

// Config of a Publisher. The zero value is usable.
type Config struct {
	// Coalesce is how long output and state wait for company; default 500 ms.
	Coalesce time.Duration
	// Linger is how long a lifecycle observation waits for others to travel with, which
	// halves its price; default 10 ms.
	Linger time.Duration
	// Senders is how many goroutines send, 1..4; default 2. Each takes up to 64 of the
	// connection's appends in flight before it waits for one: more could wait for each other.
	Senders int
	// OutboxBytes bounds the output text waiting over all processes; default 8 MiB.
	OutboxBytes int
	// MaxEnded bounds the lifecycle observations of ended processes that wait for the
	// store; default 10,000. What comes on top is lost, counted and logged.
	MaxEnded int
	// StoredBytes is how much output of one process goes to EVENTS; default 64 KiB,
	// negative for none.
	StoredBytes int
	// StoredRate is how many bytes of output a second this worker puts into EVENTS, with
	// bursts of 256 times that; default 32 KiB.
	StoredRate int
	// Attempts bounds how often a lifecycle observation is tried when the store refuses
	// it (and not merely is away); default 20.
	Attempts int
	// Logger gets what is lost; slog.Default when nil.
	Logger *slog.Logger
}

func (c *Config) validate() error {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	if c.Coalesce == 0 {
		c.Coalesce = 500 * time.Millisecond
	}
	if c.Linger == 0 {
		c.Linger = 10 * time.Millisecond
	}
	def(&c.Senders, 2)
	def(&c.OutboxBytes, 8<<20)
	def(&c.MaxEnded, 10_000)
	def(&c.StoredBytes, 64<<10)
	def(&c.StoredRate, 32<<10)
	def(&c.Attempts, 20)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Senders < 1 || c.Senders > maxSenders {
		return wire.Invalid("Senders", "%d is not in 1..%d", c.Senders, maxSenders)
	}
	if c.Coalesce < 0 || c.Linger < 0 || c.OutboxBytes < 0 || c.MaxEnded < 0 || c.StoredRate < 0 || c.Attempts < 0 {
		return fmt.Errorf("config: a negative bound in %+v", *c)
	}
	return nil
}
