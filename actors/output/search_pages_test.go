package output

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// paged goes through a search in pages.
func paged(t testing.TB, l *Log, m wire.Search) (list []wire.Match, scanned int64, gaps []wire.Gap) {
	t.Helper()
	for range 10_000 {
		f := search(t, l, m)
		list, scanned, gaps = append(list, f.Matches...), scanned+f.Scanned, append(gaps, f.Gaps...)
		if !f.HasMore {
			return list, scanned, gaps
		}
		if len(f.Matches) == 0 || m.Offset != nil && f.NextOffset <= *m.Offset {
			t.Fatalf("a page with nothing: %+v", f)
		}
		m.Offset = &f.NextOffset
	}
	t.Fatal("no end")
	return nil, 0, nil
}

// naive is a grep over the whole text of each stream: the matches in the order in which
// their lines end, the unfinished ones last.
func naive(streams map[wire.Stream]string, at map[wire.Stream][]int64, m wire.Search) (list []wire.Match) {
	re := regexp.MustCompile(m.Pattern)
	var open []wire.Match
	for _, stream := range []wire.Stream{wire.Stdout, wire.Stderr, 3} {
		text := streams[stream]
		if text == "" || m.Stream != "" && m.Stream != stream.String() {
			continue
		}
		lines := strings.Split(text, "\n")
		ended := len(lines) - 1
		if lines[ended] == "" {
			lines = lines[:ended]
		}
		end := 0
		for i, line := range lines {
			end += len(line) + 1
			loc := re.FindStringIndex(line)
			if loc == nil {
				continue
			}
			text := string(around([]byte(line), loc[0], loc[1]))
			x := wire.Match{Stream: stream.String(), Line: text, Truncated: text != line, Unfinished: i == ended}
			for k := max(0, i-m.BeforeLines); k < min(len(lines), i+1+m.AfterLines); k++ {
				switch cut := string(clip([]byte(lines[k]), maxMatchLine)); {
				case k < i:
					x.Before = append(x.Before, cut)
				case k > i:
					x.After = append(x.After, cut)
				}
			}
			if x.Unfinished {
				open = append(open, x)
				continue
			}
			x.NextOffset = at[stream][end-1] + 1
			list = append(list, x)
		}
	}
	slices.SortFunc(list, func(a, b wire.Match) int { return int(a.NextOffset - b.NextOffset) })
	return append(list, open...)
}

func sameMatches(a, b []wire.Match) string {
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) {
			return fmt.Sprintf("%d and %d matches", len(a), len(b))
		}
		if a[i].Stream != b[i].Stream || foundText(a[i:i+1]) != foundText(b[i:i+1]) {
			short := func(m wire.Match) string { return strings.ReplaceAll(foundText([]wire.Match{m}), "long ", ".") }
			return fmt.Sprintf("match %d is of %s %q and of %s %q", i, a[i].Stream, short(a[i]), b[i].Stream, short(b[i]))
		}
	}
	return ""
}

// FuzzSearch: a search in pages of any size finds what one search finds, which is what
// grep finds in the whole text, each line once, with the same lines around it.
func FuzzSearch(f *testing.F) {
	for i := range uint64(40) {
		f.Add(i)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 2))
		cfg := Config{Limits: wire.OutputLimits{WindowBytes: minWindow << rng.IntN(8), SpoolBytes: 4 << 20}}
		if rng.IntN(2) == 0 {
			cfg.Dir = t.TempDir()
		} else {
			cfg.Limits.WindowBytes = maxWindow
		}
		l, w := newLog(t, cfg)
		words := []string{"a", "needle", "x\n", "needle\n", "\n", "語", "one two\n", strings.Repeat("long ", 300)}
		plain := rng.IntN(2) == 0
		if !plain {
			words = append(words, "\r", "\x1b[31m", "10%\r", "\x1b]0;t\n\x07", "\xff", "\b", "\x1b[K", strings.Repeat("y", 5000))
		}
		streams, at := map[wire.Stream]string{}, map[wire.Stream][]int64{}
		for range rng.IntN(60) {
			var b strings.Builder
			for range 1 + rng.IntN(12) {
				b.WriteString(words[rng.IntN(len(words))])
			}
			text, stream := b.String(), wire.Stream(1+rng.IntN(3))
			streams[stream] += text
			for i := range len(text) {
				at[stream] = append(at[stream], w.offset+int64(i))
			}
			w.write(stream, text)
		}
		for range 12 {
			m := wire.Search{
				Pattern: []string{"needle", "^x?$", "a", "o.*g", "%"}[rng.IntN(5)], MaxMatches: 1000,
				Stream: []string{"", "", "stdout", "fd3"}[rng.IntN(4)],
			}
			if rng.IntN(2) == 0 {
				m.BeforeLines, m.AfterLines = rng.IntN(5), rng.IntN(5)
			}
			big, scanned, gaps := paged(t, l, m)
			if len(gaps) > 0 || scanned != l.Stats().TotalBytes {
				t.Fatalf("gaps %+v, scanned %d of %d", gaps, scanned, l.Stats().TotalBytes)
			}
			if plain {
				if diff := sameMatches(big, naive(streams, at, m)); diff != "" {
					t.Fatalf("%+v: search and grep: %s", m, diff)
				}
			}
			m.MaxMatches = 1 + rng.IntN(6)
			small, again, _ := paged(t, l, m)
			if !reflect.DeepEqual(big, small) || again != scanned {
				t.Fatalf("%+v: in one and in pages: %s, scanned %d and %d", m, sameMatches(big, small), scanned, again)
			}
		}
	})
}

// The same over output of which the middle is gone.
func TestSearchInPagesOverGaps(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	l, w := newLog(t, Config{Dir: t.TempDir(), Limits: wire.OutputLimits{WindowBytes: minWindow, SpoolBytes: 256 << 10, HeadBytes: 64 << 10}})
	for i := range 20_000 {
		w.write(wire.Stream(1+rng.IntN(2)), []string{"some words\n", "no end ", fmt.Sprintf("needle %d\n", i)}[rng.IntN(3)]+strings.Repeat("z", rng.IntN(60)))
	}
	if l.Stats().DroppedBytes == 0 {
		t.Fatal("nothing was dropped")
	}
	for _, around := range []int{0, 3} {
		m := wire.Search{Pattern: "needle", MaxMatches: 1000, BeforeLines: around, AfterLines: around}
		big, scanned, gaps := paged(t, l, m)
		if st := l.Stats(); scanned != st.KeptBytes || len(gaps) == 0 {
			t.Errorf("scanned %d of %d, gaps %+v", scanned, st.KeptBytes, gaps)
		}
		for _, size := range []int{1, 7, 100} {
			m.MaxMatches = size
			small, again, gaps2 := paged(t, l, m)
			if !reflect.DeepEqual(big, small) || again != scanned || !reflect.DeepEqual(gaps, gaps2) {
				t.Errorf("in pages of %d: %s; scanned %d and %d; gaps %v and %v", size, sameMatches(big, small), scanned, again, gaps, gaps2)
			}
		}
	}
}

// Lines that are too long to hold are looked at in pieces, the same in pages.
func TestSearchLongLines(t *testing.T) {
	l, w := newLog(t, Config{Dir: t.TempDir()})
	for i := range 20 {
		w.write(wire.Stdout, strings.Repeat("0123456789", 2000*i)+"needle"+strings.Repeat("語", 3000*i))
		w.write(wire.Stderr, "needle\n")
		if i%3 == 0 {
			w.write(wire.Stdout, "\n")
		}
	}
	m := wire.Search{Pattern: "needle", Literal: true, MaxMatches: 1000, AfterLines: 1}
	big, scanned, _ := paged(t, l, m)
	if len(big) < 35 {
		t.Errorf("%d matches", len(big))
	}
	m.MaxMatches = 1
	small, again, _ := paged(t, l, m)
	if !reflect.DeepEqual(big, small) || again != scanned {
		t.Errorf("in one and in pages: %s", sameMatches(big, small))
	}
}

// Search goes on while the process writes, and finds each line once.
func TestSearchWhileItWrites(t *testing.T) {
	const lines = 20_000
	l, w := newLog(t, Config{Dir: t.TempDir(), Limits: wire.OutputLimits{WindowBytes: minWindow}})
	var own sync.WaitGroup
	own.Go(func() { // ends when all is written
		for i := range lines {
			w.write(wire.Stream(1+i%2), fmt.Sprintf("line %d\n", i))
		}
		l.Close(true, "")
	})
	seen := map[string]int{}
	for m := (wire.Search{Pattern: "line", MaxMatches: 500, Offset: new(int64)}); ; {
		f := search(t, l, m)
		for _, x := range f.Matches {
			if !x.Unfinished {
				seen[x.Line]++
			}
		}
		if f.End {
			break
		}
		m.Offset = &f.NextOffset
	}
	own.Wait()
	if len(seen) != lines {
		t.Errorf("%d lines found", len(seen))
	}
	for s, n := range seen {
		if n != 1 {
			t.Errorf("%q was found %d times", s, n)
		}
	}
}
