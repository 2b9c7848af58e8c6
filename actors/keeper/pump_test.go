package keeper

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// held is the memory that the journal of p has.
func held(t *testing.T, p *Process) int64 {
	t.Helper()
	u := &p.output
	u.turn.Lock()
	defer u.turn.Unlock()
	if u.journal == nil {
		return 0
	}
	var st unix.Stat_t
	if err := unix.Fstat(u.journal.fd, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// numbers is 2 MiB of numbered lines.
const numbers = "seq 100000000 100233016 | head -c 2097152"

func checkNumbers(t *testing.T, got string) {
	t.Helper()
	if len(got) != 2<<20 {
		t.Fatalf("%d bytes", len(got))
	}
	for i := 0; i+10 <= len(got); i += 10 {
		if want := fmt.Sprintf("%09d\n", 100000000+i/10); got[i:i+10] != want {
			t.Fatalf("%q at %d, not %q", got[i:i+10], i, want)
		}
	}
}

func TestProcessWaitsForTrim(t *testing.T) {
	dir := startKeeper(t, time.Minute)
	c, _, _ := attach(t, dir, 1)
	s := bash("p", numbers)
	s.Backlog = 300_000 // 4 reads, not a multiple of one
	p := spawn(t, c, s)
	var sink record
	ctx, cancel := context.WithCancel(t.Context())
	done := pumped(ctx, p, &sink, 0)
	capacity := p.output.capacity()
	eventually(t, "the journal is full", func() bool { return sink.size() > capacity-readBytes })
	<-time.After(50 * time.Millisecond)
	if n := sink.size(); n > capacity {
		t.Fatalf("%d bytes in a ring of %d", n, capacity)
	}
	p.Trim(100_000) // inside of a chunk
	eventually(t, "room is used", func() bool { return sink.size() > capacity })
	cancel()
	if err := done(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	// Another worker gets what was not trimmed, over the end of the ring, as it was.
	_ = c.Close()
	_, _, adopted := attach(t, dir, 2)
	p = adopted[0]
	oldest := p.slot.oldest()
	if at := p.slot.load(oldest).raw; at > 100_000 || at < 100_000-chunkBytes {
		t.Errorf("the oldest chunk is at %d", at)
	}
	second := record{raw: p.slot.load(oldest).raw}
	second.trim = func(raw int64) { p.Trim(raw - 50_000) }
	if err := p.Pump(t.Context(), &second, 0); err != nil {
		t.Fatal(err)
	}
	if second.chunks[0].Number != oldest {
		t.Errorf("begins with chunk %d", second.chunks[0].Number)
	}
	for _, chunk := range second.chunks {
		if chunk.Number < int64(len(sink.chunks)) && !equal(chunk, sink.chunks[chunk.Number]) {
			t.Fatalf("chunk %+v was %+v", chunk, sink.chunks[chunk.Number])
		}
	}
	start := second.chunks[0].Offset
	checkNumbers(t, sink.text(wire.Stdout)[:start]+second.text(wire.Stdout))
}

func equal(a, b Chunk) bool {
	return a.Number == b.Number && a.Offset == b.Offset && a.Stream == b.Stream && a.At.Equal(b.At) && a.OrderUnknown == b.OrderUnknown
}

func TestJournalGivesMemoryBack(t *testing.T) {
	dir := startKeeper(t, time.Minute)
	c, _, _ := attach(t, dir, 1)
	s := bash("p", numbers+"; read; echo tail")
	s.Stdin = true
	p := spawn(t, c, s)
	var sink record
	done := pumped(t.Context(), p, &sink, 0)
	eventually(t, "all output", func() bool { return sink.size() == 2<<20 })
	if n := held(t, p); n < 2<<20 {
		t.Errorf("untrimmed, the journal has %d bytes", n)
	}
	p.Trim(2<<20 - 100_000)
	eventually(t, "what was trimmed is free", func() bool { return held(t, p) < 200_000 })
	p.Trim(2 << 20)
	eventually(t, "all is free", func() bool { return held(t, p) == 0 })
	p.output.turn.Lock()
	if p.output.tidying {
		t.Error("an idle process has a timer")
	}
	p.output.turn.Unlock()
	if _, err := p.WriteInput(t.Context(), 0, []byte("\n")); err != nil {
		t.Fatal(err)
	}
	if err := done(); err != nil {
		t.Fatal(err)
	}
	checkNumbers(t, strings.TrimSuffix(sink.text(wire.Stdout), "tail\n"))
	_ = p.Release(t.Context())
}

func TestPumpEndsWithItsSink(t *testing.T) {
	c, _, _ := attach(t, startKeeper(t, time.Minute), 1)
	p := spawn(t, c, bash("p", "echo one; echo two >&2; sleep 60"))
	full := errors.New("full")
	if err := p.Pump(t.Context(), sinkFunc(func(Chunk) error { return full }), 0); !errors.Is(err, full) {
		t.Errorf("pump: %v", err)
	}
	if err := p.Pump(t.Context(), &record{}, 99); !isCode(err, wire.CodeCursorAhead) {
		t.Errorf("a chunk that does not exist: %v", err)
	}
	// Nothing was lost: the chunk that the sink refused comes again.
	var sink record
	done := pumped(t.Context(), p, &sink, 0)
	eventually(t, "both", func() bool { return sink.size() == 8 })
	if err := p.Pump(t.Context(), &record{}, 0); err == nil {
		t.Error("two pumps at once")
	}
	if err := p.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := done(); !errors.Is(err, errReleased) {
		t.Errorf("pump of a released process: %v", err)
	}
	p.Trim(8) // harmless
	if _, err := p.WriteInput(t.Context(), 0, nil); err == nil {
		t.Error("input of a released process")
	}
}

type sinkFunc func(Chunk) error

func (f sinkFunc) Append(c Chunk) error { return f(c) }
