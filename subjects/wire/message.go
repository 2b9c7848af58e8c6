package wire

import "time"

// Version is the schema version of every message here.
const Version = 1

// Open asks for a session by name: the same name returns the same session.
type Open struct {
	Version int               `json:"version"`
	Name    string            `json:"name,omitempty"` // a fresh one when empty
	Cwd     string            `json:"cwd,omitempty"`  // absolute; the worker's default when empty
	Env     []EnvVar          `json:"env,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	// IdleTTLMS closes the session after this long without a call and without a
	// live process; 0 means 30 min, -1 never.
	IdleTTLMS int64          `json:"idle_ttl_ms,omitempty"`
	Limits    *SessionLimits `json:"limits,omitempty"`
	// DefaultTimeoutMS for commands that give none; 0 means 120,000, -1 none.
	DefaultTimeoutMS int64 `json:"default_timeout_ms,omitempty"`
	// Shell of commands that name none: "bash" (default), "sh", or an absolute path.
	Shell string `json:"shell,omitempty"`
	// Login runs shell text in a login shell, for every command of the session.
	Login bool `json:"login,omitempty"`
	// CaptureState persists the directory and the exported environment at the end of
	// each shell text for the next ones (S3).
	CaptureState bool `json:"capture_state,omitempty"`
}

// SessionLimits bound a session. Zero means the worker's default; a worker may cap them.
type SessionLimits struct {
	LiveProcesses     int `json:"live_processes,omitempty"`     // default 32
	RetainedProcesses int `json:"retained_processes,omitempty"` // ended ones with output, default 100
}

// Session answers open, close, list and adopt.
type Session struct {
	Version     int               `json:"version"`
	ID          string            `json:"session"`
	Name        string            `json:"name"`
	Tenant      string            `json:"tenant"`
	Worker      string            `json:"worker"`
	Incarnation uint64            `json:"incarnation"`
	Cwd         string            `json:"cwd"`
	CreatedAt   time.Time         `json:"created_at"`
	Created     bool              `json:"created,omitempty"` // this open made it
	Closed      bool              `json:"closed,omitempty"`
	Live        int               `json:"live"`
	Retained    int               `json:"retained"`
	Limits      SessionLimits     `json:"limits"`
	IdleTTLMS   int64             `json:"idle_ttl_ms"`
	Labels      map[string]string `json:"labels,omitempty"`
	// Shell, Login and CaptureState as opened.
	Shell        string `json:"shell,omitempty"`
	Login        bool   `json:"login,omitempty"`
	CaptureState bool   `json:"capture_state,omitempty"`
	// CurrentCwd is where the next command runs, when captured state says so.
	CurrentCwd string `json:"current_cwd,omitempty"`
	// Owner is "unreachable" where the worker did not answer: this is the record.
	Owner string `json:"owner,omitempty"`
}

// SessionRef names a session in api calls: by id or by name.
type SessionRef struct {
	Session     string `json:"session,omitempty"`
	SessionName string `json:"session_name,omitempty"`
}

// CloseSession ends a session and all its processes.
type CloseSession struct {
	Version int `json:"version"`
	SessionRef
}

// List asks for the processes of a session.
type List struct {
	Version int `json:"version"`
	SessionRef
	// All sessions of the tenant on this worker when true.
	All bool `json:"all,omitempty"`
}

// Processes answers list.
type Processes struct {
	Version   int       `json:"version"`
	Sessions  []Session `json:"sessions,omitempty"`
	Processes []Receipt `json:"processes"`
}

// Start asks for a process. The answer is a Receipt with the first page.
type Start struct {
	Version int `json:"version"`
	SessionRef
	// ExecutionID makes the start repeatable: the same id with the same request hash
	// returns the same process. A fresh one when empty.
	ExecutionID string  `json:"execution_id,omitempty"`
	Command     Command `json:"command"`
}

// Run is start, wait and render in one call.
type Run struct {
	Version int `json:"version"`
	SessionRef
	ExecutionID string  `json:"execution_id,omitempty"`
	Command     Command `json:"command"`
	// YieldMS returns a handle after this long, the process going on; 0 never.
	YieldMS int64 `json:"yield_ms,omitempty"`
	// OnTimeout is kill (default), background or detach.
	OnTimeout OnTimeout `json:"on_timeout,omitempty"`
	Render    Render    `json:"render,omitzero"`
}

// Shape is how a text that is too long is cut (C5).
type Shape string

// Shapes.
const (
	ShapeHeadTail Shape = "head_tail" // default
	ShapeHead     Shape = "head"
	ShapeTail     Shape = "tail"
)

// Arrange is how the two streams become texts (C4).
type Arrange string

// Arrangements.
const (
	ArrangeSplit        Arrange = "split"        // default: stdout and stderr, each by itself
	ArrangeCombined     Arrange = "combined"     // one text, in the order of the reads
	ArrangeConcatenated Arrange = "concatenated" // one text, stdout and then stderr
)

// Render says how the text of a run is made. Zero values are the native defaults.
type Render struct {
	Shape Shape `json:"shape,omitempty"`
	// Arrange other than split puts all text into Result.Stdout.
	Arrange  Arrange `json:"arrange,omitempty"`
	MaxBytes int     `json:"max_bytes,omitempty"` // default 30,000; 1,024..1,000,000
	MaxLines int     `json:"max_lines,omitempty"` // 0 no limit
	MaxChars int     `json:"max_chars,omitempty"` // 0 no limit
	// HeadPercent of the limits goes to the head of head_tail; 0 means 50; at most 99.
	HeadPercent int `json:"head_percent,omitempty"`
	// TailPercent of the limits goes to the tail of head_tail; 0 means what the head
	// leaves, and both together are at most 100.
	TailPercent int `json:"tail_percent,omitempty"`
	// Exact cuts between characters, at the limit; else at the last line end before it.
	Exact bool `json:"exact,omitempty"`
	View  View `json:"view,omitempty"` // default safe
}

// Result answers run: the receipt, and the text of the output.
type Result struct {
	Version int     `json:"version"`
	Receipt Receipt `json:"receipt"`
	// Yielded: the process still runs; the receipt is its handle.
	Yielded bool `json:"yielded,omitempty"`
	// Stdout and Stderr are the rendered streams; Stdout holds all when merged.
	Stdout    Rendered  `json:"stdout"`
	Stderr    Rendered  `json:"stderr"`
	OnTimeout OnTimeout `json:"on_timeout"`
}

// Rendered is one stream as text, with what was left out.
type Rendered struct {
	Text         string `json:"text"`
	TotalBytes   int64  `json:"total_bytes"`
	OmittedBytes int64  `json:"omitted_bytes,omitempty"`
	OmittedLines int64  `json:"omitted_lines,omitempty"`
	// OmittedOffset is the raw offset from which a read gives what was left out.
	OmittedOffset int64 `json:"omitted_offset,omitempty"`
	// NoticeAt and NoticeBytes are where the line that says so stands in Text, line
	// ends of ours included, so that a front end can say it in words of its own; 0
	// bytes where there is none.
	NoticeAt     int   `json:"notice_at,omitempty"`
	NoticeBytes  int   `json:"notice_bytes,omitempty"`
	Truncated    bool  `json:"truncated,omitempty"`
	Binary       bool  `json:"binary,omitempty"`        // withheld (A14, P35)
	EncodingLoss int64 `json:"encoding_loss,omitempty"` // bytes replaced by U+FFFD
}

// ProcessRef names a process.
type ProcessRef struct {
	Process string `json:"process"`
	// InSession is the id of the session that the process must be of: one of another
	// session is then as unknown as one that never was (P26). Empty: any of the tenant's.
	InSession string `json:"in_session,omitempty"`
}

// Ref is the reference itself, for who has a message of any verb.
func (r ProcessRef) Ref() ProcessRef { return r }

// View is how bytes become text.
type View string

// Views.
const (
	ViewText   View = "text"   // UTF-8 with losses flagged, binary withheld
	ViewSafe   View = "safe"   // text, terminal control removed (P35), redraws collapsed
	ViewBase64 View = "base64" // the raw bytes
)

// Read asks for a page. Cursor and Offset exclude each other; both absent means the
// start of what is retained.
type Read struct {
	Version int `json:"version"`
	ProcessRef
	Cursor *int64 `json:"cursor,omitempty"` // chunk number, 0-based
	Offset *int64 `json:"offset,omitempty"` // raw byte offset
	// MaxBytes of raw output in the page: 4,096..100,000, default 16,384.
	MaxBytes int  `json:"max_bytes,omitempty"`
	View     View `json:"view,omitempty"` // default text
	// WaitMS waits for output past the cursor or the end, 0..60,000.
	WaitMS int64 `json:"wait_ms,omitempty"`
	// Stream limits the page to one stream: "stdout", "stderr", or "fd3" to "fd64".
	Stream string `json:"stream,omitempty"`
}

// Wait waits for a process. It expires without an error and cancels nothing.
type Wait struct {
	Version int `json:"version"`
	ProcessRef
	// For is "end" (default: exited and streams drained) or "exit".
	For    string `json:"for,omitempty"`
	WaitMS int64  `json:"wait_ms,omitempty"` // 0..600,000, default 1,000
}

// Status asks for the receipt.
type Status struct {
	Version int `json:"version"`
	ProcessRef
}

// Write writes to stdin.
type Write struct {
	Version int `json:"version"`
	ProcessRef
	// Data: at most 65,536 bytes.
	Data []byte `json:"data,omitempty"`
	// Text is Data for callers in JSON; exactly one of both.
	Text string `json:"text,omitempty"`
	// Offset is the count of bytes written before; a retried write at an old offset
	// is not typed twice. Absent: append.
	Offset *int64 `json:"offset,omitempty"`
	// Close closes stdin after the data.
	Close bool  `json:"close,omitempty"`
	Read  *Read `json:"read,omitempty"` // checked before the write (A36)
}

// CloseStdin ends the input of a process.
type CloseStdin struct {
	Version int `json:"version"`
	ProcessRef
}

// Resize sets the size of a terminal.
type Resize struct {
	Version int `json:"version"`
	ProcessRef
	WindowSize
}

// Signal sends one signal to the process group, by name ("INT", "SIGTERM") or number.
type Signal struct {
	Version int `json:"version"`
	ProcessRef
	Signal string `json:"signal"`
}

// Terminate stops the whole tree and answers when that is observed.
type Terminate struct {
	Version int `json:"version"`
	ProcessRef
	// Mode is "terminate" (TERM, grace, KILL; default), "kill", or "interrupt" (INT, never escalates).
	Mode    string `json:"mode,omitempty"`
	GraceMS *int64 `json:"grace_ms,omitempty"`
	// By names who asked, for the receipt; at most 128 bytes.
	By string `json:"by,omitempty"`
}

// Cancel ends an execution by its id, also one whose start has not arrived yet.
type Cancel struct {
	Version int `json:"version"`
	SessionRef
	ExecutionID string `json:"execution_id"`
}

// Prepare answers with what a start would do, and starts nothing.
type Prepare struct {
	Version int `json:"version"`
	SessionRef
	ExecutionID string  `json:"execution_id,omitempty"`
	Command     Command `json:"command"`
}

// Prepared is a request decoded once, normalised, judged and identified.
type Prepared struct {
	Version     int      `json:"version"`
	ExecutionID string   `json:"execution_id"`
	RequestHash string   `json:"request_hash"`
	CallDigest  string   `json:"call_digest"`
	Verdict     Verdict  `json:"verdict"`
	Cwd         string   `json:"cwd"`
	Shell       []string `json:"shell,omitempty"`
}

// Decision is what a policy layer says. The zero value denies.
type Decision string

// Decisions.
const (
	Deny  Decision = "deny"
	Ask   Decision = "ask"
	Allow Decision = "allow"
)

// Verdict is the decision on a command, with its reasons.
type Verdict struct {
	Decision Decision `json:"decision"`
	Reasons  []string `json:"reasons,omitempty"`
	// Notes say what was seen and did not change the decision (a text the parser rejects).
	Notes []string `json:"notes,omitempty"`
}

// Reply is the envelope of every answer: an error, or the message of the verb.
type Reply[T any] struct {
	Version int    `json:"version"`
	Error   *Error `json:"error,omitempty"`
	Result  *T     `json:"result,omitempty"`
}
