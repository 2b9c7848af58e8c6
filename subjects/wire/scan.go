package wire

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxDepth = 32

	// Memory that a message may decode to: a list of empty objects would otherwise
	// cost hundreds of bytes for each one of the input.
	budgetBase   = 64 << 10
	budgetFactor = 32

	maxQuoted = 64 // bytes of a stranger's text that an error repeats
)

// scan is what both scanners share: where they are and what is left to spend.
type scan struct {
	data   []byte
	pos    int
	strict bool
	fold   bool // the decoder finds fields in any case (encoding/json does)
	budget int
	path   []step
}

// step is one part of a path: a field or key, or an index when the name is empty.
type step struct {
	name  string
	index int
}

func newScan(data []byte, strict bool) scan {
	return scan{data: data, strict: strict, budget: budgetBase + budgetFactor*len(data), path: make([]step, 0, 8)}
}

func (s *scan) push(st step) { s.path = append(s.path, st) }
func (s *scan) pop()         { s.path = s.path[:len(s.path)-1] }

// at is the path as callers write it: command.env[2].name.
func (s *scan) at() string {
	var b strings.Builder
	for _, st := range s.path {
		if st.name == "" {
			b.WriteString("[" + strconv.Itoa(st.index) + "]")
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(clip(st.name))
	}
	return b.String()
}

func (s *scan) fail(format string, args ...any) *Error {
	return invalidAt(s.at(), format, args...)
}

// invalidAt is [Invalid], or speaks of the whole message when the path is empty.
func invalidAt(path, format string, args ...any) *Error {
	if path == "" {
		return &Error{Code: CodeInvalidArguments, Message: "the message: " + fmt.Sprintf(format, args...)}
	}
	return Invalid(path, format, args...)
}

func (s *scan) wrong(found string, want kind) *Error {
	return s.fail("%s is not %s", found, want)
}

// spend charges the memory of one more value.
func (s *scan) spend(sh *shape) *Error {
	if s.budget -= sh.size; s.budget < 0 {
		return s.fail("too many values for a message of %d bytes", len(s.data))
	}
	return nil
}

func (s *scan) checkDepth(depth int) *Error {
	if depth > maxDepth {
		return s.fail("nested deeper than %d", maxDepth)
	}
	return nil
}

func (s *scan) checkUTF8(b []byte) *Error {
	if s.strict && !utf8.Valid(b) {
		return s.fail("not valid UTF-8")
	}
	return nil
}

// seen marks the fields of an object that were given.
type seen [4]uint64

func (m *seen) twice(i int) bool {
	w, bit := &m[i/64%len(m)], uint64(1)<<(i%64)
	was := *w&bit != 0
	*w |= bit
	return was
}

// field finds the field of a key, or says that there is none: -1 in lenient mode.
func (s *scan) field(sh *shape, key []byte, given *seen) (int, *Error) {
	i, ok := sh.index[string(key)]
	if !ok && s.fold && !s.strict {
		i = slices.IndexFunc(sh.fields, func(f field) bool { return strings.EqualFold(f.name, string(key)) })
		ok = i >= 0
	}
	if !ok {
		if s.strict {
			return 0, s.unknown(sh, string(key))
		}
		return -1, nil
	}
	if given.twice(i) && s.strict {
		s.push(step{name: sh.fields[i].name})
		return 0, s.fail("given twice")
	}
	return i, nil
}

func (s *scan) unknown(sh *shape, key string) *Error {
	names := make([]string, len(sh.fields))
	for i, f := range sh.fields {
		names[i] = f.name
	}
	near := Nearest(key, names)
	s.push(step{name: keyName(key)})
	e := &Error{Code: CodeUnknownField, Field: s.at()}
	e.Message = e.Field + ": there is no such field"
	if near != "" {
		e.Message += "; the nearest is " + near
		e.Details = map[string]any{"nearest": near}
	}
	return e
}

// clip shortens a stranger's text for a message.
func clip(s string) string {
	if len(s) <= maxQuoted {
		return s
	}
	return strings.ToValidUTF8(s[:maxQuoted], "") + "…"
}

func quote(s string) string { return strconv.Quote(clip(s)) }

// anyShape is a value of which only the form is checked; its size is what an
// interface value costs at least.
var anyShape = &shape{kind: kindAny, size: 32}

// skipped is the value of a field that is not known here: passed over, never decoded.
var skipped = &shape{kind: kindAny}

// child is the name and shape of an object's entry; i is what [scan.field] found.
func (s *scan) child(sh *shape, i int, key []byte) (string, *shape, *Error) {
	if i < 0 {
		return keyName(string(key)), skipped, nil
	}
	f := sh.fields[i]
	return f.name, f.shape, s.spend(f.shape)
}

// entry accounts for one entry of a map.
func (s *scan) entry(given map[string]bool, key string, elem *shape) *Error {
	if s.strict {
		if given[key] {
			return s.fail("given twice")
		}
		given[key] = true
	}
	if err := s.spend(anyShape); err != nil { // the key
		return err
	}
	return s.spend(elem)
}

// keyName is a key as it stands in a path.
func keyName(key string) string {
	if key == "" {
		return `""`
	}
	return clip(strings.ToValidUTF8(key, "\uFFFD"))
}
