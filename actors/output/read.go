package output

import (
	"encoding/base64"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// Bounds of a page.
const (
	MinPage     = 4096
	MaxPage     = 100_000
	DefaultPage = 16_384
	PageChunks  = 1024

	// scanMax bounds what one read looks through for the chunks of one stream.
	scanMax = 4 << 20
)

// State is what a page says of the process.
type State struct {
	State    wire.State
	ExitCode *int
}

// CheckRead reports what is wrong with a request for a page, the log aside.
func CheckRead(r wire.Read) error {
	switch {
	case r.Cursor != nil && r.Offset != nil:
		return wire.Invalid("offset", "cursor and offset exclude each other")
	case r.Cursor != nil && *r.Cursor < 0:
		return wire.Invalid("cursor", "%d is negative", *r.Cursor)
	case r.Offset != nil && *r.Offset < 0:
		return wire.Invalid("offset", "%d is negative", *r.Offset)
	case r.MaxBytes != 0 && (r.MaxBytes < MinPage || r.MaxBytes > MaxPage):
		return wire.Invalid("max_bytes", "%d is outside %d..%d", r.MaxBytes, MinPage, MaxPage)
	case r.WaitMS < 0 || r.WaitMS > 60_000:
		return wire.Invalid("wait_ms", "%d is outside 0..60,000", r.WaitMS)
	}
	switch r.View {
	case "", wire.ViewText, wire.ViewSafe, wire.ViewBase64:
	default:
		return wire.Invalid("view", "%.40q is none of text, safe, base64", r.View)
	}
	if _, ok := wire.ParseStream(r.Stream); !ok && r.Stream != "" {
		return wire.Invalid("stream", "%.40q is none of stdout, stderr, fd3 to fd64", r.Stream)
	}
	return nil
}

// Check reports what Read would refuse now, so that a caller can know before a side
// effect (A36).
func (l *Log) Check(r wire.Read) error {
	if err := CheckRead(r); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bounds(r)
}

// bounds checks a request against what there is. guarded by mu.
func (l *Log) bounds(r wire.Read) error {
	field, asked, latest := "cursor", int64(0), l.next
	switch {
	case l.removed:
		return wire.Errorf(wire.CodeExpired, "the output of process %s is no longer kept", l.cfg.Process)
	case r.Cursor != nil:
		asked = *r.Cursor
	case r.Offset != nil:
		field, asked, latest = "offset", *r.Offset, l.total
	}
	if asked <= latest {
		return nil
	}
	e := wire.Errorf(wire.CodeCursorAhead, "%s %d is ahead of the output, which ends at %d", field, asked, latest)
	e.Field = field
	e.Details = map[string]any{"latest_cursor": l.next, "total_bytes": l.total}
	return e
}

// Read makes a page. It never waits, and the same request gives the same chunks as
// long as they are kept, or says what is gone.
//
// A page holds whole chunks of at most MaxBytes raw bytes, and at most 1,024 of them.
// Only an offset inside a chunk makes a part of one: the page then starts at exactly
// that byte, and NextOffset is exact too. With a stream filter the cursor passes over
// the chunks of the other stream; a page may then be empty and still have more.
//
// When the process has ended and a stream did so inside a character, each page with End
// carries a chunk of 0 source bytes with U+FFFD and the loss (A46); its number is the
// one a next chunk would have had. A page that is not the last has none, or a reader
// that goes on from it would get it twice.
func (l *Log) Read(r wire.Read, st State) (*wire.Page, error) {
	if err := CheckRead(r); err != nil {
		return nil, err
	}
	p := pager{log: l, view: r.View, max: int64(r.MaxBytes)}
	p.stream, _ = wire.ParseStream(r.Stream)
	if p.max == 0 {
		p.max = DefaultPage
	}
	l.mu.Lock()
	if err := l.bounds(r); err != nil {
		l.mu.Unlock()
		return nil, err
	}
	switch {
	case r.Cursor != nil:
		p.next, p.asked = *r.Cursor, true
	case r.Offset != nil:
		p.next = l.cursorAt(*r.Offset)
		p.from, p.asked = *r.Offset, true
	}
	l.mu.Unlock()
	p.fill()
	return p.finish(st), nil
}

// pager fills one page.
type pager struct {
	log    *Log
	view   wire.View
	stream wire.Stream // 0 is any
	max    int64
	next   int64 // number wanted next
	from   int64 // raw offset before which nothing is shown
	asked  bool  // the caller named a position
	page   wire.Page
	bytes  int64
	begun  bool
	offset int64 // behind the last record that was passed
}

func (p *pager) fill() {
	var buf []byte
	for scanned := 0; scanned < scanMax; {
		c := p.log.load(p.next, p.stream, p.max-p.bytes+1, buf)
		p.takeGap(c.gap)
		if c.end {
			return
		}
		if u := c.pass; u.next > u.first {
			p.begin(u.first, max(u.raw, p.from))
			p.next, p.offset = u.next, u.rawEnd
			continue
		}
		buf = c.buf
		scanned += len(c.buf)
		var r record
		for b := c.buf; decode(b, &r); b = b[r.size():] {
			if !p.take(&r) {
				return
			}
		}
	}
}

// takeGap puts a gap in the page.
func (p *pager) takeGap(g *wire.Gap) {
	if g == nil || g.NextOffset <= p.from && p.from > 0 {
		return
	}
	if !p.begun && p.asked {
		p.page.CursorExpired = true
	}
	p.page.Gaps = append(p.page.Gaps, *g)
	p.next, p.offset = g.NextCursor, g.NextOffset
}

// begin notes where the page starts.
func (p *pager) begin(number, offset int64) {
	if !p.begun {
		p.begun = true
		p.page.Cursor, p.page.Offset = number, offset
	}
}

// take puts a record in the page; false when it is full.
func (p *pager) take(r *record) bool {
	skip := 0
	if r.end() <= p.from {
		p.next, p.offset = r.number+1, r.end()
		return true
	}
	if r.raw < p.from && r.source == len(r.data) {
		skip = int(p.from - r.raw)
	}
	other := p.stream != 0 && p.stream != r.stream
	n := int64(r.source - skip)
	if !other && len(p.page.Chunks) > 0 && (p.bytes+n > p.max || len(p.page.Chunks) == PageChunks) {
		return false
	}
	p.begin(r.number, r.raw+int64(skip))
	p.next, p.offset = r.number+1, r.end()
	if !other {
		p.bytes += n
		p.page.Chunks = append(p.page.Chunks, p.log.chunk(r, skip, p.view))
	}
	return true
}

// finish fills in what the page says of the log and the process.
func (p *pager) finish(st State) *wire.Page {
	l := p.log
	l.mu.Lock()
	defer l.mu.Unlock()
	g := &p.page
	g.Version, g.Process = wire.Version, l.cfg.Process
	if !p.begun {
		g.Cursor, g.Offset = p.next, p.offset
		if p.next == l.next {
			g.Offset = l.total
		}
		p.offset = g.Offset
	}
	g.NextCursor, g.NextOffset = p.next, p.offset
	g.HasMore = p.next < l.next
	g.End = l.closed && !g.HasMore && st.State.Terminal()
	g.State, g.ExitCode, g.Output = st.State, st.ExitCode, l.stats()
	if g.End && p.view != wire.ViewBase64 {
		for i, s := range l.states {
			p.open(wire.Stream(i+1), s)
		}
		for _, e := range l.extra {
			p.open(e.stream, e.state)
		}
	}
	if g.Chunks == nil {
		g.Chunks = []wire.Chunk{}
	}
	return g
}

// open puts the character at which a stream broke off in the page.
func (p *pager) open(stream wire.Stream, s state) {
	if s.n > 0 && (p.stream == 0 || p.stream == stream) {
		p.page.Chunks = append(p.page.Chunks, wire.Chunk{
			Cursor: p.log.next, Offset: p.log.total, Stream: stream.String(),
			Text: replacements(int(s.n)), EncodingLoss: int(s.n),
		})
	}
}

func replacements(n int) string { return "\uFFFD\uFFFD\uFFFD"[:3*n] }

// chunk renders a record without its first skip bytes.
func (l *Log) chunk(r *record, skip int, view wire.View) wire.Chunk {
	c := wire.Chunk{
		Cursor: r.number, Offset: r.raw + int64(skip), Stream: r.stream.String(),
		SourceBytes: r.source - skip, At: r.at(), OrderUnknown: r.flags&flagNoRank != 0,
	}
	data, s := r.data[skip:], r.state()
	if view == wire.ViewBase64 {
		c.Data = base64.StdEncoding.EncodeToString(data)
		return c
	}
	if withheld, controls := binaryChunk(s, r.data); withheld {
		c.Binary = true
		c.Text = placeholder(r.stream, int64(len(r.data)), controls)
		c.EncodingLoss = int(s.n)
		return c
	}
	s.advance(r.data[:skip])
	if view == wire.ViewSafe {
		open := r.number > 0 || skip > 0
		w := liner{open: open, cr: s.cr, tty: l.cfg.TTY}
		s.feed(data, &w)
		c.Text, c.EncodingLoss = string(w.flush()), w.loss
		return c
	}
	b, loss := s.text(make([]byte, 0, len(data)+len(s.carry)), data)
	c.Text, c.EncodingLoss = string(b), loss
	return c
}
