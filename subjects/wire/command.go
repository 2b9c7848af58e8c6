package wire

// Command says what to run and how. It is the one description of a command: the
// same value travels from the tool call to the fork, and its canonical bytes are
// what the digests cover. Exactly one of Argv and Text is set.
//
// A field that is set and not built yet is refused by name (see [Command.Validate]);
// it is never ignored.
type Command struct {
	// Argv runs a program directly, without a shell. At most 100,000 elements,
	// 131,071 bytes each.
	Argv []string `json:"argv,omitempty"`
	// Text is shell text, handed to Shell as one argument. At most 131,071 bytes,
	// no NUL, valid UTF-8, not blank.
	Text string `json:"text,omitempty"`
	// Shell is "bash" (default), "sh", or the absolute path of a shell.
	Shell string `json:"shell,omitempty"`
	// Login runs the shell as a login shell (`-lc`); only with Text. The session may ask
	// for it always.
	Login bool `json:"login,omitempty"`
	// Cwd is an absolute directory; the session's when empty.
	Cwd string `json:"cwd,omitempty"`
	// Env is set over the allowlisted environment, in this order.
	Env []EnvVar `json:"env,omitempty"`
	// Stdin is "null" (default) or "pipe". A terminal takes input always.
	Stdin StdinMode `json:"stdin,omitempty"`
	// Input is written to stdin at the start, which is then closed unless Stdin is
	// "pipe". At most 65,536 bytes.
	Input []byte `json:"input,omitempty"`
	// TTY gives the process a terminal of this size; stdout and stderr are merged.
	TTY *WindowSize `json:"tty,omitempty"`
	// Streams is "separate" (default) or "merged".
	Streams StreamsMode `json:"streams,omitempty"`
	// TimeoutMS is the longest the process may run, in milliseconds: 0 means the
	// session's default, -1 until the session ends. At most 86,400,000 (24 h).
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// IdleTimeoutMS ends the process after this long without output; 0 never.
	IdleTimeoutMS int64 `json:"idle_timeout_ms,omitempty"`
	// GraceMS is the time between TERM and KILL; 0 means 2,000. At most 60,000.
	GraceMS int64 `json:"grace_ms,omitempty"`
	// Limits bound what the tree may use.
	Limits *Limits `json:"limits,omitempty"`
	// Umask of the process, 0..0o777; 0o022 when absent.
	Umask *int `json:"umask,omitempty"`
	// Leftovers says what happens to descendants that live when the command ends.
	Leftovers Leftovers `json:"leftovers,omitempty"`
	// Output bounds what is retained.
	Output *OutputLimits `json:"output,omitempty"`
	// Confinement is "none" (default); other levels are not built yet.
	Confinement string `json:"confinement,omitempty"`
	// Access declares access beyond the boundary. Not built yet.
	Access *Access `json:"access,omitempty"`
	// QuestionIDs must be admitted before the start. Not built yet.
	QuestionIDs []string `json:"question_ids,omitempty"`
	// Descriptors are extra descriptors 3..64, each number once; not with a TTY (M7).
	Descriptors []Descriptor `json:"descriptors,omitempty"`
	// CaptureState persists cwd and exported environment in the session; only with Text.
	// The session may ask for it always.
	CaptureState bool `json:"capture_state,omitempty"`
	// Labels are free key/value pairs kept in the record: at most 16, keys of 1..63
	// and values of at most 255 bytes.
	Labels map[string]string `json:"labels,omitempty"`
	// Description says to a person what the command is for; at most 200 characters.
	// It never changes execution.
	Description string `json:"description,omitempty"`
}

// EnvVar is one environment variable, by value or by the name of a secret.
type EnvVar struct {
	Name   string `json:"name"`
	Value  string `json:"value,omitempty"`
	Secret string `json:"secret,omitempty"` // not built yet
}

// WindowSize is a terminal's size in cells, 1..65535 each. Zero means 24 rows, 80 columns.
type WindowSize struct {
	Rows int `json:"rows,omitempty"`
	Cols int `json:"cols,omitempty"`
}

// Limits bound a process tree. Zero means no limit of ours.
type Limits struct {
	MemoryBytes int64 `json:"memory_bytes,omitempty"` // of the whole tree; needs a memory cgroup
	CPUSeconds  int64 `json:"cpu_seconds,omitempty"`  // RLIMIT_CPU, per process
	OpenFiles   int64 `json:"open_files,omitempty"`   // RLIMIT_NOFILE, per process
	Processes   int64 `json:"processes,omitempty"`    // RLIMIT_NPROC, per user
	FileBytes   int64 `json:"file_bytes,omitempty"`   // RLIMIT_FSIZE, per file
	CoreBytes   int64 `json:"core_bytes,omitempty"`   // RLIMIT_CORE; 0 means no core file
	StackBytes  int64 `json:"stack_bytes,omitempty"`  // RLIMIT_STACK
}

// OutputLimits bound the output log of one process. Zero means the session's default.
type OutputLimits struct {
	WindowBytes int64 `json:"window_bytes,omitempty"` // in memory; 4 KiB..16 MiB, default 256 KiB
	SpoolBytes  int64 `json:"spool_bytes,omitempty"`  // on disk; 64 KiB..2 GiB, -1 none, default 64 MiB
	HeadBytes   int64 `json:"head_bytes,omitempty"`   // kept from the start of the output; -1 none, default half the spool
	// Lossless makes the process wait for room instead of dropping output. It needs a spool.
	Lossless bool `json:"lossless,omitempty"`
	// ShipBytes is what the OUTPUT stream takes of the output, so that it can be read
	// without the worker; 64 KiB..16 MiB, -1 none, default 1 MiB.
	ShipBytes int64 `json:"ship_bytes,omitempty"`
	// KillOverBytes ends the process with reason output_limit beyond this much output.
	KillOverBytes int64 `json:"kill_over_bytes,omitempty"`
}

// Access declares what a command needs beyond its boundary (P7, P8, M26).
type Access struct {
	Network []NetworkAccess `json:"network,omitempty"`
	Read    []PathAccess    `json:"read,omitempty"`
	Write   []PathAccess    `json:"write,omitempty"`
}

// NetworkAccess is one TCP target; no host means any host.
type NetworkAccess struct {
	Transport string `json:"transport"`
	Host      string `json:"host,omitempty"`
	Port      int    `json:"port"`
}

// PathAccess is one file, tree, or the whole host.
type PathAccess struct {
	Scope string `json:"scope"`
	Path  string `json:"path,omitempty"`
}

// Descriptor is one extra descriptor of the child, 3..64: a captured output or an
// inline input of at most 65,536 bytes (M7).
type Descriptor struct {
	Number int    `json:"number"`
	Input  []byte `json:"input,omitempty"`
	Output bool   `json:"output,omitempty"`
}

// DescriptorBytes counts what came from one captured descriptor.
type DescriptorBytes struct {
	Number int   `json:"number"`
	Bytes  int64 `json:"bytes"`
}

// Numbers of extra descriptors.
const (
	MinDescriptor = 3
	MaxDescriptor = 64
)

// ConfinementNone runs a command without a boundary.
const ConfinementNone = "none"

// StdinMode is what a process reads from.
type StdinMode string

// Stdin modes.
const (
	StdinNull StdinMode = "null"
	StdinPipe StdinMode = "pipe"
)

// StreamsMode says whether stdout and stderr are told apart.
type StreamsMode string

// Streams modes.
const (
	StreamsSeparate StreamsMode = "separate"
	StreamsMerged   StreamsMode = "merged"
)

// Leftovers says what happens to descendants that outlive the command.
type Leftovers string

// Leftovers policies.
const (
	LeftoversKill Leftovers = "kill"
	LeftoversKeep Leftovers = "keep"
)

// OnTimeout says what a run does when its time is up.
type OnTimeout string

// On-timeout policies.
const (
	OnTimeoutKill       OnTimeout = "kill"
	OnTimeoutBackground OnTimeout = "background"
	OnTimeoutDetach     OnTimeout = "detach"
)
