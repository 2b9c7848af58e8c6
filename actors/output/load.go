package output

import (
	"os"
	"slices"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// piece is what load gives: records in a row, the first of them at or after the
// number asked for, and the gap before it, if any.
type piece struct {
	buf []byte
	gap *wire.Gap
	end bool // nothing is kept from there on
	// pass is a run without a byte of the stream; buf is empty then.
	pass run
}

// load reads the records from number on: the rest of one block, wherever it is, or a
// note to pass by all of it when it has none of the stream (0 means any). It
// reads files without holding the mutex, and looks again when the ring rolled
// meanwhile. What turns out unreadable becomes a gap, counted as dropped. Of a block
// in memory it copies no more records than hold want bytes.
func (l *Log) load(number int64, stream wire.Stream, want int64, buf []byte) piece {
	for {
		l.mu.Lock()
		p, seg, u := l.find(number, want, buf)
		if !p.end && number <= u.first && !u.holds(stream) {
			p.pass, p.buf, seg = u, nil, nil
		}
		if seg == nil {
			l.mu.Unlock()
			return p
		}
		path := seg.path
		l.mu.Unlock()

		b, err := readAt(path, u.pos, u.size, buf)
		if err == nil && intact(b, u) {
			p.buf = skipTo(b, number)
			return p
		}
		l.isolate(seg, u, b)
	}
}

// find looks number up. guarded by mu.
func (l *Log) find(number, want int64, buf []byte) (p piece, seg *segment, u run) {
	var prev run // what is kept before
	window := l.next
	if len(l.blocks) > 0 {
		window = l.blocks[0].kept.first
	}
	if number < window {
		for _, s := range l.segs {
			if n := len(s.runs); n == 0 || s.runs[n-1].next <= number {
				if n > 0 {
					prev = s.runs[n-1]
				}
				continue
			}
			i, _ := slices.BinarySearchFunc(s.runs, number, func(u run, n int64) int {
				if u.next <= n {
					return -1
				}
				return 1
			})
			if i > 0 {
				prev = s.runs[i-1]
			}
			p.gap = l.gap(number, prev, s.runs[i].first, s.runs[i].raw)
			return p, s, s.runs[i]
		}
	}
	for _, b := range l.blocks {
		if b.kept.next <= number {
			prev = b.kept
			continue
		}
		p.gap = l.gap(number, prev, b.kept.first, b.kept.raw)
		p.buf = append(buf[:0], upTo(skipTo(b.buf[b.lo:], number), want)...)
		return p, nil, b.kept
	}
	p.gap = l.gap(number, prev, l.next, l.total)
	p.end = true
	return p, nil, u
}

// gap describes what is missing between prev and the record first, if number is
// before it. guarded by mu.
func (l *Log) gap(number int64, prev run, first, raw int64) *wire.Gap {
	if number >= first || prev.next >= first {
		return nil
	}
	g := &wire.Gap{
		Cursor: prev.next, NextCursor: first, Offset: prev.rawEnd, NextOffset: raw,
		Bytes: raw - prev.rawEnd, Reason: gapBudget,
	}
	for _, s := range l.lost {
		if s.from < first && s.to > prev.next {
			g.Reason = s.reason
		}
	}
	return g
}

// isolate replaces a run that could not be read by what of it can.
func (l *Log) isolate(seg *segment, u run, b []byte) {
	sc := scanner{next: u.first, raw: u.raw, split: maxBlock}
	sc.scan(b, nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(seg.runs, u)
	if seg.gone || i < 0 {
		return // the ring rolled, or another reader was first: look again
	}
	kept := sc.runs[:0]
	for _, r := range sc.runs {
		if r.next > u.next || r.rawEnd > u.rawEnd {
			break // stale bytes that pass for later records
		}
		r.pos += u.pos
		kept = append(kept, r)
		l.dropped -= r.bytes()
	}
	l.dropped += u.bytes()
	seg.runs = slices.Replace(seg.runs, i, i+1, kept...)
	l.lose(u.first, u.next, gapSpool)
	l.cfg.Logger.Warn("output segment is damaged", "process", l.cfg.Process, "cursor", u.first, "bytes", u.bytes())
}

func readAt(path string, pos, size int64, buf []byte) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := slices.Grow(buf[:0], int(size))[:size]
	n, err := f.ReadAt(b, pos)
	return b[:n], err
}

// intact reports whether b holds exactly the records of u.
func intact(b []byte, u run) bool {
	var r record
	number, raw := u.first, u.raw
	for len(b) > 0 {
		if !verify(b, &r) || r.number != number || r.raw != raw {
			return false
		}
		number, raw, b = r.number+1, r.end(), b[r.size():]
	}
	return number == u.next && raw == u.rawEnd
}

// skipTo cuts the records before number off b.
func skipTo(b []byte, number int64) []byte {
	var r record
	for decode(b, &r) && r.number < number {
		b = b[r.size():]
	}
	return b
}

// upTo cuts b behind the record with which the first want bytes are complete.
func upTo(b []byte, want int64) []byte {
	var r record
	n := 0
	for want > 0 && decode(b[n:], &r) {
		n += r.size()
		want -= int64(r.source)
	}
	return b[:n]
}

// cursorAt is a number from which load comes to the chunk that holds the raw offset,
// or to the gap that does. guarded by mu.
func (l *Log) cursorAt(offset int64) int64 {
	var prev run
	at := func(u run) bool {
		if offset < u.rawEnd {
			return true
		}
		prev = u
		return false
	}
	number := func(u run) int64 {
		if offset < u.raw {
			return prev.next
		}
		return u.first
	}
	if len(l.blocks) == 0 || offset < l.blocks[0].kept.raw {
		for _, s := range l.segs {
			for _, u := range s.runs {
				if at(u) {
					return number(u)
				}
			}
		}
	}
	for _, b := range l.blocks {
		if at(b.kept) {
			return number(b.kept)
		}
	}
	if offset < l.total {
		return prev.next
	}
	return l.next
}
