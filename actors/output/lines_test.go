package output

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// linesOf reads all that a log has: the lines, with the open ones at the end.
func linesOf(t testing.TB, l *Log, cursor, offset *int64, stream wire.Stream) (got []Line) {
	t.Helper()
	s, err := l.Lines(cursor, offset, stream)
	if err != nil {
		t.Fatal(err)
	}
	keep := func(line *Line) bool {
		c := *line
		c.Text = slices.Clone(line.Text)
		got = append(got, c)
		return true
	}
	for s.Scan(keep) {
	}
	s.Open(keep)
	return got
}

func textOf(lines []Line, kinds ...LineKind) string {
	var b strings.Builder
	for _, l := range lines {
		if len(kinds) == 0 || slices.Contains(kinds, l.Kind) {
			fmt.Fprintf(&b, "%s%s|", []string{"", "?", "~"}[l.Kind], l.Text)
		}
	}
	return b.String()
}

func TestLines(t *testing.T) {
	for _, c := range []struct {
		name  string
		tty   bool
		parts []string
		want  string // ? marks an open line, ~ a redrawn one
	}{
		{"lines", false, []string{"a\nb\n\nc\n"}, "a|b||c|"},
		{"one line over chunks", false, []string{"a", "b", "c\nd", "\n"}, "abc|d|"},
		{"a prompt", false, []string{"hello\nPassword: "}, "hello|?Password: |"},
		{"a character split", false, []string{"\xe8\xaa", "\x9e\n"}, "語|"},
		{"half a character at the end is not there yet", false, []string{"x\xe8\xaa"}, "?x|"},
		{"colours", false, []string{"\x1b[1;31mre", "d\x1b[0m\n"}, "red|"},
		{"a coloured match of grep is one line", false, []string{"a\x1b[01;31m\x1b[Kb\x1b[m\x1b[Kc\n"}, "abc|"},
		{"CR LF of a pipe", false, []string{"dos\r\n", "more\r", "\n"}, "dos|more|"},
		{"CR LF of a terminal", true, []string{"a\r\nb\r", "\n"}, "a|b|"},
		{"a redraw", false, []string{"10%\r", "100%\n"}, "~10%|100%|"},
		{"a redraw in one chunk", false, []string{"10%\r20%\r100%\n"}, "~10%|~20%|100%|"},
		{"erased whole", false, []string{"done\r\x1b[Knext\n"}, "~done|next|"},
		{"erased from afar", false, []string{"done\x1b[2K\x1b[1Gnext\n"}, "~done|next|"},
		{"a redraw that waits", false, []string{"50%\r"}, "?50%|"},
		{"binary is shown as text", false, []string{"\x00\x01\xffok\x02\n"}, "\uFFFDok|"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, w := newLog(t, Config{TTY: c.tty})
			for _, p := range c.parts {
				w.chunk(wire.Stdout, p)
			}
			if got := textOf(linesOf(t, l, nil, nil, 0)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestLinesSayWhereTheyAre(t *testing.T) {
	l, w := newLog(t, Config{})
	w.chunk(wire.Stdout, "one\ntw") // chunk 0, offset 0
	w.chunk(wire.Stderr, "err\n")   // 1, 6
	w.chunk(wire.Stdout, "o\nthr")  // 2, 10
	got := linesOf(t, l, nil, nil, 0)
	want := []Line{
		{LineEnded, wire.Stdout, 0, 0, 1, 4, []byte("one")},
		{LineEnded, wire.Stderr, 1, 6, 2, 10, []byte("err")},
		{LineEnded, wire.Stdout, 0, 0, 3, 12, []byte("two")},
		{LineOpen, wire.Stdout, 2, 10, 3, 15, []byte("thr")},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	for _, c := range []struct {
		name           string
		cursor, offset *int64
		stream         wire.Stream
		want           string
	}{
		{"stdout", nil, nil, wire.Stdout, "one|two|?thr|"},
		{"stderr", nil, nil, wire.Stderr, "err|"},
		{"from a chunk", new(int64(1)), nil, 0, "err|o|?thr|"},
		{"from behind a line", nil, new(int64(4)), wire.Stdout, "two|?thr|"},
		{"from the end", nil, new(int64(15)), 0, ""},
	} {
		if got := textOf(linesOf(t, l, c.cursor, c.offset, c.stream)); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
	var e *wire.Error
	if _, err := l.Lines(new(int64(4)), nil, 0); !errors.As(err, &e) || e.Code != wire.CodeCursorAhead {
		t.Errorf("ahead: %v", err)
	}
}

func TestLinesGoOn(t *testing.T) {
	l, w := newLog(t, Config{})
	w.chunk(wire.Stdout, "a\nb")
	s, err := l.Lines(nil, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []Line
	keep := func(line *Line) bool {
		got = append(got, Line{Kind: line.Kind, Text: slices.Clone(line.Text)})
		return true
	}
	all := func() string {
		got = nil
		for s.Scan(keep) {
		}
		s.Open(keep)
		return textOf(got)
	}
	for _, c := range []struct{ write, want string }{
		{"", "a|?b|"},
		{"", ""}, // nothing is looked at twice
		{"c", "?bc|"},
		{"\nd", "bc|?d|"},
	} {
		if c.write != "" {
			w.chunk(wire.Stdout, c.write)
		}
		if got := all(); got != c.want {
			t.Errorf("after %q: got %q, want %q", c.write, got, c.want)
		}
	}
	if s.Next() != 3 || s.Scanned() != 6 {
		t.Errorf("next %d, scanned %d", s.Next(), s.Scanned())
	}
}

func TestLinesStop(t *testing.T) {
	l, w := newLog(t, Config{})
	w.chunk(wire.Stdout, "a\nb\nc\n")
	s, err := l.Lines(nil, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	if s.Scan(func(*Line) bool { n++; return n < 2 }) || n != 2 {
		t.Errorf("%d lines after a stop at 2", n)
	}
}

func TestLongLineIsTakenInPieces(t *testing.T) {
	l, w := newLog(t, Config{})
	long := strings.Repeat("語", MaxOpenLine) // 3 bytes each: no piece ends inside one
	w.write(wire.Stdout, long+"\nshort\n")
	got := linesOf(t, l, nil, nil, 0)
	var b strings.Builder
	for _, line := range got[:len(got)-1] {
		if len(line.Text) > MaxOpenLine || !utf8.Valid(line.Text) {
			t.Fatalf("a piece of %d bytes", len(line.Text))
		}
		b.Write(line.Text)
	}
	if b.String() != long || string(got[len(got)-1].Text) != "short" || len(got) != 5 {
		t.Errorf("%d lines, %d bytes of %d", len(got), b.Len(), len(long))
	}
}

func TestLinesPassGaps(t *testing.T) {
	l, w := newLog(t, Config{Limits: wire.OutputLimits{WindowBytes: minWindow}})
	w.chunk(wire.Stdout, "head")
	s, err := l.Lines(nil, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	keep := func(line *Line) bool { got = append(got, string(line.Text)); return true }
	for s.Scan(keep) {
	}
	for i := range 4096 {
		w.chunk(wire.Stdout, fmt.Sprintf("%d\n", i))
	}
	for s.Scan(keep) {
	}
	if len(s.Gaps()) != 1 || got[0] != "head" || got[len(got)-1] != "4095" {
		t.Errorf("gaps %v, first %q, last %q", s.Gaps(), got[0], got[len(got)-1])
	}
}

// A line that is redrawn byte by byte does not cost its length each time.
func TestRedrawsAreBounded(t *testing.T) {
	l, w := newLog(t, Config{})
	w.write(wire.Stdout, strings.Repeat("x", 4000)+strings.Repeat("\ry", 20_000)+"\n")
	cost := 0
	for _, line := range linesOf(t, l, nil, nil, 0) {
		cost += len(line.Text)
	}
	if cost > redrawShare*2*20_000 {
		t.Errorf("%d bytes of lines", cost)
	}
}

func FuzzLines(f *testing.F) {
	for _, s := range []string{
		"a\nb\n", "x\xe8\xaa\x9ey\r\n", "\x1b[31mred\x1b[0m\r10%\r20%\n", "\x1b]0;t\x07a\b\bc\n",
		"abc\x1b[2K\x1b[1Gd\n\x1bPq#0\x1b\\b", "\xff\x00\x1b\n[\n", "一\r二\r\n三",
	} {
		f.Add([]byte(s), []byte{1}, true)
		f.Add([]byte(s), []byte{3, 1, 200}, false)
	}
	f.Fuzz(func(t *testing.T, data, cuts []byte, tty bool) {
		if len(data) == 0 || len(data) > 1<<16 {
			return
		}
		data = append(data, strings.Repeat("long line ", int(data[0])*32)...) // over a piece, at times
		whole, ww := newLog(t, Config{TTY: tty})
		ww.write(wire.Stdout, string(data))
		cut, cw := newLog(t, Config{TTY: tty})
		least := len(data)/(WindowChunks-1) + 1 // none may be evicted
		for i, b := 0, data; len(b) > 0; i++ {
			n := least
			if len(cuts) > 0 {
				n += int(cuts[i%len(cuts)])
			}
			n = min(n, len(b))
			cw.chunk(wire.Stdout, string(b[:n]))
			b = b[n:]
		}
		a := linesOf(t, whole, nil, nil, 0)
		b := linesOf(t, cut, nil, nil, wire.Stdout)
		if x, y := textOf(a, LineEnded, LineOpen), textOf(b, LineEnded, LineOpen); x != y {
			i := 0
			for i < min(len(x), len(y)) && x[i] == y[i] {
				i++
			}
			t.Fatalf("from byte %d on:\nwhole %.80q\ncut   %.80q", i, x[i:], y[i:])
		}
		at := int64(0)
		for i, line := range b {
			if !utf8.Valid(line.Text) || len(line.Text) > MaxOpenLine || line.Cursor >= line.NextCursor || line.NextOffset < at {
				t.Fatalf("line %d: %+v", i, line)
			}
			at = line.NextOffset
		}
	})
}
