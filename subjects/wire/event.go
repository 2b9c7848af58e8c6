package wire

import "time"

// Phase of an observation.
type Phase string

// Phases. Per process: started first, finished last; resolved only after an
// outcome_unknown.
const (
	PhaseStarted      Phase = "started"
	PhaseBackgrounded Phase = "backgrounded"
	PhaseOutput       Phase = "output"
	PhaseState        Phase = "state"
	PhaseFinished     Phase = "finished"
	PhaseResolved     Phase = "resolved"
)

// Event is one observation about a process (A61). It is JSON always, because
// pipelines read it, and never carries a command or stdin.
type Event struct {
	SchemaVersion         int          `json:"schemaVersion"` // 1
	EventID               string       `json:"eventId"`       // "<operationId>:<sequence>"
	Sequence              uint64       `json:"sequence"`      // from 1; gaps are lost events
	OperationID           string       `json:"operationId"`   // the process id
	OwnerID               string       `json:"ownerId"`       // the session id
	Source                string       `json:"source"`        // "limpet"
	Kind                  string       `json:"kind"`          // "process"
	Phase                 Phase        `json:"phase"`
	At                    time.Time    `json:"at"`
	Tenant                string       `json:"tenant"`
	Session               string       `json:"session"`
	Worker                string       `json:"worker"`
	Incarnation           uint64       `json:"incarnation"`
	Trace                 string       `json:"trace,omitempty"` // traceparent
	ObserverDroppedEvents int64        `json:"observerDroppedEvents"`
	Status                *EventStatus `json:"status,omitempty"`
	Chunk                 *Chunk       `json:"chunk,omitempty"`
}

// EventStatus is the part of a receipt that may leave the session's owner: no
// command, no environment, no path, no pid.
type EventStatus struct {
	ExecutionID     string      `json:"executionId"`
	State           State       `json:"state"`
	Reason          Reason      `json:"reason,omitempty"`
	ExitCode        *int        `json:"exitCode"`
	Signal          string      `json:"signal,omitempty"`
	StartedAt       *time.Time  `json:"startedAt,omitempty"`
	ExitedAt        *time.Time  `json:"exitedAt,omitempty"`
	EndedAt         *time.Time  `json:"endedAt,omitempty"`
	Output          OutputStats `json:"output"`
	Proof           Proof       `json:"proof,omitempty"`
	CancelRequested bool        `json:"cancelRequested,omitempty"`
	LeftoversKilled int         `json:"leftoversKilled,omitempty"`
}
