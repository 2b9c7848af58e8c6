package output

import (
	"math"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// Shipment is one message of the OUTPUT stream.
type Shipment struct {
	Message []byte
	Next    int64 // number of the chunk behind it
	Chunks  int   // in it
	Raw     int64 // bytes of the process that they stand for
	Offset  int64 // bytes of the process before Next
}

// Ship makes a message of the chunks from a number on: of the first that is kept there,
// and what follows in a row, as far as it all fits most bytes. The message is appended to
// b. A second call with the same numbers gives the same bytes, as long as the chunks are
// kept, or more chunks. Where none are kept, or the first does not fit, the message has
// no chunks and says where the next would be.
func (l *Log) Ship(b []byte, from int64, most int, incarnation uint64) Shipment {
	s := Shipment{Message: b, Next: from}
	h := wire.OutputHeader{Incarnation: incarnation}
	l.each(from, int64(most), func(r *record) bool {
		switch {
		case s.Chunks == 0:
			h.First, h.Offset, h.Streams = r.number, r.raw, r.before()
			s.Message = wire.AppendOutputHeader(s.Message, &h)
		case r.number != s.Next:
			return false // a gap
		}
		if len(s.Message)-len(b)+wire.OutputOverhead+len(r.data) > most {
			return false
		}
		s.Message = wire.AppendOutputChunk(s.Message, &wire.OutputChunk{
			Stream: r.stream, OrderUnknown: r.flags&flagNoRank != 0, At: r.at(), Source: r.source, Data: r.data,
		})
		s.Next, s.Chunks, s.Raw, s.Offset = r.number+1, s.Chunks+1, s.Raw+int64(r.source), r.end()
		return true
	})
	if len(s.Message) == len(b) {
		h.First, h.Offset, h.Streams = l.after()
		s.Next, s.Offset = h.First, h.Offset
		s.Message = wire.AppendOutputHeader(s.Message, &h)
	}
	return s
}

// TailFrom is the first number, at least from, from which all that is kept up to the end
// fits most bytes of messages that have size bytes each.
func (l *Log) TailFrom(from, most int64, size int) int64 {
	most = max(most-(most/int64(size)+2)*wire.MaxOutputHeader, 0)
	l.mu.Lock()
	next := l.next
	if l.total+next*wire.OutputOverhead <= most {
		l.mu.Unlock()
		return from
	}
	from = max(from, l.cursorAt(max(l.total-most, 0)), next-most/wire.OutputOverhead)
	l.mu.Unlock()
	sum := int64(0)
	l.each(from, math.MaxInt64, func(r *record) bool {
		sum += wire.OutputOverhead + int64(len(r.data))
		return true
	})
	l.each(from, math.MaxInt64, func(r *record) bool {
		if from = r.number; sum <= most {
			return false
		}
		sum -= wire.OutputOverhead + int64(len(r.data))
		from = next
		return true
	})
	return from
}

// each gives fn the records that are kept from a number on, until it returns false. Of
// what is in memory it copies about want bytes at a time.
func (l *Log) each(from, want int64, fn func(*record) bool) {
	want = max(want, 1) // or there would be no progress
	var buf []byte
	for {
		c := l.load(from, 0, want, buf)
		if c.end {
			return
		}
		buf = c.buf
		var r record
		for b := c.buf; decode(b, &r); b = b[r.size():] {
			if !fn(&r) {
				return
			}
			from = r.number + 1
		}
	}
}

// before is what each stream had before the record.
func (r *record) before() []wire.OutputStream {
	var all []wire.OutputStream
	for i, bytes := range [...]int64{r.stdout, r.pair() - r.stdout} {
		if bytes > 0 {
			s := wire.OutputStream{Stream: wire.Stream(i + 1), Bytes: bytes, Lines: int64(r.lines[i])}
			r.states[i].encode(s.State[:])
			all = append(all, s)
		}
	}
	for _, e := range r.extents() {
		s := wire.OutputStream{Stream: e.stream, Bytes: e.bytes, Lines: e.lines}
		e.state.encode(s.State[:])
		all = append(all, s)
	}
	return all
}

// after is what a record at the end would say of what is before it.
func (l *Log) after() (number, offset int64, streams []wire.OutputStream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := record{raw: l.total, stdout: l.stdout, states: l.states, lines: [2]uint32{saturate(l.lines[0]), saturate(l.lines[1])}, table: l.table()}
	return l.next, l.total, r.before()
}
