package output

import (
	"cmp"
	"context"
	"slices"
	"unicode/utf8"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// Bounds of an answer to a search.
const (
	DefaultMatches = 100
	maxFound       = 256 << 10 // bytes of lines; the match that reaches it is the last
	maxAround      = 16 << 10  // bytes of lines around one match

	// overtake is how far a search follows output that came since it began.
	overtake = 64 << 20
	// drainMax is how far it reads on, in raw bytes, for the lines after its last matches.
	drainMax = 16 << 20
)

// Search finds lines of the safe view, each stream by itself, in the order of their
// ends. A line is looked at whole: as it stands in the end, or, where that does not
// match, as it stood before it was redrawn; it is found once. Lines over 64 KiB are
// looked at in pieces of that size.
//
// A search looks at the lines that end behind its start, also at what came before it of
// one that began there, so that going on at NextOffset finds every line exactly once,
// whatever MaxMatches is, with the same lines around it. (Of a line over 2 MiB a piece
// may be found twice.) The lines without an end come last, when the end of the output
// was reached; as long as it may go on they are Unfinished, and found again. Lines
// around a match are of its stream, at most 2,000 bytes of each and 16 KiB of all, and
// none from beyond a gap.
//
// It reads block by block, holds a block and the answer, and never holds up Append. When
// ctx ends it answers what it has, at least one block's, with HasMore.
func (l *Log) Search(ctx context.Context, m wire.Search, st State) (*wire.Found, error) {
	find, err := finderOf(&m)
	if err != nil {
		return nil, err
	}
	stream, ok := wire.ParseStream(m.Stream)
	if !ok && m.Stream != "" {
		return nil, wire.Invalid("stream", "%.40q is no stream", m.Stream)
	}
	s := &searcher{
		log: l, find: find, before: m.BeforeLines, after: m.AfterLines,
		max: cmp.Or(m.MaxMatches, DefaultMatches), cut: maxMatchLine, found: &wire.Found{Matches: []wire.Match{}},
	}
	if n := s.before + s.after; n > 0 {
		s.cut = min(s.cut, maxAround/n)
	}
	from := m.Cursor
	if m.Cursor == nil && m.Offset == nil {
		from = new(int64) // not what is kept first: the gap before it is told
	}
	if s.lines, err = l.Lines(from, m.Offset, stream); err != nil {
		return nil, err
	}
	if m.Offset != nil {
		s.from = *m.Offset
	} else {
		s.from = l.offsetOf(*from)
	}
	s.lines.from, s.lines.rawEnd = s.from, s.from
	s.recall()
	s.run(ctx)
	return s.answer(st), nil
}

// phase is what a searcher does with the lines it gets.
type phase uint8

const (
	recalling phase = iota // they end before the start
	looking
	draining // the answer is full, but for lines after its matches
)

type searcher struct {
	log           *Log
	lines         *Lines
	find          finder
	from          int64 // raw offset
	before, after int
	cut           int // bytes of a line around a match
	max           int
	found         *wire.Found
	streams       []*vicinity
	phase         phase
	size          int   // bytes of lines in the answer, and of those still to come
	full          bool  // no match is taken but those that end where the last one does
	until         int64 // end of the last match
	next          int64 // chunk of until
	stopped       bool  // by ctx, or by output that outran us
	atEnd         bool  // all that is kept was looked at
	closed        bool  // and nothing will follow
	more          bool  // unfinished lines were not looked at
}

// vicinity is what a search keeps of a stream.
type vicinity struct {
	stream  wire.Stream
	ring    [][]byte    // the last lines, oldest first
	pending []int       // matches that want lines after them
	drawn   *wire.Match // of the line as it stood before a redraw
	gaps    int         // seen so far
	partial bool        // the next line that ends lacks its start
}

func (s *searcher) of(stream wire.Stream) *vicinity {
	for _, v := range s.streams {
		if v.stream == stream {
			return v
		}
	}
	v := &vicinity{stream: stream, gaps: len(s.lines.gaps)}
	s.streams = append(s.streams, v)
	return v
}

// run looks at the output until the answer is full, all was looked at, or ctx ends.
func (s *searcher) run(ctx context.Context) {
	s.phase = looking
	limit := s.log.Stats().TotalBytes + overtake
	var drained int64
	for {
		if s.full && s.phase == looking && s.lines.rawEnd > s.until {
			s.phase = draining // no line that follows ends where the last match does
		}
		if s.phase == draining {
			if !s.narrow() || s.lines.rawEnd-drained > drainMax && drained > 0 || ctx.Err() != nil {
				return
			}
			if drained == 0 {
				drained = s.lines.rawEnd
			}
		} else if s.lines.rawEnd > s.from && (ctx.Err() != nil || s.lines.rawEnd > limit) {
			s.stopped = true
			return
		}
		s.closed = s.log.Closed() // before the look, so that one at what is closed is the last
		more := s.lines.Scan(s.line)
		s.passed()
		if s.lines.stopped {
			return
		}
		if !more {
			s.atEnd = true
			slices.SortFunc(s.lines.streams, func(a, b *openLine) int { return int(a.stream) - int(b.stream) })
			s.lines.Open(s.line)
			return
		}
	}
}

// passed forgets the lines before a gap, where no line of the stream came since.
func (s *searcher) passed() {
	for _, v := range s.streams {
		v.pass(len(s.lines.gaps))
	}
}

func (v *vicinity) pass(gaps int) {
	if v.gaps < gaps {
		v.gaps, v.pending, v.ring, v.drawn = gaps, nil, v.ring[:0], nil
	}
}

// narrow looks only at the stream whose lines are wanted, if it is one; false when none
// are.
func (s *searcher) narrow() bool {
	var wanted []wire.Stream
	for _, v := range s.streams {
		if len(v.pending) > 0 {
			wanted = append(wanted, v.stream)
		}
	}
	if len(wanted) == 1 {
		s.lines.stream = wanted[0]
	}
	return len(wanted) > 0
}

// line takes a line; false when no more are wanted.
func (s *searcher) line(l *Line) bool {
	v := s.of(l.Stream)
	end := s.endOf(l)
	if n := len(s.lines.gaps); n > 0 && l.NextOffset > s.lines.gaps[n-1].Offset {
		v.pass(n) // it is from behind the gap, not cut by it
	}
	switch {
	case s.phase == draining:
	case l.Kind == LineRedrawn:
		if v.drawn == nil {
			if from, to, ok := s.find(l.Text); ok {
				m := l.Match(from, to)
				v.drawn = &m
			}
		}
		return true
	case s.phase == recalling:
		v.drawn = nil
		if !v.partial {
			v.remember(l.Text, s.before, s.cut)
		}
		v.partial = false
		return true
	case s.full && l.Kind == LineOpen:
		s.more = true
	case s.full && end > s.until:
		s.phase = draining
	}
	if l.Kind == LineRedrawn {
		return true
	}
	s.follow(v, l.Text)
	if s.phase == draining {
		return s.narrow()
	}
	s.look(v, l, end)
	v.drawn = nil
	v.remember(l.Text, s.before, s.cut)
	return true
}

// endOf is the raw offset at which a line counts as ended: of one that a gap cut, the gap.
func (s *searcher) endOf(l *Line) int64 {
	if n := len(s.lines.gaps); n > 0 {
		return max(l.NextOffset, s.lines.gaps[n-1].Offset)
	}
	return l.NextOffset
}

// look takes the line into the answer if it matches.
func (s *searcher) look(v *vicinity, l *Line, end int64) {
	if s.full && l.Kind == LineOpen {
		return
	}
	var m wire.Match
	if from, to, ok := s.find(l.Text); ok {
		m = l.Match(from, to)
	} else if v.drawn != nil {
		m = *v.drawn
		m.NextCursor, m.NextOffset = l.NextCursor, l.NextOffset
	} else {
		return
	}
	m.Unfinished = l.Kind == LineOpen && !s.closed
	for _, b := range v.ring {
		m.Before = append(m.Before, string(b))
		s.size += len(b)
	}
	s.found.Matches = append(s.found.Matches, m)
	s.size += len(m.Line) + s.after*s.cut
	if l.Kind == LineOpen {
		return // those at the end come all: which of them were given, no offset could say
	}
	if s.after > 0 {
		v.pending = append(v.pending, len(s.found.Matches)-1)
	}
	if s.until, s.next = end, l.NextCursor; end < s.lines.rawEnd {
		s.next--
	}
	s.full = len(s.found.Matches) >= s.max || s.size >= maxFound
}

// follow gives a line to the matches before it that want it.
func (s *searcher) follow(v *vicinity, text []byte) {
	if len(v.pending) == 0 {
		return
	}
	line := string(clip(text, s.cut))
	v.pending = slices.DeleteFunc(v.pending, func(i int) bool {
		m := &s.found.Matches[i]
		m.After = append(m.After, line)
		return len(m.After) == s.after
	})
}

// remember keeps the last n lines, each cut to so many bytes.
func (v *vicinity) remember(text []byte, n, cut int) {
	if n == 0 {
		return
	}
	var b []byte
	if len(v.ring) == n {
		b = v.ring[0][:0]
		v.ring = v.ring[:copy(v.ring, v.ring[1:])]
	}
	v.ring = append(v.ring, append(b, clip(text, cut)...))
}

// clip is the first n bytes of a text, less what would split a character.
func clip(text []byte, n int) []byte {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// answer says where the search stopped.
func (s *searcher) answer(st State) *wire.Found {
	l, f := s.log, s.found
	f.Version, f.Process = wire.Version, l.cfg.Process
	f.NextOffset, f.NextCursor = max(s.from, s.lines.rawEnd), s.lines.Next()
	f.HasMore = s.stopped
	if s.full {
		f.HasMore = s.more || !s.atEnd || s.until < s.lines.rawEnd
		f.NextOffset, f.NextCursor = s.until, s.next
	}
	f.Scanned = f.NextOffset - s.from
	for _, g := range s.lines.Gaps() {
		if g.Offset < f.NextOffset {
			f.Gaps = append(f.Gaps, g)
			f.Scanned -= g.NextOffset - max(g.Offset, s.from)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f.State, f.ExitCode, f.Output = st.State, st.ExitCode, l.stats()
	f.End = s.atEnd && s.closed && !f.HasMore && st.State.Terminal()
	return f
}
