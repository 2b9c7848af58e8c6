package output

import (
	"bytes"
	"encoding/base64"
	"fmt"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// Bounds of a rendered text.
const (
	MinRender     = 1024
	MaxRender     = 1_000_000
	DefaultRender = 30_000
)

// CheckRender reports what is wrong with a request for a text.
func CheckRender(r wire.Render) error {
	switch r.Shape {
	case "", wire.ShapeHeadTail, wire.ShapeHead, wire.ShapeTail:
	default:
		return wire.Invalid("shape", "%.40q is none of head_tail, head, tail", r.Shape)
	}
	switch r.View {
	case "", wire.ViewText, wire.ViewSafe, wire.ViewBase64:
	default:
		return wire.Invalid("view", "%.40q is none of text, safe, base64", r.View)
	}
	if r.MaxBytes != 0 && (r.MaxBytes < MinRender || r.MaxBytes > MaxRender) {
		return wire.Invalid("max_bytes", "%d is outside %d..%d", r.MaxBytes, MinRender, MaxRender)
	}
	if r.MaxLines < 0 {
		return wire.Invalid("max_lines", "%d is negative", r.MaxLines)
	}
	return nil
}

// Render makes the texts of a run: each stream by itself, or both in the order they
// were read when merged, which is then the first. A request that [CheckRender]
// refuses is rendered with the defaults in the place of what is wrong.
//
// A text is whole when it fits MaxBytes and MaxLines, to the last byte: no newline is
// added or taken. Else it is cut by the shape at line ends, and a line in brackets
// says how much is missing and from which offset to read it; only where whole lines
// fill less than a fifth of the limit is it cut between characters (A13). Cuts and
// gaps count into OmittedBytes; a gap in what is shown has a line of its own. What is
// withheld as binary is judged over the parts a text would be made of.
func (l *Log) Render(r wire.Render, merged bool) (stdout, stderr wire.Rendered) {
	if CheckRender(wire.Render{Shape: r.Shape}) != nil || r.Shape == "" {
		r.Shape = wire.ShapeHeadTail
	}
	if CheckRender(wire.Render{View: r.View}) != nil || r.View == "" {
		r.View = wire.ViewSafe
	}
	if CheckRender(wire.Render{MaxBytes: r.MaxBytes}) != nil || r.MaxBytes == 0 {
		r.MaxBytes = DefaultRender
	}
	r.MaxLines = max(r.MaxLines, 0)
	if merged {
		return l.render(r, 0), wire.Rendered{}
	}
	return l.render(r, wire.Stdout), l.render(r, wire.Stderr)
}

func (l *Log) render(r wire.Render, stream wire.Stream) wire.Rendered {
	l.mu.Lock()
	total, lines, dropped := l.count(stream)
	l.mu.Unlock()
	out := wire.Rendered{TotalBytes: total}
	if total == 0 {
		return out
	}
	v := viewer{log: l, view: r.View, stream: stream, total: total}
	if r.View == wire.ViewBase64 {
		return v.base64(r, out)
	}
	head := &keep{first: true, maxBytes: r.MaxBytes, maxLines: r.MaxLines}
	whole := v.scan(0, 0, head)
	tail := &keep{maxBytes: r.MaxBytes, maxLines: r.MaxLines}
	if !whole && r.Shape != wire.ShapeHead {
		v.scanTail(tail)
	}
	if withheld, controls := v.census.binary(); withheld {
		name := stream
		if stream == 0 {
			name = wire.Stdout
		}
		out.Text, out.Binary = placeholder(name, total, controls), true
		out.OmittedBytes, out.OmittedLines, out.Truncated = total, lines, true
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
	out.OmittedBytes = max(total-shown.raw, 0)
	out.OmittedLines = max(lines-int64(shown.lines), 0)
	out.Truncated = out.OmittedBytes > 0 || !whole
	note := ""
	if !whole {
		note = notice(l.cfg.Process, out, lines, dropped, c.from())
	}
	out.Text = c.text(note)
	return out
}

// count is the bytes and line feeds of a stream (0: stdout and stderr), and the bytes no longer
// kept of all. guarded by mu.
func (l *Log) count(stream wire.Stream) (total, lines, dropped int64) {
	switch stream {
	case wire.Stdout:
		return l.stdout, l.lines[0], l.dropped
	case wire.Stderr:
		return l.total - l.stdout - l.others(), l.lines[1], l.dropped
	}
	return l.total - l.others(), l.lines[0] + l.lines[1], l.dropped
}

// notice stands where a text was cut. It is under 200 bytes.
func notice(process string, r wire.Rendered, lines, dropped, from int64) string {
	kept := ""
	if dropped > 0 {
		kept = fmt.Sprintf(", %d no longer kept", dropped)
	}
	return fmt.Sprintf("[%d of %d lines omitted (%d of %d bytes%s); read %s from offset %d]\n",
		r.OmittedLines, lines, r.OmittedBytes, r.TotalBytes, kept, process, from)
}

// viewer scans a stream and makes its text, line by line.
type viewer struct {
	log    *Log
	view   wire.View
	stream wire.Stream // 0 is stdout and stderr
	total  int64
	census census
}

// scan feeds the text from chunk number on to k until k has enough, and reports
// whether it came to the end of the stream. pos is the position in the stream that is
// expected at number; where the next record is further on, bytes are missing.
func (v *viewer) scan(number, pos int64, k *keep) bool {
	s := scan{viewer: v, keep: k, pos: pos, bol: pos == 0, w: liner{tty: v.log.cfg.TTY}}
	var buf []byte
	for s.pos < v.total {
		c := v.log.load(number, v.stream, maxBlock, buf)
		if c.end {
			s.missing(v.total, c.gap)
			break
		}
		if c.pass.next > c.pass.first {
			number = c.pass.next
			continue
		}
		buf = c.buf
		var r record
		for b := c.buf; decode(b, &r); b = b[r.size():] {
			number = r.number + 1
			if !v.shows(&r) || v.posOf(&r) >= v.total {
				continue // what came since the count is for the next text
			}
			if !s.take(&r, c.gap) {
				return false
			}
		}
	}
	return s.finish()
}

// scanTail scans from ever further back until tail has enough or starts at the start.
func (v *viewer) scanTail(tail *keep) {
	l, census := v.log, v.census
	for back := int64(2*tail.maxBytes) + maxBlock; ; back *= 4 {
		l.mu.Lock()
		from := l.total - back
		number := int64(0)
		if from > 0 {
			number = l.cursorAt(from)
		}
		l.mu.Unlock()
		v.census = census
		*tail = keep{maxBytes: tail.maxBytes, maxLines: tail.maxLines}
		pos := int64(-1)
		if number == 0 {
			pos = 0
		}
		v.scan(number, pos, tail)
		if tail.dropped || number == 0 {
			return
		}
	}
}

// scan is one pass over a stream.
type scan struct {
	*viewer
	keep *keep
	w    liner
	pos  int64 // in the stream, behind the last record; -1 not known yet
	bol  bool  // the next segment starts a line
	raw  int64 // bytes since the last segment
	from int64 // position in the stream of the first of them
	goff int64 // and offset over all streams
	last state
}

// shows: a text of both streams has none of the extra descriptors.
func (v *viewer) shows(r *record) bool {
	return v.stream == r.stream || v.stream == 0 && r.stream <= wire.Stderr
}

func (v *viewer) posOf(r *record) int64 {
	if v.stream == 0 {
		return r.pair()
	}
	return r.pos()
}

// take renders one record; false when the keep has enough.
func (s *scan) take(r *record, g *wire.Gap) bool {
	switch at := s.posOf(r); {
	case s.pos < 0:
		s.bol = at == 0
		s.w.open = !s.bol
		s.w.cr = r.state().cr && s.w.open
	case at > s.pos:
		s.missing(at, g)
	}
	s.pos = s.posOf(r) + int64(r.source)
	s.census.invalid = s.census.invalid || !r.state().validUTF8(r.data)
	s.census.add(r.data)
	if s.raw == 0 {
		s.from, s.goff = s.posOf(r), r.raw
	}
	st := r.state()
	s.raw += int64(r.source - len(r.data)) // what a filter took away
	for b := r.data; len(b) > 0; {
		n := bytes.IndexByte(b, '\n') + 1
		if n == 0 {
			n = len(b)
		}
		s.feed(&st, b[:n])
		s.raw += int64(n)
		b = b[n:]
		if k := len(s.w.out); k > 0 && (s.w.out[k-1] == '\n' || k >= maxLine) {
			if !s.emit(s.w.out[k-1] == '\n') {
				return false
			}
			done := int64(r.source - len(b))
			s.from, s.goff = s.posOf(r)+done, r.raw+done
		}
	}
	s.last = st
	return true
}

func (s *scan) feed(st *state, b []byte) {
	if s.view == wire.ViewSafe {
		st.feed(b, &s.w)
		return
	}
	var loss int
	s.w.out, loss = st.text(s.w.out, b)
	s.w.loss += loss
}

// emit hands the text so far to the keep.
func (s *scan) emit(eol bool) bool {
	ok := s.keep.add(seg{bol: s.bol, eol: eol, pos: s.from, raw: s.raw, goff: s.goff, loss: s.w.loss}, s.w.out)
	s.w.out, s.w.loss, s.raw, s.bol = s.w.out[:0], 0, 0, eol
	return ok
}

// missing puts a line in the text for the bytes up to pos.
func (s *scan) missing(pos int64, g *wire.Gap) {
	n := pos - s.pos
	if s.pos < 0 || n <= 0 {
		return
	}
	reason := gapBudget
	if g != nil {
		reason = g.Reason
	}
	s.w.flushLine()
	if len(s.w.out) > 0 || s.raw > 0 {
		s.w.out = append(s.w.out, '\n')
		s.emit(true)
	}
	s.pos, s.from = pos, pos
	s.w.out = fmt.Appendf(s.w.out, "[%d bytes missing here: %s]\n", n, reason)
	s.emit(true)
}

// finish hands on what no line end closed.
func (s *scan) finish() bool {
	l := s.log
	l.mu.Lock()
	ended := l.closed
	l.mu.Unlock()
	s.w.flushLine()
	if n := int(s.last.n); ended && n > 0 {
		s.w.out = append(s.w.out, replacements(n)...)
		s.w.loss += n
	}
	if len(s.w.out) > 0 || s.raw > 0 {
		return s.emit(false)
	}
	return true
}

// base64 gives the first bytes of the stream, or with shape tail the last.
func (v *viewer) base64(r wire.Render, out wire.Rendered) wire.Rendered {
	limit := r.MaxBytes / 4 * 3
	k := &keep{first: r.Shape != wire.ShapeTail, maxBytes: limit, raw: true}
	if k.first {
		v.scanRaw(0, k)
	} else {
		v.log.mu.Lock()
		from := v.log.cursorAt(max(v.log.total-int64(limit), 0))
		v.log.mu.Unlock()
		v.scanRaw(from, k)
	}
	b := k.buf
	if len(b) > limit && k.first {
		b = b[:limit]
	} else if len(b) > limit {
		b = b[len(b)-limit:]
	}
	out.Text = base64.StdEncoding.EncodeToString(b)
	out.OmittedBytes = max(out.TotalBytes-int64(len(b)), 0)
	out.Truncated = out.OmittedBytes > 0
	return out
}

// scanRaw collects bytes as they are.
func (v *viewer) scanRaw(number int64, k *keep) {
	var buf []byte
	for {
		c := v.log.load(number, v.stream, maxBlock, buf)
		if c.end {
			return
		}
		if c.pass.next > c.pass.first {
			number = c.pass.next
			continue
		}
		buf = c.buf
		var r record
		for b := c.buf; decode(b, &r); b = b[r.size():] {
			number = r.number + 1
			if !v.shows(&r) || v.posOf(&r) >= v.total {
				continue
			}
			if !k.add(seg{raw: int64(r.source)}, r.data) {
				return
			}
		}
	}
}
