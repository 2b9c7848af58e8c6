package wire

import "time"

// Receipt is the status every action answers with, and the record that outlives the process (A38).
type Receipt struct {
	Version     int    `json:"version"`
	Process     string `json:"process"`
	ExecutionID string `json:"execution_id"`
	Session     string `json:"session"`
	Tenant      string `json:"tenant"`
	Worker      string `json:"worker"`
	Incarnation uint64 `json:"incarnation"`
	RequestHash string `json:"request_hash"`
	CallDigest  string `json:"call_digest,omitempty"`

	State  State  `json:"state"`
	Reason Reason `json:"reason,omitempty"`
	// ExitCode is shell style: 0..255, 128+n for signal n, 124 for nothing (a timeout
	// keeps the signal's). Null until known.
	ExitCode   *int   `json:"exit_code"`
	Signal     string `json:"signal,omitempty"` // "KILL"
	CoreDumped bool   `json:"core_dumped,omitempty"`
	// Error is set where the process could not be started or observed.
	Error *Error `json:"error,omitempty"`

	CancelRequested   bool   `json:"cancel_requested,omitempty"`
	CancelRequestedBy string `json:"cancel_requested_by,omitempty"`

	CreatedAt time.Time  `json:"created_at"`
	StartedAt *time.Time `json:"started_at,omitempty"`
	ExitedAt  *time.Time `json:"exited_at,omitempty"` // the command ended
	ClosedAt  *time.Time `json:"closed_at,omitempty"` // the streams ended
	EndedAt   *time.Time `json:"ended_at,omitempty"`  // the state turned terminal
	Deadline  *time.Time `json:"deadline,omitempty"`
	TimeoutMS int64      `json:"timeout_ms,omitempty"` // as applied; -1 none
	GraceMS   int64      `json:"grace_ms,omitempty"`

	TTY         *WindowSize `json:"tty,omitempty"`
	Streams     StreamsMode `json:"streams"`
	Shell       string      `json:"shell,omitempty"` // the program that ran the text
	Login       bool        `json:"login,omitempty"` // as a login shell
	Cwd         string      `json:"cwd"`
	Confinement string      `json:"confinement"`
	Notes       []string    `json:"notes,omitempty"`

	// StateCapture of a command whose state was to be captured: "saved", "unchanged", or
	// "missed" (notes say why); SessionCwd is then where the session's next command runs.
	StateCapture string `json:"state_capture,omitempty"`
	SessionCwd   string `json:"session_cwd,omitempty"`

	StdinOpen  bool  `json:"stdin_open"`
	StdinBytes int64 `json:"stdin_bytes,omitempty"`

	Output OutputStats `json:"output"`
	// ShippedBytes of the output are in the OUTPUT stream; told by the worker while it
	// has the process.
	ShippedBytes int64 `json:"shipped_bytes,omitempty"`

	// Tree: what was left when the command ended, and how we know that it is gone.
	Proof           Proof `json:"proof,omitempty"`
	TreeGone        bool  `json:"tree_gone,omitempty"`
	LeftoversLive   int   `json:"leftovers_live,omitempty"`
	LeftoversKilled int   `json:"leftovers_killed,omitempty"`
	// Unsignalled are pids that could not be signalled.
	Unsignalled []int  `json:"unsignalled,omitempty"`
	Usage       *Usage `json:"usage,omitempty"`

	ObserverDroppedEvents int64             `json:"observer_dropped_events,omitempty"`
	Labels                map[string]string `json:"labels,omitempty"`
	Description           string            `json:"description,omitempty"`
	// Page is the first page of a start and the page of a write with a read.
	Page *Page `json:"page,omitempty"`
}

// OutputStats counts the output of a process, in raw bytes.
type OutputStats struct {
	TotalBytes  int64 `json:"total_bytes"`
	StdoutBytes int64 `json:"stdout_bytes"`
	StderrBytes int64 `json:"stderr_bytes"`
	// Descriptors that wrote something, by number. The bytes of all streams are the total.
	Descriptors    []DescriptorBytes `json:"descriptors,omitempty"`
	KeptBytes      int64             `json:"kept_bytes"`
	DroppedBytes   int64             `json:"dropped_bytes"` // total = kept + dropped, exactly
	EarliestCursor int64             `json:"earliest_cursor"`
	LatestCursor   int64             `json:"latest_cursor"` // the number the next chunk gets
	// Complete: all streams were read to their end.
	Complete bool   `json:"complete"`
	Error    string `json:"error,omitempty"`
	Stalled  bool   `json:"stalled,omitempty"` // waiting for room (lossless)
}

// Usage is what the kernel counted for the command (not its daemonised descendants).
type Usage struct {
	UserMS      int64 `json:"user_ms"`
	SystemMS    int64 `json:"system_ms"`
	MaxRSSBytes int64 `json:"max_rss_bytes"`
}

// Page is a piece of output. Reads are repeatable: the same cursor gives the same chunks.
type Page struct {
	Version    int     `json:"version"`
	Process    string  `json:"process"`
	Cursor     int64   `json:"cursor"`
	NextCursor int64   `json:"next_cursor"`
	Offset     int64   `json:"offset"`
	NextOffset int64   `json:"next_offset"`
	Chunks     []Chunk `json:"chunks"`
	Gaps       []Gap   `json:"gaps,omitempty"`
	// CursorExpired: what was asked for is partly gone; the page starts at what is retained.
	CursorExpired bool `json:"cursor_expired,omitempty"`
	HasMore       bool `json:"has_more"`
	// End: the process has ended and nothing follows this page.
	End      bool        `json:"end"`
	State    State       `json:"state"`
	ExitCode *int        `json:"exit_code"`
	Output   OutputStats `json:"output"`
	// Owner is "unreachable" where the worker did not answer: the page is made of what it
	// had shipped, and it may have more.
	Owner string `json:"owner,omitempty"`
}

// OwnerUnreachable: the worker that something lives on does not answer.
const OwnerUnreachable = "unreachable"

// GapNotShipped is the reason of a [Gap] in what is read without the worker.
const GapNotShipped = "not_shipped"

// Gap is a run of chunks that is gone.
type Gap struct {
	Cursor     int64  `json:"cursor"`
	NextCursor int64  `json:"next_cursor"`
	Offset     int64  `json:"offset"`
	NextOffset int64  `json:"next_offset"`
	Bytes      int64  `json:"bytes"`
	Reason     string `json:"reason"` // budget, spool_error, torn, not_shipped
}

// Chunk is one piece of output (A40).
type Chunk struct {
	Cursor       int64     `json:"cursor"`
	Offset       int64     `json:"offset"` // raw, over all streams in read order
	Stream       string    `json:"stream"`
	Text         string    `json:"text,omitempty"`
	Data         string    `json:"data,omitempty"` // base64 view
	SourceBytes  int       `json:"source_bytes"`
	At           time.Time `json:"at"`
	Binary       bool      `json:"binary_output_withheld,omitempty"`
	EncodingLoss int       `json:"encoding_loss,omitempty"` // bytes replaced
	OrderUnknown bool      `json:"order_unknown,omitempty"`
}
