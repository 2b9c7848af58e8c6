package keeper

import (
	"errors"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

func TestCommandRunsToItsEnd(t *testing.T) {
	c, ev, adopted := attach(t, startKeeper(t, time.Minute), 1)
	if len(adopted) != 0 {
		t.Fatalf("adopted %d processes", len(adopted))
	}
	p := spawn(t, c, bash("p1", "echo out; echo err >&2; exit 7"))
	var sink record
	if err := p.Pump(t.Context(), &sink, 0); err != nil {
		t.Fatal(err)
	}
	if got := sink.text(wire.Stdout); got != "out\n" {
		t.Errorf("stdout %q", got)
	}
	if got := sink.text(wire.Stderr); got != "err\n" {
		t.Errorf("stderr %q", got)
	}
	e := ev.exited(t, p)
	if e.Code != 7 || e.Cause != wire.ReasonExit || e.Signal != "" || !e.Gone || e.Usage == nil {
		t.Errorf("exit: %+v", e)
	}
	if p.Exited() != e {
		t.Error("the process does not know its exit")
	}
	if err := p.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(t.Context(), 15); !errors.Is(err, &wire.Error{Code: wire.CodeNotFound}) {
		t.Errorf("signal after release: %v", err)
	}
}
