package output

import (
	"bytes"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// text appends data to dst as UTF-8, after the carry of s, and leaves the new carry
// in s. Each byte that is part of no character becomes U+FFFD; loss counts them.
func (s *state) text(dst, data []byte) (out []byte, loss int) {
	if s.n > 0 {
		var tmp [utf8.UTFMax]byte
		have := copy(tmp[:], s.carry[:s.n])
		n := have + copy(tmp[have:], data)
		if !utf8.FullRune(tmp[:n]) {
			s.hold(tmp[:n])
			return dst, 0
		}
		i := 0
		for i < have {
			r, size := utf8.DecodeRune(tmp[i:n])
			if r == utf8.RuneError && size == 1 {
				loss++
			}
			dst = utf8.AppendRune(dst, r)
			i += size
		}
		data, s.n = data[i-have:], 0
	}
	k := len(data) - incomplete(data)
	b := data[:k]
	s.hold(data[k:])
	if utf8.Valid(b) {
		return append(dst, b...), loss
	}
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		if r == utf8.RuneError && size == 1 {
			loss++
		}
		dst = utf8.AppendRune(dst, r)
		b = b[size:]
	}
	return dst, loss
}

// census counts bytes, to tell text from binary.
type census struct {
	total   int64
	count   [256]int64
	invalid bool // not UTF-8, somewhere
}

func (c *census) add(b []byte) {
	c.total += int64(len(b))
	for _, x := range b {
		c.count[x]++
	}
}

// Thresholds of A14 (minSample, controls) and P35 (nuls, entropy).
const (
	minSample      = 64
	minControls    = 0.05
	minNuls        = 0.01
	entropySample  = 256
	minEntropy     = 7.5
	maxNulsInValid = 1.0 / 3
)

// binary reports whether what was counted is withheld from text views, and the
// share of control bytes.
//
// Valid UTF-8 is text, NUL included, so that `find -print0` survives (A14); but not
// when over a third of it is NUL: /dev/zero and UTF-16 are no text (P35). Other
// bytes are binary from 64 bytes on, with 5 % control bytes or over 1 % NUL, and
// from 256 bytes on with an entropy of 7.5 bits or more; what remains is text in a
// legacy encoding.
func (c *census) binary() (withheld bool, controls float64) {
	if c.total < minSample {
		return false, 0
	}
	var n int64
	for b, k := range c.count[:0x20] {
		if b != '\t' && b != '\n' && b != '\r' {
			n += k
		}
	}
	total := float64(c.total)
	controls = float64(n+c.count[0x7f]) / total
	nuls := float64(c.count[0]) / total
	if !c.invalid {
		return nuls > maxNulsInValid, controls
	}
	return controls >= minControls || nuls > minNuls ||
		c.total >= entropySample && c.entropy() >= minEntropy, controls
}

// entropy is Shannon's, in bits a byte.
func (c *census) entropy() float64 {
	var h float64
	for _, k := range c.count {
		if k > 0 {
			p := float64(k) / float64(c.total)
			h -= p * math.Log2(p)
		}
	}
	return h
}

// binaryChunk judges one chunk by itself; a character split at either end is no fault.
func binaryChunk(s state, data []byte) (withheld bool, controls float64) {
	if len(data) < minSample {
		return false, 0
	}
	valid := s.validUTF8(data)
	if valid && bytes.IndexByte(data, 0) < 0 {
		return false, 0
	}
	c := census{invalid: !valid}
	c.add(data)
	return c.binary()
}

// validUTF8 reports whether data continues the carry of s without a fault.
func (s state) validUTF8(data []byte) bool {
	if s.n > 0 {
		var tmp [utf8.UTFMax]byte
		have := copy(tmp[:], s.carry[:s.n])
		n := have + copy(tmp[have:], data)
		if !utf8.FullRune(tmp[:n]) {
			return true
		}
		r, size := utf8.DecodeRune(tmp[:n])
		if r == utf8.RuneError && size == 1 {
			return false
		}
		data = data[size-have:]
	}
	return utf8.Valid(data[:len(data)-incomplete(data)])
}

// placeholder stands for withheld output; it is under 300 bytes.
func placeholder(stream wire.Stream, n int64, controls float64) string {
	return fmt.Sprintf("[binary output on %s withheld: %d bytes, %.1f%% control bytes; "+
		"read it with view base64, or send it to a file and look with `file` and `xxd`]", stream, n, controls*100)
}
