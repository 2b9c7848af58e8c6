package keeper

import (
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// Event is what the keeper tells; exactly one field is set. Per process Exited comes
// once, and a Gone that is true at most once and after it, unless Exited said so
// already. A stop that fails sends a Gone that is false, also before Exited when the
// command itself does not end; the next stop sends another.
// Lost is the last event of a [Client].
type Event struct {
	Exited *Exited
	Gone   *Gone
	Lost   *Lost
}

// Process is the id of the process that the event is about; empty for Lost.
func (e Event) Process() string {
	switch {
	case e.Exited != nil:
		return e.Exited.Process
	case e.Gone != nil:
		return e.Gone.Process
	}
	return ""
}

// Exited says that the command has ended. Descendants may live on.
type Exited struct {
	Process string `json:"process"`
	// Code is shell style: the exit code 0..255, or 128+n for signal n.
	Code       int    `json:"code"`
	Signal     string `json:"signal,omitempty"` // "KILL"
	CoreDumped bool   `json:"core_dumped,omitempty"`
	// At is when the keeper saw it.
	At    time.Time   `json:"at"`
	Usage *wire.Usage `json:"usage,omitempty"`
	// Cause is why: the cause of the first stop or of the deadline, or of an interrupt
	// where it ended the command; else exit, signal or oom.
	Cause wire.Reason `json:"cause"`
	// OOM says that the kernel killed a member of the tree for want of memory, also
	// where the command made do without it and ended with 0.
	OOM bool `json:"oom,omitempty"`
	// Left is how many descendants were alive then.
	Left int `json:"left,omitempty"`
	// Gone says that nothing of the tree was left, as known by Proof, and that no Gone
	// event follows. When it is false, a Gone event follows the stop under way, or the
	// next one.
	Gone  bool       `json:"gone,omitempty"`
	Proof wire.Proof `json:"proof,omitempty"`
	// State is what the state file held then, at most 256 KiB, without the NULs at its
	// end: so the last byte that is written must be another. Nil without
	// [Spawn.CaptureState], and where nothing was written.
	State []byte `json:"state,omitempty"`
}

// Gone is the result of the stop of a tree.
type Gone struct {
	Process string     `json:"process"`
	Proof   wire.Proof `json:"proof,omitempty"`
	// Gone is false when something of the tree may live on.
	Gone bool `json:"gone"`
	// Killed counts processes that were ended by KILL.
	Killed int `json:"killed,omitempty"`
	// Leftovers counts descendants that outlived the command and were ended, by TERM or
	// KILL.
	Leftovers int `json:"leftovers,omitempty"`
	// Unsignalled are pids that could not be signalled.
	Unsignalled []int `json:"unsignalled,omitempty"`
}

// Lost says that the connection to the keeper has ended without [Client.Close]: the
// keeper is gone, or serves a newer incarnation.
type Lost struct{ Err error }

// Mode is how a tree is stopped. The zero value is refused.
type Mode string

// Modes.
const (
	// Terminate sends TERM, waits for the grace, then kills.
	Terminate Mode = "terminate"
	// Kill kills at once.
	Kill Mode = "kill"
	// Interrupt sends INT to the process group and no more. It is the cause of an end by
	// INT (or with 130, by which a shell says so), and of no other.
	Interrupt Mode = "interrupt"
)
