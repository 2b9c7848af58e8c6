package output

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// shipped makes messages of at most size bytes from a number on.
func shipped(t testing.TB, l *Log, from int64, size int) (all []*wire.OutputMessage, used int) {
	t.Helper()
	prefix := []byte("kept")
	for {
		s := l.Ship(prefix, from, size, 7)
		b := s.Message[len(prefix):]
		if string(s.Message[:len(prefix)]) != "kept" || len(b) > size {
			t.Fatalf("%d bytes, at most %d", len(b), size)
		}
		m, err := wire.DecodeOutput(b)
		if err != nil {
			t.Fatal(err)
		}
		if m.Incarnation != 7 || len(m.Chunks) != s.Chunks || s.Chunks > 0 && m.Next() != s.Next {
			t.Fatalf("%+v of %+v", m.OutputHeader, s)
		}
		if s.Chunks == 0 {
			return all, used
		}
		all, used, from = append(all, m), used+len(b), s.Next
	}
}

// mixed writes what has state between chunks: characters and sequences that are cut, in
// two streams.
func mixed(w *writer, n int) {
	random := rand.New(rand.NewPCG(1, 2))
	text := []byte(strings.Repeat("plain é 世 \x1b[31mred\x1b[0m\r\nprogress 1\rprogress 2\n\x1b]0;title\a\xff", 1+n/50))[:n]
	for len(text) > 0 {
		k := min(1+random.IntN(60), len(text))
		w.chunk(wire.Stream(1+random.IntN(2)), string(text[:k]))
		text = text[k:]
	}
}

var views = []wire.View{wire.ViewText, wire.ViewSafe, wire.ViewBase64}

// samePages compares what two logs say from every cursor on.
func samePages(t *testing.T, a, b *Log, from, to int64) {
	t.Helper()
	st := State{State: wire.StateCompleted}
	for cursor := from; cursor < to; cursor++ {
		for _, view := range views {
			r := wire.Read{Cursor: &cursor, View: view, MaxBytes: MinPage}
			want, err := a.Read(r, st)
			if err != nil {
				t.Fatal(err)
			}
			got, err := b.Read(r, st)
			if err != nil {
				t.Fatal(err)
			}
			got.Output = want.Output
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("%s at %d\n%+v\n%+v", view, cursor, got, want)
			}
		}
	}
}

// Output that was shipped whole reads as it did on the worker, whatever the size of the
// messages.
func TestShipWhole(t *testing.T) {
	for _, spooled := range []bool{false, true} {
		cfg := Config{Limits: wire.OutputLimits{WindowBytes: minWindow}}
		if spooled {
			cfg.Dir = t.TempDir()
		} else {
			cfg.Limits.WindowBytes = 256 << 10
		}
		l, w := newLog(t, cfg)
		mixed(w, 8000)
		w.write(wire.Stdout, "half \xe4\xb8")
		for _, size := range []int{3000, 64 << 10} {
			messages, _ := shipped(t, l, 0, size)
			r, err := Restore("p1", false, false, messages)
			if err != nil {
				t.Fatal(err)
			}
			if r.Next() != l.Next() || !reflect.DeepEqual(r.Stats(), l.Stats()) {
				t.Errorf("%+v\n%+v", r.Stats(), l.Stats())
			}
			r.Finish(l.Stats())
			ended, _ := Restore("p1", false, true, messages)
			ended.Finish(l.Stats())
			l.Close(false, "")
			samePages(t, l, r, 0, l.Next())
			samePages(t, l, ended, 0, l.Next())
		}
	}
}

// What lies between the messages is a gap; what is around it reads as on the worker.
func TestShipAroundAGap(t *testing.T) {
	l, w := newLog(t, Config{Dir: t.TempDir()})
	mixed(w, 200_000)
	l.Close(true, "")
	head := l.Ship(nil, 0, 20_000, 7)
	const budget = 30_000
	from := l.TailFrom(head.Next, budget, 20_000)
	tail, used := shipped(t, l, from, 20_000)
	if used > budget || used < budget-8*wire.MaxOutputHeader {
		t.Errorf("the tail takes %d of %d", used, budget)
	}
	first, err := wire.DecodeOutput(head.Message)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Restore("p1", false, false, append([]*wire.OutputMessage{first}, tail...))
	if err != nil {
		t.Fatal(err)
	}
	r.Finish(l.Stats())
	st := State{State: wire.StateCompleted}
	all, gaps := readAll(t, r, wire.ViewSafe, MaxPage)
	if len(gaps) != 1 || gaps[0].Cursor != head.Next || gaps[0].NextCursor != from || gaps[0].Reason != wire.GapNotShipped {
		t.Errorf("gaps %+v; the head ends at %d, the tail begins at %d", gaps, head.Next, from)
	}
	whole, _ := readAll(t, l, wire.ViewSafe, MaxPage)
	kept := append(whole[:head.Next:head.Next], whole[from:]...)
	if !reflect.DeepEqual(all, kept) {
		t.Errorf("%d chunks, want %d", len(all), len(kept))
	}
	if o := r.Stats(); o.TotalBytes != l.Stats().TotalBytes || o.KeptBytes+o.DroppedBytes != o.TotalBytes || o.DroppedBytes != gaps[0].Bytes {
		t.Errorf("%+v", o)
	}
	// In the gap, and before it in a row.
	inside := head.Next + 1
	p, err := r.Read(wire.Read{Cursor: &inside}, st)
	if err != nil || !p.CursorExpired || p.Cursor != from {
		t.Errorf("%+v, %v", p, err)
	}
	row, err := Restore("p1", false, true, append([]*wire.OutputMessage{first}, tail...))
	if err != nil || row.Next() != head.Next || row.Stats().DroppedBytes != 0 {
		t.Errorf("a row ends at %d, %v", row.Next(), err)
	}
	// The end alone, and what is missing behind the head.
	row.Finish(l.Stats())
	if p, err = row.Read(wire.Read{Cursor: &inside}, st); err != nil || !p.End || p.NextCursor != l.Next() || len(p.Gaps) != 1 {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestShipSaysWhereTheNextIs(t *testing.T) {
	l, w := newLog(t, Config{})
	if s := l.Ship(nil, 0, 1000, 1); s.Chunks != 0 || s.Next != 0 {
		t.Errorf("%+v", s)
	}
	w.write(wire.Stdout, "one\n")
	w.write(wire.Stderr, "two\n")
	s := l.Ship(nil, 2, 1000, 1)
	m, err := wire.DecodeOutput(s.Message)
	if err != nil || s.Chunks != 0 || m.First != 2 || m.Offset != 8 || len(m.Streams) != 2 || m.Streams[1].Lines != 1 {
		t.Errorf("%+v, %v", m, err)
	}
	if s := l.Ship(nil, 0, wire.MaxOutputHeader-1550, 1); s.Chunks != 0 {
		t.Errorf("%d chunks in a message too small for one", s.Chunks)
	}
	// A log that has dropped its start begins where it does.
	l, w = newLog(t, Config{Limits: wire.OutputLimits{WindowBytes: minWindow}})
	for i := range 3000 {
		w.write(wire.Stdout, fmt.Sprintf("%09d\n", i))
	}
	s = l.Ship(nil, 0, 1<<20, 1)
	if m, err = wire.DecodeOutput(s.Message); err != nil || m.First != l.Stats().EarliestCursor || m.Next() != 3000 || m.Offset != m.First*10 {
		t.Errorf("%+v, %v", m.OutputHeader, err)
	}
}

func TestTailFrom(t *testing.T) {
	l, w := newLog(t, Config{Dir: t.TempDir()})
	if n := l.TailFrom(0, 1<<20, 1<<18); n != 0 {
		t.Errorf("of nothing: %d", n)
	}
	for range 20_000 {
		w.chunk(wire.Stdout, "x")
	}
	if n := l.TailFrom(5, 1<<20, 1<<18); n != 5 {
		t.Errorf("all fits, and it begins at %d", n)
	}
	n := l.TailFrom(5, 100_000, 1<<18)
	if _, used := shipped(t, l, n, 1<<18); used > 100_000 || used < 90_000 {
		t.Errorf("from %d: %d bytes", n, used)
	}
	if n := l.TailFrom(19_999, 100_000, 1<<18); n != 19_999 {
		t.Errorf("%d", n)
	}
	if n := l.TailFrom(0, 10, 1<<18); n != 20_000 {
		t.Errorf("nothing fits, and it begins at %d", n)
	}
}

// FuzzRestore: whatever messages say, the log made of them can be read to its end, and
// counts what it has.
func FuzzRestore(f *testing.F) {
	l, w := newLog(f, Config{})
	mixed(w, 400)
	whole := l.Ship(nil, 0, 1<<20, 7).Message
	half := l.Ship(nil, l.Next()/2, 1<<20, 7).Message
	f.Add(whole, half, int64(10))
	f.Add(half, whole, int64(1000))
	f.Add(whole, whole, int64(0))
	f.Fuzz(func(t *testing.T, a, b []byte, total int64) {
		var messages []*wire.OutputMessage
		for _, m := range [][]byte{a, b} {
			if d, err := wire.DecodeOutput(m); err == nil {
				messages = append(messages, d)
			}
		}
		for _, row := range []bool{true, false} {
			l, err := Restore("p1", false, row, messages)
			if err != nil {
				t.Fatal(err)
			}
			if !row {
				l.Finish(wire.OutputStats{TotalBytes: total, LatestCursor: total, StdoutBytes: total})
			}
			o := l.Stats()
			if o.KeptBytes+o.DroppedBytes != o.TotalBytes || o.KeptBytes < 0 || row && o.DroppedBytes != 0 {
				t.Errorf("%+v", o)
			}
			for _, view := range views {
				cursor := int64(0)
				for more := true; more; {
					p, err := l.Read(wire.Read{Cursor: &cursor, View: view}, State{State: wire.StateCompleted})
					if err != nil {
						t.Fatal(err)
					}
					if p.HasMore && p.NextCursor <= cursor {
						t.Fatalf("no way on from %d: %+v", cursor, p)
					}
					cursor, more = p.NextCursor, p.HasMore
				}
				if cursor != o.LatestCursor {
					t.Errorf("read to %d of %d", cursor, o.LatestCursor)
				}
			}
			if _, err := l.Search(t.Context(), wire.Search{Pattern: "a"}, State{State: wire.StateCompleted}); err != nil {
				t.Error(err)
			}
		}
	})
}
