package output

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// page is the texts of a log's chunks, closed, in one view.
func pageTexts(t testing.TB, view wire.View, tty bool, parts ...string) ([]wire.Chunk, int) {
	t.Helper()
	l, w := newLog(t, Config{TTY: tty})
	for _, p := range parts {
		w.chunk(wire.Stdout, p)
	}
	l.Close(true, "")
	chunks, _ := readAll(t, l, view, MaxPage)
	loss := 0
	for _, c := range chunks {
		loss += c.EncodingLoss
	}
	return chunks, loss
}

func TestTextView(t *testing.T) {
	for _, c := range []struct {
		name  string
		parts []string
		want  []string
		loss  int
	}{
		{"ascii", []string{"a\n", "b\n"}, []string{"a\n", "b\n"}, 0},
		{"a character split over reads (OUT 37)", []string{"\xe8\xaa", "\x9e\n"}, []string{"", "語\n"}, 0},
		{"split in three", []string{"x\xf0\x9f", "\x90", "\x9ay"}, []string{"x", "", "🐚y"}, 0},
		{"invalid bytes (OUT 39)", []string{"ok \x80\xfe bad\n"}, []string{"ok \uFFFD\uFFFD bad\n"}, 2},
		{"a start that goes on wrongly", []string{"\xe8\xaa", "x"}, []string{"", "\uFFFD\uFFFDx"}, 2},
		{"a start at the end (A46)", []string{"a\xe8\xaa"}, []string{"a", "\uFFFD\uFFFD"}, 2},
		{"escapes stay", []string{"\x1b[31mred\r\n"}, []string{"\x1b[31mred\r\n"}, 0},
		{"NUL-separated names are text", []string{strings.Repeat("./name\x00", 40)}, []string{strings.Repeat("./name\x00", 40)}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			chunks, loss := pageTexts(t, wire.ViewText, false, c.parts...)
			var got []string
			for _, k := range chunks {
				got = append(got, k.Text)
			}
			if strings.Join(got, "|") != strings.Join(c.want, "|") || loss != c.loss {
				t.Errorf("got %q, loss %d", got, loss)
			}
		})
	}
}

func TestSafeView(t *testing.T) {
	for _, c := range []struct {
		name  string
		tty   bool
		parts []string
		want  string // of Render, where lines collapse over all
		pages string // of the chunks joined, where that differs
	}{
		{"colours", false, []string{"\x1b[1;31mred\x1b[0m\n"}, "red\n", ""},
		{"a sequence split over chunks", false, []string{"a\x1b", "[3", "1mb\x1b]0;ti", "tle\x07c\n"}, "abc\n", ""},
		{"OSC ended by ST", false, []string{"a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n"}, "alink\n", ""},
		{"DCS and C1 introducers", false, []string{"a\x1bPq#0\x1b\\b\u009b31mc\u0090x\u009cd\u0085e\n"}, "abcde\n", ""},
		{"controls", false, []string{"a\x00b\x07c\x7fd\te\n"}, "abcd\te\n", ""},
		{"charset and cursor sequences", false, []string{"\x1b(B\x1b7\x1b=x\x1b[?25l\n"}, "x\n", ""},
		{"redraw", false, []string{"\rfetch   0%\rfetch   1%\rfetch 100%\n"}, "fetch 100%\n", "fetch 100%\n"},
		{"redraw over chunks", false, []string{"ab", "cd\rX", "Y\n"}, "XYcd\n", "abcd\rXY\n"},
		{"erase to the end", false, []string{"\rlong text\r\x1b[Kok\n"}, "ok\n", "ok\n"},
		{"erase the line", false, []string{"long text\x1b[2K\x1b[1Gok\n"}, "ok\n", ""},
		{"spinner", false, []string{"|\b/\b-\bdone\n"}, "done\n", ""},
		{"wide over narrow", false, []string{"abc\r語\n"}, "語bc\n", ""},
		{"narrow over wide", false, []string{"語b\rxy\n"}, "xy\n", ""},
		{"a pipe keeps CR LF", false, []string{"dos\r\n", "more\r", "\n"}, "dos\r\nmore\r\n", ""},
		{"a terminal's lines (PTY 73)", true, []string{"a\r\nb\r", "\nc\r\r\n"}, "a\nb\nc\n", ""},
		{"no newline at the end (OUT 55)", false, []string{"x", "__DONE_17__ 0\n", "no newline at end"}, "x__DONE_17__ 0\nno newline at end", ""},
		{"a stray introducer does not hide the rest", false, []string{"\x1b]" + strings.Repeat("x", 4000), strings.Repeat(strings.Repeat("y", 4000), 1), strings.Repeat("z", 4096)}, "", ""},
		{"an escape that is none", false, []string{"a\x1b\nb\n"}, "a\nb\n", ""},
		{"a sequence broken by a newline", false, []string{"a\x1b[31\nb\n"}, "a\nb\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, w := newLog(t, Config{TTY: c.tty})
			for _, p := range c.parts {
				w.chunk(wire.Stdout, p)
			}
			l.Close(true, "")
			out, _ := l.Render(wire.Render{}, false)
			if out.Text != c.want || out.Truncated {
				t.Errorf("render %q", out.Text)
			}
			if c.pages == "" {
				return
			}
			chunks, _ := readAll(t, l, wire.ViewSafe, 0)
			if got := texts(chunks); got != c.pages {
				t.Errorf("pages %q", got)
			}
		})
	}
}

func TestStraySequenceEnds(t *testing.T) {
	l, w := newLog(t, Config{})
	w.write(wire.Stdout, "\x1b]"+strings.Repeat("x", maxString)+"seen\n")
	l.Close(true, "")
	if out, _ := l.Render(wire.Render{}, false); out.Text != "seen\n" {
		t.Errorf("got %q", out.Text)
	}
}

func TestRedrawsCollapse(t *testing.T) { // OUT 43
	l, w := newLog(t, Config{})
	var all strings.Builder
	for i := range 501 {
		s := "\rfetch " + strings.Repeat(" ", 3-len(itoa(i/5))) + itoa(i/5) + "%"
		all.WriteString(s)
		w.chunk(wire.Stdout, s)
	}
	w.chunk(wire.Stdout, "\n")
	all.WriteString("\n")
	l.Close(true, "")
	out, _ := l.Render(wire.Render{}, false)
	if out.Text != "fetch 100%\n" || out.Truncated || out.TotalBytes != int64(all.Len()) {
		t.Errorf("render %+v", out)
	}
	chunks, _ := readAll(t, l, wire.ViewBase64, 0)
	if raw(t, chunks) != all.String() {
		t.Error("raw differs")
	}
}

func itoa(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + string(rune('0'+n%10))
}

func TestBinary(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return string(b)
	}
	for _, c := range []struct {
		name string
		data string
		want bool
	}{
		{"16 random bytes (OUT 41)", random(16), false},
		{"4096 random bytes", random(4096), true},
		{"zeros", strings.Repeat("\x00", 4096), true},
		{"UTF-16", strings.Repeat("a\x00b\x00", 100), true},
		{"find -print0", strings.Repeat("./a\x00", 100), false},
		{"UTF-8", strings.Repeat("語", 1000), false},
		{"legacy encoding", strings.Repeat("caf\xe9 au lait ", 50), false},
		{"some NULs in a legacy encoding", strings.Repeat("caf\xe9 au lait, s'il vous plait\x00", 50), true},
		{"colours in a legacy encoding", strings.Repeat("\x1b[1m\xe9\x1b[0m", 50), true},
		{"split characters at both ends", "\xaa\x9e" + strings.Repeat("x", 100) + "\xe8", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			chunks, _ := pageTexts(t, wire.ViewText, false, c.data)
			if chunks[0].Binary != c.want {
				t.Errorf("withheld %v", chunks[0].Binary)
			}
			if c.want && (len(chunks[0].Text) >= 300 || !strings.Contains(chunks[0].Text, "stdout")) {
				t.Errorf("placeholder %q", chunks[0].Text)
			}
			l, w := newLog(t, Config{})
			w.chunk(wire.Stdout, c.data)
			out, _ := l.Render(wire.Render{}, false)
			if out.Binary != c.want || c.want && !strings.HasPrefix(out.Text, "[binary output on stdout withheld: ") {
				t.Errorf("render %+v", out)
			}
			chunks, _ = readAll(t, l, wire.ViewBase64, 0)
			if raw(t, chunks) != c.data || chunks[0].SourceBytes != len(c.data) {
				t.Error("raw differs")
			}
		})
	}
}

// FuzzSplit: however the same bytes are cut into chunks, the texts joined are the same.
func FuzzSplit(f *testing.F) {
	for _, s := range []string{
		"plain\nlines\n", "\xe8\xaa\x9e and \xf0\x9f\x90\x9a", "ok \x80\xfe bad", "a\x1b[31mb\x1b]0;t\x07c\x1bP\x1b\\d",
		"\rfetch 1%\rfetch 2%\x1b[K\n", "\u009b1mx\u0090y\u009c\r\r\nz\r", "\x1b\x1b[\x1b]\x18\xc2", "a\bb\b\b\bc\rd",
	} {
		f.Add([]byte(s), uint64(1), false)
		f.Add([]byte(s), uint64(7), true)
	}
	f.Fuzz(func(t *testing.T, data []byte, seed uint64, tty bool) {
		if len(data) == 0 || len(data) > MaxChunk {
			return
		}
		rng := rand.New(rand.NewPCG(seed, 0))
		var parts []string
		for b := data; len(b) > 0; {
			n := 1 + rng.IntN(min(len(b), 1+rng.IntN(9)))
			parts = append(parts, string(b[:n]))
			b = b[n:]
		}
		whole, cut := []byte(nil), []byte(nil)
		var a, b state
		whole, lossA := a.text(nil, data)
		lossB := 0
		for _, p := range parts {
			var n int
			cut, n = b.text(cut, []byte(p))
			lossB += n
		}
		if string(whole) != string(cut) || lossA != lossB || a != b {
			t.Fatalf("text %q and %q", whole, cut)
		}
		if !utf8.Valid(whole) {
			t.Fatalf("text %q is not UTF-8", whole)
		}

		// The state is the same with and without a listener, whole and in parts.
		var deaf, heard, stepped state
		w := liner{tty: tty}
		deaf.advance(data)
		heard.feed(data, &w)
		for _, p := range parts {
			stepped.advance([]byte(p))
		}
		if deaf != heard || deaf != stepped {
			t.Fatalf("state %+v, heard %+v, in parts %+v", deaf, heard, stepped)
		}

		one, many := newRendered(t, tty, string(data)), newRendered(t, tty, parts...)
		if one.Text != many.Text || one.EncodingLoss != many.EncodingLoss || one.Binary != many.Binary {
			t.Fatalf("render %+v and %+v", one, many)
		}
		if !one.Binary {
			checkSafe(t, one.Text)
			chunks, _ := pageTexts(t, wire.ViewSafe, tty, parts...)
			checkSafe(t, texts(chunks))
		}
	})
}

func newRendered(t testing.TB, tty bool, parts ...string) wire.Rendered {
	l, w := newLog(t, Config{TTY: tty})
	for _, p := range parts {
		w.chunk(wire.Stdout, p)
	}
	l.Close(true, "")
	out, _ := l.Render(wire.Render{}, false)
	return out
}

// checkSafe: nothing in the text can drive a terminal.
func checkSafe(t testing.TB, s string) {
	t.Helper()
	if !utf8.ValidString(s) {
		t.Fatalf("%q is not UTF-8", s)
	}
	for _, r := range s {
		if r < 0x20 && r != '\t' && r != '\n' && r != '\r' || r >= 0x7f && r < 0xa0 {
			t.Fatalf("%q holds %U", s, r)
		}
	}
}
