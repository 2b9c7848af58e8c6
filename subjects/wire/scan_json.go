package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strconv"
	"time"
)

// checkJSON walks data against a shape without decoding it.
func checkJSON(data []byte, sh *shape, strict bool) error {
	s := jsonScan{newScan(data, strict)}
	s.fold = true
	var raw json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		if se, ok := errors.AsType[*json.SyntaxError](err); ok {
			return s.fail("not JSON: %s at byte %d", se, se.Offset)
		}
		return s.fail("not JSON: %s", err)
	}
	if err := s.value(sh, 0); err != nil {
		return err
	}
	return nil
}

// jsonScan walks JSON whose syntax is known to be right.
type jsonScan struct{ scan }

// peek skips white space and gives the next byte.
func (s *jsonScan) peek() byte {
	for {
		switch c := s.data[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
}

// eat reports whether the next byte is c, and passes it.
func (s *jsonScan) eat(c byte) bool {
	if s.peek() != c {
		return false
	}
	s.pos++
	return true
}

// literal passes a number, true, false or null.
func (s *jsonScan) literal() []byte {
	start := s.pos
	for s.pos < len(s.data) && !bytes.ContainsRune([]byte(" \t\r\n,]}"), rune(s.data[s.pos])) {
		s.pos++
	}
	return s.data[start:s.pos]
}

// text passes a string and gives what it says.
func (s *jsonScan) text() ([]byte, *Error) {
	start := s.pos
	escaped := false
	for s.pos++; s.data[s.pos] != '"'; s.pos++ {
		if s.data[s.pos] == '\\' {
			escaped = true
			s.pos++
		}
	}
	s.pos++
	raw := s.data[start:s.pos]
	if err := s.checkUTF8(raw); err != nil {
		return nil, err
	}
	if !escaped {
		return raw[1 : len(raw)-1], nil
	}
	if s.strict && loneSurrogate(raw) {
		return nil, s.fail("not valid UTF-8 (half of a surrogate pair)")
	}
	var out string
	if err := json.Unmarshal(raw, &out); err != nil {
		return nil, s.fail("not a string: %s", err)
	}
	return []byte(out), nil
}

// loneSurrogate reports a \uD800..\uDFFF that is not part of a pair: the decoder
// would put U+FFFD in its place and say nothing.
func loneSurrogate(raw []byte) bool {
	unit := func(i int) (uint64, bool) {
		if i+6 > len(raw) || raw[i] != '\\' || raw[i+1] != 'u' {
			return 0, false
		}
		u, err := strconv.ParseUint(string(raw[i+2:i+6]), 16, 16)
		return u, err == nil
	}
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		u, ok := unit(i)
		switch {
		case !ok:
			i++
		case u >= 0xd800 && u < 0xdc00:
			low, ok := unit(i + 6)
			if !ok || low < 0xdc00 || low > 0xdfff {
				return true
			}
			i += 11
		case u >= 0xdc00 && u <= 0xdfff:
			return true
		default:
			i += 5
		}
	}
	return false
}

func (s *jsonScan) value(sh *shape, depth int) *Error {
	if err := s.checkDepth(depth); err != nil {
		return err
	}
	switch c := s.peek(); c {
	case '{':
		switch sh.kind {
		case kindStruct:
			return s.object(sh, depth)
		case kindMap:
			return s.mapping(sh.elem, depth)
		case kindAny:
			return s.mapping(sh, depth)
		}
		return s.wrong("an object", sh.kind)
	case '[':
		switch sh.kind {
		case kindList:
			return s.list(sh.elem, depth)
		case kindAny:
			return s.list(sh, depth)
		}
		return s.wrong("a list", sh.kind)
	case '"':
		return s.textValue(sh)
	case 't', 'f':
		s.literal()
		if sh.kind != kindBool && sh.kind != kindAny {
			return s.wrong("a boolean", sh.kind)
		}
	case 'n':
		s.literal()
		if depth == 0 && sh.kind != kindAny {
			return s.wrong("null", sh.kind)
		}
	default:
		return s.number(string(s.literal()), sh)
	}
	return nil
}

func (s *jsonScan) textValue(sh *shape) *Error {
	b, err := s.text()
	if err != nil {
		return err
	}
	switch sh.kind {
	case kindString, kindAny:
	case kindBytes:
		if _, err := base64.StdEncoding.DecodeString(string(b)); err != nil {
			return s.fail("not standard base64 with padding")
		}
	case kindTime:
		t, err := time.Parse(time.RFC3339, string(b))
		if err != nil || !writableTime(t.Unix()) {
			return s.fail("%s is not a time of RFC 3339, such as 2026-01-02T15:04:05Z", quote(string(b)))
		}
	default:
		return s.wrong("a string", sh.kind)
	}
	return nil
}

func (s *jsonScan) number(lit string, sh *shape) *Error {
	if sh == skipped {
		return nil
	}
	var err error
	switch sh.kind {
	case kindInt:
		_, err = strconv.ParseInt(lit, 10, sh.bits)
	case kindUint:
		_, err = strconv.ParseUint(lit, 10, sh.bits)
	case kindFloat, kindAny:
		_, err = strconv.ParseFloat(lit, 64)
	default:
		return s.wrong("a number", sh.kind)
	}
	if errors.Is(err, strconv.ErrRange) {
		return s.fail("the number is out of range")
	}
	if err != nil {
		return s.fail("%s is not a whole number%s", clip(lit), unsignedHint(sh))
	}
	return nil
}

func unsignedHint(sh *shape) string {
	if sh.kind == kindUint {
		return " of 0 or more"
	}
	return ""
}

func (s *jsonScan) list(elem *shape, depth int) *Error {
	s.pos++
	for i := 0; !s.eat(']'); i++ {
		if i > 0 {
			s.eat(',')
		}
		s.push(step{index: i})
		if err := s.spend(elem); err != nil {
			return err
		}
		if s.strict && s.peek() == 'n' {
			return s.wrong("null", elem.kind)
		}
		if err := s.value(elem, depth+1); err != nil {
			return err
		}
		s.pop()
	}
	return nil
}

func (s *jsonScan) object(sh *shape, depth int) *Error {
	s.pos++
	var given seen
	for first := true; !s.eat('}'); first = false {
		if !first {
			s.eat(',')
		}
		s.peek()
		key, err := s.text()
		if err != nil {
			return err
		}
		s.eat(':')
		i, err := s.field(sh, key, &given)
		if err != nil {
			return err
		}
		name, fs, err := s.child(sh, i, key)
		if err != nil {
			return err
		}
		s.push(step{name: name})
		if err := s.value(fs, depth+1); err != nil {
			return err
		}
		s.pop()
	}
	return nil
}

func (s *jsonScan) mapping(elem *shape, depth int) *Error {
	s.pos++
	given := map[string]bool{}
	for first := true; !s.eat('}'); first = false {
		if !first {
			s.eat(',')
		}
		s.peek()
		key, err := s.text()
		if err != nil {
			return err
		}
		s.eat(':')
		s.push(step{name: keyName(string(key))})
		if err := s.entry(given, string(key), elem); err != nil {
			return err
		}
		if s.strict && s.peek() == 'n' {
			return s.wrong("null", elem.kind)
		}
		if err := s.value(elem, depth+1); err != nil {
			return err
		}
		s.pop()
	}
	return nil
}
