package observer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/observer"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

func phases(evs []wire.Event) (out []wire.Phase) {
	for _, e := range evs {
		out = append(out, e.Phase)
	}
	return out
}

func TestOrderAndShape(t *testing.T) {
	s := server(t, "")
	p := publisher(t, connect(t, s, subjects.RoleWorker, "w1"), observer.Config{})
	f := p.Process(meta("p1"))
	f.Started(status(wire.StateRunning))
	f.Output(wire.Chunk{Stream: "stdout", Text: "a", SourceBytes: 1})
	f.Backgrounded(status(wire.StateRunning))
	f.State(status(wire.StateCancelRequested))
	f.Output(wire.Chunk{Cursor: 1, Offset: 1, Stream: "stderr", Text: "b", SourceBytes: 1})
	f.Finished(ended())
	f.Output(wire.Chunk{Stream: "stdout", Text: "late", SourceBytes: 4})
	f.Finished(ended())
	closeNow(t, p)

	obs := connect(t, s, subjects.RoleObserver, "o1")
	evs := stored(t, obs, "p1")
	want := []wire.Phase{
		wire.PhaseStarted, wire.PhaseOutput, wire.PhaseBackgrounded, wire.PhaseState, wire.PhaseOutput, wire.PhaseFinished,
	}
	if got := phases(evs); !slices.Equal(got, want) {
		t.Fatalf("phases %v, want %v", got, want)
	}
	for i, e := range evs {
		if e.Sequence != uint64(i+1) || e.EventID != fmt.Sprintf("p1:%d", i+1) {
			t.Errorf("event %d has sequence %d, id %s", i, e.Sequence, e.EventID)
		}
		if e.SchemaVersion != 1 || e.OperationID != "p1" || e.OwnerID != "s1" || e.Tenant != "acme" || e.Session != "s1" ||
			e.Worker != "w1" || e.Incarnation != 7 || e.Kind != "process" || e.Trace == "" || e.At.IsZero() {
			t.Errorf("incomplete: %+v", e)
		}
	}
	if st := evs[5].Status; st == nil || st.ExecutionID != "x-p1" || st.ExitCode == nil {
		t.Errorf("status of finished: %+v", st)
	}
	if f.Dropped() != 0 {
		t.Errorf("dropped %d", f.Dropped())
	}

	m, err := obs.Last(t.Context(), obs.Root().Stream(subjects.StreamEvents), obs.Root().Event("acme", "w1", "p1", "finished"))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{
		"ce-specversion": "1.0", "ce-id": "p1:6", "ce-type": "limpet.process.finished", "ce-source": "/limpet/worker/w1/7",
		"ce-subject": "p1", "ce-time": evs[5].At.Format(time.RFC3339Nano), subjects.HeaderContentType: subjects.TypeJSON,
	} {
		if got := m.Header[k]; len(got) != 1 || got[0] != v {
			t.Errorf("header %s is %q, want %q", k, got, v)
		}
	}
	var keys map[string]any
	if err := json.Unmarshal(m.Data, &keys); err != nil {
		t.Fatal(err)
	}
	assertNoCommand(t, "", keys)
}

// assertNoCommand: A63. Commands, environment and input never travel in observations.
func assertNoCommand(t *testing.T, path string, v any) {
	t.Helper()
	m, ok := v.(map[string]any)
	if !ok {
		return
	}
	for k, v := range m {
		switch strings.ToLower(k) {
		case "command", "argv", "text", "env", "stdin", "input", "shell", "cwd", "pid", "description", "labels":
			t.Errorf("an observation holds %s.%s", path, k)
		}
		assertNoCommand(t, path+"."+k, v)
	}
}

// The types themselves have no room for a command, whatever an actor puts in.
func TestNoCommandInTypes(t *testing.T) {
	now, code := time.Now(), 1
	data, err := json.Marshal(wire.EventStatus{
		ExecutionID: "x", State: wire.StateFailed, Reason: wire.ReasonExit, ExitCode: &code, Signal: "KILL",
		StartedAt: &now, ExitedAt: &now, EndedAt: &now, Proof: wire.ProofScan, CancelRequested: true, LeftoversKilled: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	var keys map[string]any
	if err := json.Unmarshal(data, &keys); err != nil {
		t.Fatal(err)
	}
	assertNoCommand(t, "status", keys)
}

func TestOneEachThroughRestart(t *testing.T) {
	s := server(t, t.TempDir())
	p := publisher(t, connect(t, s, subjects.RoleWorker, "w1"), observer.Config{})
	const processes = 200
	var restarted sync.WaitGroup
	feeds := make([]*observer.Feed, processes)
	for i := range feeds {
		if i == processes/2 {
			restarted.Go(func() {
				if err := s.Restart(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		feeds[i] = p.Process(meta(fmt.Sprintf("p%d", i)))
		feeds[i].Started(status(wire.StateRunning))
		feeds[i].Finished(ended())
		if i%10 == 0 {
			time.Sleep(time.Millisecond) // so that the restart falls among them
		}
	}
	restarted.Wait()
	closeNow(t, p)
	if st := p.Stats(); st.Lost != 0 || st.Pending != 0 || st.Sent != 2*processes {
		t.Errorf("%+v", st)
	}
	obs := connect(t, s, subjects.RoleObserver, "o1")
	got := map[string][]wire.Phase{}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	n := 0
	err := observer.Follow(ctx, obs, "acme", "", true, func(ev wire.Event) error {
		got[ev.OperationID] = append(got[ev.OperationID], ev.Phase)
		if n++; n == 2*processes {
			return errDone
		}
		return nil
	})
	if !errors.Is(err, errDone) {
		t.Fatalf("after %d of %d: %v", n, 2*processes, err)
	}
	for id, ph := range got {
		if !slices.Equal(ph, []wire.Phase{wire.PhaseStarted, wire.PhaseFinished}) {
			t.Errorf("%s: %v", id, ph)
		}
	}
	if len(got) != processes {
		t.Errorf("%d processes", len(got))
	}
}

var errDone = fmt.Errorf("done")

// Two incarnations that both tell of a process write started and finished once.
func TestAtMostOneWhoeverWrites(t *testing.T) {
	s := server(t, "")
	conn := connect(t, s, subjects.RoleWorker, "w1")
	a, b := publisher(t, conn, observer.Config{}), publisher(t, conn, observer.Config{})
	fa := a.Process(meta("p1"))
	m := meta("p1")
	m.Adopted = true
	fb := b.Process(m)
	fa.Started(status(wire.StateRunning))
	closeNow(t, a)
	fb.Started(status(wire.StateRunning))
	fb.State(status(wire.StateRunning))
	fb.Finished(ended())
	closeNow(t, b)
	evs := stored(t, connect(t, s, subjects.RoleObserver, "o1"), "p1")
	if !slices.Equal(phases(evs), []wire.Phase{wire.PhaseStarted, wire.PhaseState, wire.PhaseFinished}) {
		t.Fatalf("%v", phases(evs))
	}
	if evs[0].Sequence != 1 || evs[1].Sequence <= 1<<32 || evs[2].Sequence != evs[1].Sequence+1 {
		t.Errorf("sequences %d %d %d", evs[0].Sequence, evs[1].Sequence, evs[2].Sequence)
	}
}

// What was written as unknown is resolved once the truth is known.
func TestFinishedAfterUnknownResolves(t *testing.T) {
	s := server(t, "")
	conn := connect(t, s, subjects.RoleWorker, "w1")
	guess, truth, late := publisher(t, conn, observer.Config{}), publisher(t, conn, observer.Config{}), publisher(t, conn, observer.Config{})
	guess.Process(meta("p1")).Finished(status(wire.StateOutcomeUnknown))
	closeNow(t, guess)
	truth.Process(meta("p1")).Finished(ended())
	closeNow(t, truth)
	late.Process(meta("p1")).Finished(ended())
	closeNow(t, late)
	evs := stored(t, connect(t, s, subjects.RoleObserver, "o1"), "p1")
	if !slices.Equal(phases(evs), []wire.Phase{wire.PhaseFinished, wire.PhaseResolved}) {
		t.Fatalf("%v", phases(evs))
	}
	if evs[1].Status.State != wire.StateCompleted {
		t.Errorf("resolved to %s", evs[1].Status.State)
	}
}

// A flood never blocks the caller, also while the server is away, and every loss shows.
func TestFloodNeverBlocks(t *testing.T) {
	s := server(t, t.TempDir())
	p := publisher(t, connect(t, s, subjects.RoleWorker, "w1"), observer.Config{})
	f := p.Process(meta("p1"))
	f.Started(status(wire.StateRunning))
	down := make(chan error, 1)
	go func() { down <- s.Restart(context.Background()) }() // ends with the restart; received below
	const chunks = 500_000
	longest := time.Duration(0)
	for i := range chunks {
		// Alternating streams are not merged: each byte is an observation of its own.
		start := time.Now()
		f.Output(wire.Chunk{Cursor: int64(i), Offset: int64(i), Stream: []string{"stdout", "stderr"}[i%2], Text: "x", SourceBytes: 1})
		longest = max(longest, time.Since(start))
	}
	if err := <-down; err != nil {
		t.Fatal(err)
	}
	f.Finished(ended())
	if longest > 200*time.Millisecond {
		t.Errorf("a call took %v", longest)
	}
	closeNow(t, p)
	evs := stored(t, connect(t, s, subjects.RoleObserver, "o1"), "p1")
	last := evs[len(evs)-1]
	if evs[0].Phase != wire.PhaseStarted || last.Phase != wire.PhaseFinished {
		t.Fatalf("%v", phases(evs))
	}
	// Nothing is unaccounted for: numbers given = sent + dropped.
	if st := p.Stats(); last.Sequence != uint64(st.Sent+st.Dropped) || st.Dropped != f.Dropped() || st.Dropped == 0 {
		t.Errorf("last number %d, %+v, feed %d", last.Sequence, st, f.Dropped())
	}
	if last.ObserverDroppedEvents == 0 || last.Sequence != chunks+2 {
		t.Errorf("last: sequence %d, dropped %d", last.Sequence, last.ObserverDroppedEvents)
	}
	t.Logf("sent %+v, longest call %v", p.Stats(), longest)
}

func TestMergeKeepsBytes(t *testing.T) {
	s := server(t, "")
	p := publisher(t, connect(t, s, subjects.RoleWorker, "w1"), observer.Config{})
	f := p.Process(meta("p1"))
	f.Started(status(wire.StateRunning))
	var want strings.Builder
	for i := range 5000 {
		text := fmt.Sprintf("line %d\n", i)
		f.Output(wire.Chunk{Cursor: int64(i), Offset: int64(want.Len()), Stream: "stdout", Text: text, SourceBytes: len(text)})
		want.WriteString(text)
	}
	f.Output(wire.Chunk{Offset: int64(want.Len()) + 10, Stream: "stdout", Text: "!", SourceBytes: 1}) // not adjacent
	f.Finished(ended())
	closeNow(t, p)
	evs := stored(t, connect(t, s, subjects.RoleObserver, "o1"), "p1")
	var got strings.Builder
	for _, e := range evs {
		if e.Phase == wire.PhaseOutput {
			if int64(got.Len()) != e.Chunk.Offset && e.Chunk.Text != "!" {
				t.Fatalf("offset %d after %d bytes", e.Chunk.Offset, got.Len())
			}
			got.WriteString(e.Chunk.Text)
		}
	}
	if f.Dropped() != 0 || got.String() != want.String()+"!" {
		t.Errorf("dropped %d; got %d bytes, want %d", f.Dropped(), got.Len(), want.Len()+1)
	}
	if len(evs) > 12 {
		t.Errorf("%d observations of %d bytes", len(evs), got.Len())
	}
}

// Output beyond its share in EVENTS is live only.
func TestShareOfOutput(t *testing.T) {
	s := server(t, "")
	p := publisher(t, connect(t, s, subjects.RoleWorker, "w1"), observer.Config{StoredBytes: 4 << 10, Coalesce: 20 * time.Millisecond})
	obs := connect(t, s, subjects.RoleObserver, "o1")
	live := make(chan wire.Event, 100)
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	defer func() { cancel(); following.Wait() }()
	following.Go(func() {
		_ = observer.Follow(ctx, obs, "acme", "p1", false, func(ev wire.Event) error {
			live <- ev
			return nil
		})
	})
	waitFor(t, func() bool { // until the follower stands
		f := p.Process(observer.Meta{Tenant: "acme", Session: "s1", Process: "p1"})
		f.State(status(wire.StateRunning))
		select {
		case <-live:
			return true
		case <-time.After(50 * time.Millisecond):
			return false
		}
	})
	f := p.Process(meta("p1"))
	f.Started(status(wire.StateRunning))
	for i := range 20 {
		f.Output(wire.Chunk{Cursor: int64(i), Offset: int64(i) * 2000, Stream: []string{"stdout", "stderr"}[i%2], Text: strings.Repeat("x", 1000), SourceBytes: 1000})
	}
	f.Finished(ended())
	closeNow(t, p)
	following.Wait()
	close(live)
	n := 0
	for ev := range live {
		if ev.Phase == wire.PhaseOutput {
			n++
		}
	}
	evs := stored(t, obs, "p1")
	kept := 0
	for _, e := range evs {
		if e.Phase == wire.PhaseOutput {
			kept++
		}
	}
	if n != 20 || kept == 0 || kept > 4 {
		t.Errorf("%d live, %d stored", n, kept)
	}
	if evs[len(evs)-1].Sequence != 22 {
		t.Errorf("finished has sequence %d", evs[len(evs)-1].Sequence)
	}
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(until) {
			t.Fatal("it never came")
		}
	}
}

// While NATS is away memory is bounded: lifecycle observations of ended processes wait
// up to MaxEnded, the rest is counted as lost; text waits up to OutboxBytes.
func TestOutageIsBounded(t *testing.T) {
	s := server(t, "")
	conn := connect(t, s, subjects.RoleWorker, "w1")
	p := publisher(t, conn, observer.Config{MaxEnded: 1000, OutboxBytes: 1 << 20})
	s.Close()
	waitFor(t, func() bool { return !conn.Connected() })
	text := strings.Repeat("x", 10_000)
	for i := range 2000 {
		f := p.Process(meta(fmt.Sprintf("p%d", i)))
		f.Started(status(wire.StateRunning))
		f.Output(wire.Chunk{Stream: "stdout", Text: text, SourceBytes: len(text)})
		f.Finished(ended())
	}
	st := p.Stats()
	// A few are in the hands of the senders and no longer charged.
	if st.Lost < 2900 || st.Lost > 3000 || st.Pending > 1200 || st.Bytes > 1<<20 {
		t.Errorf("%+v", st)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := p.Close(ctx); err == nil {
		t.Error("Close knows of no loss")
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("Close took %v", d)
	}
}

// Quiet processes cost no goroutine, and Close leaves none behind.
func TestNoGoroutinePerProcess(t *testing.T) {
	s := server(t, "")
	conn := connect(t, s, subjects.RoleWorker, "w1")
	before := runtime.NumGoroutine()
	p := publisher(t, conn, observer.Config{})
	feeds := make([]*observer.Feed, 1000)
	for i := range feeds {
		feeds[i] = p.Process(meta(fmt.Sprintf("p%d", i)))
		feeds[i].Started(status(wire.StateRunning))
	}
	waitFor(t, func() bool { return p.Stats().Pending == 0 })
	if n := runtime.NumGoroutine() - before; n > 8 {
		t.Errorf("%d goroutines for 1,000 quiet processes", n)
	}
	closeNow(t, p)
	waitFor(t, func() bool { return runtime.NumGoroutine() <= before })
}

// A refused observation does not hold up the others for ever.
func TestForbiddenIsLost(t *testing.T) {
	s := server(t, "")
	p, err := observer.New(connect(t, s, subjects.RoleWorker, "w2"), "w1", 1, observer.Config{Attempts: 2, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	p.Process(meta("p1")).Started(status(wire.StateRunning))
	waitFor(t, func() bool { return p.Stats().Lost == 1 })
	if err := p.Close(t.Context()); err == nil {
		t.Error("Close knows of no loss")
	}
}

func TestConfigNames(t *testing.T) {
	for _, cfg := range []observer.Config{{Senders: -1}, {Senders: 5}, {OutboxBytes: -1}, {Coalesce: -1}} {
		if _, err := observer.New(nil, "w1", 1, cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
	if _, err := observer.New(nil, "a.b", 1, observer.Config{}); err == nil {
		t.Error("a worker's name with a dot is accepted")
	}
}

// The time and processor time (client, server and store together) of the two
// observations of a short process.
func BenchmarkShortProcess(b *testing.B) {
	s := server(b, b.TempDir())
	p := publisher(b, connect(b, s, subjects.RoleWorker, "w1"), observer.Config{})
	b.ReportAllocs()
	before := cpu(b)
	i := 0
	for b.Loop() {
		f := p.Process(meta(fmt.Sprintf("p%d", i)))
		f.Started(status(wire.StateRunning))
		f.Finished(ended())
		if i++; i%1000 == 0 {
			drain(p)
		}
	}
	drain(p)
	b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/op")
}

func drain(p *observer.Publisher) {
	for p.Stats().Pending > 0 {
		time.Sleep(100 * time.Microsecond)
	}
}

func cpu(b *testing.B) time.Duration {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

func BenchmarkOutputFlood(b *testing.B) {
	s := server(b, b.TempDir())
	p := publisher(b, connect(b, s, subjects.RoleWorker, "w1"), observer.Config{})
	f := p.Process(meta("p1"))
	f.Started(status(wire.StateRunning))
	text := strings.Repeat("x", 1000)
	c := wire.Chunk{Stream: "stdout", Text: text, SourceBytes: len(text)}
	b.ReportAllocs()
	for b.Loop() {
		f.Output(c)
		c.Offset += int64(len(text))
	}
}

func TestReplayEnds(t *testing.T) {
	s := server(t, "")
	obs := connect(t, s, subjects.RoleObserver, "o1")
	n := 0
	count := func(wire.Event) error { n++; return nil }
	if err := observer.Replay(t.Context(), obs, "acme", "", count); err != nil || n != 0 {
		t.Errorf("nothing stored: %v after %d", err, n)
	}
	p := publisher(t, connect(t, s, subjects.RoleWorker, "w1"), observer.Config{})
	for _, id := range []string{"p1", "p2"} {
		f := p.Process(meta(id))
		f.Started(status(wire.StateRunning))
	}
	closeNow(t, p)
	if err := observer.Replay(t.Context(), obs, "acme", "", count); err != nil || n != 2 {
		t.Errorf("%v after %d of 2", err, n)
	}
	if err := observer.Replay(t.Context(), obs, "acme", "p2", count); err != nil || n != 3 {
		t.Errorf("%v after %d of 3", err, n)
	}
}

// A process that prints as fast as it can is not rendered as fast as it can.
func TestOutputFuncIsPaced(t *testing.T) {
	p := publisher(t, connect(t, server(t, ""), subjects.RoleWorker, "w1"), observer.Config{})
	f := p.Process(meta("p1"))
	const (
		n     = 1000
		piece = 4096
		most  = 2 * 256 << 10 / piece // two seconds' share, should a second turn meanwhile
	)
	rendered := 0
	for i := range n {
		f.OutputFunc(piece, func() wire.Chunk {
			rendered++
			return wire.Chunk{Cursor: int64(i), Offset: int64(i) * piece, Stream: "stdout", SourceBytes: piece, Text: "x"}
		})
	}
	if rendered == 0 || rendered > most {
		t.Errorf("%d of %d pieces were rendered, want 1 to %d", rendered, n, most)
	}
	if got := f.Dropped(); got != int64(n-rendered) {
		t.Errorf("%d rendered, %d dropped of %d", rendered, got, n)
	}
}
