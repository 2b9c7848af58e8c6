package output

import (
	"bytes"
	"fmt"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// viewer scans streams and makes their text, line by line.
type viewer struct {
	log    *Log
	view   wire.View
	raw    bool // bytes as they are, no text
	parts  []part
	census census
}

// part is a stream of a text. Stream 0 is stdout and stderr in the order they were read.
type part struct {
	stream wire.Stream
	base   int64 // bytes of the parts before
	total  int64 // bytes: what comes later is for the next text
}

// shows: a text of both streams has none of the extra descriptors.
func (p *part) shows(r *record) bool {
	return p.stream == r.stream || p.stream == 0 && r.stream <= wire.Stderr
}

// pos is where a record is in the part.
func (p *part) pos(r *record) int64 {
	if p.stream == 0 {
		return r.pair()
	}
	return r.pos()
}

// head feeds the text to k from its start until k has enough, and reports whether it
// came to the end.
func (v *viewer) head(k *keep) bool {
	for i := range v.parts {
		p := &v.parts[i]
		if p.total == 0 {
			continue
		}
		if !v.between(p, k) || !v.scan(p, 0, 0, k) {
			return false
		}
	}
	return true
}

// between ends the text so far in a newline before another stream follows it.
func (v *viewer) between(p *part, k *keep) bool {
	n := len(k.segs)
	if v.raw || n == 0 || k.segs[n-1].eol {
		return true
	}
	return k.add(seg{eol: true, pos: p.base}, lineFeed)
}

// tail feeds the text to k from ever further back, until k has enough or all of it.
func (v *viewer) tail(k *keep) {
	last := len(v.parts) - 1
	v.tailOf(&v.parts[last], k)
	if last == 0 || k.dropped {
		return
	}
	before := &keep{limits: k.limits}
	v.tailOf(&v.parts[0], before)
	if len(k.segs) > 0 {
		v.between(&v.parts[last], before)
	}
	for _, g := range k.settle() {
		before.add(g, g.text)
	}
	*k = *before
}

func (v *viewer) tailOf(p *part, k *keep) {
	if p.total == 0 {
		return
	}
	l, census := v.log, v.census
	for back := int64(2*k.limits.bytes) + maxBlock; ; back *= 4 {
		l.mu.Lock()
		from := l.total - back
		number := int64(0)
		if from > 0 {
			number = l.cursorAt(from)
		}
		l.mu.Unlock()
		v.census = census
		*k = keep{limits: k.limits}
		pos := int64(-1)
		if number == 0 {
			pos = 0
		}
		v.scan(p, number, pos, k)
		if k.dropped || number == 0 {
			return
		}
	}
}

// scan feeds the text of a part from chunk number on to k until k has enough, and
// reports whether it came to the end of the part. pos is the position in the part that
// is expected at number, -1 where that is not known; where the next record is further
// on, bytes are missing.
func (v *viewer) scan(p *part, number, pos int64, k *keep) bool {
	s := scan{viewer: v, part: p, keep: k, pos: pos, bol: pos == 0, w: liner{tty: v.log.cfg.TTY}}
	var buf []byte
	for s.pos < p.total {
		c := v.log.load(number, p.stream, maxBlock, buf)
		if c.end {
			s.missing(p.total, c.gap)
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
			if p.shows(&r) && p.pos(&r) < p.total && !s.take(&r, c.gap) {
				return false
			}
		}
	}
	return s.finish()
}

// scan is one pass over a part.
type scan struct {
	*viewer
	part *part
	keep *keep
	w    liner
	pos  int64 // in the part, behind the last record; -1 not known yet
	bol  bool  // the next segment starts a line
	raw  int64 // bytes since the last segment
	from int64 // position in the part of the first of them
	goff int64 // and offset over all streams
	last state
}

// take renders one record; false when the keep has enough.
func (s *scan) take(r *record, g *wire.Gap) bool {
	st, at := r.state(), s.part.pos(r)
	switch {
	case s.viewer.raw:
	case s.pos < 0:
		s.bol = at == 0 || s.part.stream != 0 && !st.mid
		s.w.open = !s.bol
		s.w.cr = st.cr && s.w.open
	case at > s.pos:
		s.missing(at, g)
	}
	s.pos = at + int64(r.source)
	if s.viewer.raw {
		return s.keep.add(seg{pos: s.part.base + at, raw: int64(r.source), goff: r.raw}, r.data)
	}
	s.census.invalid = s.census.invalid || !st.validUTF8(r.data)
	s.census.add(r.data)
	if s.raw == 0 {
		s.from, s.goff = at, r.raw
	}
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
			s.from, s.goff = at+done, r.raw+done
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
	ok := s.keep.add(seg{bol: s.bol, eol: eol, pos: s.part.base + s.from, raw: s.raw, goff: s.goff, loss: s.w.loss}, s.w.out)
	s.w.out, s.w.loss, s.raw, s.bol = s.w.out[:0], 0, 0, eol
	return ok
}

// missing puts a line in the text for the bytes up to pos.
func (s *scan) missing(pos int64, g *wire.Gap) {
	n := pos - s.pos
	if s.viewer.raw || s.pos < 0 || n <= 0 {
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
	if s.viewer.raw {
		return true
	}
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

// from is the raw offset from which a read gives what a cut left out, or a little
// before: of each stream that lacks something, where it does.
func (v *viewer) from(c cut) int64 {
	at := c.from()
	if len(v.parts) < 2 {
		return at
	}
	second := &v.parts[1]
	headEnd := int64(0)
	if n := len(c.head); n > 0 {
		headEnd = c.head[n-1].pos + c.head[n-1].raw
	}
	tailStart := second.base + second.total
	if len(c.tail) > 0 {
		tailStart = c.tail[0].pos
	}
	if headEnd <= second.base && tailStart > second.base {
		at = min(at, v.log.firstOf(second.stream))
	}
	return at
}

// firstOf is the raw offset of the first chunk of a stream that is kept.
func (l *Log) firstOf(stream wire.Stream) int64 {
	var buf []byte
	for number := int64(0); ; {
		c := l.load(number, stream, maxBlock, buf)
		switch {
		case c.end:
			return 0
		case c.pass.next > c.pass.first:
			number = c.pass.next
			continue
		}
		buf = c.buf
		var r record
		for b := c.buf; decode(b, &r); b = b[r.size():] {
			if number = r.number + 1; r.stream == stream {
				return r.raw
			}
		}
	}
}
