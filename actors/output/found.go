package output

import (
	"fmt"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// maxShown bounds, in characters, a line of output in a notice.
const maxShown = 300

// WaitedText is the text of a wait_for: a notice a process, in the order asked for, and
// whether the time is up.
func WaitedText(m *wire.WaitFor, w *wire.Waited, o TextOptions) string {
	t := newText(o)
	for i := range w.Results {
		t.waited(m, &w.Results[i])
	}
	if !w.Met && !w.Over() {
		ms := m.WaitMS
		if ms == 0 {
			ms = wire.DefaultWaitForMS
		}
		t.note("not met within %s; nothing was cancelled", seconds(ms))
	}
	return t.String()
}

// waited is what became of the wait for one process.
func (t *text) waited(m *wire.WaitFor, w *wire.ProcessWait) {
	switch {
	case w.Error != nil:
		t.note("%s: %s (%s)", w.Process, oneLine(w.Error.Message, maxWords), w.Error.Code)
		return
	case w.Met && w.Match != nil:
		m := w.Match
		t.note("%s: a line of %s matches: %s", w.Process, m.Stream, oneLine(m.Line, maxShown))
		t.note("what follows it: %s", t.opt.rest(w.Process, m.NextOffset))
	case w.Met && m.For == "port":
		owner := "who listens is not known"
		switch w.PortOwner {
		case "process":
			owner = "the process listens"
		case "other":
			owner = "another process listens, none of its tree"
		}
		t.note("%s: port %d is open; %s", w.Process, m.Port, owner)
	case w.Met && m.For == "file":
		t.note("%s: %s exists", w.Process, oneLine(m.Path, maxWords))
	case w.Met && m.For == "quiet":
		t.note("%s: no output for %s", w.Process, seconds(m.QuietMS))
	case w.Met && m.For == "pattern":
		t.note("%s: a line matches", w.Process)
	}
	r := w.Receipt
	over := w.Ended || w.Met && (m.For == "" || m.For == "end" || m.For == "exit")
	switch {
	case over && r != nil:
		s := ending(r)
		if s == "" {
			s = howEnded(r)
		}
		if !w.Met {
			s = "ended before that: " + s
		}
		t.note("%s: %s", w.Process, s)
	case over:
		t.note("%s: ended", w.Process)
	case !w.Met:
		t.note("%s: not yet", w.Process)
	}
}

// FoundText is the text of a search, a line a match as grep prints it: the offset from
// which a read shows it, the stream, and the line, with ":" between them. Lines around it
// have a "-" and no offset; a match that has such lines is set apart by "--".
func FoundText(f *wire.Found, o TextOptions) string {
	t := newText(o)
	around := false
	for i := range f.Matches {
		m := &f.Matches[i]
		if around = around || len(m.Before)+len(m.After) > 0; around && i > 0 {
			t.line("--")
		}
		for _, s := range m.Before {
			t.line("-" + m.Stream + "-" + s)
		}
		t.line(fmt.Sprintf("%d:%s:%s", m.Offset, m.Stream, m.Line))
		if m.Truncated {
			t.note("that line is longer; this is around the match")
		}
		if m.Unfinished {
			t.note("that line has no end yet")
		}
		for _, s := range m.After {
			t.line("-" + m.Stream + "-" + s)
		}
	}
	for _, g := range f.Gaps {
		t.note("not searched: %d bytes missing at offset %d: %s", g.Bytes, g.Offset, g.Reason)
	}
	found := plural(len(f.Matches), "match", "matches")
	if len(f.Matches) == 0 {
		found = "no match"
	}
	switch {
	case f.HasMore:
		t.note("%s in %d bytes; there is more: %s", found, f.Scanned, o.search(f.Process, f.NextOffset))
	case f.Owner == wire.OwnerUnreachable, f.State == wire.StateUnreachable:
		t.note("%s in %d bytes; %s", found, f.Scanned, unreachable)
	case f.End:
		t.note("%s in %d bytes", found, f.Scanned)
	default:
		t.note("%s in %d bytes so far; %s; later output: %s", found, f.Scanned, stateWords(f.State), o.search(f.Process, f.NextOffset))
	}
	return t.String()
}
