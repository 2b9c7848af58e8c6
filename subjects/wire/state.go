package wire

import (
	"strconv"
	"strings"
)

// State is where a process is in its life. The zero value is unknown and refused.
type State string

// States. Unreachable is computed at read from the lease of the worker, never written.
const (
	StateStarting        State = "starting"
	StateRunning         State = "running"
	StateCancelRequested State = "cancel_requested"
	StateCompleted       State = "completed" // exit 0
	StateFailed          State = "failed"    // nonzero exit, signal, timeout, oom, output error
	StateCancelled       State = "cancelled"
	StateOutcomeUnknown  State = "outcome_unknown"
	StateUnreachable     State = "unreachable"
)

// Terminal reports whether nothing follows s (but for outcome_unknown, once).
func (s State) Terminal() bool {
	switch s {
	case StateCompleted, StateFailed, StateCancelled, StateOutcomeUnknown:
		return true
	}
	return false
}

// Reason says why a process ended. It is orthogonal to the state.
type Reason string

// Reasons. The first cause wins.
const (
	ReasonNone          Reason = ""
	ReasonExit          Reason = "exit"
	ReasonSignal        Reason = "signal"
	ReasonTimeout       Reason = "timeout"
	ReasonIdleTimeout   Reason = "idle_timeout"
	ReasonCancel        Reason = "cancel"
	ReasonSessionClosed Reason = "session_closed"
	ReasonOOM           Reason = "oom"
	ReasonOutputLimit   Reason = "output_limit"
	ReasonWorkerLost    Reason = "worker_lost"
	ReasonInternal      Reason = "internal"
	ReasonSpawnFailed   Reason = "spawn_failed"
	// ReasonNeverStarted marks a receipt of a start that was refused or cancelled before the fork.
	ReasonNeverStarted Reason = "never_started"
)

// Proof says how it is known that nothing of a tree is left.
type Proof string

// Proofs. Only cgroup and pidns may claim that nothing is left.
const (
	ProofNone   Proof = ""
	ProofCgroup Proof = "cgroup"
	ProofPIDNS  Proof = "pidns"
	ProofScan   Proof = "scan"
)

// Stream says where bytes came from, by the number of the descriptor that the process
// wrote to. The zero Stream is none.
type Stream uint8

// Streams: from Stdout to LastStream. What is above Stderr is an extra descriptor of the
// command. A terminal's output is all stdout, as is merged output.
const (
	Stdout     Stream = 1
	Stderr     Stream = 2
	LastStream Stream = MaxDescriptor
)

// Valid reports whether there can be such a stream.
func (s Stream) Valid() bool { return s >= Stdout && s <= LastStream }

// String is the name of a stream: stdout, stderr, or fd3 to fd64.
func (s Stream) String() string {
	switch {
	case s == Stdout:
		return "stdout"
	case s == Stderr:
		return "stderr"
	case s.Valid():
		return "fd" + strconv.Itoa(int(s))
	}
	return "unknown"
}

// ParseStream is the reverse of String; false for what names no stream.
func ParseStream(name string) (Stream, bool) {
	switch name {
	case "stdout":
		return Stdout, true
	case "stderr":
		return Stderr, true
	}
	digits, ok := strings.CutPrefix(name, "fd")
	if !ok {
		return 0, false // the name that most requests have is empty
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < MinDescriptor || n > MaxDescriptor || Stream(n).String() != name {
		return 0, false
	}
	return Stream(n), true
}
