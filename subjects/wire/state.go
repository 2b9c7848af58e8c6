package wire

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

// Stream names where bytes came from.
type Stream uint8

// Streams. A terminal's output is all stdout, as is merged output.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

func (s Stream) String() string {
	switch s {
	case Stdout:
		return "stdout"
	case Stderr:
		return "stderr"
	}
	return "unknown"
}
