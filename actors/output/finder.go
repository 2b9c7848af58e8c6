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
	pattern, err := NewPattern(p)
	if err != nil {
		return nil, wire.Invalid("pattern", "is no regular expression of RE2 (%v); literal: true searches for the text itself", err)
	}
	return pattern.Find, nil
}
