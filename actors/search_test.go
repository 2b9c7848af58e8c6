package actors

import (
	"testing"
	"testing/synctest"

	"github.com/limpet-sh/limpet/subjects/wire"
)

func searchOf(process string, m wire.Search) *wire.Search {
	m.Version, m.Process = wire.Version, process
	return &m
}

func TestSearchVerb(t *testing.T) {
	inBubble(t, func(w *world) {
		r, child := w.started(text("x"))
		child.says("ready\n")
		child.writes(wire.Stderr, "error: no\n")
		child.says("error: yes\nnot yet")
		synctest.Wait()
		find := func(m wire.Search) *wire.Found {
			t.Helper()
			return take[wire.Found](w.sendTo(r.Process, "search", searchOf(r.Process, m)))
		}
		got := find(wire.Search{Pattern: "^error", MaxMatches: 1})
		if len(got.Matches) != 1 || got.Matches[0].Line != "error: no" || got.Matches[0].Stream != "stderr" || !got.HasMore || got.End {
			t.Fatalf("%+v", got)
		}
		got = find(wire.Search{Pattern: "^error", Offset: &got.NextOffset})
		if len(got.Matches) != 1 || got.Matches[0].Line != "error: yes" || got.HasMore || got.State != wire.StateRunning {
			t.Fatalf("%+v", got)
		}
		child.leaves(3)
		wantWait(t, one(w.asks(r.Process, wire.WaitFor{})), true, true)
		got = find(wire.Search{Pattern: "yet", Offset: &got.NextOffset})
		if len(got.Matches) != 1 || got.Matches[0].Line != "not yet" || !got.End || *got.ExitCode != 3 {
			t.Fatalf("%+v", got)
		}
		for _, m := range []wire.Search{{Pattern: "("}, {Pattern: "x", MaxMatches: 1001}} {
			if code := refusal(w.sendTo(r.Process, "search", searchOf(r.Process, m))); code != wire.CodeInvalidArguments {
				t.Errorf("%+v: %s", m, code)
			}
		}
		ahead := searchOf(r.Process, wire.Search{Pattern: "x", Offset: new(int64(1000))})
		if code := refusal(w.sendTo(r.Process, "search", ahead)); code != wire.CodeCursorAhead {
			t.Errorf("ahead: %s", code)
		}
	})
}
