package output

import (
	"bytes"
	"slices"
	"unicode/utf8"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// seg is a line of rendered text, or a part of one that is too long to hold.
type seg struct {
	start, end int // of its text in keep.buf
	bol, eol   bool
	pos        int64 // where it starts in the stream
	raw        int64 // bytes of output it stands for; 0 for a line of ours
	goff       int64 // where it starts over all streams
	loss       int
	text       []byte // set when cut
}

// keep collects the first segments, or the last ones, of a text: a little more than
// the limits, in bounded memory.
type keep struct {
	first    bool
	raw      bool // byte limit only, cut by the caller
	maxBytes int
	maxLines int // 0 is no limit
	buf      []byte
	segs     []seg
	bytes    int  // of segs
	lines    int  // of segs
	dropped  bool // what is before the last segments does not matter
}

// add takes a segment; false when there is enough.
func (k *keep) add(g seg, text []byte) bool {
	g.start, g.end = len(k.buf), len(k.buf)+len(text)
	k.buf = append(k.buf, text...)
	k.segs = append(k.segs, g)
	k.bytes += len(text)
	if g.eol {
		k.lines++
	}
	over := k.bytes > k.maxBytes || k.maxLines > 0 && k.over()
	if k.first {
		return !over
	}
	k.roll()
	return true
}

// over reports whether there are more lines than wanted; an unfinished last line counts.
func (k *keep) over() bool {
	n := k.lines
	if len(k.segs) > 0 && !k.segs[len(k.segs)-1].eol {
		n++
	}
	return n > k.maxLines
}

// roll lets go of the oldest segments while the others fill the limits without them.
func (k *keep) roll() {
	n := 0
	for n < len(k.segs)-1 {
		g := k.segs[n]
		lines := k.lines
		if g.eol {
			lines--
		}
		if k.bytes-(g.end-g.start) <= k.maxBytes && (k.maxLines == 0 || lines <= k.maxLines) {
			break
		}
		k.bytes -= g.end - g.start
		k.lines = lines
		k.dropped = true
		n++
	}
	k.segs = k.segs[n:]
	if len(k.buf) > 4*k.maxBytes+recordMax && len(k.segs) > 0 {
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

// Shares of a limit, by A13: what a head and a tail get, and the least that whole
// lines must fill. What remains is room for the notice.
const (
	partShare = 40
	lineShare = 20
	noticeMax = 200
)

func cutShape(r wire.Render, head, tail *keep) cut {
	h, t := head.settle(), tail.settle()
	limit := r.MaxBytes
	part := limit * partShare / 100
	var c cut
	switch r.Shape {
	case wire.ShapeHead:
		c.head = headLines(h, limit-noticeMax, r.MaxLines)
		if tooLittle(c, limit, r.MaxLines) {
			c.head = headBytes(h, limit-noticeMax)
		}
	case wire.ShapeTail:
		c.tail = tailLines(t, limit-noticeMax, r.MaxLines)
		if tooLittle(c, limit, r.MaxLines) {
			c.tail = tailBytes(t, limit-noticeMax)
		}
	default:
		up := r.MaxLines / 2
		if r.MaxLines > 0 && up == 0 {
			up = -1 // one line: the last
		}
		c.head = headLines(h, part, up)
		c.tail = tailLines(after(t, c.head), part, r.MaxLines-max(up, 0))
		if tooLittle(c, limit, r.MaxLines) {
			c.head = headBytes(h, part)
			c.tail = tailBytes(after(t, c.head), part)
		}
	}
	return c
}

// after gives the segments that start behind those shown.
func after(t, shown []seg) []seg {
	if n := len(shown); n > 0 {
		end := shown[n-1].pos + shown[n-1].raw
		for len(t) > 0 && (t[0].pos < end || t[0].raw == 0 && t[0].pos == end) {
			t = t[1:]
		}
	}
	return t
}

// tooLittle: lines fill less than a fifth of the limit, and not for want of lines.
func tooLittle(c cut, limit, maxLines int) bool {
	n := c.count()
	return n.bytes < limit*lineShare/100 && (maxLines == 0 || n.lines < maxLines)
}

// headLines gives the longest prefix of whole lines within the limits; lines 0 is no
// limit and -1 is none.
func headLines(g []seg, limit, lines int) []seg {
	n, size, count := 0, 0, 0
	for i := range g {
		size += len(g[i].text)
		if g[i].eol {
			count++
		}
		if size > limit || lines != 0 && count > max(lines, 0) {
			break
		}
		if g[i].eol {
			n = i + 1
		}
	}
	return g[:n]
}

// tailLines gives the longest suffix of whole lines within the limits.
func tailLines(g []seg, limit, lines int) []seg {
	n, size, count := len(g), 0, 0
	for i, v := range slices.Backward(g) {
		size += len(v.text)
		if v.eol || i == len(g)-1 {
			count++
		}
		if size > limit || lines > 0 && count > lines {
			break
		}
		if v.bol {
			n = i
		}
	}
	return g[n:]
}

// headBytes gives the first bytes, ending between two characters.
func headBytes(g []seg, limit int) []seg {
	for i := range g {
		if len(g[i].text) > limit {
			out := append([]seg(nil), g[:i]...)
			n := limit
			for n > 0 && !utf8.RuneStart(g[i].text[n]) {
				n--
			}
			if n > 0 {
				p := g[i]
				p.text, p.eol, p.raw = p.text[:n], false, min(p.raw, int64(n))
				out = append(out, p)
			}
			return out
		}
		limit -= len(g[i].text)
	}
	return g
}

// tailBytes gives the last bytes, starting between two characters.
func tailBytes(g []seg, limit int) []seg {
	for i, v := range slices.Backward(g) {
		if len(v.text) > limit {
			p := v
			n := len(p.text) - limit
			for n < len(p.text) && !utf8.RuneStart(p.text[n]) {
				n++
			}
			p.text, p.bol = p.text[n:], false
			p.raw = min(p.raw, int64(len(p.text)))
			return append([]seg{p}, g[i+1:]...)
		}
		limit -= len(v.text)
	}
	return g
}

// counted sums up what a cut shows.
type counted struct {
	bytes, lines, loss int
	raw                int64
}

func (c cut) count() (n counted) {
	for _, part := range [][]seg{c.head, c.tail} {
		for _, g := range part {
			n.bytes += len(g.text)
			n.raw += g.raw
			n.loss += g.loss
			if g.raw > 0 {
				n.lines += bytes.Count(g.text, lineFeed)
			}
		}
	}
	return n
}

// from is the raw offset at which the omitted part starts, or a little before.
func (c cut) from() int64 {
	if n := len(c.head); n > 0 {
		return c.head[n-1].goff + c.head[n-1].raw
	}
	return 0
}

// text joins the parts, with the note on a line of its own between them.
func (c cut) text(note string) string {
	var b bytes.Buffer
	for _, g := range c.head {
		b.Write(g.text)
	}
	if n := b.Len(); note != "" && n > 0 && b.Bytes()[n-1] != '\n' {
		b.WriteByte('\n')
	}
	b.WriteString(note)
	for _, g := range c.tail {
		b.Write(g.text)
	}
	return b.String()
}
