package output

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// spooled makes the files of a log and gives its chunks.
func spooled(t testing.TB, dir string, chunks int) []Chunk {
	t.Helper()
	l, w := newLog(t, Config{Dir: dir})
	w.keep = true
	for i := range int64(chunks) {
		w.chunk(wire.Stream(1+i%2), numbered(i))
	}
	l.Close(true, "")
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	return w.chunks
}

func onlyFile(t testing.TB, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "p1", "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files %v: %v", files, err)
	}
	return files[0]
}

func TestTornWrite(t *testing.T) {
	dir := t.TempDir()
	chunks := spooled(t, dir, 300)
	path := onlyFile(t, dir)
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, cut := range []int64{1, 100, 250} {
		if err := os.Truncate(path, fi.Size()-cut); err != nil {
			t.Fatal(err)
		}
		l := open(t, Config{Dir: dir})
		if l.Next() != 299 || l.Recovery().Torn != 1 || l.Recovery().Corrupt != 0 {
			t.Errorf("cut %d: next %d, %+v", cut, l.Next(), l.Recovery())
		}
		if err := l.Append(chunks[299]); err != nil {
			t.Fatal(err)
		}
		checkCount(t, l)
		compare(t, l, chunks)
		if l.Stats().DroppedBytes != 0 {
			t.Errorf("%+v", l.Stats())
		}
	}
}

func TestCorruptRecordIsAGap(t *testing.T) {
	for _, when := range []string{"before open", "before read"} {
		t.Run(when, func(t *testing.T) {
			dir := t.TempDir()
			chunks := spooled(t, dir, 300)
			path := onlyFile(t, dir)
			l := open(t, Config{Dir: dir})
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			at := bytes.Index(b, []byte(numbered(150)))
			b[at+7] ^= 1
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			if when == "before open" {
				l = open(t, Config{Dir: dir})
			}
			_, gaps := readAll(t, l, wire.ViewText, 0)
			if len(gaps) != 1 || gaps[0].Cursor != 150 || gaps[0].NextCursor != 151 || gaps[0].Bytes != 151 || gaps[0].Reason == gapBudget {
				t.Errorf("gaps %+v", gaps)
			}
			checkCount(t, l)
			compare(t, l, chunks)
		})
	}
}

func TestJournalLostChunks(t *testing.T) {
	l := open(t, Config{})
	if err := l.Append(Chunk{Number: 10, Offset: 100, StdoutOffset: 60, Stream: wire.Stderr, Data: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	st := l.Stats()
	if st.TotalBytes != 101 || st.DroppedBytes != 100 || st.StdoutBytes != 60 || st.StderrBytes != 41 || st.EarliestCursor != 10 {
		t.Errorf("%+v", st)
	}
	_, gaps := readAll(t, l, wire.ViewText, 0)
	if len(gaps) != 1 || gaps[0].Reason != gapTorn {
		t.Errorf("%+v", gaps)
	}
	if err := l.Append(Chunk{Number: 20, Offset: 200, Stream: wire.Stdout, Data: []byte("x")}); err == nil {
		t.Error("a second jump was taken")
	}
}

func TestRecoverLists(t *testing.T) {
	dir := t.TempDir()
	if ids, err := Recover(filepath.Join(dir, "none")); err != nil || len(ids) != 0 {
		t.Errorf("%v %v", ids, err)
	}
	spooled(t, dir, 10)
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "empty"), 0o700), os.Mkdir(filepath.Join(dir, "not an id"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if ids, err := Recover(dir); err != nil || len(ids) != 1 || ids[0] != "p1" {
		t.Errorf("%v %v", ids, err)
	}
}

// FuzzRecover: whatever is on disk, Open and every read succeed, no chunk differs from
// what was written, and the count holds. A file cut short keeps all before the cut.
func FuzzRecover(f *testing.F) {
	f.Add(uint16(10), uint32(100), byte(1), uint32(1<<31))
	f.Add(uint16(50), uint32(0), byte(0xff), uint32(3000))
	f.Add(uint16(3), uint32(8), byte(0x80), uint32(70))
	f.Fuzz(func(t *testing.T, n uint16, at uint32, flip byte, size uint32) {
		dir := t.TempDir()
		chunks := spooled(t, dir, 1+int(n%64))
		path := onlyFile(t, dir)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b = b[:min(int(size), len(b))]
		if len(b) > 0 {
			b[int(at)%len(b)] ^= flip
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		l := open(t, Config{Dir: dir})
		checkCount(t, l)
		compare(t, l, chunks)
		whole := 0 // records before the first damage
		for end := 0; whole < len(chunks); whole++ {
			end += headerLen + len(chunks[whole].Data)
			if end > len(b) || flip != 0 && int(at)%len(b) < end {
				break
			}
		}
		if got := l.Next(); got < int64(whole) {
			t.Fatalf("next %d, but %d chunks are whole", got, whole)
		}
		if next := l.Next(); next < int64(len(chunks)) {
			if err := l.Append(chunks[next]); err != nil {
				t.Fatal(err)
			}
		}
		checkCount(t, l)
		compare(t, l, chunks)
	})
}

// FuzzScan: any bytes as a segment.
func FuzzScan(f *testing.F) {
	var b []byte
	for i := range int64(3) {
		b = append(b, make([]byte, 100)[:0]...)
		r := record{number: i, raw: i * 5, stdout: i * 5, source: 5, stream: wire.Stdout, data: []byte("hello")}
		b = appendRecord(slices.Grow(b, 100), &r)
	}
	seal(b)
	f.Add(b)
	f.Add(b[3:])
	f.Add(append(slices.Clone(b), b...))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		path := segmentPath(filepath.Join(dir, "p1"), 0, true)
		if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), os.WriteFile(path, b, 0o600)); err != nil {
			t.Fatal(err)
		}
		l := open(t, Config{Dir: dir})
		checkCount(t, l)
		l.Render(wire.Render{}, false)
		l.Render(wire.Render{}, true)
	})
}
