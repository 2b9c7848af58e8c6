package output

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// require skips, or fails where LIMPET_REQUIRE names what is missing.
func require(t *testing.T, what string, err error) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("LIMPET_REQUIRE"), ","), what) {
		t.Fatalf("%s is required here: %v", what, err)
	}
	t.Skipf("SKIPPED, NOT TESTED: needs %s: %v", what, err)
}

func diskUse(t testing.TB, dir string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		if err == nil {
			n += fi.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestSpoolStaysUnderItsCap(t *testing.T) { // RES 115, RES 117
	dir := t.TempDir()
	const spool = 4 << 20
	l, w := newLog(t, Config{Dir: dir, Limits: wire.OutputLimits{SpoolBytes: spool}})
	yes := strings.Repeat("y\n", MaxChunk/2)
	for range 16 {
		for range 256 {
			w.chunk(wire.Stdout, yes)
		}
		if n := diskUse(t, dir); n > spool {
			t.Fatalf("%d bytes on disk", n)
		}
	}
	checkCount(t, l)
	st := l.Stats()
	if st.EarliestCursor != 0 || st.KeptBytes < spool*8/10 {
		t.Errorf("%+v", st)
	}
	p, err := l.Read(wire.Read{}, State{})
	if err != nil || len(p.Gaps) != 0 || p.Chunks[0].Text != yes {
		t.Errorf("head: %v", err)
	}
	if p, err = l.Read(wire.Read{Cursor: new(st.LatestCursor - 1)}, State{}); err != nil || p.Chunks[0].Text != yes {
		t.Errorf("tail: %v", err)
	}
}

// fullDisk mounts a file system of 1 MiB.
func fullDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("limpet-test", dir, "tmpfs", 0, "size=1m"); err != nil {
		require(t, "mount", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

func TestFullDisk(t *testing.T) { // RES 121
	for _, head := range []int64{0, -1} {
		dir := fullDisk(t)
		l, w := newLog(t, Config{Dir: dir, Limits: wire.OutputLimits{HeadBytes: head}})
		w.write(wire.Stdout, seq(500_000))
		checkCount(t, l)
		st := l.Stats()
		if st.DroppedBytes == 0 || st.KeptBytes < 700<<10 {
			t.Fatalf("head %d: %+v", head, st)
		}
		chunks, gaps := readAll(t, l, wire.ViewText, MaxPage)
		if len(gaps) != 1 || head == 0 && gaps[0].Reason != gapSpool {
			t.Errorf("head %d: gaps %+v", head, gaps)
		}
		if !strings.HasSuffix(texts(chunks), "\n500000\n") {
			t.Error("the end is missing")
		}
		l.Close(true, "")
		if err := l.Flush(); head == 0 && err == nil {
			t.Error("flush to a full disk")
		}
		checkCount(t, l)

		// Space comes back: the same log goes on, and the next process is logged.
		if err := os.RemoveAll(filepath.Join(dir, "p1")); err != nil {
			t.Fatal(err)
		}
		next, v := newLog(t, Config{Dir: dir, Process: "p2"})
		v.write(wire.Stdout, "again\n")
		next.Close(true, "")
		if err := next.Flush(); err != nil {
			t.Fatal(err)
		}
		if chunks, _ := readAll(t, next, wire.ViewText, 0); texts(chunks) != "again\n" {
			t.Errorf("second command: %q", texts(chunks))
		}
		checkCount(t, l) // its files are gone: all that was on them is counted as lost
	}
}

func TestSpoolWorksAgain(t *testing.T) { // RES 121: logging resumes within one process
	dir := fullDisk(t)
	block := filepath.Join(dir, "filler")
	if err := os.WriteFile(block, make([]byte, 900<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	l, w := newLog(t, Config{Dir: dir, Limits: wire.OutputLimits{WindowBytes: 64 << 10}})
	w.write(wire.Stdout, strings.Repeat("x", 512<<10))
	dropped := l.Stats().DroppedBytes
	if dropped == 0 {
		t.Fatal("the disk was not full")
	}
	if err := os.Remove(block); err != nil {
		t.Fatal(err)
	}
	w.write(wire.Stdout, strings.Repeat("y", 512<<10))
	if n := l.Stats().DroppedBytes; n > dropped+256<<10 {
		t.Errorf("dropped %d, then %d", dropped, n)
	}
	checkCount(t, l)
	again := open(t, Config{Dir: dir, Limits: wire.OutputLimits{WindowBytes: 64 << 10}})
	_, gaps := readAll(t, again, wire.ViewText, MaxPage)
	if len(gaps) != 1 || gaps[0].Reason != gapSpool {
		t.Errorf("recovered gaps %+v", gaps)
	}
}

func TestBudgetIsShared(t *testing.T) {
	budget := NewBudget(4 << 20)
	dir := t.TempDir()
	a, wa := newLog(t, Config{Dir: dir, Process: "a", Budget: budget})
	b, wb := newLog(t, Config{Dir: dir, Process: "b", Budget: budget})
	for range 4096 {
		wa.chunk(wire.Stdout, strings.Repeat("a", MaxChunk))
		wb.chunk(wire.Stdout, strings.Repeat("b", MaxChunk))
	}
	checkCount(t, a)
	checkCount(t, b)
	if n := diskUse(t, dir); n > 4<<20 || n != budget.Used() {
		t.Errorf("%d bytes on disk, budget %d", n, budget.Used())
	}
	if err := errors.Join(a.Remove(), b.Remove()); err != nil || budget.Used() != 0 {
		t.Errorf("%v, budget %d", err, budget.Used())
	}
}

// Whatever the budget is and whoever takes it, all of it comes back: also where a
// recycled segment turned out to be too small for what is left.
func TestBudgetComesBack(t *testing.T) {
	for _, size := range []int64{200_000, 333_333, 524_295, 777_777, 1 << 20} {
		budget := NewBudget(size)
		dir := t.TempDir()
		limits := wire.OutputLimits{WindowBytes: 16 << 10, SpoolBytes: 400_000, HeadBytes: -1}
		a, wa := newLog(t, Config{Dir: dir, Process: "a", Budget: budget, Limits: limits})
		b, wb := newLog(t, Config{Dir: dir, Process: "b", Budget: budget, Limits: limits})
		for i := range 3000 {
			wa.chunk(wire.Stdout, strings.Repeat("a", 1+i*37%MaxChunk))
			wb.chunk(wire.Stderr, strings.Repeat("b", 1+i*91%MaxChunk))
		}
		if n := diskUse(t, dir); n > size || n > budget.Used() {
			t.Errorf("budget %d: %d bytes on disk, %d taken", size, n, budget.Used())
		}
		if err := errors.Join(a.Remove(), b.Remove()); err != nil || budget.Used() != 0 {
			t.Errorf("budget %d: %v, %d still taken", size, err, budget.Used())
		}
	}
}

func TestLossless(t *testing.T) {
	budget := NewBudget(1 << 20)
	dir := t.TempDir()
	other, wo := newLog(t, Config{Dir: dir, Process: "other", Budget: budget})
	wo.write(wire.Stdout, strings.Repeat("o", 600<<10))
	l := open(t, Config{Dir: dir, Budget: budget, Limits: wire.OutputLimits{Lossless: true, WindowBytes: 64 << 10}})
	data := []byte(strings.Repeat("x", MaxChunk))
	n := int64(0)
	var err error
	put := func() error {
		err := l.Append(Chunk{Number: n, Offset: n * MaxChunk, Stream: wire.Stdout, Data: data})
		if err == nil {
			n++
		}
		return err
	}
	for err == nil && n < 1000 {
		err = put()
	}
	if !errors.Is(err, ErrFull) || !l.Stats().Stalled {
		t.Fatalf("after %d chunks: %v", n, err)
	}
	stalled := n
	room := l.Room()
	select {
	case <-room:
		t.Fatal("room too early")
	default:
	}
	if err := other.Remove(); err != nil {
		t.Fatal(err)
	}
	<-room
	for err = put(); err == nil && n < 1000; {
		err = put()
	}
	if n <= stalled || !errors.Is(err, ErrFull) {
		t.Errorf("%d chunks, then %d: %v", stalled, n, err)
	}
	if st := l.Stats(); st.DroppedBytes != 0 || st.TotalBytes != n*MaxChunk {
		t.Errorf("%+v", st)
	}
	checkCount(t, l)
	room = l.Room()
	l.Close(true, "")
	<-room
	if err := put(); !errors.Is(err, ErrClosed) {
		t.Errorf("append after close: %v", err)
	}
	if err := l.Remove(); err != nil || len(budget.stalled) != 0 || budget.Used() != 0 {
		t.Errorf("%v, %d watched, %d used", err, len(budget.stalled), budget.Used())
	}
}

// TestTinyChunks: single bytes cost a header each, in memory and on disk, and both
// stay within their bounds.
func TestTinyChunks(t *testing.T) {
	dir := t.TempDir()
	l, w := newLog(t, Config{Dir: dir, Limits: wire.OutputLimits{SpoolBytes: 1 << 20}})
	for range 60_000 {
		w.chunk(wire.Stdout, "x")
	}
	l.mu.Lock()
	blocks, refs := len(l.blocks)+len(l.free), 0
	for _, s := range l.segs {
		refs += len(s.runs)
	}
	l.mu.Unlock()
	if blocks*maxBlock > 1<<20 || refs > 64 {
		t.Errorf("%d blocks, %d runs in memory", blocks, refs)
	}
	if n := diskUse(t, dir); n > 1<<20 {
		t.Errorf("%d bytes on disk", n)
	}
	checkCount(t, l)
}

// TestReadersWhileRolling: every page a reader gets while the ring rolls under it is
// whole, or names what is gone.
func TestReadersWhileRolling(t *testing.T) {
	l, w := newLog(t, Config{Dir: t.TempDir(), Limits: wire.OutputLimits{SpoolBytes: 1 << 20, WindowBytes: 64 << 10}})
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { // ends when done is closed
			for cursor := int64(0); ; {
				select {
				case <-done:
					return
				default:
				}
				p, err := l.Read(wire.Read{Cursor: &cursor}, State{})
				if err != nil {
					t.Error(err)
					return
				}
				at := p.Offset
				for _, c := range p.Chunks {
					if c.Text != numbered(c.Cursor) || c.Offset < at {
						t.Errorf("chunk %d at %d is %.20q", c.Cursor, c.Offset, c.Text)
						return
					}
					at = c.Offset + int64(c.SourceBytes)
				}
				if cursor = p.NextCursor; !p.HasMore {
					cursor = 0
				}
				l.Render(wire.Render{MaxBytes: MinRender}, false)
			}
		})
	}
	for i := range int64(8000) {
		w.chunk(wire.Stdout, numbered(i))
	}
	close(done)
	wg.Wait()
	checkCount(t, l)
	for _, s := range l.lost {
		if s.reason != gapBudget {
			t.Errorf("rolling was taken for damage: %+v", s)
		}
	}
}

func numbered(i int64) string {
	return strings.Repeat(string(rune('a'+i%26)), int(i%1000)+1)
}
