package output

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// Bounds of a rendered text.
const (
	MinRender     = 1024
	MaxRender     = 1_000_000
	DefaultRender = 30_000

	defaultHead = 50 // percent
)

// CheckRender reports what is wrong with a request for a text.
func CheckRender(r wire.Render) error {
	head := cmp.Or(r.HeadPercent, defaultHead)
	switch {
	case !oneOf(r.Shape, "", wire.ShapeHeadTail, wire.ShapeHead, wire.ShapeTail):
		return wire.Invalid("shape", "%.40q is none of head_tail, head, tail", r.Shape)
	case !oneOf(r.Arrange, "", wire.ArrangeSplit, wire.ArrangeCombined, wire.ArrangeConcatenated):
		return wire.Invalid("arrange", "%.40q is none of split, combined, concatenated", r.Arrange)
	case !oneOf(r.View, "", wire.ViewText, wire.ViewSafe, wire.ViewBase64):
		return wire.Invalid("view", "%.40q is none of text, safe, base64", r.View)
	case r.MaxBytes != 0 && (r.MaxBytes < MinRender || r.MaxBytes > MaxRender):
		return wire.Invalid("max_bytes", "%d is outside %d..%d", r.MaxBytes, MinRender, MaxRender)
	case r.MaxLines < 0:
		return wire.Invalid("max_lines", "%d is negative", r.MaxLines)
	case r.MaxChars < 0:
		return wire.Invalid("max_chars", "%d is negative", r.MaxChars)
	case head < 1 || head > 99:
		return wire.Invalid("head_percent", "%d is outside 1..99", r.HeadPercent)
	case r.TailPercent < 0 || r.TailPercent+head > 100:
		return wire.Invalid("tail_percent", "%d is outside 0..%d", r.TailPercent, 100-head)
	}
	return nil
}

func oneOf[T comparable](v T, list ...T) bool { return slices.Contains(list, v) }

// defaults fills in what is not said, and in the place of what is wrong.
func defaults(r wire.Render) wire.Render {
	if CheckRender(wire.Render{Shape: r.Shape}) != nil || r.Shape == "" {
		r.Shape = wire.ShapeHeadTail
	}
	if CheckRender(wire.Render{Arrange: r.Arrange}) != nil || r.Arrange == "" {
		r.Arrange = wire.ArrangeSplit
	}
	if CheckRender(wire.Render{View: r.View}) != nil || r.View == "" {
		r.View = wire.ViewSafe
	}
	if CheckRender(wire.Render{MaxBytes: r.MaxBytes}) != nil || r.MaxBytes == 0 {
		r.MaxBytes = DefaultRender
	}
	if CheckRender(wire.Render{HeadPercent: r.HeadPercent, TailPercent: r.TailPercent}) != nil {
		r.HeadPercent, r.TailPercent = 0, 0
	}
	r.HeadPercent = cmp.Or(r.HeadPercent, defaultHead)
	r.TailPercent = cmp.Or(r.TailPercent, 100-r.HeadPercent)
	r.MaxLines, r.MaxChars = max(r.MaxLines, 0), max(r.MaxChars, 0)
	return r
}

// limits of a text or a part of one, each of which holds.
type limits struct{ bytes, lines, chars int }

func limitsOf(r wire.Render) limits {
	m := limits{r.MaxBytes, math.MaxInt, math.MaxInt}
	if r.MaxLines > 0 {
		m.lines = r.MaxLines
	}
	if r.MaxChars > 0 {
		m.chars = r.MaxChars
	}
	return m
}

// parts are the limits of head and tail. A percentage is rounded down for the head, and
// for a tail that gets the rest up (P17).
func (m limits) parts(r wire.Render) (head, tail limits) {
	part := func(n int) (h, t int) {
		if n == math.MaxInt {
			return n, n
		}
		h = n * r.HeadPercent / 100
		if r.HeadPercent+r.TailPercent == 100 {
			return h, n - h
		}
		return h, n * r.TailPercent / 100
	}
	head.bytes, tail.bytes = part(m.bytes)
	head.lines, tail.lines = part(m.lines)
	head.chars, tail.chars = part(m.chars)
	return head, tail
}

// Render makes the texts of a run: each stream by itself; or of stdout and stderr one,
// the first, when Arrange says so or the streams were merged. What extra descriptors
// wrote is in none of them. A request that [CheckRender] refuses is rendered with the
// defaults in the place of what is wrong.
//
// A text is whole when it fits the limits, to the last byte: no newline is added or
// taken, but between the two streams of a concatenated text where the first lacks one.
// Else it is cut by the shape, at line ends unless Exact, and a line in brackets says
// how much is missing and from which offset to read it. The limits are of what is shown;
// that line, under 200 bytes, comes on top. Where whole lines fill less than a quarter of
// what may be shown, the text is cut between characters all the same (A13).
//
// Cuts and gaps count into OmittedBytes; a gap in what is shown has a line of its own.
// What is withheld as binary is judged over the parts a text would be made of, of a
// concatenated text each stream by itself.
func (l *Log) Render(r wire.Render, merged bool) (stdout, stderr wire.Rendered) {
	r = defaults(r)
	switch {
	case merged || r.Arrange == wire.ArrangeCombined:
		return l.render(r, 0), wire.Rendered{}
	case r.Arrange == wire.ArrangeConcatenated:
		return l.concatenated(r), wire.Rendered{}
	}
	return l.render(r, wire.Stdout), l.render(r, wire.Stderr)
}

// concatenated is stdout and then stderr, cut as one text (S6).
func (l *Log) concatenated(r wire.Render) wire.Rendered {
	if r.View != wire.ViewBase64 {
		a, b := l.render(r, wire.Stdout), l.render(r, wire.Stderr)
		if b.TotalBytes == 0 {
			return a
		}
		if a.TotalBytes == 0 {
			return b
		}
		if both := joined(a, b); a.Binary || b.Binary || a.NoticeBytes == 0 && b.NoticeBytes == 0 && fits(both.Text, limitsOf(r)) {
			return both
		}
	}
	return l.render(r, wire.Stdout, wire.Stderr)
}

// joined is two texts, each as it is.
func joined(a, b wire.Rendered) wire.Rendered {
	sep := ""
	if a.Text != "" && b.Text != "" && !strings.HasSuffix(a.Text, "\n") {
		sep = "\n"
	}
	j := wire.Rendered{
		Text:       a.Text + sep + b.Text,
		TotalBytes: a.TotalBytes + b.TotalBytes, OmittedBytes: a.OmittedBytes + b.OmittedBytes,
		OmittedLines: a.OmittedLines + b.OmittedLines, OmittedOffset: a.OmittedOffset,
		NoticeAt: a.NoticeAt, NoticeBytes: a.NoticeBytes,
		Truncated: a.Truncated || b.Truncated, Binary: a.Binary || b.Binary, EncodingLoss: a.EncodingLoss + b.EncodingLoss,
	}
	if b.Truncated {
		j.OmittedOffset = b.OmittedOffset
		if a.Truncated {
			j.OmittedOffset = min(a.OmittedOffset, b.OmittedOffset)
		}
	}
	if a.NoticeBytes == 0 && b.NoticeBytes > 0 {
		j.NoticeAt, j.NoticeBytes = len(a.Text)+len(sep)+b.NoticeAt, b.NoticeBytes
	}
	return j
}

func fits(text string, m limits) bool {
	lines := strings.Count(text, "\n")
	if text != "" && !strings.HasSuffix(text, "\n") {
		lines++
	}
	return len(text) <= m.bytes && lines <= m.lines && (m.chars == math.MaxInt || utf8.RuneCountInString(text) <= m.chars)
}

// render makes one text of streams, one after the other; 0 is stdout and stderr in the
// order they were read.
func (l *Log) render(r wire.Render, streams ...wire.Stream) wire.Rendered {
	v := viewer{log: l, view: r.View}
	var out wire.Rendered
	var lines int64
	l.mu.Lock()
	for _, s := range streams {
		total, n := l.count(s)
		v.parts = append(v.parts, part{stream: s, base: out.TotalBytes, total: total})
		out.TotalBytes += total
		lines += n
	}
	l.mu.Unlock()
	if out.TotalBytes == 0 {
		return out
	}
	if r.View == wire.ViewBase64 {
		return v.base64(r, out)
	}
	limit := limitsOf(r)
	head, tail := &keep{first: true, limits: limit}, &keep{limits: limit}
	whole := v.head(head)
	if !whole && r.Shape != wire.ShapeHead {
		v.tail(tail)
	}
	if withheld, controls := v.census.binary(); withheld && len(streams) == 1 {
		out.Text, out.Binary = placeholder(max(streams[0], wire.Stdout), out.TotalBytes, controls), true
		out.OmittedBytes, out.OmittedLines, out.Truncated = out.TotalBytes, lines, true
		return out
	}
	var c cut
	if whole {
		c = cut{head: head.settle()}
	} else {
		c = cutShape(r, head, tail)
	}
	shown := c.count()
	out.EncodingLoss = int64(shown.loss)
	out.OmittedBytes = max(out.TotalBytes-shown.raw, 0)
	out.OmittedLines = max(lines-int64(shown.lines), 0)
	out.Truncated = out.OmittedBytes > 0 || !whole
	note := ""
	if !whole {
		out.OmittedOffset = v.from(c)
		note = notice(l.cfg.Process, &out, lines)
	}
	out.Text, out.NoticeAt, out.NoticeBytes = c.text(note)
	return out
}

// count is the bytes and line feeds of a stream (0: stdout and stderr). guarded by mu.
func (l *Log) count(stream wire.Stream) (total, lines int64) {
	switch stream {
	case wire.Stdout:
		return l.stdout, l.lines[0]
	case wire.Stderr:
		return l.total - l.stdout - l.others(), l.lines[1]
	}
	return l.total - l.others(), l.lines[0] + l.lines[1]
}

// notice stands where a text was cut. It is under 200 bytes.
func notice(process string, r *wire.Rendered, lines int64) string {
	return fmt.Sprintf("[%d of %d lines omitted (%d of %d bytes); read %s from offset %d]\n",
		r.OmittedLines, lines, r.OmittedBytes, r.TotalBytes, process, r.OmittedOffset)
}

// base64 gives the first bytes, or with shape tail the last, of the raw output.
func (v *viewer) base64(r wire.Render, out wire.Rendered) wire.Rendered {
	limit := r.MaxBytes
	if r.MaxChars > 0 {
		limit = min(limit, r.MaxChars)
	}
	limit = limit / 4 * 3
	k := &keep{first: r.Shape != wire.ShapeTail, limits: limits{limit, math.MaxInt, math.MaxInt}}
	v.raw = true
	var b []byte
	if k.first {
		v.head(k)
		b = k.buf[:min(len(k.buf), limit)]
	} else {
		v.tail(k)
		b = k.buf[max(len(k.buf)-limit, 0):]
	}
	out.Text = base64.StdEncoding.EncodeToString(b)
	out.OmittedBytes = max(out.TotalBytes-int64(len(b)), 0)
	out.Truncated = out.OmittedBytes > 0
	if g := k.segs; out.Truncated && k.first && len(g) > 0 {
		out.OmittedOffset = g[len(g)-1].goff + int64(len(b)-g[len(g)-1].start)
	}
	return out
}
