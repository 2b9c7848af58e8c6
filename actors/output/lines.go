package output

import (
	"bytes"
	"unicode/utf8"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// MaxOpenLine bounds what is held of a line until its end comes. A longer line is
// taken in pieces of this many bytes, less what would split a character; each is a line
// by itself, so that nothing is found which spans two of them.
const MaxOpenLine = 64 << 10

// redrawShare: a redrawn line is handed over when at least a 64th of it is new, so that
// a line of 4 KiB which is redrawn byte by byte costs 64 times its bytes at most.
const redrawShare = 64

// LineKind says how much of a line there is.
type LineKind uint8

const (
	// LineEnded: its end was read, or it was cut: by a gap, or for its length.
	LineEnded LineKind = iota
	// LineOpen: no end yet, such as of a prompt.
	LineOpen
	// LineRedrawn: the line as it stood before it was drawn over (a carriage return,
	// an erase). The same line comes again.
	LineRedrawn
)

// Line is a line of the safe view, of one stream.
type Line struct {
	Kind   LineKind
	Stream wire.Stream
	// Cursor and Offset (raw) are of the chunk in which the line begins.
	Cursor, Offset int64
	// NextCursor is of the chunk behind the one in which the line ends, or is at;
	// NextOffset is the raw offset right behind the line and its end, or of a line that
	// was redrawn behind the output that did so.
	NextCursor, NextOffset int64
	// Text without its end (LF, or CR LF), at most [MaxOpenLine] bytes. It is valid until
	// the function that got the line returns, as is the line itself.
	Text []byte
}

// Lines reads a log line by line, each stream by itself, and goes on where it stopped:
// what was looked at is not looked at again. How the output was cut into chunks makes no
// difference to the text of ended lines. It holds a block and one unfinished line a
// stream. It is used by one goroutine at a time; the log goes on meanwhile.
//
// What was never text is shown as such: controls are dropped, bytes that are part of no
// character are U+FFFD. Nothing is withheld as binary.
type Lines struct {
	log     *Log
	stream  wire.Stream // 0 is any
	next    int64       // number wanted next
	from    int64       // raw offset before which nothing is looked at
	streams []*openLine // those seen, in the order of their first bytes
	scanned int64
	rawEnd  int64 // offset behind what was looked at last
	gaps    []wire.Gap
	buf     []byte
	give    func(*Line) bool // of the Scan or Open under way
	line    Line             // what it is given; one for all, since there are many
	stopped bool             // give has said so
}

// Lines starts at a chunk or a raw offset (not both; the first that is kept where both
// are nil) and looks at one stream, or at all for 0. Like Read it refuses what is ahead
// of the output, and a log that was removed. A start inside a line is taken for the
// start of a line.
func (l *Log) Lines(cursor, offset *int64, stream wire.Stream) (*Lines, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.bounds(wire.Read{Cursor: cursor, Offset: offset}); err != nil {
		return nil, err
	}
	s := &Lines{log: l, stream: stream}
	switch {
	case cursor != nil:
		s.next = *cursor
	case offset != nil:
		s.next, s.from = l.cursorAt(*offset), *offset
	default:
		s.next = l.earliest()
	}
	return s, nil
}

// Scan looks at what is kept of the next block, at most 64 KiB, and gives each line that
// was ended or redrawn in it to f, in the order of their ends. It reports whether there
// was any; false too when f returned false, after which Scan must not be called again.
func (s *Lines) Scan(f func(*Line) bool) bool {
	s.give = f
	c := s.log.load(s.next, s.stream, maxBlock, s.buf)
	if g := c.gap; g != nil {
		s.gap(g)
	}
	switch {
	case s.stopped:
		return false
	case c.end:
		return c.gap != nil
	case c.pass.next > c.pass.first:
		s.next, s.rawEnd = c.pass.next, c.pass.rawEnd
		s.scanned += c.pass.bytes()
		return true
	}
	s.buf = c.buf
	var r record
	for b := c.buf; decode(b, &r) && !s.stopped; b = b[r.size():] {
		s.next, s.rawEnd = r.number+1, r.end()
		s.scanned += int64(r.source)
		if r.end() > s.from && (s.stream == 0 || s.stream == r.stream) {
			s.take(&r)
		}
	}
	return !s.stopped
}

// Open gives f the unfinished lines that have grown since the last call, those with text.
// It reports false when f did.
func (s *Lines) Open(f func(*Line) bool) bool {
	s.give = f
	for _, o := range s.streams {
		if o.grown && !s.stopped {
			o.grown = false
			s.show(o, LineOpen)
		}
	}
	return !s.stopped
}

// Next is the number of the chunk that Scan looks at next.
func (s *Lines) Next() int64 { return s.next }

// Scanned is the raw bytes passed so far, of other streams too.
func (s *Lines) Scanned() int64 { return s.scanned }

// Gaps are the runs of missing chunks passed so far, oldest first.
func (s *Lines) Gaps() []wire.Gap { return s.gaps }

// gap ends all unfinished lines: what follows them is gone.
func (s *Lines) gap(g *wire.Gap) {
	s.gaps = append(s.gaps, *g)
	s.next, s.rawEnd = g.NextCursor, g.NextOffset
	for _, o := range s.streams {
		if !s.stopped && !o.fresh {
			o.w.flushLine()
			s.end(o, o.w.out, len(o.w.out))
		}
		o.reset()
	}
}

// openLine is a stream's unfinished line.
type openLine struct {
	w              liner
	stream         wire.Stream
	fresh          bool  // nothing of the line was read yet
	grown          bool  // since Open
	cursor, offset int64 // of the chunk in which it begins
	raw            int64 // offset of the chunk that was read last
	next, nextOff  int64 // behind what was read
}

func (o *openLine) reset() {
	w := &o.w
	*w = liner{out: w.out[:0], line: w.line[:0], tty: w.tty, redrawn: w.redrawn}
	o.fresh, o.grown = true, false
}

func (s *Lines) of(stream wire.Stream) *openLine {
	for _, o := range s.streams {
		if o.stream == stream {
			return o
		}
	}
	o := &openLine{stream: stream, fresh: true}
	o.w.tty = s.log.cfg.TTY
	o.w.redrawn = func() { s.redrawn(o) }
	s.streams = append(s.streams, o)
	return o
}

// take reads one record.
func (s *Lines) take(r *record) {
	o, st, b, exact := s.of(r.stream), r.state(), r.data, r.source == len(r.data)
	if skip := s.from - r.raw; skip > 0 && exact {
		st.advance(b[:skip])
		b = b[skip:]
	}
	o.raw, o.next = r.raw, r.number+1
	for len(b) > 0 && !s.stopped {
		n := bytes.IndexByte(b, '\n') + 1
		if n == 0 {
			n = len(b)
		}
		if o.fresh {
			o.fresh, o.cursor, o.offset = false, r.number, r.raw
		}
		o.nextOff = r.end()
		if exact { // else a filter changed it, and only the chunk's own bounds are known
			o.nextOff -= int64(len(b) - n)
		}
		o.grown = true
		st.feed(b[:n], &o.w)
		b = b[n:]
		s.settle(o)
	}
}

// settle gives what has become an ended line: pieces of a long one, and what LF ended.
func (s *Lines) settle(o *openLine) {
	for !s.stopped {
		out := o.w.out
		text, ended := bytes.CutSuffix(out, lineFeed)
		switch {
		case len(text) >= MaxOpenLine:
			n := MaxOpenLine
			for n < len(text) && !utf8.RuneStart(text[n]) {
				n--
			}
			s.end(o, text[:n], n)
			o.cursor, o.offset = o.next-1, o.raw
		case ended:
			s.end(o, bytes.TrimSuffix(text, carriageReturn), len(out))
			o.fresh, o.grown = true, false
			return
		default:
			return
		}
	}
}

var carriageReturn = []byte{'\r'}

// end gives a line and drops the first n bytes of the text, which it was.
func (s *Lines) end(o *openLine, text []byte, n int) {
	s.tell(o, LineEnded, text)
	o.w.out = o.w.out[:copy(o.w.out, o.w.out[n:])]
}

// show gives the unfinished line as it stands.
func (s *Lines) show(o *openLine, kind LineKind) {
	w := &o.w
	n := len(w.out)
	w.out = append(w.out, w.line...)
	if len(w.out) > 0 {
		s.tell(o, kind, w.out)
	}
	w.out = w.out[:n]
}

// redrawn gives the line that is about to be drawn over, if enough of it is new.
func (s *Lines) redrawn(o *openLine) {
	if w := &o.w; !s.stopped && w.drawn*redrawShare >= len(w.out)+len(w.line) {
		w.drawn = 0
		s.show(o, LineRedrawn)
	}
}

func (s *Lines) tell(o *openLine, kind LineKind, text []byte) {
	s.line = Line{
		Kind: kind, Stream: o.stream, Cursor: o.cursor, Offset: o.offset,
		NextCursor: o.next, NextOffset: o.nextOff, Text: text,
	}
	s.stopped = !s.give(&s.line)
}

// maxMatchLine bounds what a match shows of a line, in bytes.
const maxMatchLine = 2000

// Match is the line as an answer has it, around what matched, which is Text[start:end].
func (l *Line) Match(start, end int) wire.Match {
	text := around(l.Text, start, end)
	return wire.Match{
		Cursor: l.Cursor, Offset: l.Offset, NextCursor: l.NextCursor, NextOffset: l.NextOffset,
		Stream: l.Stream.String(), Line: string(text), Truncated: len(text) < len(l.Text), Unfinished: l.Kind != LineEnded,
	}
}

// around is at most maxMatchLine bytes of text with text[start:end] in the middle, or the
// start of that; it splits no character.
func around(text []byte, start, end int) []byte {
	if len(text) <= maxMatchLine {
		return text
	}
	from := start - max(0, maxMatchLine-(end-start))/2
	from = max(0, min(from, len(text)-maxMatchLine))
	to := from + maxMatchLine
	for from > 0 && from < to && !utf8.RuneStart(text[from]) {
		from++
	}
	for to > from && to < len(text) && !utf8.RuneStart(text[to]) {
		to--
	}
	return text[from:to]
}
