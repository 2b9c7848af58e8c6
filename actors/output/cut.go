package output

import (
	"bytes"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// seg is a line of rendered text, or a part of one that is too long to hold.
type seg struct {
	start, end int // of its text in keep.buf
	bol, eol   bool
	pos        int64 // where it starts in the text's streams, one after the other
	raw        int64 // bytes of output it stands for; 0 for a line of ours
	goff       int64 // where it starts over all streams
	loss       int
	text       []byte // set when cut
}

// size is what a text counts against its limits. Of lines, an unfinished last one counts.
func (g *seg) size(text []byte, m limits) (n limits) {
	n.bytes = len(text)
	if g.eol {
		n.lines = 1
	}
	if m.chars != math.MaxInt {
		n.chars = utf8.RuneCount(text)
	}
	return n
}

func (m limits) plus(n limits) limits {
	return limits{m.bytes + n.bytes, m.lines + n.lines, m.chars + n.chars}
}

func (m limits) minus(n limits) limits {
	return limits{m.bytes - n.bytes, m.lines - n.lines, m.chars - n.chars}
}

// within reports whether m exceeds none of the limits.
func (m limits) within(limit limits) bool {
	return m.bytes <= limit.bytes && m.lines <= limit.lines && m.chars <= limit.chars
}

// keep collects the first segments, or the last ones, of a text: a little more than
// the limits, in bounded memory.
type keep struct {
	first   bool
	limits  limits
	buf     []byte
	segs    []seg
	have    limits // of segs
	dropped bool   // what is before the last segments does not matter
}

// add takes a segment; false when there is enough.
func (k *keep) add(g seg, text []byte) bool {
	g.start, g.end, g.text = len(k.buf), len(k.buf)+len(text), nil
	k.buf = append(k.buf, text...)
	k.segs = append(k.segs, g)
	k.have = k.have.plus(g.size(text, k.limits))
	if k.first {
		have := k.have
		if !g.eol {
			have.lines++
		}
		return have.within(k.limits)
	}
	k.roll()
	return true
}

// roll lets go of the oldest segments while the others fill a limit without them.
func (k *keep) roll() {
	n := 0
	for n < len(k.segs)-1 {
		g := &k.segs[n]
		rest := k.have.minus(g.size(k.buf[g.start:g.end], k.limits))
		if rest.within(k.limits) {
			break
		}
		k.have = rest
		k.dropped = true
		n++
	}
	k.segs = k.segs[n:]
	if len(k.buf) > 4*k.limits.bytes+recordMax && len(k.segs) > 0 {
		off := k.segs[0].start
		k.buf = append([]byte(nil), k.buf[off:]...)
		segs := make([]seg, len(k.segs))
		for i, g := range k.segs {
			g.start, g.end = g.start-off, g.end-off
			segs[i] = g
		}
		k.segs = segs
	}
}

// settle gives the segments their text.
func (k *keep) settle() []seg {
	for i := range k.segs {
		k.segs[i].text = k.buf[k.segs[i].start:k.segs[i].end]
	}
	return k.segs
}

// cut is what is shown: segments of the start and of the end.
type cut struct {
	head, tail []seg
}

// lineShare is the least, in percent of what may be shown, that whole lines must fill:
// with A13's 40/40 a fifth of the limit.
const lineShare = 25

func cutShape(r wire.Render, head, tail *keep) cut {
	h, t := head.settle(), tail.settle()
	limit := head.limits
	up, down := limit.parts(r)
	switch r.Shape {
	case wire.ShapeHead:
		up, down = limit, limits{}
	case wire.ShapeTail:
		up, down = limits{}, limit
	}
	var c cut
	if !r.Exact {
		c.head = headLines(h, up)
		c.tail = tailLines(after(t, c.head, seg{}), down)
	}
	if r.Exact || c.count().tooLittle(up.and(down)) {
		var rest seg
		c.head, rest = headExact(h, up)
		c.tail = tailExact(after(t, c.head, rest), down)
	}
	return c
}

// after gives the segments of a tail that start behind a head. rest is what the head
// left of its last segment.
func after(t, head []seg, rest seg) []seg {
	n := len(head)
	if n == 0 {
		return t
	}
	if len(rest.text) > 0 {
		for i := range t {
			if t[i].pos == head[n-1].pos && t[i].raw > 0 && len(t[i].text) == len(head[n-1].text)+len(rest.text) {
				return append([]seg{rest}, t[i+1:]...)
			}
		}
	}
	end := max(head[n-1].pos+head[n-1].raw, rest.pos+rest.raw)
	for len(t) > 0 && (t[0].pos < end || t[0].raw == 0 && t[0].pos == end) {
		t = t[1:]
	}
	return t
}

// headLines gives the longest prefix of whole lines within the limits.
func headLines(g []seg, m limits) []seg {
	n, have := 0, limits{}
	for i := range g {
		if have = have.plus(g[i].size(g[i].text, m)); !have.within(m) {
			break
		}
		if g[i].eol {
			n = i + 1
		}
	}
	return g[:n]
}

// tailLines gives the longest suffix of whole lines within the limits.
func tailLines(g []seg, m limits) []seg {
	n, have := len(g), limits{}
	for i, v := range slices.Backward(g) {
		have = have.plus(v.size(v.text, m))
		if i == len(g)-1 && !v.eol {
			have.lines++
		}
		if !have.within(m) {
			break
		}
		if v.bol {
			n = i
		}
	}
	return g[n:]
}

// headExact gives the first bytes within the limits, ending between two characters,
// and what is left of the segment in which they end.
func headExact(g []seg, m limits) (shown []seg, rest seg) {
	for i := range g {
		if m.lines < 1 {
			return g[:i], seg{}
		}
		need := g[i].size(g[i].text, m)
		if !need.within(m) {
			if n := prefix(g[i].text, m); n > 0 {
				p, q := split(g[i], n)
				return append(slices.Clip(g[:i]), p), q
			}
			return g[:i], seg{}
		}
		m = m.less(need)
	}
	return g, seg{}
}

// tailExact gives the last bytes within the limits, starting between two characters.
func tailExact(g []seg, m limits) []seg {
	for i, v := range slices.Backward(g) {
		need := v.size(v.text, m)
		if i == len(g)-1 {
			need.lines = 1 // an unfinished last one counts
		}
		if need.lines > m.lines {
			return g[i+1:]
		}
		if !need.within(m) {
			if n := suffix(v.text, m); n > 0 {
				_, q := split(v, len(v.text)-n)
				q.raw = min(q.raw, max(int64(n-2*q.loss), 0))
				return append([]seg{q}, g[i+1:]...)
			}
			return g[i+1:]
		}
		m = m.less(need)
	}
	return g
}

// less is what n leaves of m; no limit stays none.
func (m limits) less(n limits) limits {
	r := m.minus(n)
	if m.lines == math.MaxInt {
		r.lines = math.MaxInt
	}
	if m.chars == math.MaxInt {
		r.chars = math.MaxInt
	}
	return r
}

// and is the limits of two parts together.
func (m limits) and(n limits) limits {
	add := func(a, b int) int { return a + min(b, math.MaxInt-a) }
	return limits{add(m.bytes, n.bytes), add(m.lines, n.lines), add(m.chars, n.chars)}
}

// prefix is the length of the longest start of text within the limits that ends between
// two characters.
func prefix(text []byte, m limits) int {
	n := min(len(text), m.bytes)
	for n > 0 && n < len(text) && !utf8.RuneStart(text[n]) {
		n--
	}
	if m.chars == math.MaxInt {
		return n
	}
	i := 0
	for range m.chars {
		if i >= n {
			break
		}
		_, size := utf8.DecodeRune(text[i:n])
		i += size
	}
	return i
}

// suffix is the length of the longest end of text within the limits that starts
// between two characters.
func suffix(text []byte, m limits) int {
	from := max(len(text)-m.bytes, 0)
	for from < len(text) && !utf8.RuneStart(text[from]) {
		from++
	}
	if m.chars == math.MaxInt {
		return len(text) - from
	}
	i := len(text)
	for range m.chars {
		if i <= from {
			break
		}
		_, size := utf8.DecodeLastRune(text[from:i])
		i -= size
	}
	return len(text) - i
}

// split cuts a segment behind n bytes of its text. Where text and output differ in
// length, the first part stands for no more of the output than it shows for certain.
func split(g seg, n int) (p, q seg) {
	p, q = g, g
	p.text, q.text = g.text[:n], g.text[n:]
	p.loss = bytes.Count(p.text, []byte("\uFFFD"))
	p.loss = min(p.loss, g.loss)
	q.loss = g.loss - p.loss
	// A byte that is part of no character shows as three.
	p.raw = min(max(int64(n-2*p.loss), 0), g.raw)
	q.raw = g.raw - p.raw
	q.pos, q.goff = g.pos+p.raw, g.goff+p.raw
	p.eol, q.bol = false, false
	return p, q
}

// counted sums up what a cut shows.
type counted struct {
	bytes, lines, loss, chars int
	raw                       int64
}

func (c cut) count() (n counted) {
	for _, part := range [][]seg{c.head, c.tail} {
		for _, g := range part {
			n.bytes += len(g.text)
			n.chars += utf8.RuneCount(g.text)
			n.raw += g.raw
			n.loss += g.loss
			if g.raw > 0 {
				n.lines += bytes.Count(g.text, lineFeed)
			}
		}
	}
	return n
}

// tooLittle: less is shown than lines must fill of the limits, and not for want of lines.
func (n counted) tooLittle(m limits) bool {
	less := func(n, m int) bool { return m == math.MaxInt || float64(n) < float64(m)*lineShare/100 }
	return n.lines < m.lines && less(n.bytes, m.bytes) && less(n.chars, m.chars)
}

// from is the raw offset at which the omitted part starts, or a little before.
func (c cut) from() int64 {
	if n := len(c.head); n > 0 {
		return c.head[n-1].goff + c.head[n-1].raw
	}
	return 0
}

// text joins the parts, with the note on a line of its own between them, and says where
// it stands.
func (c cut) text(note string) (s string, at, size int) {
	var b bytes.Buffer
	for _, g := range c.head {
		b.Write(g.text)
	}
	at = b.Len()
	if note != "" && at > 0 && b.Bytes()[at-1] != '\n' {
		b.WriteByte('\n')
	}
	b.WriteString(note)
	size = b.Len() - at
	for _, g := range c.tail {
		b.Write(g.text)
	}
	return b.String(), at, size
}
