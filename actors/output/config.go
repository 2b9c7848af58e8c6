package output

import (
	"fmt"
	"log/slog"
	"regexp"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// Defaults and bounds of the limits, in bytes but for WindowChunks.
const (
	DefaultWindow int64 = 256 << 10
	DefaultSpool  int64 = 64 << 20
	WindowChunks        = 4096

	minWindow int64 = 4 << 10
	maxWindow int64 = 16 << 20
	minSpool  int64 = 64 << 10
	maxSpool  int64 = 2 << 30

	minBlock   = 8 << 10
	maxBlock   = 64 << 10
	maxSegment = 4 << 20
)

// Filter stands between journal and log. It is called once a chunk, in order, and
// returns what is stored in the place of the data: at most [MaxChunk] bytes, valid
// until the next call. Numbers and offsets stay those of the process.
type Filter func(c Chunk) []byte

// Config of a log.
type Config struct {
	// Process is the id; it names the directory of the spool.
	Process string
	// Dir holds the spools of all processes, one directory each, which only we may
	// read. Empty: no spool, the window is all that is kept.
	Dir string
	// Limits: zero values are the defaults (window 256 KiB and 4,096 chunks; spool
	// 64 MiB, headers of 64 bytes a chunk counted and 19 more for each extra descriptor
	// that wrote something; head half the spool).
	Limits wire.OutputLimits
	// TTY: the output is a terminal's, where CR LF ends a line.
	TTY bool
	// OnTrim is told the raw offset below which the journal is not needed any more.
	// It only grows. It must not append to, flush or remove this log.
	OnTrim func(raw int64)
	// Budget is shared by the logs of a worker; nil means one of its own.
	Budget *Budget
	// Filter masks secrets; nil is the identity.
	Filter Filter
	Logger *slog.Logger // nil discards
}

var processRE = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// validate fills in the defaults and names what is wrong.
func (c *Config) validate() error {
	if !processRE.MatchString(c.Process) {
		return wire.Invalid("process", "%.80q is no process id", c.Process)
	}
	m := &c.Limits
	if m.WindowBytes == 0 {
		m.WindowBytes = DefaultWindow
	}
	if m.WindowBytes < minWindow || m.WindowBytes > maxWindow {
		return wire.Invalid("window_bytes", "%d is outside %d..%d", m.WindowBytes, minWindow, maxWindow)
	}
	switch {
	case m.SpoolBytes == 0:
		m.SpoolBytes = DefaultSpool
	case m.SpoolBytes != -1 && (m.SpoolBytes < minSpool || m.SpoolBytes > maxSpool):
		return wire.Invalid("spool_bytes", "%d is neither -1 nor within %d..%d", m.SpoolBytes, minSpool, maxSpool)
	}
	if c.Dir == "" {
		m.SpoolBytes = -1
	}
	if m.Lossless && m.SpoolBytes == -1 {
		return wire.Invalid("lossless", "needs a spool")
	}
	spool := max(m.SpoolBytes, 0)
	switch {
	case m.HeadBytes == 0:
		m.HeadBytes = spool / 2
	case m.HeadBytes < -1:
		return wire.Invalid("head_bytes", "%d is negative", m.HeadBytes)
	}
	m.HeadBytes = min(max(m.HeadBytes, 0), spool)
	if m.Lossless {
		m.HeadBytes = spool // nothing rolls
	}
	if c.Budget == nil {
		c.Budget = NewBudget(0)
	}
	if c.OnTrim == nil {
		c.OnTrim = func(int64) {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

func (c *Config) spooled() bool { return c.Limits.SpoolBytes > 0 }

// blockSize is the room of a block: small where the limits are, so that what is
// dropped at once stays a small part of what is kept.
func (c *Config) blockSize() int {
	n := c.Limits.WindowBytes / 4
	if c.spooled() {
		n = min(n, c.Limits.SpoolBytes/32)
	}
	return int(min(max(n, minBlock), maxBlock))
}

// segmentSize is the room of a segment in a part of the spool, at least a block.
func (c *Config) segmentSize(part int64) int64 {
	return min(max(part/16, int64(c.blockSize())), maxSegment)
}

// CheckLimits reports what is wrong with limits, before anything is started.
func CheckLimits(m wire.OutputLimits) error {
	c := Config{Process: "check", Dir: ".", Limits: m}
	if err := c.validate(); err != nil {
		return fmt.Errorf("output limits: %w", err)
	}
	return nil
}
