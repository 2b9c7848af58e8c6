package output

import (
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// TextOptions are the words in which front ends differ, and what a text cannot know by
// itself. The zero value is usable.
type TextOptions struct {
	// Rest says how to get the output of a process from a raw offset on: the middle of
	// a sentence, without a full stop. nil: "read P from offset N".
	Rest func(process string, offset int64) string
	// Search says how to go on with a search at a raw offset. nil: "search P from offset N".
	Search func(process string, offset int64) string
	// Live says what can be done with a process that still runs and whose output is
	// known up to an offset. nil: the words of Rest for more, wait, terminate.
	Live func(process string, offset int64) string
	// Others are receipts of the session, of which [Others] tells those that live.
	Others []wire.Receipt
	// Now is what ages are counted from; zero: no ages.
	Now time.Time
}

func (o *TextOptions) rest(process string, offset int64) string {
	if o.Rest != nil {
		return o.Rest(process, offset)
	}
	return fmt.Sprintf("read %s from offset %d", process, offset)
}

func (o *TextOptions) search(process string, offset int64) string {
	if o.Search != nil {
		return o.Search(process, offset)
	}
	return fmt.Sprintf("search %s from offset %d", process, offset)
}

func (o *TextOptions) live(process string, offset int64) string {
	if o.Live != nil {
		return o.Live(process, offset)
	}
	return o.rest(process, offset) + " for more, wait for it, or terminate it"
}

// Texts of output that is not there.
const (
	noOutput    = "(no output)"
	noOutputYet = "(no output yet)"
	stderrMark  = "[stderr]\n"
)

// text is a text under construction: output as it is, then notices, one a line.
type text struct {
	b       strings.Builder
	opt     TextOptions
	newline bool // b is empty or ends in a newline
}

func newText(o TextOptions) *text { return &text{opt: o, newline: true} }

// raw adds output as it is.
func (t *text) raw(s string) {
	if s != "" {
		t.b.WriteString(s)
		t.newline = strings.HasSuffix(s, "\n")
	}
}

// line adds a line of ours; it starts one.
func (t *text) line(s string) {
	if !t.newline {
		t.b.WriteByte('\n')
	}
	t.b.WriteString(s)
	t.newline = false
}

// note adds a notice.
func (t *text) note(format string, args ...any) {
	t.line("[" + fmt.Sprintf(format, args...) + "]")
}

func (t *text) others(except string) {
	for _, s := range Others(t.opt.Others, except, t.opt.Now) {
		t.line(s)
	}
}

func (t *text) String() string { return t.b.String() }

// Text is what a person or a model reads of a run: the output as rendered, stderr under
// a heading where it is split and both are there, "(no output)" where there is none;
// then notices in brackets, one a line, of all that the output does not say by itself.
// A command that exited 0 and printed all there is to see has none: the text is then
// its output, to the byte.
//
// Output can imitate a notice. Who decides by program reads the receipt.
func Text(res *wire.Result, o TextOptions) string {
	t, r := newText(o), &res.Receipt
	t.body(res)
	t.ended(r)
	if live(r) {
		t.alive(r)
		if r.State == wire.StateRunning && r.ExitedAt == nil && r.TimeoutMS > 0 && res.OnTimeout == wire.OnTimeoutKill {
			t.note("its timeout of %s still holds, and will end it", seconds(r.TimeoutMS))
		}
	}
	t.streams(r, res)
	t.receipt(r)
	t.others(r.Process)
	return t.String()
}

// body is the output of a run.
func (t *text) body(res *wire.Result) {
	r := &res.Receipt
	stdout, stderr := t.rendered(r.Process, &res.Stdout), t.rendered(r.Process, &res.Stderr)
	switch {
	case stdout != "" && stderr != "":
		t.raw(stdout)
		t.line(stderrMark)
		t.newline = true
		t.raw(stderr)
	case stdout != "" || stderr != "":
		t.raw(stdout + stderr)
	case res.Stdout.TotalBytes+res.Stderr.TotalBytes > 0:
		t.line(fmt.Sprintf("(no visible output in %d bytes)", res.Stdout.TotalBytes+res.Stderr.TotalBytes))
	case neverRan(r) || r.State == wire.StateUnreachable:
	case r.State.Terminal():
		t.line(noOutput)
	default:
		t.line(noOutputYet)
	}
}

// rendered is the text of one stream, the line about what was left out in the words of
// the front end.
func (t *text) rendered(process string, s *wire.Rendered) string {
	end := s.NoticeAt + s.NoticeBytes
	if s.NoticeBytes <= 0 || s.NoticeAt < 0 || end > len(s.Text) || t.opt.Rest == nil {
		return s.Text
	}
	lead := ""
	if s.Text[s.NoticeAt] == '\n' {
		lead = "\n"
	}
	return s.Text[:s.NoticeAt] + lead + omitted(process, s, &t.opt) + "\n" + s.Text[end:]
}

func omitted(process string, s *wire.Rendered, o *TextOptions) string {
	lines := ""
	if s.OmittedLines > 0 {
		lines = plural(s.OmittedLines, "line", "lines") + ", "
	}
	return fmt.Sprintf("[%s%d of %d bytes omitted; %s]", lines, s.OmittedBytes, s.TotalBytes, o.rest(process, s.OmittedOffset))
}

// streams says what the texts of the streams do not say themselves, and which streams
// have none.
func (t *text) streams(r *wire.Receipt, res *wire.Result) {
	for _, d := range r.Output.Descriptors {
		t.note("%s: %s, not shown here; read that stream", wire.Stream(d.Number), plural(d.Bytes, "byte", "bytes"))
	}
	for _, s := range []struct {
		name string
		*wire.Rendered
	}{{"stdout", &res.Stdout}, {"stderr", &res.Stderr}} {
		name := s.name + ": "
		if res.Stderr.TotalBytes == 0 {
			name = "" // there is but one
		}
		if s.Truncated && s.NoticeBytes == 0 && !s.Binary {
			t.note("%s%d of %d bytes omitted; %s", name, s.OmittedBytes, s.TotalBytes, t.opt.rest(r.Process, s.OmittedOffset))
		}
		if s.EncodingLoss > 0 {
			t.note("%snot UTF-8: %s, shown as U+FFFD", name, plural(s.EncodingLoss, "byte", "bytes"))
		}
	}
}

// PageText is the text of a page: its chunks in the order they were read, gaps where
// they are, then what comes next.
func PageText(p *wire.Page, o TextOptions) string {
	t := newText(o)
	t.page(p)
	switch {
	case p.HasMore:
		t.note("more output: %s", o.rest(p.Process, p.NextOffset))
	case p.End:
		t.note("%s", endOfPage(p))
	case p.State == wire.StateUnreachable || p.Owner == wire.OwnerUnreachable:
		t.note("%s", unreachable)
	default:
		t.note("%s; later output: %s", stateWords(p.State), o.rest(p.Process, p.NextOffset))
	}
	return t.String()
}

func endOfPage(p *wire.Page) string {
	if p.ExitCode != nil {
		return fmt.Sprintf("end of output; %s, exit code %d", p.State, *p.ExitCode)
	}
	return "end of output; " + stateWords(p.State)
}

// page is the chunks and gaps of a page.
func (t *text) page(p *wire.Page) {
	gaps := p.Gaps
	before := func(cursor int64) {
		for len(gaps) > 0 && gaps[0].Cursor <= cursor {
			t.note("%d bytes missing here: %s", gaps[0].Bytes, gaps[0].Reason)
			t.raw("\n")
			gaps = gaps[1:]
		}
	}
	var data []byte // of chunks in base64, which is one text over all
	loss, extra := 0, ""
	for i := 0; i < len(p.Chunks); i++ {
		c := &p.Chunks[i]
		before(c.Cursor)
		if !c.Binary {
			loss += c.EncodingLoss // of what is shown
		}
		if s := descriptor(c.Stream); s != extra { // stdout and stderr mix as at a terminal
			if extra = s; s == "" {
				s = c.Stream
			}
			t.note("%s", s)
			t.raw("\n")
		}
		switch {
		case c.Binary:
			n := int64(c.SourceBytes)
			for i+1 < len(p.Chunks) && p.Chunks[i+1].Binary && p.Chunks[i+1].Stream == c.Stream {
				i++
				n += int64(p.Chunks[i].SourceBytes)
			}
			t.note("binary output on %s withheld: %d bytes; view base64 has them", c.Stream, n)
			t.raw("\n")
		case c.Data != "":
			if b, err := base64.StdEncoding.DecodeString(c.Data); err == nil {
				data = append(data, b...)
			}
		default:
			t.raw(c.Text)
		}
	}
	before(p.NextCursor)
	t.raw(base64.StdEncoding.EncodeToString(data))
	t.nothing(p)
	if loss > 0 {
		t.note("not UTF-8: %s, shown as U+FFFD", plural(loss, "byte", "bytes"))
	}
}

// nothing says why a page shows nothing, where it does.
func (t *text) nothing(p *wire.Page) {
	switch {
	case t.b.Len() > 0:
	case p.Output.TotalBytes > 0 && len(p.Chunks) > 0:
		t.line(fmt.Sprintf("(no visible output in %d bytes)", p.NextOffset-p.Offset))
	case p.Output.TotalBytes > 0:
		t.line("(no new output)")
	case p.State.Terminal():
		t.line(noOutput)
	case p.State != wire.StateUnreachable && p.Owner == "":
		t.line(noOutputYet)
	}
}

// descriptor is the name of a stream that is neither stdout nor stderr, else "".
func descriptor(stream string) string {
	if s, ok := wire.ParseStream(stream); ok && s <= wire.Stderr {
		return ""
	}
	return stream
}

// plural is a count with its noun.
func plural[T int | int64](n T, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
