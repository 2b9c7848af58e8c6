package output

import (
	"bytes"
	"encoding/binary"
	"unicode/utf8"
)

// escape is where in a terminal control sequence a stream is.
type escape uint8

const (
	ground     escape = iota
	escStart          // after ESC
	escInter          // after ESC and intermediates 0x20..0x2F
	escCSI            // in a control sequence; arg is its first parameter
	escOSC            // in an operating system command, which BEL may end too; arg counts
	escString         // in DCS, SOS, PM or APC; arg counts
	escStringE        // after ESC in one of these two
)

// maxString is where we stop to believe in the end of a string sequence: whatever
// follows a stray introducer must not stay hidden for ever.
const maxString = 65535

// state is what a stream leaves open between two chunks.
type state struct {
	carry [3]byte // the start of a character
	n     uint8   // bytes in carry
	esc   escape
	cr    bool // the last byte was a carriage return
	mid   bool // a line has begun and not ended
	arg   uint16
}

func (s *state) encode(b []byte) {
	copy(b, s.carry[:])
	b[3] = s.n | uint8(s.esc)<<2
	if s.cr {
		b[3] |= 1 << 6
	}
	if s.mid {
		b[3] |= 1 << 7
	}
	binary.LittleEndian.PutUint16(b[4:], s.arg)
}

func decodeState(b []byte) state {
	return state{
		carry: [3]byte(b[:3]),
		n:     b[3] & 3,
		esc:   min(escape(b[3]>>2&15), escStringE),
		cr:    b[3]&(1<<6) != 0,
		mid:   b[3]&(1<<7) != 0,
		arg:   binary.LittleEndian.Uint16(b[4:]),
	}
}

// incomplete is the length of the unfinished character at the end of b, 0..3.
func incomplete(b []byte) int {
	for i := 1; i <= min(3, len(b)); i++ {
		if utf8.RuneStart(b[len(b)-i]) {
			if utf8.FullRune(b[len(b)-i:]) {
				return 0
			}
			return i
		}
	}
	return 0
}

// advance moves s over data. Output without escapes, which is nearly all of it,
// costs two vector scans.
func (s *state) advance(data []byte) {
	if len(data) == 0 {
		return
	}
	if s.n == 0 && s.esc == ground && bytes.IndexByte(data, 0x1b) < 0 && bytes.IndexByte(data, 0xc2) < 0 {
		k := len(data) - incomplete(data)
		if k > 0 {
			s.cr = data[k-1] == '\r'
		}
		s.mid = k < len(data) || data[k-1] != '\n'
		s.hold(data[k:])
		return
	}
	s.feed(data, nil)
}

func (s *state) hold(b []byte) {
	var c [3]byte // b may be as long as carry, and part of it
	s.n = uint8(copy(c[:], b))
	s.carry = c
}

// feed moves s over data and tells w, if any, what a terminal would be told.
func (s *state) feed(data []byte, w *liner) {
	if s.n > 0 {
		var tmp [utf8.UTFMax]byte
		have := copy(tmp[:], s.carry[:s.n])
		n := have + copy(tmp[have:], data)
		if !utf8.FullRune(tmp[:n]) {
			s.hold(tmp[:n])
			s.mid = true
			return
		}
		i := 0
		for i < have {
			r, size := utf8.DecodeRune(tmp[i:n])
			s.step(r, tmp[i:i+size], w)
			i += size
		}
		data, s.n = data[i-have:], 0
	}
	k := len(data) - incomplete(data)
	for b := data[:k]; len(b) > 0; {
		if s.esc == ground {
			if n := plain(b, w == nil); n > 0 {
				s.cr, s.mid = false, w != nil || b[n-1] != '\n'
				if w != nil {
					w.text(b[:n])
				}
				b = b[n:]
				continue
			}
		}
		r, size := utf8.DecodeRune(b)
		s.step(r, b[:size], w)
		b = b[size:]
	}
	s.hold(data[k:])
	s.mid = s.mid || s.n > 0
}

// plain is the length of the prefix of b that needs no step: printable ASCII, and
// when nobody listens all that cannot open a sequence or be a last CR.
func plain(b []byte, deaf bool) int {
	if !deaf {
		for i, c := range b {
			if c < 0x20 || c >= 0x7f {
				return i
			}
		}
		return len(b)
	}
	n := len(b)
	if i := bytes.IndexByte(b, 0x1b); i >= 0 {
		n = i
	}
	if i := bytes.IndexByte(b[:n], 0xc2); i >= 0 {
		n = i
	}
	if n > 0 && b[n-1] == '\r' {
		n--
	}
	return n
}

// step takes one character (its bytes in enc; an invalid byte is utf8.RuneError of
// length 1).
func (s *state) step(r rune, enc []byte, w *liner) {
	s.mid = true
	switch s.esc {
	case ground:
		s.ground(r, enc, w)
	case escStart:
		s.start(r, enc, w)
	case escInter:
		if r >= 0x20 && r <= 0x2f {
			return
		}
		s.esc = ground
		if r < 0x30 || r > 0x7e {
			s.ground(r, enc, w)
		}
	case escCSI:
		s.csi(r, enc, w)
	case escStringE:
		if r == '\\' {
			s.esc = ground
			return
		}
		s.start(r, enc, w)
	case escOSC, escString:
		s.arg++
		switch {
		case r == 0x1b:
			s.esc = escStringE
		case r == 0x07 && s.esc == escOSC, r == 0x9c, r == 0x18, r == 0x1a, s.arg == maxString:
			s.esc = ground
		}
	}
}

func (s *state) ground(r rune, enc []byte, w *liner) {
	s.cr, s.mid = r == '\r', r != '\n'
	switch r {
	case 0x1b:
		s.esc = escStart
	case 0x9b:
		s.esc, s.arg = escCSI, 0
	case 0x9d:
		s.esc, s.arg = escOSC, 0
	case 0x90, 0x98, 0x9e, 0x9f:
		s.esc, s.arg = escString, 0
	default:
		if w != nil {
			w.rune(r, enc)
		}
	}
}

func (s *state) start(r rune, enc []byte, w *liner) {
	s.cr = false
	switch {
	case r == 0x1b:
		s.esc = escStart
	case r == '[':
		s.esc, s.arg = escCSI, 0
	case r == ']':
		s.esc, s.arg = escOSC, 0
	case r == 'P', r == 'X', r == '^', r == '_':
		s.esc, s.arg = escString, 0
	case r >= 0x20 && r <= 0x2f:
		s.esc = escInter
	case r >= 0x30 && r <= 0x7e:
		s.esc = ground
	default: // not a sequence: the character stands for itself
		s.esc = ground
		s.ground(r, enc, w)
	}
}

// argDone marks that the first parameter of a control sequence has ended.
const argDone = 1 << 15

func (s *state) csi(r rune, enc []byte, w *liner) {
	switch {
	case r >= '0' && r <= '9':
		if s.arg&argDone == 0 {
			s.arg = min(s.arg*10+uint16(r-'0'), 3000)
		}
	case r >= 0x20 && r <= 0x3f:
		s.arg |= argDone
	case r >= 0x40 && r <= 0x7e:
		s.esc = ground
		if w != nil {
			w.control(r, int(s.arg&^argDone))
		}
	case r == 0x1b:
		s.esc = escStart
	case r == 0x18, r == 0x1a:
		s.esc = ground
	default:
		s.esc = ground
		s.ground(r, enc, w)
	}
}
