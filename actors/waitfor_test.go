package actors

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// writes is output of the command on either stream.
func (c *fakeChild) writes(stream wire.Stream, text string) {
	c.mu.Lock()
	ch := keeper.Chunk{Number: c.next, Offset: c.offset, Stream: stream, Data: []byte(text), At: time.Now()}
	c.next++
	c.offset += int64(len(text))
	c.mu.Unlock()
	c.chunks <- ch
}

// leaves is the end of the command with nothing left.
func (c *fakeChild) leaves(code int) {
	c.exits(keeper.Exited{Code: code, Gone: true})
	c.close()
}

func waitOf(process string, m wire.WaitFor) *wire.WaitFor {
	m.Version, m.Process = wire.Version, process
	return &m
}

// asks sends a wait_for to the process.
func (w *world) asks(process string, m wire.WaitFor) *pendingCall {
	w.t.Helper()
	return w.sendTo(process, "wait_for", waitOf(process, m))
}

// one is the result of a wait for one process, which agrees with the whole.
func one(c *pendingCall) *wire.ProcessWait {
	c.t.Helper()
	got := take[wire.Waited](c)
	if len(got.Results) != 1 || got.Met != got.Results[0].Met || got.Results[0].Receipt == nil {
		c.t.Fatalf("%+v", got)
	}
	return &got.Results[0]
}

func wantWait(t *testing.T, res *wire.ProcessWait, met, ended bool) {
	t.Helper()
	if res.Met != met || res.Ended != ended {
		t.Errorf("met %v, ended %v; want %v, %v", res.Met, res.Ended, met, ended)
	}
}

func TestWaitForEndAndExit(t *testing.T) {
	inBubble(t, func(w *world) {
		r, c := w.started(text("x"))
		end := w.asks(r.Process, wire.WaitFor{})
		exit := w.asks(r.Process, wire.WaitFor{For: "exit"})
		short := w.asks(r.Process, wire.WaitFor{For: "exit", WaitMS: 500})
		wantWait(t, one(short), false, false)
		wantTime(t, "expired", w.after(), 500*time.Millisecond)
		c.exits(keeper.Exited{Code: 3}) // what it left behind holds the streams for a while
		res := one(exit)
		wantWait(t, res, true, true)
		if res.Receipt.State.Terminal() || *res.Receipt.ExitCode != 3 {
			t.Errorf("%+v", res.Receipt)
		}
		wantTime(t, "exit", w.after(), 500*time.Millisecond)
		res = one(end)
		wantWait(t, res, true, true)
		if res.Receipt.State != wire.StateFailed {
			t.Errorf("%+v", res.Receipt)
		}
		wantWait(t, one(w.asks(r.Process, wire.WaitFor{For: "end"})), true, true)
		wantWait(t, one(w.asks(r.Process, wire.WaitFor{For: "exit"})), true, true)
	})
}

func TestWaitForDefaultTime(t *testing.T) {
	inBubble(t, func(w *world) {
		r, _ := w.started(text("x"))
		wantWait(t, one(w.asks(r.Process, wire.WaitFor{For: "pattern", Pattern: "never"})), false, false)
		wantTime(t, "expired", w.after(), 30*time.Second)
	})
}

func TestWaitForPattern(t *testing.T) {
	for _, c := range []struct {
		name string
		m    wire.WaitFor
		line string
		at   time.Duration
	}{
		{"what was there", wire.WaitFor{Pattern: "^there$"}, "there", 0},
		{"split over two writes", wire.WaitFor{Pattern: "read(y|ing)"}, "is ready now", 2 * time.Second},
		{"a prompt", wire.WaitFor{Pattern: "Password: $"}, "Password: ", 3 * time.Second},
		{"on stderr alone", wire.WaitFor{Pattern: "t.ere|oops", Stream: "stderr"}, "oops", 4 * time.Second},
		{"from a chunk on", wire.WaitFor{Pattern: "t.ere", Cursor: new(int64(1))}, "there again", 5 * time.Second},
		{"from a byte on", wire.WaitFor{Pattern: "t.ere", Offset: new(int64(6))}, "there again", 5 * time.Second},
		{"in colour, drawn over", wire.WaitFor{Pattern: "^100%$"}, "100%", 6 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				r, child := w.started(text("x"))
				child.says("there\n")
				synctest.Wait()
				c.m.For = "pattern"
				call := w.asks(r.Process, c.m)
				for _, out := range []struct {
					stream wire.Stream
					text   string
				}{
					{wire.Stdout, "is rea"},
					{wire.Stdout, "dy now\n"},
					{wire.Stdout, "Password: "},
					{wire.Stderr, "oops\n"},
					{wire.Stdout, "\nthere again\n"},
					{wire.Stdout, "50%\r\x1b[32m100%\r\x1b[Kdone\n"},
				} {
					time.Sleep(time.Second)
					child.writes(out.stream, out.text)
					synctest.Wait()
				}
				res := one(call)
				if wantWait(t, res, true, false); res.Match == nil || res.Match.Line != c.line {
					t.Fatalf("%+v", res.Match)
				}
				synctest.Wait()
				_ = call
			})
		})
	}
}

// The answer comes with the line, not later.
func TestWaitForPatternIsPrompt(t *testing.T) {
	inBubble(t, func(w *world) {
		r, child := w.started(text("x"))
		call := w.asks(r.Process, wire.WaitFor{For: "pattern", Pattern: "ready"})
		for range 50 {
			time.Sleep(time.Millisecond)
			child.says(".")
		}
		time.Sleep(time.Second)
		child.says("ready")
		one(call)
		wantTime(t, "answered", w.after(), 1050*time.Millisecond)
	})
}

// Waits that follow each other lose no line and find none twice.
func TestWaitForGoesOnBehindAMatch(t *testing.T) {
	inBubble(t, func(w *world) {
		r, child := w.started(text("x"))
		child.says("GET /a\nGET /b\nother\nGET /c")
		synctest.Wait()
		var got []string
		var from *int64
		for range 3 {
			res := one(w.asks(r.Process, wire.WaitFor{For: "pattern", Pattern: "GET", Offset: from}))
			if !res.Met {
				break
			}
			if got = append(got, res.Match.Line); res.Match.Unfinished != (len(got) == 3) {
				t.Errorf("%+v", res.Match)
			}
			from = &res.Match.NextOffset
		}
		if fmt.Sprint(got) != "[GET /a GET /b GET /c]" {
			t.Errorf("%q", got)
		}
		wantTime(t, "found", w.after(), 0)
		wantWait(t, one(w.asks(r.Process, wire.WaitFor{For: "pattern", Pattern: "GET", Offset: from, WaitMS: 1})), false, false)
	})
}

func TestWaitForPatternOfAnEndedProcess(t *testing.T) {
	inBubble(t, func(w *world) {
		r, child := w.started(text("x"))
		call := w.asks(r.Process, wire.WaitFor{For: "pattern", Pattern: "never"})
		child.says("one\ntwo")
		synctest.Wait()
		child.leaves(0)
		res := one(call)
		if wantWait(t, res, false, true); res.Receipt.State != wire.StateCompleted {
			t.Errorf("%+v", res.Receipt)
		}
		wantTime(t, "answered", w.after(), 0)
		res = one(w.asks(r.Process, wire.WaitFor{For: "pattern", Pattern: "tw."}))
		if wantWait(t, res, true, true); res.Match.Line != "two" || !res.Match.Unfinished {
			t.Errorf("%+v", res.Match)
		}
		wantWait(t, one(w.asks(r.Process, wire.WaitFor{For: "pattern", Pattern: "three"})), false, true)
		wantTime(t, "answered", w.after(), 0)
	})
}

func TestWaitForRefusesWhatIsAhead(t *testing.T) {
	inBubble(t, func(w *world) {
		r, _ := w.started(text("x"))
		if code := refusal(w.asks(r.Process, wire.WaitFor{For: "pattern", Pattern: "x", Cursor: new(int64(7))})); code != wire.CodeCursorAhead {
			t.Errorf("answered %s", code)
		}
		c := w.sendTo(r.Process, "wait_for", &wire.WaitFor{Version: wire.Version, Processes: []string{r.Process}})
		if code := refusal(c); code != wire.CodeInvalidArguments {
			t.Errorf("several at a worker are answered %s", code)
		}
	})
}

// A wait needs no fork to begin, and counts its time from the call.
func TestWaitForBeforeTheFork(t *testing.T) {
	inBubble(t, func(w *world) {
		gate := make(chan struct{})
		w.keeper.set(func(k *fakeKeeper) { k.gate = gate })
		w.send("start", startOf("e1", text("x")))
		synctest.Wait()
		id := w.session.byExec["e1"].id
		early := w.asks(id, wire.WaitFor{For: "pattern", Pattern: "x", WaitMS: 1000})
		exit := w.asks(id, wire.WaitFor{For: "exit", WaitMS: 1000})
		late := w.asks(id, wire.WaitFor{For: "pattern", Pattern: "ready"})
		quiet := w.asks(id, wire.WaitFor{For: "quiet", QuietMS: 3000})
		end := w.asks(id, wire.WaitFor{})
		for _, c := range []*pendingCall{early, exit} {
			res := one(c)
			if wantWait(t, res, false, false); res.Receipt.State != wire.StateStarting {
				t.Errorf("%+v", res.Receipt)
			}
		}
		wantTime(t, "expired", w.after(), time.Second)
		time.Sleep(time.Second)
		w.keeper.set(func(k *fakeKeeper) { k.gate = nil })
		close(gate)
		synctest.Wait()
		w.keeper.child(id).says("ready\n")
		wantWait(t, one(late), true, false)
		wantWait(t, one(quiet), true, false)
		wantTime(t, "quiet since the fork", w.after(), 5*time.Second)
		w.keeper.child(id).leaves(0)
		wantWait(t, one(end), true, true)
	})
}

func TestWaitForAStartThatFails(t *testing.T) {
	inBubble(t, func(w *world) {
		gate := make(chan struct{})
		w.keeper.set(func(k *fakeKeeper) { k.gate, k.err = gate, wire.Errorf(wire.CodeSpawnFailed, "no") })
		w.send("start", startOf("e1", text("x")))
		synctest.Wait()
		id := w.session.byExec["e1"].id
		calls := map[string]*pendingCall{}
		for _, m := range []wire.WaitFor{{For: "end"}, {For: "exit"}, {For: "pattern", Pattern: "x"}, {For: "quiet", QuietMS: 1}} {
			calls[m.For] = w.asks(id, m)
		}
		synctest.Wait()
		close(gate)
		for what, c := range calls {
			res := one(c)
			if wantWait(t, res, what == "end" || what == "exit", true); res.Receipt.Error == nil {
				t.Errorf("%s: %+v", what, res.Receipt)
			}
		}
		wantTime(t, "answered", w.after(), 0)
		if w.worker.deps.dir.process(tenant, id) != nil { // until its record is written
			wantWait(t, one(w.asks(id, wire.WaitFor{For: "pattern", Pattern: "x"})), false, true)
		}
	})
}

func TestWaitForQuiet(t *testing.T) {
	inBubble(t, func(w *world) {
		r, child := w.started(text("x"))
		time.Sleep(time.Minute) // that it was quiet before does not count
		all := w.asks(r.Process, wire.WaitFor{For: "quiet", QuietMS: 1000})
		stderr := w.asks(r.Process, wire.WaitFor{For: "quiet", QuietMS: 1000, Stream: "stderr"})
		long := w.asks(r.Process, wire.WaitFor{For: "quiet", QuietMS: 60_000})
		for range 20 { // a burst of 2 s on stdout, of which the first half is on stderr too
			time.Sleep(100 * time.Millisecond)
			child.says("x")
			if w.after() < 61*time.Second+50*time.Millisecond {
				child.writes(wire.Stderr, "e")
			}
		}
		wantWait(t, one(stderr), true, false)
		wantTime(t, "stderr", w.after(), time.Minute+2*time.Second)
		wantWait(t, one(all), true, false)
		wantTime(t, "all", w.after(), time.Minute+3*time.Second)
		child.leaves(0)
		wantWait(t, one(long), false, true)
		wantWait(t, one(w.asks(r.Process, wire.WaitFor{For: "quiet", QuietMS: 1})), false, true)
		wantTime(t, "ended", w.after(), time.Minute+3*time.Second)
	})
}

// A quiet that is longer than one call is waited for in several.
func TestWaitForQuietInPieces(t *testing.T) {
	inBubble(t, func(w *world) {
		r, child := w.started(text("x"))
		time.Sleep(time.Minute)
		piece := func(waited int64) *wire.ProcessWait {
			return one(w.asks(r.Process, wire.WaitFor{For: "quiet", QuietMS: 2500, WaitMS: 1000, WaitedMS: waited}))
		}
		wantWait(t, piece(0), false, false)
		wantWait(t, piece(1000), false, false)
		wantWait(t, piece(2000), true, false)
		wantTime(t, "quiet", w.after(), time.Minute+2500*time.Millisecond)
		child.says("x")
		synctest.Wait()
		wantWait(t, piece(3000), false, false)
		wantWait(t, piece(4000), false, false)
		wantWait(t, piece(5000), true, false)
		wantTime(t, "quiet again", w.after(), time.Minute+5*time.Second)
	})
}

// Those who wait for something are bounded by themselves: who reads gets through.
func TestWaitForIsBounded(t *testing.T) {
	inBubble(t, func(w *world) {
		r, child := w.started(text("x"))
		var calls []*pendingCall
		for range maxWaiters + 3 {
			calls = append(calls, w.asks(r.Process, wire.WaitFor{For: "pattern", Pattern: "ready"}))
			synctest.Wait()
		}
		for _, c := range calls[maxWaiters:] {
			if code := refusal(c); code != wire.CodeOverloaded {
				t.Errorf("one more is answered %s", code)
			}
		}
		take[wire.Page](w.sendTo(r.Process, "read", &wire.Read{Version: wire.Version, ProcessRef: ref(r.Process)}))
		child.says("ready\n")
		for _, c := range calls[:maxWaiters] {
			wantWait(t, one(c), true, false)
		}
		synctest.Wait()
		wantWait(t, one(w.asks(r.Process, wire.WaitFor{For: "pattern", Pattern: "ready"})), true, false)
	})
}

// A session that closes ends its processes, and with them what waits for those.
func TestWaitForWhenTheSessionCloses(t *testing.T) {
	inBubble(t, func(w *world) {
		r, _ := w.started(text("x"))
		call := w.asks(r.Process, wire.WaitFor{For: "pattern", Pattern: "ready"})
		synctest.Wait()
		closed := w.send("close", &wire.CloseSession{Version: wire.Version, SessionRef: wire.SessionRef{Session: "s1"}})
		wantWait(t, one(call), false, true)
		take[wire.Session](closed)
	})
}
