package output

import (
	"encoding/base64"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// The shapes of the systems, as the package comment's table says them (C5).
func TestShapesOfTheSystems(t *testing.T) {
	lines, wide, line := seq(40_000), strings.Repeat("語", 40_000), strings.Repeat("0123456789", 20_000)
	for _, c := range []struct {
		name       string
		r          wire.Render
		text       string
		head, tail int // bytes shown
	}{
		{"A13 40/40 by lines", wire.Render{MaxBytes: 100_000, HeadPercent: 40, TailPercent: 40}, lines, 39_998, 39_996},
		{"A13 a long line", wire.Render{MaxBytes: 100_000, HeadPercent: 40, TailPercent: 40}, line, 40_000, 40_000},
		{"A13 fits", wire.Render{MaxBytes: 100_000, HeadPercent: 40, TailPercent: 40}, lines[:100_000], 100_000, 0},
		{"L15 and M12 by lines", wire.Render{Shape: wire.ShapeTail, MaxBytes: 51_200, MaxLines: 2000}, lines, 0, 12_000},
		{"L15 and M12 by bytes", wire.Render{Shape: wire.ShapeTail, MaxBytes: 51_200, MaxLines: 2000, Exact: true}, line, 0, 51_200},
		{"P17", wire.Render{MaxBytes: 32_768, Exact: true}, line, 16_384, 16_384},
		{"P17 odd", wire.Render{MaxBytes: 32_767, Exact: true}, line, 16_383, 16_384},
		{"S6", wire.Render{Shape: wire.ShapeHead, MaxBytes: MaxRender, MaxChars: 30_000, Exact: true}, wide, 90_000, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, w := newLog(t, Config{Dir: t.TempDir()})
			w.write(wire.Stdout, c.text)
			out, _ := l.Render(c.r, false)
			head, tail := out.Text[:out.NoticeAt], out.Text[out.NoticeAt+out.NoticeBytes:]
			if out.NoticeBytes == 0 {
				head, tail = out.Text, ""
			}
			if len(head) != c.head || len(tail) != c.tail || !strings.HasPrefix(c.text, head) || !strings.HasSuffix(c.text, tail) {
				t.Errorf("shows %d and %d bytes, want %d and %d", len(head), len(tail), c.head, c.tail)
			}
		})
	}
}

func TestConcatenated(t *testing.T) { // S6, C4
	binary := strings.Repeat("\x01\xff", 100)
	for _, c := range []struct {
		name             string
		stdout, stderr   string
		r                wire.Render
		want             string // of Text without its notice
		offset, omission int64
	}{
		{"both", "out\n", "err\n", wire.Render{}, "out\nerr\n", 0, 0},
		{"stdout lacks a newline", "out", "err", wire.Render{}, "out\nerr", 0, 0},
		{"only stdout", "out", "", wire.Render{}, "out", 0, 0},
		{"only stderr", "", "err", wire.Render{}, "err", 0, 0},
		{"head in stdout", "1\n2\n3\n", "4\n5\n", wire.Render{Shape: wire.ShapeHead, MaxLines: 2}, "1\n2\n", 4, 6},
		{"head over both", "1\n2\n3\n", "4\n5\n", wire.Render{Shape: wire.ShapeHead, MaxLines: 4}, "1\n2\n3\n4\n", 8, 2},
		{"tail in stderr", "1\n2\n3\n", "4\n5\n", wire.Render{Shape: wire.ShapeTail, MaxLines: 1}, "5\n", 0, 8},
		{"tail over both", "1\n2\n3\n", "4\n5\n", wire.Render{Shape: wire.ShapeTail, MaxLines: 3}, "3\n4\n5\n", 0, 4},
		{"both ends", "1\n2\n3\n", "4\n5\n", wire.Render{MaxLines: 4}, "1\n2\n4\n5\n", 4, 2},
		{"the newline between is shown once", "1\n2", "4\n5", wire.Render{MaxLines: 3}, "1\n4\n5", 2, 1},
		{"the newline between is cut", "1\n2", "4\n5", wire.Render{MaxLines: 2}, "1\n5", 2, 3},
		{"binary stdout", binary, "err\n", wire.Render{}, placeholder(wire.Stdout, 200, 0.5) + "\nerr\n", 0, 200},
		{"base64", "ab", "cd", wire.Render{View: wire.ViewBase64}, "YWJjZA==", 0, 0},
		{
			"base64 of the end", strings.Repeat("x", 2000), "cd",
			wire.Render{View: wire.ViewBase64, Shape: wire.ShapeTail, MaxBytes: 1024},
			base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", 766) + "cd")), 0, 1234,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, w := newLog(t, Config{})
			w.write(wire.Stdout, c.stdout)
			w.write(wire.Stderr, c.stderr)
			c.r.Arrange = wire.ArrangeConcatenated
			out, other := l.Render(c.r, false)
			if got := out.Text[:out.NoticeAt] + out.Text[out.NoticeAt+out.NoticeBytes:]; got != c.want {
				t.Errorf("got %q", out.Text)
			}
			if out.OmittedOffset != c.offset || out.OmittedBytes != c.omission || out.Truncated != (c.omission > 0) || other.Text != "" {
				t.Errorf("omitted %d from %d, truncated %v", out.OmittedBytes, out.OmittedOffset, out.Truncated)
			}
		})
	}
}

// What of a stream is omitted is read again from the offset that is named, also where
// the other stream came between.
func TestConcatenatedRestOfBoth(t *testing.T) {
	l, w := newLog(t, Config{})
	w.write(wire.Stderr, "a\nb\nc\n")
	w.write(wire.Stdout, "1\n2\n3\n")
	out, _ := l.Render(wire.Render{Arrange: wire.ArrangeConcatenated, MaxLines: 2}, false)
	if out.OmittedOffset != 0 || out.OmittedBytes != 8 {
		t.Errorf("%+v", out)
	}
	out, _ = l.Render(wire.Render{Arrange: wire.ArrangeConcatenated, MaxLines: 4, HeadPercent: 25}, false)
	if out.OmittedOffset != 8 || out.OmittedBytes != 4 {
		t.Errorf("%+v", out)
	}
}

// Where text and output differ in length, the rest is read from where it begins.
func TestCutOfWhatIsNoText(t *testing.T) {
	l, w := newLog(t, Config{})
	w.write(wire.Stdout, strings.Repeat("a\xff", 2000))
	out, _ := l.Render(wire.Render{Shape: wire.ShapeHead, MaxBytes: 1024, Exact: true}, false)
	if out.NoticeAt != 1024 || out.OmittedOffset != 512 || out.OmittedBytes != 3488 || out.EncodingLoss != 256 {
		t.Errorf("%+v", out)
	}
	out, _ = l.Render(wire.Render{Shape: wire.ShapeTail, MaxBytes: 1024, Exact: true}, false)
	if out.OmittedOffset != 0 || out.OmittedBytes != 3488 || out.EncodingLoss != 256 {
		t.Errorf("%+v", out)
	}
}

// A text of both streams has nothing of the extra descriptors.
func TestCombinedHasNoDescriptors(t *testing.T) {
	l, w := newLog(t, Config{})
	w.write(wire.Stdout, "a\n")
	w.write(3, "{}\n")
	w.write(wire.Stderr, "b\n")
	w.write(wire.Stdout, strings.Repeat("c\n", 10))
	out, _ := l.Render(wire.Render{Arrange: wire.ArrangeCombined}, false)
	if out.Text != "a\nb\n"+strings.Repeat("c\n", 10) || out.TotalBytes != 24 {
		t.Errorf("%+v", out)
	}
	out, _ = l.Render(wire.Render{Arrange: wire.ArrangeCombined, MaxLines: 2}, false)
	if got := out.Text[:out.NoticeAt] + out.Text[out.NoticeAt+out.NoticeBytes:]; got != "a\nc\n" || out.OmittedBytes != 20 || out.OmittedLines != 10 {
		t.Errorf("%+v", out)
	}
}

// sample is two streams, in pieces as they were read.
type sample struct {
	l   *Log
	all [3]string // combined, stdout, stderr
	at  [3][]int64
}

func newSample(t testing.TB, rng *rand.Rand) *sample {
	l, w := newLog(t, Config{})
	s := &sample{l: l}
	for range rng.IntN(40) {
		var b strings.Builder
		for range rng.IntN(20) {
			switch rng.IntN(8) {
			case 0:
				b.WriteString(strings.Repeat("x", rng.IntN(3000)))
			case 1:
				b.WriteString(strings.Repeat("語", rng.IntN(50)))
			default:
				b.WriteString("a line\n")
			}
			if b.Len() > MaxChunk {
				break
			}
		}
		if b.Len() == 0 {
			continue
		}
		text, stream := b.String(), wire.Stream(1+rng.IntN(2))
		if len(text) > MaxChunk {
			text = text[:MaxChunk]
			for !utf8.ValidString(text) {
				text = text[:len(text)-1]
			}
		}
		for i := range len(text) {
			s.at[0] = append(s.at[0], w.offset+int64(i))
			s.at[stream] = append(s.at[stream], w.offset+int64(i))
		}
		w.chunk(stream, text)
		s.all[0] += text
		s.all[stream] += text
	}
	return s
}

func randomRender(rng *rand.Rand) wire.Render {
	r := wire.Render{
		Shape:    []wire.Shape{"", wire.ShapeHead, wire.ShapeTail}[rng.IntN(3)],
		Arrange:  []wire.Arrange{"", wire.ArrangeCombined, wire.ArrangeConcatenated}[rng.IntN(3)],
		View:     []wire.View{wire.ViewText, wire.ViewSafe}[rng.IntN(2)],
		MaxBytes: MinRender + rng.IntN(20_000), Exact: rng.IntN(2) == 0,
	}
	if rng.IntN(2) == 0 {
		r.MaxLines = 1 + rng.IntN(100)
	}
	if rng.IntN(2) == 0 {
		r.MaxChars = 1 + rng.IntN(9000)
	}
	if r.Shape == "" && rng.IntN(2) == 0 {
		r.HeadPercent = 1 + rng.IntN(99)
		r.TailPercent = rng.IntN(101 - r.HeadPercent)
	}
	return r
}

// FuzzRender: whatever the output and the request, each limit holds for each part; what
// is shown is the start and the end of the output; what was omitted is counted to the
// byte and read again from the offset named.
func FuzzRender(f *testing.F) {
	for i := range uint64(60) {
		f.Add(i)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 1))
		s := newSample(t, rng)
		for range 20 {
			r := randomRender(rng)
			if err := CheckRender(r); err != nil {
				t.Fatalf("%+v: %v", r, err)
			}
			out, errs := s.l.Render(r, false)
			switch r.Arrange {
			case wire.ArrangeCombined:
				s.check(t, r, &out, s.all[0], s.at[0])
			case wire.ArrangeConcatenated:
				all, at := s.all[1], slices.Clip(s.at[1])
				if all != "" && s.all[2] != "" && !strings.HasSuffix(all, "\n") {
					all, at = all+"\n", append(at, -1)
				}
				s.check(t, r, &out, all+s.all[2], append(at, s.at[2]...))
			default:
				s.check(t, r, &out, s.all[1], s.at[1])
				s.check(t, r, &errs, s.all[2], s.at[2])
			}
		}
	})
}

// check compares a text with the whole, of which byte i has the raw offset at[i], -1
// for one of ours.
func (s *sample) check(t *testing.T, r wire.Render, out *wire.Rendered, all string, at []int64) {
	t.Helper()
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%+v of %d bytes: %s", r, len(all), fmt.Sprintf(format, args...))
	}
	r = defaults(r)
	m := limitsOf(r)
	if fits(all, m) != (out.NoticeBytes == 0) {
		fail("fits %v, notice of %d bytes", fits(all, m), out.NoticeBytes)
		return
	}
	if out.NoticeBytes == 0 {
		if out.Text != all || out.Truncated {
			fail("not whole")
		}
		return
	}
	head, tail := out.Text[:out.NoticeAt], out.Text[out.NoticeAt+out.NoticeBytes:]
	if !strings.HasPrefix(all, head) || !strings.HasSuffix(all, tail) || len(head)+len(tail) >= len(all) {
		fail("head of %d and tail of %d are not of it", len(head), len(tail))
		return
	}
	up, down := m.parts(r)
	switch r.Shape {
	case wire.ShapeHead:
		up, down = m, limits{}
	case wire.ShapeTail:
		up, down = limits{}, m
	}
	if !fits(head, up) || !fits(tail, down) {
		fail("head of %d bytes or tail of %d over %+v, %+v", len(head), len(tail), up, down)
	}
	omitted, first := int64(0), int64(math.MaxInt64)
	for _, o := range at[len(head) : len(all)-len(tail)] {
		if o >= 0 {
			omitted++
			first = min(first, o)
		}
	}
	if out.OmittedBytes != omitted || out.TotalBytes != int64(len(all)) && r.Arrange != wire.ArrangeConcatenated {
		fail("omitted %d of %d, want %d", out.OmittedBytes, out.TotalBytes, omitted)
	}
	if omitted > 0 && out.OmittedOffset > first {
		fail("the rest from %d, but %d is omitted", out.OmittedOffset, first)
	}
	if !r.Exact {
		return
	}
	_, n := utf8.DecodeRuneInString(all[len(head):])
	if next := all[:len(head)+n]; fits(next, up) && len(next)+len(tail) < len(all) {
		fail("the head of %d could be longer", len(head))
	}
	_, n = utf8.DecodeLastRuneInString(all[:len(all)-len(tail)])
	if next := all[len(all)-len(tail)-n:]; fits(next, down) && len(next)+len(head) < len(all) {
		fail("the tail of %d could be longer", len(tail))
	}
}
