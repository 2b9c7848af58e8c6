package output

import (
	"bytes"
	"regexp"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// finder tells where in a line its pattern is.
type finder func(line []byte) (start, end int, ok bool)

// finderOf makes the finder of a search, for one goroutine.
func finderOf(m *wire.Search) (finder, error) {
	if m.Literal && !m.IgnoreCase {
		text := []byte(m.Pattern)
		return func(line []byte) (int, int, bool) {
			i := bytes.Index(line, text)
			return i, i + len(text), i >= 0
		}, nil
	}
	p := m.Pattern
	if m.Literal {
		p = regexp.QuoteMeta(p)
	}
	if m.IgnoreCase {
		p = "(?i:" + p + ")"
	}
	re, err := regexp.Compile(p)
	if err != nil {
		return nil, wire.Invalid("pattern", "is no regular expression of RE2 (%v); literal: true searches for the text itself", err)
	}
	match := func(line []byte) (int, int, bool) {
		at := re.FindIndex(line)
		if at == nil {
			return 0, 0, false
		}
		return at[0], at[1], true
	}
	if text, ascii := lower(nil, []byte(m.Pattern)); m.Literal && ascii {
		var buf []byte
		return func(line []byte) (int, int, bool) {
			if buf, ascii = lower(buf[:0], line); !ascii {
				return match(line) // some letters beyond ASCII fold to k and s
			}
			i := bytes.Index(buf, text)
			return i, i + len(text), i >= 0
		}, nil
	}
	return match, nil
}

// lower appends text in lower case to dst, and reports whether it is all ASCII. It is
// ten times as fast as a regular expression that ignores the case.
func lower(dst, text []byte) (out []byte, ascii bool) {
	n := len(dst)
	dst = append(dst, text...)
	var all byte
	for i, c := range dst[n:] {
		all |= c
		if c-'A' < 26 {
			dst[n+i] = c + ('a' - 'A')
		}
	}
	return dst, all < 0x80
}
