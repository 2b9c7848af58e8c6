package actors

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

func exitsWell(c *fakeChild) {
	synctest.Wait() // its output is read
	c.exits(keeper.Exited{Gone: true})
	c.close()
}

func TestNothingIsShippedOfASilentCommand(t *testing.T) {
	inBubble(t, func(w *world) {
		f := w.shipping()
		r, c := w.started(text("true"))
		p := w.session.members[r.Process]
		exitsWell(c)
		wantEnd(t, w.waitFor(r.Process), wire.StateCompleted, wire.ReasonExit)
		time.Sleep(time.Minute)
		started := true
		p.ship.Load().once.Do(func() { started = false })
		if f.calls != 0 || started {
			t.Errorf("%d calls, goroutine %v", f.calls, started)
		}
	})
}

// What a short command prints is one message, shipped behind the answer.
func TestAShortOutputIsShippedAfterTheAnswer(t *testing.T) {
	inBubble(t, func(w *world) {
		f := w.shipping()
		gate := make(chan struct{})
		f.set(func(f *fakeOutputs) { f.gate = gate })
		r, c := w.started(text("echo"))
		c.says("hello ")
		c.says("world\n")
		synctest.Wait()
		exitsWell(c)
		end := w.waitFor(r.Process)
		if end.ShippedBytes != 0 || w.after() > 0 {
			t.Errorf("answered after %v, with %d bytes shipped", w.after(), end.ShippedBytes)
		}
		close(gate)
		synctest.Wait()
		got, gap, last := f.text()
		if got != "hello world\n" || gap != 0 || f.count() != 1 || !last.End || !last.Complete || last.Incarnation != 5 || last.Used > 300 {
			t.Errorf("%q, gap %d, %d messages, %+v", got, gap, f.count(), last.OutputHeader)
		}
		if s := w.status(r.Process); s.ShippedBytes != 12 {
			t.Errorf("%d bytes shipped", s.ShippedBytes)
		}
	})
}

func (w *world) status(process string) *wire.Receipt {
	w.t.Helper()
	return take[wire.Receipt](w.sendTo(process, "status", &wire.Status{Version: wire.Version, ProcessRef: ref(process)}))
}

// Output is shipped while the command runs: half a second after its first, what little
// comes then less often, what is much at once.
func TestOutputIsShippedAsItComes(t *testing.T) {
	inBubble(t, func(w *world) {
		f := w.shipping()
		r, c := w.started(wire.Command{Text: "x", Output: &wire.OutputLimits{WindowBytes: 1 << 20}})
		c.says("1")
		time.Sleep(shipAfter + shipSoonest - time.Millisecond)
		synctest.Wait()
		if n := f.count(); n != 0 {
			t.Errorf("%d messages after %v", n, w.after())
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if n := f.count(); n != 1 {
			t.Fatalf("%d messages after %v", n, w.after())
		}
		for range 60 { // a little every second
			time.Sleep(time.Second)
			c.says("x")
		}
		synctest.Wait()
		if n := f.count(); n < 12 || n > 25 {
			t.Errorf("%d messages for a byte a second, in a minute", n)
		}
		time.Sleep(shipSlowly)
		synctest.Wait()
		n, began := f.count(), w.after()
		for range 65 {
			c.says(strings.Repeat("y", 4096))
		}
		synctest.Wait()
		if f.count() != n+1 || f.at[n] != began {
			t.Errorf("%d messages for 260 KiB at once, %v later", f.count()-n, f.at[len(f.at)-1]-began)
		}
		exitsWell(c)
		w.waitFor(r.Process)
		synctest.Wait()
		if got, gap, last := f.text(); len(got) != 61+65*4096 || gap != 0 || !last.End {
			t.Errorf("%d bytes, gap %d", len(got), gap)
		}
	})
}

// Of what is more than the budget, the start and the end are shipped, and no byte more
// than it allows.
func TestTheBudgetIsHeadAndTail(t *testing.T) {
	for _, pause := range []time.Duration{time.Second, 0} { // nothing was shipped before the end
		headAndTail(t, pause)
	}
}

func headAndTail(t *testing.T, pause time.Duration) {
	t.Helper()
	inBubble(t, func(w *world) {
		f := w.shipping()
		r, c := w.started(wire.Command{Text: "x", Output: &wire.OutputLimits{WindowBytes: 16 << 20}})
		all := ""
		for i := range 800 {
			line := strings.Repeat(string(rune('a'+i%26)), 4096)
			all += line
			c.says(line)
			if i%50 == 0 {
				time.Sleep(pause)
			}
		}
		exitsWell(c)
		w.waitFor(r.Process)
		synctest.Wait()
		got, gap, last := f.text()
		if gap == 0 || !last.End || last.Used > wire.DefaultShipBytes || last.Used < wire.DefaultShipBytes*9/10 {
			t.Errorf("gap %d, %+v", gap, last.OutputHeader)
		}
		head := 0
		for head < len(got) && got[head] == all[head] {
			head++
		}
		tail := 0
		for tail < len(got) && got[len(got)-1-tail] == all[len(all)-1-tail] {
			tail++
		}
		if half := wire.DefaultShipBytes / 2; head < half*9/10 || tail < half*9/10 || head+tail < len(got) {
			t.Errorf("%d bytes of the start and %d of the end, in %d", head, tail, len(got))
		}
		if s := w.status(r.Process); s.ShippedBytes != int64(len(got)) {
			t.Errorf("%d bytes shipped, %d are there", s.ShippedBytes, len(got))
		}
	})
}

func TestABudgetOfNone(t *testing.T) {
	inBubble(t, func(w *world) {
		f := w.shipping()
		r, c := w.started(wire.Command{Text: "x", Output: &wire.OutputLimits{ShipBytes: -1}})
		c.says("secret")
		time.Sleep(time.Minute)
		exitsWell(c)
		w.waitFor(r.Process)
		time.Sleep(time.Minute)
		if f.calls != 0 {
			t.Errorf("%d calls", f.calls)
		}
		if rec := w.store.execs[r.ExecutionID].Record; rec.ShipBytes != -1 {
			t.Errorf("recorded %d", rec.ShipBytes)
		}
	})
}

// Whatever becomes of an append, its chunks are in the stream once.
func TestShippingIsTriedUntilItIsKnown(t *testing.T) {
	for name, break_ := range map[string]func(*fakeOutputs){
		"stored and not acknowledged": func(f *fakeOutputs) { f.unknown = 2 },
		"lost":                        func(f *fakeOutputs) { f.lost = 2 },
		"away":                        func(f *fakeOutputs) { f.down = bus.ErrDisconnected },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				f := w.shipping()
				f.set(break_)
				r, c := w.started(text("x"))
				c.says("one ")
				time.Sleep(10 * time.Second)
				c.says("two ")
				time.Sleep(10 * time.Second)
				f.set(func(f *fakeOutputs) { f.down = nil })
				c.says("three")
				exitsWell(c)
				w.waitFor(r.Process)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				if got, gap, last := f.text(); got != "one two three" || gap != 0 || !last.End {
					t.Errorf("%q, gap %d", got, gap)
				}
			})
		})
	}
}

// A worker whose processes are another's ships no more.
func TestALaterWorkerFencesShipping(t *testing.T) {
	inBubble(t, func(w *world) {
		f := w.shipping()
		r, c := w.started(text("x"))
		c.says("mine")
		time.Sleep(time.Second)
		synctest.Wait()
		theirs := wire.OutputHeader{Incarnation: 6, First: 1, Offset: 4, Raw: 4}
		f.set(func(f *fakeOutputs) { f.put(wire.AppendOutputHeader(nil, &theirs)) })
		c.says(" and mine")
		time.Sleep(10 * time.Second)
		exitsWell(c)
		w.waitFor(r.Process)
		time.Sleep(10 * time.Second)
		if got, _, last := f.text(); got != "mine" || last.Incarnation != 6 {
			t.Errorf("%q behind %+v", got, last.OutputHeader)
		}
	})
}

// A close waits for the rest, while NATS is away no longer than shipPatience.
func TestACloseWaitsForTheRest(t *testing.T) {
	for _, away := range []bool{false, true} {
		inBubble(t, func(w *world) {
			f := w.shipping()
			gate := make(chan struct{})
			f.set(func(f *fakeOutputs) { f.gate = gate })
			_, c := w.started(text("x"))
			c.says("last words")
			synctest.Wait()
			call := w.send("close", &wire.CloseSession{Version: wire.Version, SessionRef: wire.SessionRef{Session: "s1"}})
			time.Sleep(time.Second)
			if len(call.answered) > 0 {
				t.Error("the close did not wait")
			}
			if !away {
				close(gate)
			}
			take[wire.Session](call)
			got, _, _ := f.text()
			switch {
			case away:
				wantTime(t, "closed", w.after(), shipPatience)
				if w.worker.deps.ship.unshipped.Load() != 1 {
					t.Error("the loss is not counted")
				}
			case got != "last words":
				t.Errorf("%q", got)
			default:
				wantTime(t, "closed", w.after(), time.Second)
			}
		})
	}
}

// The end of a process of which nobody knows how it ended seals nothing: the evidence may
// turn up.
func TestAnUnknownOutcomeIsNotSealed(t *testing.T) {
	inBubble(t, func(w *world) {
		w.worker.lost = make(chan error, 1)
		f := w.shipping()
		r, c := w.started(text("x"))
		c.says("so far")
		synctest.Wait()
		w.worker.deliver(keeper.Event{Lost: &keeper.Lost{Err: context.Canceled}})
		if end := w.waitFor(r.Process); end.State != wire.StateOutcomeUnknown {
			t.Errorf("%s", end.State)
		}
		synctest.Wait()
		if got, _, last := f.text(); got != "so far" || last.End {
			t.Errorf("%q, sealed %v", got, last.End)
		}
		c.close()
	})
}

// A worker ships so much a second, and a close as fast as it can.
func TestShippingIsPaced(t *testing.T) {
	inBubble(t, func(w *world) {
		f := w.shipping()
		w.worker.deps.ship.reserve(shipBurst + 10*shipRate)
		_, c := w.started(text("x"))
		c.says("x")
		exitsWell(c)
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if n := f.count(); n != 0 {
			t.Errorf("%d messages at once", n)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := f.count(); n != 1 || f.at[0] < 10*time.Second {
			t.Errorf("%d messages at %v", n, f.at)
		}
		f = &fakeOutputs{w: w}
		w.worker.deps.ship.stream = f
		w.worker.deps.ship.reserve(shipBurst + 10*shipRate)
		_, c = w.started(text("y"))
		c.says("y")
		exitsWell(c)
		before := w.after()
		take[wire.Session](w.send("close", &wire.CloseSession{Version: wire.Version, SessionRef: wire.SessionRef{Session: "s1"}}))
		if d := w.after() - before; d > 0 || f.count() != 1 {
			t.Errorf("closed after %v, %d messages", d, f.count())
		}
	})
}
