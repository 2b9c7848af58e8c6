package actors

import (
	"fmt"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// event is what can happen to a process.
type event uint8

const (
	// evSpawned: the keeper has forked.
	evSpawned event = iota
	// evSpawnFailed: it could not; there is no process.
	evSpawnFailed
	// evCancel: somebody asked for the end (terminate, cancel, session close).
	evCancel
	// evLimit: a limit asked for the end (timeout, idle timeout, output limit).
	evLimit
	// evExited: the command ended; its streams may be open.
	evExited
	// evEndedOK, evEndedBad, evEndedCancelled: command, tree and streams are done
	// with, and this is the outcome.
	evEndedOK
	evEndedBad
	evEndedCancelled
	// evLost: nobody can say any more what became of it.
	evLost
	// evResolved: evidence turned up after evLost.
	evResolved

	events
)

func (e event) String() string {
	return [...]string{
		"spawned", "spawn_failed", "cancel", "limit", "exited",
		"ended_ok", "ended_bad", "ended_cancelled", "lost", "resolved",
	}[e]
}

// refused marks a pair that cannot happen: it is a fault of ours, reported as such.
const refused = wire.State("")

// transitions is the life of a process: transitions[state][event] is the next state.
// Every pair is written out; a test holds that none is missing.
//
// A cancel after the exit changes nothing, because the first cause wins; a limit
// leaves the state alone, because requested and observed are two facts (A43).
var transitions = map[wire.State][events]wire.State{
	wire.StateStarting: {
		evSpawned: wire.StateRunning, evSpawnFailed: wire.StateFailed,
		evCancel: wire.StateStarting, evLimit: wire.StateStarting, // kept until the fork is known
		evExited:  refused,
		evEndedOK: refused, evEndedBad: refused,
		evEndedCancelled: wire.StateCancelled, // cancelled before the fork
		evLost:           wire.StateOutcomeUnknown, evResolved: refused,
	},
	wire.StateRunning: {
		evSpawned: refused, evSpawnFailed: refused,
		evCancel: wire.StateCancelRequested, evLimit: wire.StateRunning,
		evExited:  wire.StateRunning,
		evEndedOK: wire.StateCompleted, evEndedBad: wire.StateFailed,
		evEndedCancelled: wire.StateCancelled,
		evLost:           wire.StateOutcomeUnknown, evResolved: refused,
	},
	wire.StateCancelRequested: {
		evSpawned: refused, evSpawnFailed: refused,
		evCancel: wire.StateCancelRequested, evLimit: wire.StateCancelRequested,
		evExited:  wire.StateCancelRequested,
		evEndedOK: wire.StateCompleted, evEndedBad: wire.StateFailed, // it ended before the signal reached it
		evEndedCancelled: wire.StateCancelled,
		evLost:           wire.StateOutcomeUnknown, evResolved: refused,
	},
	wire.StateCompleted:      final(wire.StateCompleted),
	wire.StateFailed:         final(wire.StateFailed),
	wire.StateCancelled:      final(wire.StateCancelled),
	wire.StateOutcomeUnknown: unknown(),
}

// final is the row of a state that nothing leaves: requests are harmless, facts are late.
func final(s wire.State) [events]wire.State {
	return [events]wire.State{
		evSpawned: refused, evSpawnFailed: refused,
		evCancel: s, evLimit: s, evExited: refused,
		evEndedOK: refused, evEndedBad: refused, evEndedCancelled: refused,
		evLost: s, evResolved: refused,
	}
}

// unknown is final but for one way out: the real result, once.
func unknown() [events]wire.State {
	row := final(wire.StateOutcomeUnknown)
	row[evEndedOK] = wire.StateCompleted
	row[evEndedBad] = wire.StateFailed
	row[evEndedCancelled] = wire.StateCancelled
	row[evResolved] = wire.StateOutcomeUnknown
	return row
}

// next looks the pair up. An unknown state or a refused pair is an error.
func next(s wire.State, e event) (wire.State, error) {
	row, ok := transitions[s]
	if !ok || e >= events {
		return s, fmt.Errorf("state %q does not exist", s)
	}
	if row[e] == refused {
		return s, fmt.Errorf("state %s cannot take event %s", s, e)
	}
	return row[e], nil
}

// outcome is the ending event of a command that was seen to end.
func outcome(r *wire.Receipt) event {
	switch r.Reason {
	case wire.ReasonCancel, wire.ReasonSessionClosed:
		if r.Error != nil && r.Error.Code == wire.CodeTeardownFailed {
			return evEndedBad // the end that was asked for is not the one that was seen
		}
		return evEndedCancelled
	case wire.ReasonExit:
		if r.ExitCode != nil && *r.ExitCode == 0 && r.Output.Error == "" {
			return evEndedOK
		}
	}
	return evEndedBad
}
