package actors

import (
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// plan is what is needed of a command after its fork. It travels to the keeper as
// opaque bytes and comes back at adoption, so it holds no text, no environment.
type plan struct {
	Version       int               `json:"version"`
	Receipt       wire.Receipt      `json:"receipt"` // as the execution record was created
	Rev           uint64            `json:"rev"`     // of that record
	Leftovers     wire.Leftovers    `json:"leftovers,omitempty"`
	IdleTimeoutMS int64             `json:"idle_timeout_ms,omitempty"`
	Output        wire.OutputLimits `json:"output,omitzero"`
	Trace         string            `json:"trace,omitempty"` // traceparent of the start
	Capture       bool              `json:"capture,omitempty"`
	// InputBytes are written to stdin first of all, and it is closed then if CloseInput.
	InputBytes int64 `json:"input_bytes,omitempty"`
	CloseInput bool  `json:"close_input,omitempty"`
}

func (p *plan) grace() time.Duration {
	return time.Duration(p.Receipt.GraceMS) * time.Millisecond
}

// Defaults and bounds of a process.
const (
	defaultGrace = 2 * time.Second
	// drainLimit is how long leftovers may hold the streams after the command ended
	// before they are killed; collectLimit is how long we collect at the most (A44).
	drainLimit   = 250 * time.Millisecond
	collectLimit = 2 * time.Second
	// goneLimit is how long the keeper may take to prove an ended tree gone.
	goneLimit = 10 * time.Second
	// sealPatience is how long an answer waits for the terminal record; the write
	// itself goes on.
	sealPatience = 2 * time.Second
	// firstPage is the page that answers a start (A29).
	firstPage = 16_384

	inboxSize   = 64 // requests to one actor; full answers overloaded
	factsSize   = 8  // exited, gone twice and lost, and what an adoption finds beside them
	ordersSize  = 4  // stop, kill, give up, and evict or leave
	maxWaiters  = 64 // waiting calls on one process; more answer overloaded
	writeQueue  = 16 // writes to one stdin; more answer input_backpressure
	reportsSize = 16 // messages from goroutines the actor owns; they wait
)

// Session defaults.
const (
	defaultIdleTTL  = 30 * time.Minute
	defaultTimeout  = 120 * time.Second
	defaultLive     = 32
	defaultRetained = 100
)
