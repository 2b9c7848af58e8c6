package wire

import "time"

// SessionRecord is the stored session, keyed by name: one per tenant and name.
type SessionRecord struct {
	Version          int               `json:"version"`
	ID               string            `json:"session"`
	Name             string            `json:"name"`
	Tenant           string            `json:"tenant"`
	Worker           string            `json:"worker"`
	Incarnation      uint64            `json:"incarnation"`
	Cwd              string            `json:"cwd"`
	Env              []EnvVar          `json:"env,omitempty"`
	Labels           map[string]string `json:"labels,omitempty"`
	Limits           SessionLimits     `json:"limits"`
	IdleTTLMS        int64             `json:"idle_ttl_ms"`
	DefaultTimeoutMS int64             `json:"default_timeout_ms"`
	Shell            string            `json:"shell,omitempty"`
	Login            bool              `json:"login,omitempty"`
	CaptureState     bool              `json:"capture_state,omitempty"`
	// State is what the last command of a session that captures state left.
	State     *SessionState `json:"state,omitempty"`
	CreatedAt time.Time     `json:"created_at"`
	Closed    bool          `json:"closed,omitempty"`
	ClosedAt  *time.Time    `json:"closed_at,omitempty"`
}

// CurrentCwd is where the next command runs that gives no directory.
func (r *SessionRecord) CurrentCwd() string {
	if r.State != nil && r.State.Cwd != "" {
		return r.State.Cwd
	}
	return r.Cwd
}

// SessionState is a directory and an exported environment, as a difference to what the
// session's commands would start with otherwise.
type SessionState struct {
	Cwd   string   `json:"cwd,omitempty"`
	Env   []EnvVar `json:"env,omitempty"`
	Unset []string `json:"unset,omitempty"`
	// At is when the last of the commands ended that it was taken from.
	At *time.Time `json:"at,omitempty"`
}

// ExecutionRecord is the stored execution, keyed by execution id. Its create is the
// right to fork; its receipt outlives the process.
type ExecutionRecord struct {
	Version     int     `json:"version"`
	ExecutionID string  `json:"execution_id"`
	RequestHash string  `json:"request_hash"`
	Receipt     Receipt `json:"receipt"`
	// ShipBytes as the command asked for; 0 the worker's.
	ShipBytes int64 `json:"ship_bytes,omitempty"`
}

// ProcessRecord is the stored process, keyed by process id: its owner and a pointer
// to the execution.
type ProcessRecord struct {
	Version     int               `json:"version"`
	Process     string            `json:"process"`
	Tenant      string            `json:"tenant"`
	Session     string            `json:"session"` // the owner; adopt changes it
	ExecutionID string            `json:"execution_id"`
	Worker      string            `json:"worker"`
	Labels      map[string]string `json:"labels,omitempty"`
	CreatedAt   time.Time         `json:"created_at"`
}

// BootRecord is written at each start of a worker. The incarnation is the larger of
// its stream sequence and MinIncarnation.
type BootRecord struct {
	Version        int       `json:"version"`
	Worker         string    `json:"worker"`
	MinIncarnation uint64    `json:"min_incarnation"` // the keeper's last + 1
	Host           string    `json:"host"`
	PID            int       `json:"pid"`
	StartedAt      time.Time `json:"started_at"`
	Build          string    `json:"build,omitempty"`
}
