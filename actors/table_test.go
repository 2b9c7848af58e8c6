package actors

import (
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
)

var allStates = []wire.State{
	wire.StateStarting, wire.StateRunning, wire.StateCancelRequested,
	wire.StateCompleted, wire.StateFailed, wire.StateCancelled, wire.StateOutcomeUnknown,
}

// want spells every pair out a second time, in one line a state, so that no change of
// the table goes unseen. "-" is refused; letters: s starting, r running, q
// cancel_requested, C completed, F failed, X cancelled, U outcome_unknown.
//
//	events: spawned spawn_failed cancel limit exited ok bad cancelled lost resolved
var want = map[wire.State]string{
	wire.StateStarting:        "rFss---XU-",
	wire.StateRunning:         "--qrrCFXU-",
	wire.StateCancelRequested: "--qqqCFXU-",
	wire.StateCompleted:       "--CC----C-",
	wire.StateFailed:          "--FF----F-",
	wire.StateCancelled:       "--XX----X-",
	wire.StateOutcomeUnknown:  "--UU-CFXUU",
}

var letters = map[byte]wire.State{
	's': wire.StateStarting, 'r': wire.StateRunning, 'q': wire.StateCancelRequested,
	'C': wire.StateCompleted, 'F': wire.StateFailed, 'X': wire.StateCancelled, 'U': wire.StateOutcomeUnknown,
}

func TestTableIsExhaustive(t *testing.T) {
	if len(transitions) != len(allStates) || len(want) != len(allStates) {
		t.Fatalf("the table has %d states, the test %d", len(transitions), len(allStates))
	}
	for _, s := range allStates {
		for e := range events {
			got, err := next(s, e)
			w := want[s][e]
			if w == '-' {
				if err == nil {
					t.Errorf("%s + %s = %s, want it refused", s, e, got)
				}
				continue
			}
			if err != nil || got != letters[w] {
				t.Errorf("%s + %s = %s, %v; want %s", s, e, got, err, letters[w])
			}
			if s.Terminal() && s != wire.StateOutcomeUnknown && got != s {
				t.Errorf("%s + %s leaves a final state", s, e)
			}
		}
	}
}

func TestUnknownStateIsRefused(t *testing.T) {
	for _, s := range []wire.State{"", "exited", wire.StateUnreachable} {
		if _, err := next(s, evExited); err == nil {
			t.Errorf("state %q was accepted", s)
		}
	}
	if _, err := next(wire.StateRunning, events); err == nil {
		t.Error("an event past the last was accepted")
	}
}

func TestOutcome(t *testing.T) {
	code := func(n int) *int { return &n }
	for _, tt := range []struct {
		name string
		r    wire.Receipt
		want event
	}{
		{"exit 0", wire.Receipt{Reason: wire.ReasonExit, ExitCode: code(0)}, evEndedOK},
		{"exit 7", wire.Receipt{Reason: wire.ReasonExit, ExitCode: code(7)}, evEndedBad},
		{"exit 0 with a lost output", wire.Receipt{Reason: wire.ReasonExit, ExitCode: code(0), Output: wire.OutputStats{Error: "x"}}, evEndedBad},
		{"signal", wire.Receipt{Reason: wire.ReasonSignal, ExitCode: code(137)}, evEndedBad},
		{"timeout that exits 0", wire.Receipt{Reason: wire.ReasonTimeout, ExitCode: code(0)}, evEndedBad},
		{"cancel that exits 0", wire.Receipt{Reason: wire.ReasonCancel, ExitCode: code(0)}, evEndedCancelled},
		{"session closed", wire.Receipt{Reason: wire.ReasonSessionClosed, ExitCode: code(143)}, evEndedCancelled},
		{"oom", wire.Receipt{Reason: wire.ReasonOOM, ExitCode: code(137)}, evEndedBad},
	} {
		if got := outcome(&tt.r); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
