package output

import "unicode/utf8"

// maxLine is the longest line in which redraws collapse. What is longer is passed
// on; it also bounds the cost of writing over a line.
const maxLine = 4096

// liner makes safe text: it is told characters and line controls, drops the other
// controls, and shows of a redrawn line what a terminal would show.
type liner struct {
	out  []byte // done
	line []byte // the current line from its first column
	pos  int    // where the next character goes in line
	// open: the start of the line is elsewhere (in an earlier chunk, or already in
	// out), so that nothing can be written over; characters go to out.
	open bool
	none bool // line was erased whole, and is spaces only up to the cursor
	cr   bool // a carriage return waits for what follows it
	tty  bool // CR LF is a line end
	loss int  // bytes replaced by U+FFFD
	// redrawn is told before what line shows is drawn over; drawn counts the bytes of text
	// for who listens. It may be nil.
	redrawn func()
	drawn   int
}

// text takes characters that need no look.
func (w *liner) text(b []byte) {
	w.settle()
	w.drawn += len(b)
	if w.open {
		w.out = append(w.out, b...)
		return
	}
	w.none = false
	for w.pos < len(w.line) && len(b) > 0 {
		_, size := utf8.DecodeRune(b)
		w.overwrite(b[:size])
		b = b[size:]
	}
	if len(b) == 0 {
		return
	}
	w.line = append(w.line, b...)
	w.pos = len(w.line)
	if w.pos > maxLine {
		w.out = append(w.out, w.line...)
		w.line, w.pos, w.open = w.line[:0], 0, true
	}
}

// overwrite puts one character in the place of the one at pos.
func (w *liner) overwrite(enc []byte) {
	_, old := utf8.DecodeRune(w.line[w.pos:])
	if d := len(enc) - old; d != 0 {
		tail := len(w.line)
		if d > 0 {
			w.line = append(w.line, enc[:d]...)
		}
		copy(w.line[w.pos+len(enc):], w.line[w.pos+old:tail])
		w.line = w.line[:tail+d]
	}
	w.pos += copy(w.line[w.pos:], enc)
}

// settle carries out a carriage return that no line feed followed.
func (w *liner) settle() {
	if !w.cr {
		return
	}
	w.cr = false
	if w.open {
		w.out = append(w.out, '\r')
		w.open = false
	}
	w.lose()
	if w.none {
		w.line, w.none = w.line[:0], false
	}
	w.pos = 0
}

// lose says that what the line shows will be drawn over.
func (w *liner) lose() {
	if w.redrawn != nil && w.drawn > 0 && len(w.line) > 0 && !w.none {
		w.redrawn()
	}
}

// rune takes any character; an invalid byte comes as utf8.RuneError of length 1.
func (w *liner) rune(r rune, enc []byte) {
	switch {
	case r == '\n':
		w.out = append(w.out, w.line...)
		if w.cr && !w.tty {
			w.out = append(w.out, '\r')
		}
		w.out = append(w.out, '\n')
		w.line, w.pos, w.open, w.cr = w.line[:0], 0, false, false
		w.none = false
	case r == '\r':
		w.cr = true
	case r == '\b':
		w.settle()
		if w.pos > 0 {
			_, size := utf8.DecodeLastRune(w.line[:w.pos])
			w.pos -= size
		}
	case r == utf8.RuneError && len(enc) == 1:
		w.loss++
		w.text([]byte("\uFFFD"))
	case r == '\t', r >= 0x20 && r < 0x7f, r >= 0xa0:
		w.text(enc)
	}
}

// control takes a control sequence: its final byte and first parameter. Only those
// count that redraw within a line: EL, and CHA to the first column.
func (w *liner) control(final rune, arg int) {
	switch final {
	case 'K':
		w.settle()
		if w.open {
			return
		}
		if arg > 0 || w.pos < len(w.line) {
			w.lose()
		}
		switch arg {
		case 0:
			w.line = w.line[:w.pos]
		case 1:
			blank(w.line[:w.pos])
		case 2:
			w.line = w.line[:w.pos]
			blank(w.line)
			w.none = true
		}
	case 'G':
		if arg <= 1 {
			w.cr = true
			w.settle()
		}
	}
}

// blank overwrites b with spaces, a space a byte: widths are unknown here anyway.
func blank(b []byte) {
	for i := range b {
		b[i] = ' '
	}
}

// flush ends the text of a chunk: the line as it stands, and where the cursor is in
// it, so that the texts of all chunks in a row still overwrite each other rightly.
func (w *liner) flush() []byte {
	w.out = append(w.out, w.line...)
	if w.pos < len(w.line) {
		w.out = append(w.out, '\r')
		w.out = append(w.out, w.line[:w.pos]...)
	}
	return w.out
}

// flushLine ends a text: the line as it stands.
func (w *liner) flushLine() {
	w.out = append(w.out, w.line...)
	w.line, w.pos, w.open, w.cr = w.line[:0], 0, false, false
	w.none = false
}
