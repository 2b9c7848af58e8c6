package mcp

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// answer is the structured content of a result: what outputSchema describes.
type answer struct {
	*handle
	Yielded   bool   `json:"yielded,omitempty"`
	OnTimeout string `json:"on_timeout,omitempty"`
	// Of a run: both streams as text.
	Stdout             *string `json:"stdout,omitempty"`
	Stderr             *string `json:"stderr,omitempty"`
	StdoutOmittedBytes int64   `json:"stdout_omitted_bytes,omitempty"`
	StderrOmittedBytes int64   `json:"stderr_omitted_bytes,omitempty"`
	// Of what shows a piece of output.
	Output     *string `json:"output,omitempty"`
	Offset     *int64  `json:"offset,omitempty"`
	NextOffset *int64  `json:"next_offset,omitempty"`
	HasMore    bool    `json:"has_more,omitempty"`
	GapBytes   int64   `json:"gap_bytes,omitempty"`
	// EncodingLoss are the bytes, of what is shown, that are no UTF-8 and stand as U+FFFD.
	EncodingLoss int64 `json:"encoding_loss_bytes,omitempty"`
	// Of wait_for and search.
	Met          *bool    `json:"met,omitempty"`
	PortOwner    string   `json:"port_owner,omitempty"`
	Results      []waited `json:"results,omitzero"`
	Matches      []match  `json:"matches,omitzero"`
	ScannedBytes int64    `json:"scanned_bytes,omitempty"`
	// Of list.
	Processes []handle `json:"processes,omitzero"`
	Session   string   `json:"session,omitempty"`
	// Of all.
	Error   *wire.Error `json:"error,omitempty"`
	Notices []notice    `json:"notices,omitempty"`
}

// handle is a receipt as a model needs it, which pays for every word; the whole one is
// the resource of the record.
type handle struct {
	Process     string   `json:"process_id,omitempty"`
	Execution   string   `json:"execution_id,omitempty"`
	State       string   `json:"state,omitempty"`
	Reason      string   `json:"reason,omitempty"`
	ExitCode    *int     `json:"exit_code,omitempty"`
	Signal      string   `json:"signal,omitempty"`
	Description string   `json:"description,omitempty"`
	SessionCwd  string   `json:"session_cwd,omitempty"`
	DurationS   *float64 `json:"duration_s,omitempty"`
	TimeoutS    float64  `json:"timeout_s,omitempty"` // of its life, as applied, while it matters
	TotalBytes  *int64   `json:"total_bytes,omitempty"`
	Dropped     int64    `json:"dropped_bytes,omitempty"`
	Incomplete  bool     `json:"output_incomplete,omitempty"` // some of it was never seen
	StdinOpen   bool     `json:"stdin_open,omitempty"`
	CancelledBy string   `json:"cancel_requested_by,omitempty"`
	// What was left when the command ended.
	LeftoversKilled int      `json:"leftovers_killed,omitempty"`
	LeftoversLive   int      `json:"leftovers_live,omitempty"`
	Unsignalled     []int    `json:"unsignalled_pids,omitempty"`
	Notes           []string `json:"notes,omitempty"`
}

// waited is what became of the wait for one of several processes.
type waited struct {
	handle
	Met       bool        `json:"met"`
	Match     *match      `json:"match,omitempty"`
	PortOwner string      `json:"port_owner,omitempty"`
	Error     *wire.Error `json:"error,omitempty"`
}

type match struct {
	Line       string   `json:"line"`
	Stream     string   `json:"stream"`
	Offset     int64    `json:"offset"`
	NextOffset int64    `json:"next_offset"`
	Truncated  bool     `json:"truncated,omitempty"`
	Unfinished bool     `json:"unfinished,omitempty"`
	Before     []string `json:"before,omitempty"`
	After      []string `json:"after,omitempty"`
}

// notice tells the end of a process that was left running.
type notice struct {
	Process     string `json:"process_id"`
	Description string `json:"description,omitempty"`
	State       string `json:"state"`
	Reason      string `json:"reason,omitempty"`
	ExitCode    *int   `json:"exit_code,omitempty"`
	UnreadBytes int64  `json:"unread_bytes"`
}

func handleOf(r *wire.Receipt, now time.Time) handle {
	h := handle{
		Process: r.Process, State: string(r.State), Reason: string(r.Reason), ExitCode: r.ExitCode, Signal: r.Signal,
		TotalBytes: &r.Output.TotalBytes, Dropped: r.Output.DroppedBytes, StdinOpen: r.StdinOpen, Notes: r.Notes,
		CancelledBy:     r.CancelRequestedBy,
		LeftoversKilled: r.LeftoversKilled, LeftoversLive: r.LeftoversLive, Unsignalled: r.Unsignalled,
	}
	h.Incomplete = r.State.Terminal() && r.StartedAt != nil && !r.Output.Complete
	if r.SessionCwd != r.Cwd { // else the next command runs where this one did
		h.SessionCwd = r.SessionCwd
	}
	if r.TimeoutMS > 0 && (!r.State.Terminal() || r.Reason == wire.ReasonTimeout) {
		h.TimeoutS = float64(r.TimeoutMS) / 1000
	}
	if r.StartedAt != nil {
		end := now
		if r.ExitedAt != nil {
			end = *r.ExitedAt
		}
		s := max(0, float64(end.Sub(*r.StartedAt).Milliseconds())/1000)
		h.DurationS = &s
	}
	return h
}

func receiptAnswer(r *wire.Receipt) *answer {
	h := handleOf(r, time.Now())
	a := &answer{handle: &h}
	if e := r.Error; e != nil {
		a.Error = public(e)
	}
	if r.Page != nil {
		a.setPage(r.Page)
	}
	return a
}

func runAnswer(res *wire.Result) *answer {
	a := receiptAnswer(&res.Receipt)
	if a.Yielded = res.Yielded; res.Yielded || res.Receipt.Reason == wire.ReasonTimeout {
		a.OnTimeout, a.Execution = string(res.OnTimeout), res.Receipt.ExecutionID
	}
	a.Stdout, a.StdoutOmittedBytes = &res.Stdout.Text, res.Stdout.OmittedBytes
	a.Stderr, a.StderrOmittedBytes = &res.Stderr.Text, res.Stderr.OmittedBytes
	a.EncodingLoss = res.Stdout.EncodingLoss + res.Stderr.EncodingLoss
	a.NextOffset = &res.Receipt.Output.TotalBytes
	return a
}

// setPage adds a piece of output.
func (a *answer) setPage(p *wire.Page) {
	text := pageText(p)
	a.Output, a.Offset, a.NextOffset, a.HasMore = &text, &p.Offset, &p.NextOffset, p.HasMore
	for _, g := range p.Gaps {
		a.GapBytes += g.Bytes
	}
	for i := range p.Chunks {
		if c := &p.Chunks[i]; !c.Binary && c.Data == "" {
			a.EncodingLoss += int64(c.EncodingLoss)
		}
	}
}

// pageText is the output of a page and nothing else: as text, or in base64.
func pageText(p *wire.Page) string {
	var text strings.Builder
	var data []byte
	for i := range p.Chunks {
		c := &p.Chunks[i]
		text.WriteString(c.Text)
		if b, err := base64.StdEncoding.DecodeString(c.Data); err == nil {
			data = append(data, b...)
		}
	}
	if len(data) > 0 {
		return base64.StdEncoding.EncodeToString(data)
	}
	return text.String()
}

func pageAnswer(p *wire.Page) *answer {
	a := &answer{handle: &handle{
		Process: p.Process, State: string(p.State), ExitCode: p.ExitCode,
		TotalBytes: &p.Output.TotalBytes, Dropped: p.Output.DroppedBytes,
	}}
	a.setPage(p)
	return a
}

func matchOf(m *wire.Match) match {
	return match{
		Line: m.Line, Stream: m.Stream, Offset: m.Offset, NextOffset: m.NextOffset,
		Truncated: m.Truncated, Unfinished: m.Unfinished, Before: m.Before, After: m.After,
	}
}

// encode is JSON without the escapes for web pages, which cost a model tokens.
func (a *answer) encode() (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(a); err != nil {
		return nil, wire.Errorf(wire.CodeInternal, "the answer cannot be encoded")
	}
	return b.Bytes(), nil
}
