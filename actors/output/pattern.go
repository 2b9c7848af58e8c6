package output

import (
	"bytes"
	"regexp"
	"regexp/syntax"
	"strings"
)

// Pattern finds a regular expression in lines. Most lines do not match, and most
// expressions have words that each match must hold: looking for those first is ten times
// faster. It is used by one goroutine at a time.
type Pattern struct {
	re *regexp.Regexp
	// words, of which each match holds one; none where nothing is known.
	words [][]byte
	fold  bool   // they are lower-case, for a match in any case
	odd   bool   // and one has a letter that is not ASCII in another case
	low   []byte // a line in lower case
}

// maxNeedles bounds the words looked for in each line.
const maxNeedles = 8

// NewPattern takes the syntax of RE2.
func NewPattern(expr string) (*Pattern, error) {
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, err
	}
	p := &Pattern{re: re}
	tree, err := syntax.Parse(expr, syntax.Perl)
	if prefix, _ := re.LiteralPrefix(); err != nil || prefix != "" {
		return p, nil // regexp looks for a prefix itself
	}
	words, fold := required(tree.Simplify())
	if len(words) > maxNeedles {
		return p, nil
	}
	p.fold = fold
	for _, w := range words {
		if fold {
			w = string(lower(nil, []byte(w)))
			p.odd = p.odd || strings.ContainsAny(w, "ks")
		}
		p.words = append(p.words, []byte(w))
	}
	return p, nil
}

// Find gives the first match in a line.
func (p *Pattern) Find(line []byte) (start, end int, ok bool) {
	if !p.may(line) {
		return 0, 0, false
	}
	at := p.re.FindIndex(line)
	if at == nil {
		return 0, 0, false
	}
	return at[0], at[1], true
}

// may reports whether a line can match at all.
func (p *Pattern) may(line []byte) bool {
	if len(p.words) == 0 {
		return true
	}
	if p.fold {
		if p.low = lower(p.low[:0], line); p.odd && (bytes.Contains(line, longS) || bytes.Contains(line, kelvin)) {
			return true
		}
		line = p.low
	}
	for _, w := range p.words {
		if bytes.Contains(line, w) {
			return true
		}
	}
	return false
}

// The only characters beyond ASCII that are an ASCII letter in another case: s and k.
var longS, kelvin = []byte("\u017F"), []byte("\u212A")

// lower appends text to dst, ASCII letters in lower case.
func lower(dst, text []byte) []byte {
	n := len(dst)
	dst = append(dst, text...)
	for i, c := range dst[n:] {
		if c-'A' < 26 {
			dst[n+i] = c + ('a' - 'A')
		}
	}
	return dst
}

// required gives words of which each match of re holds one; none where that is not known.
// fold says that they may be there in another case.
func required(re *syntax.Regexp) (words []string, fold bool) {
	switch re.Op {
	case syntax.OpLiteral:
		fold = re.Flags&syntax.FoldCase != 0
		for _, r := range re.Rune {
			if fold && r >= 0x80 {
				return nil, false
			}
		}
		return []string{string(re.Rune)}, fold
	case syntax.OpCapture, syntax.OpPlus:
		return required(re.Sub[0])
	case syntax.OpConcat: // the rarest of its parts, which is likely the longest
		best := 0
		for _, sub := range re.Sub {
			if w, f := required(sub); len(w) > 0 && shortest(w) > best {
				best, words, fold = shortest(w), w, f
			}
		}
		return words, fold
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			w, f := required(sub)
			if len(w) == 0 {
				return nil, false
			}
			words, fold = append(words, w...), fold || f
		}
		return words, fold
	}
	return nil, false
}

func shortest(words []string) int {
	n := len(words[0])
	for _, w := range words {
		n = min(n, len(w))
	}
	return n
}
