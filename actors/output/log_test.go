package output

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

var epoch = time.Unix(1_700_000_000, 123456789)

// writer numbers chunks as a pump does.
type writer struct {
	t      testing.TB
	log    *Log
	number int64
	offset int64
	stdout int64
	chunks []Chunk // what a journal would hold
	keep   bool
}

func (w *writer) write(stream wire.Stream, data string) {
	w.t.Helper()
	for len(data) > 0 {
		n := min(len(data), MaxChunk)
		w.chunk(stream, data[:n])
		data = data[n:]
	}
}

func (w *writer) chunk(stream wire.Stream, data string) {
	w.t.Helper()
	c := Chunk{
		Number: w.number, Offset: w.offset, Stream: stream, Data: []byte(data),
		At: epoch.Add(time.Duration(w.number)), StdoutOffset: w.stdout,
	}
	if err := w.log.Append(c); err != nil {
		w.t.Fatalf("append: %v", err)
	}
	if w.keep {
		w.chunks = append(w.chunks, c)
	}
	w.number++
	w.offset += int64(len(data))
	if stream == wire.Stdout {
		w.stdout += int64(len(data))
	}
}

func open(t testing.TB, cfg Config) *Log {
	t.Helper()
	if cfg.Process == "" {
		cfg.Process = "p1"
	}
	l, err := Open(cfg)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { l.closeFileForTest() })
	return l
}

func (l *Log) closeFileForTest() {
	l.disk.Lock()
	defer l.disk.Unlock()
	l.closeFile()
}

func newLog(t testing.TB, cfg Config) (*Log, *writer) {
	l := open(t, cfg)
	return l, &writer{t: t, log: l}
}

// readAll reads pages from the start and checks that they join without a seam.
func readAll(t testing.TB, l *Log, view wire.View, maxBytes int) (chunks []wire.Chunk, gaps []wire.Gap) {
	t.Helper()
	cursor, offset := int64(0), int64(0)
	for {
		p, err := l.Read(wire.Read{Cursor: &cursor, MaxBytes: maxBytes, View: view}, State{State: wire.StateCompleted})
		if err != nil {
			t.Fatalf("read %d: %v", cursor, err)
		}
		at := offset
		items := append([]wire.Gap(nil), p.Gaps...)
		for _, c := range p.Chunks {
			for len(items) > 0 && items[0].Cursor == cursor && items[0].NextCursor <= c.Cursor {
				at, cursor, items = items[0].NextOffset, items[0].NextCursor, items[1:]
			}
			if c.SourceBytes > 0 && (c.Offset != at || c.Cursor != cursor) {
				t.Fatalf("chunk %d at %d, want %d at %d", c.Cursor, c.Offset, cursor, at)
			}
			at += int64(c.SourceBytes)
			if c.SourceBytes > 0 {
				cursor++
			}
		}
		for _, g := range items {
			at, cursor = g.NextOffset, g.NextCursor
		}
		if p.NextOffset != at || p.NextCursor != cursor {
			t.Fatalf("page ends at %d/%d, want %d/%d", p.NextCursor, p.NextOffset, cursor, at)
		}
		chunks, gaps = append(chunks, p.Chunks...), append(gaps, p.Gaps...)
		offset = at
		if !p.HasMore {
			return chunks, gaps
		}
	}
}

func raw(t testing.TB, chunks []wire.Chunk) string {
	t.Helper()
	var b strings.Builder
	for _, c := range chunks {
		d, err := base64.StdEncoding.DecodeString(c.Data)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(d)
	}
	return b.String()
}

func texts(chunks []wire.Chunk) string {
	var b strings.Builder
	for _, c := range chunks {
		b.WriteString(c.Text)
	}
	return b.String()
}

// checkCount holds the promise total = kept + dropped, against what can be read.
func checkCount(t testing.TB, l *Log) {
	t.Helper()
	chunks, gaps := readAll(t, l, wire.ViewBase64, MaxPage)
	st := l.Stats()
	var kept, lost int64
	for _, c := range chunks {
		kept += int64(c.SourceBytes)
	}
	for _, g := range gaps {
		lost += g.Bytes
	}
	if kept != st.KeptBytes || lost != st.DroppedBytes || kept+lost != st.TotalBytes {
		t.Fatalf("read kept %d lost %d; stats %+v", kept, lost, st)
	}
	if len(chunks) > 0 && chunks[0].Cursor != st.EarliestCursor {
		t.Fatalf("earliest %d, want %d", st.EarliestCursor, chunks[0].Cursor)
	}
}

func TestSmallOutputTouchesNoDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "spool")
	l, w := newLog(t, Config{Dir: dir})
	w.write(wire.Stdout, strings.Repeat("x", 100<<10))
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("spool directory: %v", err)
	}
	checkCount(t, l)
	l.Close(true, "")
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	checkCount(t, l)
	fi, err := os.Stat(filepath.Join(dir, "p1"))
	if err != nil || fi.Mode().Perm() != 0o700 {
		t.Fatalf("directory %v: %v", fi, err)
	}
	files, _ := os.ReadDir(filepath.Join(dir, "p1"))
	for _, f := range files {
		if fi, err := f.Info(); err != nil || fi.Mode().Perm() != 0o600 {
			t.Fatalf("file %v: %v", fi, err)
		}
	}
}

// TestModel writes random chunks under random limits and compares every kept byte.
func TestModel(t *testing.T) {
	for seed := range uint64(24) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			cfg := Config{Dir: t.TempDir(), Budget: NewBudget(1 << 30)}
			cfg.Limits.WindowBytes = minWindow << rng.IntN(7)
			cfg.Limits.SpoolBytes = []int64{-1, minSpool, 1 << 20, 300_000}[rng.IntN(4)]
			cfg.Limits.HeadBytes = []int64{0, -1, 50_000}[rng.IntN(3)]
			var trimmed int64
			cfg.OnTrim = func(raw int64) {
				if raw <= trimmed {
					t.Errorf("trim from %d to %d", trimmed, raw)
				}
				trimmed = raw
			}
			l, w := newLog(t, cfg)
			w.keep = true
			size := []int{1, 100, MaxChunk}[rng.IntN(3)]
			for range 2000 {
				b := make([]byte, 1+rng.IntN(size))
				for i := range b {
					b[i] = byte(rng.Uint32())
				}
				w.chunk(wire.Stream(1+rng.IntN(2)), string(b))
			}
			if err := l.Flush(); err == nil {
				t.Fatal("flush of an open log")
			}
			checkCount(t, l)
			compare(t, l, w.chunks)
			if cfg.Limits.SpoolBytes > 0 {
				reopen(t, l, cfg, w.chunks, &trimmed)
			}
			l.Close(true, "")
			if err := l.Flush(); err != nil {
				t.Fatal(err)
			}
			checkCount(t, l)
			compare(t, l, w.chunks)
			if cfg.Limits.SpoolBytes > 0 {
				reopen(t, l, cfg, w.chunks, &trimmed)
				if trimmed != l.Stats().TotalBytes {
					t.Errorf("trimmed %d of %d", trimmed, l.Stats().TotalBytes)
				}
			}
			used := cfg.Limits.SpoolBytes
			if n := cfg.Budget.Used(); used > 0 && n > used {
				t.Errorf("budget %d, more than the spool of %d", n, used)
			}
			if err := l.Remove(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// compare checks each kept chunk against what was written.
func compare(t testing.TB, l *Log, want []Chunk) {
	t.Helper()
	chunks, _ := readAll(t, l, wire.ViewBase64, MaxPage)
	for _, c := range chunks {
		o := want[c.Cursor]
		if d, _ := base64.StdEncoding.DecodeString(c.Data); string(d) != string(o.Data) ||
			c.Offset != o.Offset || c.Stream != o.Stream.String() || !c.At.Equal(o.At) {
			t.Fatalf("chunk %d differs", c.Cursor)
		}
	}
}

// reopen plays a crash: a second log over the same files, fed from the journal.
func reopen(t *testing.T, l *Log, cfg Config, chunks []Chunk, trimmed *int64) {
	t.Helper()
	l.closeFileForTest()
	cfg.OnTrim, cfg.Budget = nil, nil
	again := open(t, cfg)
	for _, c := range chunks[again.Next():] {
		if c.Offset < *trimmed {
			t.Fatalf("chunk %d at %d is wanted, and trimmed below %d", c.Number, c.Offset, *trimmed)
		}
		if err := again.Append(c); err != nil {
			t.Fatal(err)
		}
	}
	checkCount(t, again)
	compare(t, again, chunks)
	a, b := l.Stats(), again.Stats()
	if a.TotalBytes != b.TotalBytes || a.StdoutBytes != b.StdoutBytes || a.LatestCursor != b.LatestCursor {
		t.Fatalf("before %+v, after %+v", a, b)
	}
	if l.states != again.states || l.lines != again.lines {
		t.Fatalf("state before %v %v, after %v %v", l.states, l.lines, again.states, again.lines)
	}
}
