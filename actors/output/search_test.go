package output

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
)

func search(t testing.TB, l *Log, m wire.Search) *wire.Found {
	t.Helper()
	f, err := l.Search(t.Context(), m, State{State: wire.StateCompleted})
	if err != nil {
		t.Fatalf("search %+v: %v", m, err)
	}
	return f
}

// foundText is the lines of matches, with the lines around them.
func foundText(list []wire.Match) string {
	var b strings.Builder
	for _, m := range list {
		for _, s := range m.Before {
			b.WriteString("-" + s)
		}
		b.WriteString(m.Line)
		for _, s := range m.After {
			b.WriteString("+" + s)
		}
		if m.Truncated {
			b.WriteString("…")
		}
		if m.Unfinished {
			b.WriteString("?")
		}
		b.WriteString("|")
	}
	return b.String()
}

func TestSearch(t *testing.T) {
	for _, c := range []struct {
		name  string
		parts []string
		m     wire.Search
		want  string // ? marks an unfinished line
	}{
		{"regular expression", []string{"one\ntwo\nthree\n"}, wire.Search{Pattern: "^t.*e$"}, "three|"},
		{"literal", []string{"a.c\nabc\n"}, wire.Search{Pattern: "a.c", Literal: true}, "a.c|"},
		{"literal, any case", []string{"A.C\nabc\n"}, wire.Search{Pattern: "a.c", Literal: true, IgnoreCase: true}, "A.C|"},
		{"literal, letters that fold", []string{"\u212Aey\nkEY\n\u017Fet\n"}, wire.Search{Pattern: "KeY", Literal: true, IgnoreCase: true}, "\u212Aey|kEY|"},
		{"literal beyond ASCII, any case", []string{"\u00c4b\n\u00e4B\n"}, wire.Search{Pattern: "\u00e4b", Literal: true, IgnoreCase: true}, "\u00c4b|\u00e4B|"},
		{"expression, any case", []string{"ERROR x\nerr\n"}, wire.Search{Pattern: "error|warn", IgnoreCase: true}, "ERROR x|"},
		{"over chunks", []string{"a nee", "dle", " b\nx\n"}, wire.Search{Pattern: "needle"}, "a needle b|"},
		{"colours", []string{"\x1b[31mer\x1b[1mror\x1b[0m\n"}, wire.Search{Pattern: "error"}, "error|"},
		{"an empty line", []string{"a\n\nb\n"}, wire.Search{Pattern: "^$"}, "|"},
		{"every line", []string{"a\nb\nc"}, wire.Search{Pattern: ""}, "a|b|c?|"},
		{"the final form of a redraw", []string{"10%\r20%\r100%\n"}, wire.Search{Pattern: "100%"}, "100%|"},
		{"an earlier form of a redraw", []string{"10%\r20%\rdone\n"}, wire.Search{Pattern: "20%"}, "20%|"},
		{"a redrawn line is found once", []string{"1 %\r2 %\r3 %\n"}, wire.Search{Pattern: "%"}, "3 %|"},
		{"unfinished", []string{"ok\nPassword: "}, wire.Search{Pattern: "Pass"}, "Password: ?|"},
		{"an earlier form of an unfinished line", []string{"10%\r20%\r30%"}, wire.Search{Pattern: "10%"}, "10%?|"},
		{"lines around", []string{"1\n2\n3\n4\n5\n6\n"}, wire.Search{Pattern: "3", BeforeLines: 1, AfterLines: 2}, "-23+4+5|"},
		{"lines around at the ends", []string{"1\n2\n3"}, wire.Search{Pattern: "2", BeforeLines: 5, AfterLines: 5}, "-12+3|"},
		{"lines around each match", []string{"1\na\na\n2\n"}, wire.Search{Pattern: "a", BeforeLines: 1, AfterLines: 1}, "-1a+a|-aa+2|"},
		{"nothing", []string{"1\n"}, wire.Search{Pattern: "x"}, ""},
		{"no output", nil, wire.Search{Pattern: "x"}, ""},
		{
			"around a match in a long line",
			[]string{strings.Repeat("a", 3000) + "!" + strings.Repeat("b", 1000), strings.Repeat("b", 2000) + "\n"},
			wire.Search{Pattern: "!"},
			strings.Repeat("a", 999) + "!" + strings.Repeat("b", 1000) + "…|",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, w := newLog(t, Config{})
			for _, p := range c.parts {
				w.write(wire.Stdout, p)
			}
			if got := foundText(search(t, l, c.m).Matches); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestSearchSaysWhereItIs(t *testing.T) {
	l, w := newLog(t, Config{})
	w.chunk(wire.Stdout, "x1\nx") // chunk 0, offset 0
	w.chunk(wire.Stderr, "x3\n")  // 1, 4
	w.chunk(wire.Stdout, "2\nx4") // 2, 7
	f := search(t, l, wire.Search{Pattern: "x"})
	want := []wire.Match{
		{Cursor: 0, NextCursor: 1, Offset: 0, NextOffset: 3, Stream: "stdout", Line: "x1"},
		{Cursor: 1, NextCursor: 2, Offset: 4, NextOffset: 7, Stream: "stderr", Line: "x3"},
		{Cursor: 0, NextCursor: 3, Offset: 0, NextOffset: 9, Stream: "stdout", Line: "x2"},
		{Cursor: 2, NextCursor: 3, Offset: 7, NextOffset: 11, Stream: "stdout", Line: "x4", Unfinished: true},
	}
	if !reflect.DeepEqual(f.Matches, want) {
		t.Errorf("got  %+v\nwant %+v", f.Matches, want)
	}
	if f.HasMore || f.End || f.NextOffset != 11 || f.NextCursor != 3 || f.Scanned != 11 || f.Output.TotalBytes != 11 {
		t.Errorf("%+v", f)
	}
	for _, c := range []struct {
		m    wire.Search
		want string
	}{
		{wire.Search{Stream: "stderr"}, "x3|"},
		{wire.Search{Cursor: new(int64(1))}, "x3|x2|x4?|"}, // a line that began before is whole
		{wire.Search{Offset: new(int64(2))}, "x1|x3|x2|x4?|"},
		{wire.Search{Offset: new(int64(7))}, "x2|x4?|"},
		{wire.Search{Offset: new(int64(11))}, "x4?|"},
		{wire.Search{MaxMatches: 2}, "x1|x3|"},
	} {
		c.m.Pattern = "x"
		if got := foundText(search(t, l, c.m).Matches); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.m, got, c.want)
		}
	}
	l.Close(true, "")
	f = search(t, l, wire.Search{Pattern: "x4"})
	if !f.End || f.Matches[0].Unfinished {
		t.Errorf("at the end: %+v", f)
	}
}

func TestSearchRefuses(t *testing.T) {
	l, w := newLog(t, Config{})
	w.write(wire.Stdout, "x\n")
	for _, c := range []struct {
		m    wire.Search
		code wire.Code
	}{
		{wire.Search{Pattern: "("}, wire.CodeInvalidArguments},
		{wire.Search{Pattern: "x", Stream: "stdin"}, wire.CodeInvalidArguments},
		{wire.Search{Pattern: "x", Offset: new(int64(3))}, wire.CodeCursorAhead},
		{wire.Search{Pattern: "x", Cursor: new(int64(2))}, wire.CodeCursorAhead},
	} {
		var e *wire.Error
		if _, err := l.Search(t.Context(), c.m, State{}); !errors.As(err, &e) || e.Code != c.code {
			t.Errorf("%+v: %v", c.m, err)
		}
	}
	if err := l.Remove(); err != nil {
		t.Fatal(err)
	}
	var e *wire.Error
	if _, err := l.Search(t.Context(), wire.Search{Pattern: "x"}, State{}); !errors.As(err, &e) || e.Code != wire.CodeExpired {
		t.Errorf("removed: %v", err)
	}
}

func TestSearchTellsGaps(t *testing.T) {
	l, w := newLog(t, Config{Limits: wire.OutputLimits{SpoolBytes: -1, WindowBytes: minWindow}})
	w.write(wire.Stdout, seq(3000))
	st := l.Stats()
	f := search(t, l, wire.Search{Pattern: "^(1|3000)$", BeforeLines: 1})
	if got := foundText(f.Matches); got != "-29993000|" {
		t.Errorf("found %q", got)
	}
	if len(f.Gaps) != 1 || f.Gaps[0].Bytes != st.DroppedBytes || f.Scanned != st.KeptBytes || f.NextOffset != st.TotalBytes {
		t.Errorf("gaps %+v, scanned %d of %+v", f.Gaps, f.Scanned, st)
	}
	if f = search(t, l, wire.Search{Pattern: "^3000$", Offset: new(st.DroppedBytes)}); len(f.Gaps) != 0 || len(f.Matches) != 1 {
		t.Errorf("from behind the gap: %+v", f)
	}
}

// A search that is out of time answers what it has, and going on finds the rest.
func TestSearchEndsWithItsContext(t *testing.T) {
	l, w := newLog(t, Config{Dir: t.TempDir()})
	w.write(wire.Stdout, strings.Repeat("a line to look at\n", 50_000))
	w.write(wire.Stdout, "the needle\n")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	calls, found, m := 0, 0, wire.Search{Pattern: "needle", Offset: new(int64)}
	for {
		calls++
		f, err := l.Search(ctx, m, State{})
		if err != nil {
			t.Fatal(err)
		}
		if found += len(f.Matches); !f.HasMore {
			if found != 1 || calls < 5 {
				t.Errorf("after %d calls: %+v", calls, f)
			}
			return
		}
		if f.NextOffset <= *m.Offset {
			t.Fatalf("no way on: %+v", f)
		}
		m.Offset = &f.NextOffset
	}
}

// An answer is bounded in bytes, whatever the lines are, and the next goes on.
func TestSearchBoundsItsAnswer(t *testing.T) {
	l, w := newLog(t, Config{Dir: t.TempDir()})
	line := strings.Repeat("語", 999) + "\n"
	w.write(wire.Stdout, strings.Repeat(line, 300))
	var list []wire.Match
	for m, calls := (wire.Search{Pattern: "語", BeforeLines: 20, AfterLines: 20, MaxMatches: 1000, Offset: new(int64)}), 0; ; calls++ {
		f := search(t, l, m)
		size := 0
		for _, x := range f.Matches {
			around := 0
			for _, s := range slices.Concat(x.Before, x.After) {
				around += len(s)
			}
			if size += len(x.Line) + around; around > maxAround || len(x.Line) > maxMatchLine {
				t.Fatalf("%d bytes around a line of %d", around, len(x.Line))
			}
		}
		if size > maxFound+maxAround+maxMatchLine || len(f.Matches) == 0 {
			t.Fatalf("%d matches of %d bytes", len(f.Matches), size)
		}
		if list = append(list, f.Matches...); !f.HasMore {
			if len(list) != 300 || calls < 10 {
				t.Errorf("%d matches in %d calls", len(list), calls)
			}
			return
		}
		m.Offset = &f.NextOffset
	}
}
