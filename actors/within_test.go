package actors

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// processVerbs is a request of every verb of a process.
func processVerbs(r wire.ProcessRef) map[string]any {
	return map[string]any{
		"status":      &wire.Status{Version: wire.Version, ProcessRef: r},
		"read":        &wire.Read{Version: wire.Version, ProcessRef: r},
		"wait":        &wire.Wait{Version: wire.Version, ProcessRef: r, WaitMS: 1},
		"wait_for":    &wire.WaitFor{Version: wire.Version, ProcessRef: r, WaitMS: 1},
		"search":      &wire.Search{Version: wire.Version, ProcessRef: r, Pattern: "x"},
		"write":       &wire.Write{Version: wire.Version, ProcessRef: r, Text: "x"},
		"close_stdin": &wire.CloseStdin{Version: wire.Version, ProcessRef: r},
		"resize":      &wire.Resize{Version: wire.Version, ProcessRef: r, WindowSize: wire.WindowSize{Rows: 1, Cols: 1}},
		"signal":      &wire.Signal{Version: wire.Version, ProcessRef: r, Signal: "INT"},
		"terminate":   &wire.Terminate{Version: wire.Version, ProcessRef: r},
	}
}

func TestProcessVerbsAreAll(t *testing.T) {
	for _, verb := range wire.Verbs() {
		m := wire.NewRequest(verb)
		if _, of := m.(interface{ Ref() wire.ProcessRef }); of != (processVerbs(wire.ProcessRef{})[verb] != nil) {
			t.Errorf("%s: a verb of a process: %v", verb, of)
		}
	}
}

// A process of another session is answered like one that never was, by every verb, live
// and retained, and nothing happens to it.
func TestProcessesOfAnotherSessionDoNotExist(t *testing.T) {
	inBubble(t, func(w *world) {
		live, child := w.started(wire.Command{Text: "x", Stdin: wire.StdinPipe})
		gone, ended := w.started(text("x"))
		ended.leaves(0)
		w.waitFor(gone.Process)
		used := w.session.used.Load()
		time.Sleep(time.Second)
		for _, id := range []string{live.Process, gone.Process} {
			for verb, m := range processVerbs(wire.ProcessRef{Process: id, InSession: "s2"}) {
				_, err := got[struct{}](w.sendTo(id, verb, m))
				if want := wire.NoProcess(id); fmt.Sprintf("%+v", public(err)) != fmt.Sprintf("%+v", want) {
					t.Errorf("%s: %+v, want %+v", verb, public(err), want)
				}
			}
		}
		if stops, _, _ := child.seen(); len(stops) > 0 || len(child.written) > 0 || len(child.signals) > 0 || child.closed {
			t.Errorf("something was done to it: %+v", child)
		}
		if w.session.used.Load() != used {
			t.Error("the session was kept alive by another one's calls")
		}
		for verb, m := range processVerbs(wire.ProcessRef{Process: live.Process, InSession: "s1"}) {
			if verb == "terminate" || verb == "close_stdin" {
				continue
			}
			if _, err := got[struct{}](w.sendTo(live.Process, verb, m)); err != nil && public(err).Code == wire.CodeNotFound {
				t.Errorf("%s in its own session: %v", verb, err)
			}
		}
	})
}

func TestASearchBeforeTheForkWaitsForIt(t *testing.T) {
	inBubble(t, func(w *world) {
		gate := make(chan struct{})
		w.keeper.set(func(k *fakeKeeper) { k.gate = gate })
		w.send("start", startOf("e1", text("x")))
		synctest.Wait()
		id := w.session.byExec["e1"].id
		call := w.sendTo(id, "search", &wire.Search{Version: wire.Version, ProcessRef: ref(id), Pattern: "x"})
		synctest.Wait()
		close(gate)
		if f := take[wire.Found](call); f.State != wire.StateRunning || len(f.Matches) != 0 || f.End {
			t.Errorf("%+v", f)
		}
	})
}

// What is only recorded is hidden as well, and answered where a receipt is all that was
// asked for.
func TestRecordedProcesses(t *testing.T) {
	b := newBench(t, nil)
	s := b.open(wire.Open{Name: "one", Limits: &wire.SessionLimits{RetainedProcesses: 1}})
	other := b.open(wire.Open{Name: "two"})
	gone := b.run(s, "echo first; exit 3").Receipt.Process
	b.run(s, "echo second")
	read := &wire.Read{Version: wire.Version, ProcessRef: ref(gone)}
	for until := time.Now().Add(10 * time.Second); b.code(b.process(gone, "read"), read) != wire.CodeExpired; {
		if time.Now().After(until) {
			t.Fatal("the first one is not evicted")
		}
	}
	for _, what := range []string{"", "end", "exit"} {
		w := must[wire.Waited](b)(ask[wire.Waited](b, b.process(gone, "wait_for"), waitOf(gone, wire.WaitFor{For: what})))
		if r := w.Results[0]; !w.Met || !r.Met || !r.Ended || *r.Receipt.ExitCode != 3 {
			t.Errorf("%q: %+v", what, w)
		}
	}
	for _, m := range []wire.WaitFor{
		{For: "pattern", Pattern: "first"}, {For: "port", Port: 1}, {For: "file", Path: "/"}, {For: "quiet", QuietMS: 1},
	} {
		if code := b.code(b.process(gone, "wait_for"), waitOf(gone, m)); code != wire.CodeExpired {
			t.Errorf("%s: answered %s", m.For, code)
		}
	}
	if code := b.code(b.process(gone, "wait_for"), waitOf(gone, wire.WaitFor{For: "pattern"})); code != wire.CodeInvalidArguments {
		t.Errorf("a bad request is answered %s", code)
	}
	for _, id := range []string{gone, "neverWas"} {
		for verb, m := range processVerbs(wire.ProcessRef{Process: id, InSession: other.ID}) {
			_, err := ask[struct{}](b, b.process(id, verb), m)
			if want := wire.NoProcess(id); err == nil || fmt.Sprintf("%+v", public(err)) != fmt.Sprintf("%+v", want) {
				t.Errorf("%s of %s: %v", verb, id, err)
			}
		}
	}
	status := &wire.Status{Version: wire.Version, ProcessRef: wire.ProcessRef{Process: gone, InSession: s.ID}}
	if r := must[wire.Receipt](b)(ask[wire.Receipt](b, b.process(gone, "status"), status)); *r.ExitCode != 3 {
		t.Errorf("%+v", r)
	}
}
