package output

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

func fieldOf(err error) string {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e.Field
	}
	return ""
}

func TestCheckReadNamesTheField(t *testing.T) {
	l, w := newLog(t, Config{})
	w.write(wire.Stdout, "12345")
	for _, c := range []struct {
		field string
		code  wire.Code
		r     wire.Read
	}{
		{"offset", wire.CodeInvalidArguments, wire.Read{Cursor: new(int64(0)), Offset: new(int64(0))}},
		{"cursor", wire.CodeInvalidArguments, wire.Read{Cursor: new(int64(-1))}},
		{"offset", wire.CodeInvalidArguments, wire.Read{Offset: new(int64(-1))}},
		{"max_bytes", wire.CodeInvalidArguments, wire.Read{MaxBytes: MinPage - 1}},
		{"max_bytes", wire.CodeInvalidArguments, wire.Read{MaxBytes: MaxPage + 1}},
		{"wait_ms", wire.CodeInvalidArguments, wire.Read{WaitMS: -1}},
		{"view", wire.CodeInvalidArguments, wire.Read{View: "screen"}},
		{"stream", wire.CodeInvalidArguments, wire.Read{Stream: "stdin"}},
		{"cursor", wire.CodeCursorAhead, wire.Read{Cursor: new(int64(2))}},
		{"offset", wire.CodeCursorAhead, wire.Read{Offset: new(int64(6))}},
	} {
		for _, check := range []func() error{
			func() error { return l.Check(c.r) },
			func() error { _, err := l.Read(c.r, State{}); return err },
		} {
			err := check()
			if fieldOf(err) != c.field || !errors.Is(err, &wire.Error{Code: c.code}) {
				t.Errorf("%+v: %v", c.r, err)
			}
		}
	}
	_, err := l.Read(wire.Read{Cursor: new(int64(2))}, State{})
	if e, _ := errors.AsType[*wire.Error](err); e.Details["latest_cursor"] != int64(1) || e.Details["total_bytes"] != int64(5) {
		t.Errorf("details %v", e.Details)
	}
	if err := l.Check(wire.Read{Cursor: new(int64(1))}); err != nil {
		t.Errorf("a cursor at the end: %v", err)
	}
}

func TestPolling(t *testing.T) { // OUT 47
	l, w := newLog(t, Config{})
	var got strings.Builder
	cursor := int64(0)
	for i := range 4 {
		w.write(wire.Stdout, "L"+itoa(i+1)+"\n")
		for range 2 {
			p, err := l.Read(wire.Read{Cursor: &cursor}, State{State: wire.StateRunning})
			if err != nil || p.End || p.HasMore {
				t.Fatalf("%+v %v", p, err)
			}
			got.WriteString(texts(p.Chunks))
			cursor = p.NextCursor
		}
	}
	if got.String() != "L1\nL2\nL3\nL4\n" {
		t.Errorf("got %q", got.String())
	}
	p, _ := l.Read(wire.Read{Cursor: new(int64(1))}, State{})
	if texts(p.Chunks) != "L2\nL3\nL4\n" {
		t.Errorf("again %q", texts(p.Chunks))
	}
	l.Close(true, "")
	p, _ = l.Read(wire.Read{Cursor: &cursor}, State{State: wire.StateCompleted, ExitCode: new(0)})
	if !p.End || len(p.Chunks) != 0 || *p.ExitCode != 0 || !p.Output.Complete {
		t.Errorf("end %+v", p)
	}
}

// TestOffsets reads from every byte, in memory and from disk.
func TestOffsets(t *testing.T) {
	l, w := newLog(t, Config{Dir: t.TempDir()})
	var all strings.Builder
	for i := range 40 {
		s := strings.Repeat(string(rune('a'+i%26)), i%7+1)
		all.WriteString(s)
		w.chunk(wire.Stream(1+i%2), s)
	}
	for range 2 {
		for at := range int64(all.Len()) {
			p, err := l.Read(wire.Read{Offset: &at, View: wire.ViewBase64}, State{})
			if err != nil || p.Offset != at || p.NextOffset != int64(all.Len()) || raw(t, p.Chunks) != all.String()[at:] {
				t.Fatalf("offset %d: %+v %v", at, p, err)
			}
			if p.Chunks[0].Offset != at || p.CursorExpired {
				t.Fatalf("offset %d: %+v", at, p)
			}
		}
		l.Close(true, "")
		if err := l.Flush(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOffsetInsideACharacter(t *testing.T) {
	l, w := newLog(t, Config{})
	w.write(wire.Stdout, "a語b")
	for at, want := range []string{"a語b", "語b", "語b", "語b", "b", ""} {
		p, err := l.Read(wire.Read{Offset: new(int64(at))}, State{})
		if err != nil || texts(p.Chunks) != want {
			t.Errorf("offset %d: %q %v", at, texts(p.Chunks), err)
		}
	}
}

func TestExpiredCursor(t *testing.T) {
	l, w := newLog(t, Config{Limits: wire.OutputLimits{SpoolBytes: -1, WindowBytes: minWindow}})
	for range 100 {
		w.chunk(wire.Stdout, strings.Repeat("x", 100))
	}
	st := l.Stats()
	for _, r := range []wire.Read{{Cursor: new(int64(3))}, {Offset: new(int64(350))}, {}} {
		p, err := l.Read(r, State{})
		if err != nil {
			t.Fatal(err)
		}
		if p.CursorExpired != (r.Cursor != nil || r.Offset != nil) || len(p.Gaps) != 1 || p.Cursor != st.EarliestCursor || p.Chunks[0].Cursor != p.Cursor {
			t.Errorf("%+v", p)
		}
		g := p.Gaps[0]
		if g.Cursor != 0 || g.NextCursor != st.EarliestCursor || g.Bytes != st.DroppedBytes || g.NextOffset != p.Offset || g.Reason != gapBudget {
			t.Errorf("%+v", g)
		}
	}
}

func TestStreamFilter(t *testing.T) {
	l, w := newLog(t, Config{Dir: t.TempDir()})
	w.write(wire.Stderr, "first\n")
	w.write(wire.Stdout, strings.Repeat("x", 20<<20))
	w.write(wire.Stderr, "last\n")
	var got strings.Builder
	cursor, pages := int64(0), 0
	for {
		p, err := l.Read(wire.Read{Cursor: &cursor, Stream: "stderr"}, State{})
		if err != nil {
			t.Fatal(err)
		}
		got.WriteString(texts(p.Chunks))
		pages++
		if cursor = p.NextCursor; !p.HasMore {
			break
		}
	}
	if got.String() != "first\nlast\n" || pages > 8 {
		t.Errorf("got %q in %d pages", got.String(), pages)
	}
}

func TestPageBounds(t *testing.T) {
	l, w := newLog(t, Config{})
	for range 3000 {
		w.chunk(wire.Stdout, "x")
	}
	p, _ := l.Read(wire.Read{}, State{})
	if len(p.Chunks) != PageChunks || !p.HasMore || p.NextCursor != PageChunks {
		t.Errorf("%d chunks, next %d", len(p.Chunks), p.NextCursor)
	}
	for range 10 {
		w.chunk(wire.Stdout, strings.Repeat("y", MaxChunk))
	}
	p, _ = l.Read(wire.Read{Cursor: new(int64(3000)), MaxBytes: 10_000}, State{})
	if len(p.Chunks) != 2 || p.NextCursor != 3002 {
		t.Errorf("%d chunks, next %d", len(p.Chunks), p.NextCursor)
	}
}

func TestChanged(t *testing.T) {
	l, w := newLog(t, Config{})
	fired := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	a, b := l.Changed(0), l.Changed(0)
	if fired(a) {
		t.Error("fired without output")
	}
	w.write(wire.Stdout, "x")
	if !fired(a) || !fired(b) || !fired(l.Changed(0)) {
		t.Error("output did not wake")
	}
	c := l.Changed(1)
	if fired(c) {
		t.Error("fired at the end")
	}
	l.Close(false, "read: input/output error")
	if !fired(c) || !fired(l.Changed(1)) {
		t.Error("close did not wake")
	}
	if st := l.Stats(); st.Complete || st.Error == "" {
		t.Errorf("%+v", st)
	}
}

func TestWakeLatency(t *testing.T) {
	l, w := newLog(t, Config{})
	woke := make(chan time.Time)
	for i := range int64(50) {
		c := l.Changed(i)
		go func() { <-c; woke <- time.Now() }() // ends with the chunk below
		start := time.Now()
		w.write(wire.Stdout, "x")
		if d := (<-woke).Sub(start); d > time.Second {
			t.Errorf("woke after %v", d)
		}
	}
}

func TestRemoved(t *testing.T) { // OUT 51
	budget := NewBudget(0)
	l, w := newLog(t, Config{Dir: t.TempDir(), Budget: budget})
	w.write(wire.Stdout, strings.Repeat("x", 2<<20))
	if budget.Used() == 0 {
		t.Fatal("nothing was spooled")
	}
	if err := l.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(); err != nil {
		t.Errorf("again: %v", err)
	}
	if _, err := l.Read(wire.Read{}, State{}); !errors.Is(err, &wire.Error{Code: wire.CodeExpired}) {
		t.Errorf("read: %v", err)
	}
	if budget.Used() != 0 {
		t.Errorf("budget %d", budget.Used())
	}
	if err := l.Append(Chunk{Number: w.number, Offset: w.offset, Stream: wire.Stdout, Data: []byte("x")}); !errors.Is(err, ErrClosed) {
		t.Errorf("append: %v", err)
	}
	if ids, err := Recover(l.cfg.Dir); err != nil || len(ids) != 0 {
		t.Errorf("recover: %v %v", ids, err)
	}
}

func TestAppendRefusesWhatIsNotNext(t *testing.T) {
	l, w := newLog(t, Config{})
	w.write(wire.Stdout, "abc")
	for _, c := range []Chunk{
		{Number: 0, Offset: 0, Stream: wire.Stdout, Data: []byte("x")},
		{Number: 2, Offset: 3, Stream: wire.Stdout, Data: []byte("x")},
		{Number: 1, Offset: 4, Stream: wire.Stdout, Data: []byte("x")},
		{Number: 1, Offset: 3, Stream: 0, Data: []byte("x")},
		{Number: 1, Offset: 3, Stream: wire.Stdout},
		{Number: 1, Offset: 3, Stream: wire.Stdout, Data: make([]byte, MaxChunk+1)},
	} {
		if err := l.Append(c); err == nil {
			t.Errorf("%d at %d was taken", c.Number, c.Offset)
		}
	}
	if st := l.Stats(); st.TotalBytes != 3 || st.LatestCursor != 1 {
		t.Errorf("%+v", st)
	}
}

func TestFilterKeepsOffsets(t *testing.T) {
	l, w := newLog(t, Config{Filter: func(c Chunk) []byte {
		return []byte(strings.ReplaceAll(string(c.Data), "secret", "***"))
	}})
	w.write(wire.Stdout, "a secret\n")
	w.write(wire.Stdout, "b\n")
	p, _ := l.Read(wire.Read{}, State{})
	if texts(p.Chunks) != "a ***\nb\n" || p.Chunks[1].Offset != 9 || p.NextOffset != 11 || p.Chunks[0].SourceBytes != 9 {
		t.Errorf("%+v", p)
	}
	out, _ := l.Render(wire.Render{}, false)
	if out.Text != "a ***\nb\n" || out.TotalBytes != 11 || out.Truncated {
		t.Errorf("%+v", out)
	}
}
