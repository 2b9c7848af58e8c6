package keeper

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/actors/runtime"
	"github.com/limpet-sh/limpet/subjects/wire"
)

func TestDescriptorsAreStreams(t *testing.T) {
	dir := startKeeper(t, time.Minute)
	c, ev, _ := attach(t, dir, 1)
	s := bash("p", `for i in {1..2000}; do echo "out $i"; echo "three $i" >&3; echo "five $i" >&5; done; cat <&4 >&5; cat /dev/fd/4`)
	s.Descriptors = []wire.Descriptor{{Number: 5, Output: true}, {Number: 4, Input: []byte("given\n")}, {Number: 3, Output: true}}
	p := spawn(t, c, s)
	var sink record
	if err := p.Pump(t.Context(), &sink, 0); err != nil {
		t.Fatal(err)
	}
	if e := ev.exited(t, p); e.Code != 0 || e.State != nil {
		t.Errorf("%+v", e)
	}
	lines := func(word string) string {
		var b strings.Builder
		for i := range 2000 {
			fmt.Fprintf(&b, "%s %d\n", word, i+1)
		}
		return b.String()
	}
	for stream, want := range map[wire.Stream]string{1: lines("out") + "given\n", 2: "", 3: lines("three"), 5: lines("five") + "given\n"} {
		if got := sink.text(stream); got != want {
			t.Errorf("%v: %d bytes, want %d", stream, len(got), len(want))
		}
	}
	streams := map[wire.Stream]bool{}
	for i, chunk := range sink.chunks {
		if chunk.Number != int64(i) || chunk.OrderUnknown || chunk.Descriptors != nil {
			t.Fatalf("chunk %d: %+v", i, chunk)
		}
		streams[chunk.Stream] = true
	}
	if len(streams) != 3 {
		t.Errorf("streams %v", streams)
	}
}

// A process with all of them is handed over, and read to the end by the next worker.
func TestAllDescriptorsAreAdopted(t *testing.T) {
	dir := startKeeper(t, time.Minute)
	c, _, _ := attach(t, dir, 1)
	s := bash("p", `for n in {3..64}; do echo "a $n" >&$n; done; read; for n in {3..64}; do echo "b $n" >&$n; done; echo out; echo err >&2; echo saved >&65`)
	for n := wire.MinDescriptor; n <= wire.MaxDescriptor; n++ {
		s.Descriptors = append(s.Descriptors, wire.Descriptor{Number: n, Output: true})
	}
	s.Stdin, s.CaptureState = true, true
	p := spawn(t, c, s)
	var first record
	done := pumped(t.Context(), p, &first, 0)
	eventually(t, "the first lines", func() bool { return first.size() >= int64(len("a 3\n")*7+len("a 10\n")*55) })
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	_ = done()
	_, ev, adopted := attach(t, dir, 2)
	if len(adopted) != 1 {
		t.Fatalf("adopted %d", len(adopted))
	}
	p = adopted[0]
	if _, err := p.WriteInput(t.Context(), -1, []byte("go\n")); err != nil {
		t.Fatal(err)
	}
	second := record{raw: first.size()}
	if err := p.Pump(t.Context(), &second, int64(len(first.chunks))); err != nil {
		t.Fatal(err)
	}
	for n := wire.Stream(wire.MinDescriptor); n <= wire.LastStream; n++ {
		if a, b := first.text(n), second.text(n); a != fmt.Sprintf("a %d\n", n) || b != fmt.Sprintf("b %d\n", n) {
			t.Errorf("%v: %q and %q", n, a, b)
		}
	}
	if e := ev.exited(t, p); e.Code != 0 || string(e.State) != "saved\n" || second.text(wire.Stderr) != "err\n" {
		t.Errorf("%+v", e)
	}
	counts := map[int]int64{}
	for _, d := range second.chunks[0].Descriptors {
		counts[d.Number] = d.Bytes
	}
	if len(counts) != 62 || counts[3] != 4 || counts[64] != 5 {
		t.Errorf("before the second pump: %v", counts)
	}
}

// The state is told to who attaches after the exit, too.
func TestStateIsAdopted(t *testing.T) {
	dir := startKeeper(t, time.Minute)
	c, _, _ := attach(t, dir, 1)
	s := bash("p", "read; head -c 100000 /dev/zero | tr '\\0' x >&65; sleep 60 >/dev/null 2>&1 & exit 3")
	s.CaptureState, s.Stdin = true, true
	p := spawn(t, c, s)
	if n := holding(t, keeperPID(t, dir), "limpet-state"); n != 1 {
		t.Errorf("the keeper holds %d state files of one command", n)
	}
	if _, err := p.WriteInput(t.Context(), 0, []byte("go\n")); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command ends", func() bool { return !alive(p.PID()) })
	_, _, adopted := attach(t, dir, 2)
	if len(adopted) != 1 {
		t.Fatalf("adopted %d", len(adopted))
	}
	p = adopted[0]
	eventually(t, "its exit is known", func() bool { return p.Exited() != nil })
	if e := p.Exited(); e.Code != 3 || e.Left != 1 || string(e.State) != strings.Repeat("x", 100_000) {
		t.Errorf("code %d, %d left, %d bytes of state", e.Code, e.Left, len(e.State))
	}
	if n := holding(t, keeperPID(t, dir), "limpet-state"); n != 0 { // the leftover has it still
		t.Errorf("the keeper holds %d state files that it has read", n)
	}
	if err := p.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// holding counts the descriptors of a process by what they are open on.
func holding(t testing.TB, pid int, name string) (n int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range list {
		if link, err := os.Readlink(dir + fd.Name()); err == nil && strings.Contains(link, name) {
			n++
		}
	}
	return n
}

// A leftover that holds a captured descriptor delays no exit, and ends as others do.
func TestLeftoverHoldsADescriptor(t *testing.T) {
	c, ev, _ := attach(t, startKeeper(t, time.Minute), 1)
	s := bash("p", "exec >/dev/null 2>&1; sleep 60 & echo mine >&3; exit 5")
	s.Descriptors = []wire.Descriptor{{Number: 3, Output: true}}
	p := spawn(t, c, s)
	var sink record
	done := pumped(t.Context(), p, &sink, 0)
	if e := ev.exited(t, p); e.Code != 5 || e.Left != 1 || e.Gone {
		t.Errorf("%+v", e)
	}
	if err := p.KillLeftovers(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := done(); err != nil || sink.text(3) != "mine\n" {
		t.Errorf("%v, %q", err, sink.text(3))
	}
	if g := ev.gone(t, p); !g.Gone || g.Leftovers != 1 {
		t.Errorf("%+v", g)
	}
}

func TestBadDescriptorsAreRefused(t *testing.T) {
	c, _, _ := attach(t, startKeeper(t, time.Minute), 1)
	for name, change := range map[string]func(*Spawn){
		"of ours": func(s *Spawn) { s.Descriptors = []wire.Descriptor{{Number: runtime.StateDescriptor, Output: true}} },
		"twice": func(s *Spawn) {
			s.Descriptors = []wire.Descriptor{{Number: 3, Output: true}, {Number: 3, Output: true}}
		},
		"terminal": func(s *Spawn) {
			s.TTY, s.Descriptors = &wire.WindowSize{}, []wire.Descriptor{{Number: 3, Output: true}}
		},
	} {
		s := bash("p", "true")
		change(&s)
		if _, err := c.Spawn(t.Context(), s); !errors.Is(err, &wire.Error{Code: wire.CodeInvalidArguments}) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := bash("p", "true") // the largest there can be
	for n := wire.MinDescriptor; n <= wire.MaxDescriptor; n++ {
		s.Descriptors = append(s.Descriptors, wire.Descriptor{Number: n, Input: make([]byte, wire.MaxInputBytes)})
	}
	s.Env = append(s.Env, slices.Repeat([]string{"V=" + strings.Repeat("x", 100_000)}, 19)...)
	s.Meta = make([]byte, maxMeta)
	spawn(t, c, s)
}

// TestBase: whatever is indexed and forgotten, the bytes of each stream are known; also
// after a death between the two steps of forget.
func TestBase(t *testing.T) {
	a, err := newArena()
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	if _, err := a.grow(); err != nil {
		t.Fatal(err)
	}
	s, err := a.slot(7, true)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	var all [wire.LastStream + 1]int64
	for range 200_000 {
		if s.room() >= readEntries {
			stream, n := wire.Stream(1+random.IntN(int(wire.LastStream))), 1+random.IntN(2*chunkBytes)
			s.index(stream, n, time.Now(), false)
			all[stream] += int64(n)
		}
		if random.IntN(50) == 0 || s.room() < readEntries {
			end, _ := s.ends()
			to := s.trimmed() + random.Int64N(end-s.trimmed()+1)
			if random.IntN(3) == 0 { // dies before wordOldest
				oldest := s.oldest()
				for oldest < s.next() && s.load(oldest).end() <= to {
					oldest++
				}
				s.moveBase(oldest)
			} else {
				s.forget(to)
			}
		}
		if random.IntN(100) == 0 && s.counts(s.next()) != all {
			t.Fatalf("%v, not %v", s.counts(s.next()), all)
		}
	}
	if s.oldest() < 10*wideEntries {
		t.Errorf("the ring went round %d times", s.oldest()/wideEntries)
	}
	other, err := a.slot(8, true)
	if err != nil {
		t.Fatal(err)
	}
	if other.counts(0) != [wire.LastStream + 1]int64{} || other.next() != 0 {
		t.Error("a slot has written to its neighbour")
	}
	if err := a.clear(s); err != nil || s.counts(0) != [wire.LastStream + 1]int64{} {
		t.Errorf("%v: the slot is not as new: %v", err, s.counts(0))
	}
}
