package wire

// WaitFor waits, on the worker and in one call, until something is true of a process,
// or it has ended, or the time is up. It cancels nothing. Several processes may be
// waited for at once (P28); a gateway asks for each.
type WaitFor struct {
	Version int `json:"version"`
	ProcessRef
	// Processes instead of Process: 1 to 32, each once.
	Processes []string `json:"processes,omitempty"`
	// Mode with Processes: "any" (default) answers at the first that met, "all" when
	// each has met or ended.
	Mode string `json:"mode,omitempty"`
	// For is "end" (default), "exit", "pattern", "port", "file" or "quiet".
	For string `json:"for,omitempty"`
	// Pattern (RE2, at most 1,024 bytes) of a line of the safe view, the last unfinished
	// line too; for "pattern".
	Pattern string `json:"pattern,omitempty"`
	// Stream limits pattern and quiet to one stream.
	Stream string `json:"stream,omitempty"`
	// Cursor is the first chunk that pattern looks at, or Offset the first raw byte; both
	// absent, what is kept first. Where that is inside a line, its rest is looked at.
	Cursor *int64 `json:"cursor,omitempty"`
	Offset *int64 `json:"offset,omitempty"`
	// Port on the worker's host that somebody listens on, 1..65,535; for "port".
	Port int `json:"port,omitempty"`
	// Path that exists, absolute or relative to the process's directory; for "file".
	Path string `json:"path,omitempty"`
	// QuietMS without output, 1..600,000; for "quiet".
	QuietMS int64 `json:"quiet_ms,omitempty"`
	// WaitedMS, 0..600,000, is how long the caller has waited for it already, in calls
	// before this one: quiet counts from the first of them.
	WaitedMS int64 `json:"waited_ms,omitempty"`
	// WaitMS 0..600,000; 0 means 30,000.
	WaitMS int64 `json:"wait_ms,omitempty"`
}

// Waited answers wait_for.
type Waited struct {
	Version int `json:"version"`
	// Met: of any one, or of all.
	Met bool `json:"met"`
	// Results are in the order asked for.
	Results []ProcessWait `json:"results"`
}

// Over reports whether nothing more can come of the wait, met or not.
func (w *Waited) Over() bool {
	open := 0
	for i := range w.Results {
		if r := &w.Results[i]; !r.Met && !r.Ended && r.Error == nil {
			open++
		}
	}
	return open == 0
}

// ProcessWait is what became of the wait for one process.
type ProcessWait struct {
	Process string `json:"process"`
	Met     bool   `json:"met"`
	// Ended: the process has ended, so that nothing more can come of it.
	Ended bool `json:"ended,omitempty"`
	// Match is the line of a pattern.
	Match *Match `json:"match,omitempty"`
	// PortOwner says who listens: "process" (one of its tree), "other", or "unknown".
	PortOwner string   `json:"port_owner,omitempty"`
	Receipt   *Receipt `json:"receipt,omitempty"`
	Error     *Error   `json:"error,omitempty"` // of this process alone
}

// Match is a line that a pattern matched, in the safe view.
type Match struct {
	Cursor     int64  `json:"cursor"`      // of the chunk in which the line begins
	Offset     int64  `json:"offset"`      // raw, of that chunk
	NextCursor int64  `json:"next_cursor"` // of the chunk behind the one in which the line ends
	NextOffset int64  `json:"next_offset"` // raw, right behind the line: go on there
	Stream     string `json:"stream"`
	// Line without its end, at most 2,000 bytes around the match.
	Line      string `json:"line"`
	Truncated bool   `json:"truncated,omitempty"`
	// Unfinished: the line has no end yet, and a later search finds it again.
	Unfinished bool     `json:"unfinished,omitempty"`
	Before     []string `json:"before,omitempty"`
	After      []string `json:"after,omitempty"`
}

// Search looks for lines in the output of a process, on the worker.
type Search struct {
	Version int `json:"version"`
	ProcessRef
	// Pattern in RE2, at most 1,024 bytes, of one line of the safe view.
	Pattern string `json:"pattern"`
	// Literal takes the pattern as text.
	Literal    bool `json:"literal,omitempty"`
	IgnoreCase bool `json:"ignore_case,omitempty"`
	// Stream limits the search to one stream.
	Stream string `json:"stream,omitempty"`
	// Cursor is the first chunk to look at, or Offset the first raw byte; both absent,
	// what is kept first. A line that ends behind there is looked at whole.
	Cursor *int64 `json:"cursor,omitempty"`
	Offset *int64 `json:"offset,omitempty"`
	// MaxMatches 1..1,000, default 100; an answer holds 256 KiB of lines at most.
	MaxMatches int `json:"max_matches,omitempty"`
	// BeforeLines and AfterLines around each match, 0..20.
	BeforeLines int `json:"before_lines,omitempty"`
	AfterLines  int `json:"after_lines,omitempty"`
}

// Found answers search.
type Found struct {
	Version int     `json:"version"`
	Process string  `json:"process"`
	Matches []Match `json:"matches"`
	// HasMore: the search stopped before the end. Go on at NextOffset, which gives every
	// match once; NextCursor is its chunk, whose matches may come again.
	HasMore    bool        `json:"has_more"`
	NextOffset int64       `json:"next_offset"`
	NextCursor int64       `json:"next_cursor"`
	Scanned    int64       `json:"scanned_bytes"` // raw
	Gaps       []Gap       `json:"gaps,omitempty"`
	End        bool        `json:"end"` // the process has ended: there is nothing more to come
	State      State       `json:"state"`
	ExitCode   *int        `json:"exit_code"`
	Output     OutputStats `json:"output"`
	Owner      string      `json:"owner,omitempty"` // as in a [Page]
}
