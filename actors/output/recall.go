package output

import (
	"bytes"
	"slices"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// How far a search looks back for the start of a line that is unfinished where it
// starts, and for the lines before: bytes of the stream, and blocks.
const (
	recallBytes  = 2 << 20
	recallBlocks = 64
)

// offsetOf is the raw offset of a chunk; of one that is gone, that of the gap.
func (l *Log) offsetOf(number int64) int64 {
	c := l.load(number, 0, 1, nil)
	var r record
	switch {
	case c.gap != nil:
		return c.gap.Offset
	case !c.end && decode(c.buf, &r):
		return r.raw
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// recall reads what a search needs to know of the output before its start: of each
// stream the line that is unfinished there, and the lines before that one.
func (s *searcher) recall() {
	at, ok := s.log.recordAt(s.from)
	if !ok {
		return
	}
	s.phase = recalling
	s.lines.give = s.line
	from := s.lines.from
	s.lines.from = 0
	for _, t := range at.open(s.from) {
		if (s.lines.stream == 0 || s.lines.stream == t.stream) && (t.state.mid || s.before > 0) {
			s.recallStream(&at, t.stream)
		}
	}
	s.lines.from = from
}

// recallStream feeds what was read of a stream before the start: from far enough back.
func (s *searcher) recallStream(at *position, stream wire.Stream) {
	l, v := s.log, s.of(stream)
	part := at.part(stream, s.from)
	number, whole := l.lookBack(stream, at.number, part, s.before)
	first := true
	take := func(r *record) {
		if first {
			v.partial, first = !whole && r.state().mid, false
		}
		s.lines.take(r)
	}
	var buf []byte
	for number < at.number {
		c := l.load(number, stream, maxBlock, buf)
		if c.gap != nil {
			s.lines.gap(c.gap)
			s.lines.gaps = nil
		}
		if c.end {
			return
		}
		if c.pass.next > c.pass.first {
			number = c.pass.next
			continue
		}
		buf = c.buf
		var r record
		for b := c.buf; decode(b, &r) && r.number < at.number; b = b[r.size():] {
			if number = r.number + 1; r.stream == stream {
				take(&r)
			}
		}
		if len(c.buf) == 0 || r.number >= at.number {
			break
		}
	}
	if part != nil {
		take(part)
	}
}

// lookBack is the number from which to read a stream so that the line that is unfinished
// before a chunk, of which part is read already, and some lines before it are whole.
// whole: there is nothing before.
func (l *Log) lookBack(stream wire.Stream, number int64, part *record, lines int) (from int64, whole bool) {
	ends, size := 0, 0
	if part != nil {
		ends = lineEnds(part.state(), part.data)
	}
	var buf []byte
	for range recallBlocks {
		if ends > lines || size >= recallBytes {
			return number, false
		}
		u, ok := l.runBefore(number, stream)
		if !ok {
			return number, true
		}
		c := l.load(u.first, stream, maxBlock, buf)
		if c.end || c.gap != nil || c.pass.next > c.pass.first {
			return number, true // gone meanwhile
		}
		buf = c.buf
		var r record
		for b := c.buf; decode(b, &r) && r.number < number; b = b[r.size():] {
			if r.stream == stream {
				ends += lineEnds(r.state(), r.data)
				size += len(r.data)
			}
		}
		number = u.first
	}
	return number, false
}

// lineEnds counts the lines that end in data.
func lineEnds(st state, data []byte) (n int) {
	for len(data) > 0 {
		i := bytes.IndexByte(data, '\n') + 1
		if i == 0 {
			return n
		}
		st.advance(data[:i])
		if data = data[i:]; !st.mid {
			n++
		}
	}
	return n
}

// runBefore finds the newest run that may hold bytes of a stream among those that are
// kept without a gap right before a chunk. Its end may be behind that.
func (l *Log) runBefore(number int64, stream wire.Stream) (run, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	window := l.next
	for _, b := range slices.Backward(l.blocks) {
		u := b.kept
		window = u.first
		switch {
		case u.first >= number:
			continue
		case u.next < number:
			return run{}, false
		case u.holds(stream):
			return u, true
		}
		number = u.first
	}
	for _, seg := range slices.Backward(l.segs) {
		for _, u := range slices.Backward(seg.runs) {
			switch {
			case u.first >= number || u.first >= window:
				continue
			case u.next < number:
				return run{}, false
			case u.holds(stream):
				return u, true
			}
			number = u.first
		}
	}
	return run{}, false
}

// position is a place in the output: a record that is not wholly before it, or the end.
type position struct {
	number  int64
	at      *record  // nil at the end
	streams []extent // what each stream wrote before the record
}

// recordAt finds a raw offset; false where that, or what is right before it, is gone.
func (l *Log) recordAt(offset int64) (position, bool) {
	l.mu.Lock()
	if offset == l.total {
		p := position{number: l.next, streams: slices.Clone(l.extra)}
		for i, st := range l.states {
			p.streams = append(p.streams, extent{stream: wire.Stream(i + 1), state: st})
		}
		l.mu.Unlock()
		return p, true
	}
	number := l.cursorAt(offset)
	l.mu.Unlock()
	c := l.load(number, 0, maxBlock, nil)
	if c.end {
		return position{}, false
	}
	var r record
	for b := c.buf; decode(b, &r); b = b[r.size():] {
		if r.end() <= offset {
			continue
		}
		if r.raw > offset {
			return position{}, false
		}
		p := position{number: r.number, at: &r, streams: r.extents()}
		if r.stream > wire.Stderr && !slices.ContainsFunc(p.streams, func(e extent) bool { return e.stream == r.stream }) {
			p.streams = append(p.streams, extent{stream: r.stream}) // it is the first of its stream
		}
		for i, st := range r.states {
			p.streams = append(p.streams, extent{stream: wire.Stream(i + 1), state: st})
		}
		return p, true
	}
	return position{}, false
}

// open is each stream with its state at an offset in the record.
func (p *position) open(offset int64) []extent {
	list := slices.Clone(p.streams)
	for i := range list {
		if part := p.part(list[i].stream, offset); part != nil {
			list[i].state = part.state()
			list[i].state.advance(part.data)
		}
	}
	slices.SortFunc(list, func(a, b extent) int { return int(a.stream) - int(b.stream) })
	return list
}

// part is what the record has of a stream before an offset; nil for nothing.
func (p *position) part(stream wire.Stream, offset int64) *record {
	if p.at == nil || p.at.stream != stream || p.at.raw >= offset || p.at.source != len(p.at.data) {
		return nil
	}
	r := *p.at
	r.data = r.data[:offset-r.raw]
	r.source = len(r.data)
	return &r
}
