package keeper

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// killWorkers runs workers over one process, killing 25 of them, and gives the
// directory with what they wrote.
func killWorkers(t *testing.T, kind string, total int64) string {
	t.Helper()
	dir, out := startKeeper(t, time.Minute), t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	kills := 0
	for e := 1; ; e++ {
		w := exec.Command(exe, "worker", dir, strconv.Itoa(e), out, kind, strconv.FormatInt(total, 10))
		w.Stderr = os.Stderr
		if err := w.Start(); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- w.Wait() }()
		began, step := written(out), rand.Int64N(total/28)
		for killed := false; !killed; {
			select {
			case err := <-done:
				if err != nil {
					t.Fatalf("worker %d: %v", e, err)
				}
				if kills < 25 {
					t.Errorf("only %d kills before the end", kills)
				}
				return out
			case <-time.After(500 * time.Microsecond):
				if kills < 25 && written(out) > began+step {
					_ = w.Process.Kill()
					<-done
					kills++
					killed = true
				}
			}
		}
	}
}

// written is how far the data file has come.
func written(out string) int64 {
	st, err := os.Stat(filepath.Join(out, "data"))
	if err != nil {
		return -1
	}
	return st.Size()
}

// each calls f for every chunk in the files, checking numbers, offsets and sums.
func each(t *testing.T, out string, f func(stream wire.Stream, data []byte)) (total int64) {
	t.Helper()
	data, err := os.Open(filepath.Join(out, "data"))
	if err != nil {
		t.Fatal(err)
	}
	defer data.Close()
	index, err := os.ReadFile(filepath.Join(out, "index"))
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < len(index); n += lineBytes {
		line := index[n : n+lineBytes]
		offset, about := int64(binary.BigEndian.Uint64(line)), binary.BigEndian.Uint64(line[8:])
		if offset != total {
			t.Fatalf("chunk %d is at %d, not %d", n/lineBytes, offset, total)
		}
		b := make([]byte, uint32(about))
		if _, err := io.ReadFull(data, b); err != nil {
			t.Fatal(err)
		}
		if crc64.Checksum(b, crcTable) != binary.BigEndian.Uint64(line[24:]) {
			t.Fatalf("chunk %d: other bytes than its sum says", n/lineBytes)
		}
		total += int64(len(b))
		f(wire.Stream(about>>32), b)
	}
	return total
}

func checkExit(t *testing.T, out string) {
	t.Helper()
	exit, err := os.ReadFile(filepath.Join(out, "exit"))
	if err != nil {
		t.Fatal(err)
	}
	if string(exit) != "7 exit gone=true" {
		t.Errorf("exit: %s", exit)
	}
}

func TestKilledWorkersLoseNothing(t *testing.T) {
	total := int64(400 << 20)
	if testing.Short() {
		total = 100 << 20
	}
	checkCounts(t, killWorkers(t, "pipe", total), total)
}

func TestKilledWorkersLoseNothingOfDescriptors(t *testing.T) {
	total := int64(200 << 20)
	if testing.Short() {
		total = 25 << 20
	}
	checkCounts(t, killWorkers(t, "fds", total), total)
}

// checkCounts reads what produce wrote: each stream by itself, nothing missing, nothing
// twice.
func checkCounts(t *testing.T, out string, total int64) {
	t.Helper()
	var rest [wire.LastStream + 1][]byte
	var count [wire.LastStream + 1]uint64
	got := each(t, out, func(stream wire.Stream, data []byte) {
		b := append(rest[stream], data...)
		for ; len(b) >= 8; b = b[8:] {
			if v := binary.BigEndian.Uint64(b); v != count[stream] {
				t.Fatalf("%v: %d where %d belongs", stream, v, count[stream])
			}
			count[stream]++
		}
		rest[stream] = append([]byte(nil), b...)
	})
	if got != total {
		t.Errorf("%d bytes of %d", got, total)
	}
	checkExit(t, out)
}

func TestKilledWorkersLoseNothingOfATerminal(t *testing.T) {
	total := int64(30 << 20)
	if testing.Short() {
		total = 10 << 20
	}
	out := killWorkers(t, "tty", total)
	var rest []byte
	line := 0
	each(t, out, func(_ wire.Stream, data []byte) {
		b := append(rest, data...)
		for {
			i := bytes.IndexByte(b, '\n')
			if i < 0 {
				break
			}
			if want := fmt.Sprintf("%014d\r", line); string(b[:i]) != want {
				t.Fatalf("line %d: %q", line, b[:i])
			}
			line++
			b = b[i+1:]
		}
		rest = append([]byte(nil), b...)
	})
	if int64(line) != (total+15)/16 || len(rest) > 0 {
		t.Errorf("%d lines of %d, and %d bytes", line, (total+15)/16, len(rest))
	}
	checkExit(t, out)
}

func TestOlderWorkerIsKilledBeforeTheHandOver(t *testing.T) {
	dir, out := startKeeper(t, time.Minute), t.TempDir()
	exe, _ := os.Executable()
	old := exec.Command(exe, "worker", dir, "5", out, "pipe", strconv.Itoa(1<<40))
	old.Stderr = os.Stderr
	if err := old.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the old worker pumps", func() bool { return written(out) > 1<<20 })

	c, err := Dial(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.LastIncarnation() != 5 {
		t.Errorf("last incarnation %d", c.LastIncarnation())
	}
	for _, e := range []uint64{4, 5} {
		other, err := Dial(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.Attach(t.Context(), e, func(Event) {}); !errors.Is(err, &wire.Error{Code: wire.CodeInvalidArguments}) {
			t.Errorf("attach as %d: %v", e, err)
		}
		_ = other.Close()
	}
	if !alive(old.Process.Pid) {
		t.Fatal("a refused attach has killed the worker")
	}
	ev := newEvents()
	adopted, err := c.Attach(t.Context(), 6, ev.deliver)
	if err != nil {
		t.Fatal(err)
	}
	if alive(old.Process.Pid) {
		t.Error("the old worker lives after the hand-over")
	}
	if err := old.Wait(); err == nil || old.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the old worker ended with %v", err)
	}
	if len(adopted) != 1 {
		t.Fatalf("adopted %d", len(adopted))
	}
	p := adopted[0]
	if err := p.Stop(t.Context(), wire.ReasonCancel, Kill, 0); err != nil {
		t.Fatal(err)
	}
	if e := ev.exited(t, p); e.Code != 137 || e.Signal != "KILL" || e.Cause != wire.ReasonCancel {
		t.Errorf("exit %+v", e)
	}
}

// A worker that dies between the read and the commit leaves bytes that only the slot
// explains.
func TestBytesReadAndNotIndexed(t *testing.T) {
	dir := startKeeper(t, time.Minute)
	c, _, _ := attach(t, dir, 1)
	p := spawn(t, c, bash("p", "echo first >&2; read -t 0.2 < <(:); printf second; exec sleep 60"))
	u := &p.output
	eventually(t, "output", func() bool {
		u.turn.Lock()
		defer u.turn.Unlock()
		n, _ := u.read(t.Context(), rawFD(t, u.stderr), wire.Stderr)
		return n == 6
	})
	if at, err := u.journal.position(); err != nil || at != 6 || p.slot.next() != 0 {
		t.Fatal(err, at, p.slot.next())
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c, ev, adopted := attach(t, dir, 2)
	if len(adopted) != 1 {
		t.Fatalf("adopted %d", len(adopted))
	}
	p = adopted[0]
	var sink record
	done := pumped(t.Context(), p, &sink, 0)
	eventually(t, "both", func() bool { return sink.size() == 12 })
	if sink.text(wire.Stderr) != "first\n" || sink.text(wire.Stdout) != "second" || sink.chunks[0].OrderUnknown {
		t.Errorf("%+v %q %q", sink.chunks, sink.text(wire.Stdout), sink.text(wire.Stderr))
	}
	if err := p.Stop(t.Context(), wire.ReasonSessionClosed, Terminate, time.Second); err != nil {
		t.Fatal(err)
	}
	if err := done(); err != nil {
		t.Error(err)
	}
	if e := ev.exited(t, p); e.Cause != wire.ReasonSessionClosed || e.Signal != "TERM" {
		t.Errorf("%+v", e)
	}
	if g := ev.gone(t, p); !g.Gone {
		t.Errorf("%+v", g)
	}
	_ = c
}

func rawFD(t *testing.T, f *os.File) (fd int) {
	t.Helper()
	if err := control(f, func(n int) error { fd = n; return nil }); err != nil {
		t.Fatal(err)
	}
	return fd
}
