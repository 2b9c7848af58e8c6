package wire

import (
	"encoding/binary"
	"math"
	"time"
)

// checkMsgpack walks data against a shape without decoding it.
func checkMsgpack(data []byte, sh *shape, strict bool) error {
	s := msgpackScan{newScan(data, strict)}
	if err := s.value(sh, 0); err != nil {
		return err
	}
	if s.pos != len(data) {
		s.path = nil
		return s.fail("%d bytes follow it", len(data)-s.pos)
	}
	return nil
}

type msgpackScan struct{ scan }

// token is one msgpack header. A string, bytes or extension lies at raw.
type token struct {
	kind     kind // kindStruct is a map here; kindTime an extension
	null     bool
	n        int // entries of a list or map
	negative bool
	num      uint64 // two's complement when negative
	raw      []byte
	ext      int8
}

func (t token) String() string {
	switch {
	case t.null:
		return "null"
	case t.kind == kindBool:
		return "a boolean"
	case t.kind == kindInt:
		return "a whole number"
	case t.kind == kindFloat:
		return "a fraction"
	case t.kind == kindBytes:
		return "binary data"
	case t.kind == kindTime:
		return "an extension"
	}
	return t.kind.String()
}

func (s *msgpackScan) take(n uint64) ([]byte, *Error) {
	if n > uint64(len(s.data)-s.pos) {
		return nil, s.fail("ends too early")
	}
	b := s.data[s.pos : s.pos+int(n)]
	s.pos += int(n)
	return b, nil
}

// uint reads a big-endian number of 1, 2, 4 or 8 bytes.
func (s *msgpackScan) uint(size int) (uint64, *Error) {
	b, err := s.take(uint64(size))
	if err != nil {
		return 0, err
	}
	var full [8]byte
	copy(full[8-size:], b)
	return binary.BigEndian.Uint64(full[:]), nil
}

func (s *msgpackScan) next() (token, *Error) {
	b, err := s.take(1)
	if err != nil {
		return token{}, err
	}
	switch c := b[0]; {
	case c <= 0x7f:
		return token{kind: kindInt, num: uint64(c)}, nil
	case c <= 0x8f:
		return s.entries(kindStruct, uint64(c&0x0f), 2)
	case c <= 0x9f:
		return s.entries(kindList, uint64(c&0x0f), 1)
	case c <= 0xbf:
		return s.blob(kindString, uint64(c&0x1f))
	case c >= 0xe0:
		return token{kind: kindInt, negative: true, num: uint64(int64(int8(c)))}, nil
	case c == 0xc0:
		return token{null: true}, nil
	case c == 0xc2, c == 0xc3:
		return token{kind: kindBool}, nil
	case c >= 0xcc && c <= 0xcf: // uint8..uint64
		n, err := s.uint(1 << (c - 0xcc))
		return token{kind: kindInt, num: n}, err
	case c >= 0xd0 && c <= 0xd3: // int8..int64
		return s.signed(1 << (c - 0xd0))
	case c == 0xca, c == 0xcb:
		_, err := s.take(4 << (c - 0xca))
		return token{kind: kindFloat}, err
	case c >= 0xd4 && c <= 0xd8:
		return s.extension(1 << (c - 0xd4))
	default:
		return s.sized(c)
	}
}

// sized reads the headers that carry a length of their own.
func (s *msgpackScan) sized(c byte) (token, *Error) {
	var size int
	switch c {
	case 0xc4, 0xc7, 0xd9:
		size = 1
	case 0xc5, 0xc8, 0xda, 0xdc, 0xde:
		size = 2
	case 0xc6, 0xc9, 0xdb, 0xdd, 0xdf:
		size = 4
	default:
		return token{}, s.fail("not msgpack (byte 0x%02x)", c)
	}
	n, err := s.uint(size)
	if err != nil {
		return token{}, err
	}
	switch c {
	case 0xc4, 0xc5, 0xc6:
		return s.blob(kindBytes, n)
	case 0xc7, 0xc8, 0xc9:
		return s.extension(n)
	case 0xd9, 0xda, 0xdb:
		return s.blob(kindString, n)
	case 0xdc, 0xdd:
		return s.entries(kindList, n, 1)
	}
	return s.entries(kindStruct, n, 2)
}

func (s *msgpackScan) blob(k kind, n uint64) (token, *Error) {
	raw, err := s.take(n)
	return token{kind: k, raw: raw}, err
}

func (s *msgpackScan) extension(n uint64) (token, *Error) {
	id, err := s.take(1)
	if err != nil {
		return token{}, err
	}
	t, err := s.blob(kindTime, n)
	t.ext = int8(id[0])
	return t, err
}

func (s *msgpackScan) signed(size int) (token, *Error) {
	n, err := s.uint(size)
	shift := 64 - 8*size
	v := int64(n<<shift) >> shift
	return token{kind: kindInt, negative: v < 0, num: uint64(v)}, err
}

// entries refuses a count that the rest of the data cannot hold.
func (s *msgpackScan) entries(k kind, n, least uint64) (token, *Error) {
	if n > uint64(len(s.data)-s.pos)/least {
		return token{}, s.fail("claims %d entries in %d bytes", n, len(s.data)-s.pos)
	}
	return token{kind: k, n: int(n)}, nil
}

func (s *msgpackScan) value(sh *shape, depth int) *Error {
	if err := s.checkDepth(depth); err != nil {
		return err
	}
	t, err := s.next()
	if err != nil {
		return err
	}
	if t.null {
		if depth == 0 && sh.kind != kindAny {
			return s.wrong("null", sh.kind)
		}
		return nil
	}
	switch sh.kind {
	case kindAny:
		return s.any(t, sh, depth)
	case kindInt, kindUint:
		return s.number(t, sh)
	case kindFloat:
		if t.kind != kindFloat && t.kind != kindInt {
			return s.wrong(t.String(), sh.kind)
		}
		return nil
	case kindStruct, kindMap:
		if t.kind != kindStruct {
			return s.wrong(t.String(), sh.kind)
		}
		if sh.kind == kindMap {
			return s.mapping(t.n, sh.elem, depth)
		}
		return s.object(t.n, sh, depth)
	}
	if t.kind != sh.kind {
		return s.wrong(t.String(), sh.kind)
	}
	switch t.kind {
	case kindString:
		return s.checkUTF8(t.raw)
	case kindTime:
		return s.time(t)
	case kindList:
		return s.list(t.n, sh.elem, depth)
	}
	return nil
}

func (s *msgpackScan) number(t token, sh *shape) *Error {
	if t.kind != kindInt {
		return s.wrong(t.String(), sh.kind)
	}
	var fits bool
	switch {
	case sh.kind == kindUint:
		fits = !t.negative && (sh.bits == 64 || t.num>>sh.bits == 0)
	case t.negative:
		fits = int64(t.num) >= math.MinInt64>>(64-sh.bits)
	default:
		fits = t.num <= math.MaxInt64>>(64-sh.bits)
	}
	if !fits {
		return s.fail("the number is out of range")
	}
	return nil
}

func (s *msgpackScan) time(t token) *Error {
	if t.ext != -1 {
		return s.wrong("an extension of another kind", kindTime)
	}
	var sec int64
	var nsec uint64
	switch len(t.raw) {
	case 4:
		return nil
	case 8:
		v := binary.BigEndian.Uint64(t.raw)
		sec, nsec = int64(v&(1<<34-1)), v>>34
	case 12:
		nsec = uint64(binary.BigEndian.Uint32(t.raw))
		sec = int64(binary.BigEndian.Uint64(t.raw[4:]))
	default:
		return s.wrong("an extension of another length", kindTime)
	}
	if nsec > 999_999_999 || !writableTime(sec) {
		return s.fail("the time is out of range")
	}
	return nil
}

// writableTime reports whether RFC 3339 can say the second: years 1 to 9999.
func writableTime(sec int64) bool {
	first := time.Time{}.Unix()
	last := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).Unix()
	return sec >= first && sec <= last
}

func (s *msgpackScan) list(n int, elem *shape, depth int) *Error {
	for i := range n {
		s.push(step{index: i})
		if err := s.spend(elem); err != nil {
			return err
		}
		if s.strict && s.pos < len(s.data) && s.data[s.pos] == 0xc0 {
			return s.wrong("null", elem.kind)
		}
		if err := s.value(elem, depth+1); err != nil {
			return err
		}
		s.pop()
	}
	return nil
}

func (s *msgpackScan) key() ([]byte, *Error) {
	t, err := s.next()
	if err != nil {
		return nil, err
	}
	if t.null || t.kind != kindString {
		return nil, s.fail("a key is %s; keys are strings", t)
	}
	return t.raw, s.checkUTF8(t.raw)
}

func (s *msgpackScan) object(n int, sh *shape, depth int) *Error {
	var given seen
	for range n {
		key, err := s.key()
		if err != nil {
			return err
		}
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

func (s *msgpackScan) mapping(n int, elem *shape, depth int) *Error {
	given := map[string]bool{}
	for range n {
		key, err := s.key()
		if err != nil {
			return err
		}
		s.push(step{name: keyName(string(key))})
		if err := s.entry(given, string(key), elem); err != nil {
			return err
		}
		if s.strict && s.pos < len(s.data) && s.data[s.pos] == 0xc0 {
			return s.wrong("null", elem.kind)
		}
		if err := s.value(elem, depth+1); err != nil {
			return err
		}
		s.pop()
	}
	return nil
}

// any checks form only: depth, lengths, text keys.
func (s *msgpackScan) any(t token, sh *shape, depth int) *Error {
	switch t.kind {
	case kindList:
		return s.list(t.n, sh, depth)
	case kindStruct:
		return s.mapping(t.n, sh, depth)
	case kindString:
		return s.checkUTF8(t.raw)
	case kindTime:
		if sh == skipped {
			return nil
		}
		return s.fail("an extension may not stand here")
	}
	return nil
}
