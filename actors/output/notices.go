package output

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// maxWords bounds, in characters, a text of somebody else's in a notice.
const maxWords = 500

const unreachable = "its worker does not answer; this is what is known, and not final"

// live reports whether the process may still be stopped, fed or waited for.
func live(r *wire.Receipt) bool {
	switch r.State {
	case wire.StateStarting, wire.StateRunning, wire.StateCancelRequested:
		return true
	}
	return false
}

// neverRan: there was no process, so it has no output either.
func neverRan(r *wire.Receipt) bool {
	return r.Reason == wire.ReasonSpawnFailed || r.Reason == wire.ReasonNeverStarted
}

// ending says how a process ended, beside its output; "" where exit code 0 says it all.
func ending(r *wire.Receipt) string {
	switch r.State {
	case wire.StateUnreachable:
		return unreachable
	case wire.StateOutcomeUnknown:
		return because("outcome unknown: "+reasonWords(r), errorWords(r))
	}
	if !r.State.Terminal() {
		return ""
	}
	switch r.Reason {
	case wire.ReasonSpawnFailed, wire.ReasonNeverStarted, wire.ReasonInternal:
		return because(reasonWords(r), errorWords(r))
	case wire.ReasonExit, wire.ReasonSignal, wire.ReasonNone:
		return reasonWords(r)
	}
	if how := howEnded(r); how != "" {
		return reasonWords(r) + " (" + how + ")"
	}
	return reasonWords(r)
}

// reasonWords is the sentence of each reason. One that is not known here is named.
func reasonWords(r *wire.Receipt) string {
	switch r.Reason {
	case wire.ReasonNone, wire.ReasonExit:
		if r.ExitCode != nil && *r.ExitCode != 0 {
			return howEnded(r)
		}
		if r.ExitCode == nil {
			return string(r.State)
		}
		return ""
	case wire.ReasonSignal:
		return "ended by " + howEnded(r)
	case wire.ReasonTimeout:
		s := "timed out"
		if r.TimeoutMS > 0 {
			s += " after " + seconds(r.TimeoutMS)
		}
		return s
	case wire.ReasonIdleTimeout:
		return "ended: no output within its idle timeout"
	case wire.ReasonCancel:
		if r.CancelRequestedBy != "" {
			return "cancelled by " + oneLine(r.CancelRequestedBy, maxWords)
		}
		return "cancelled"
	case wire.ReasonSessionClosed:
		return "ended: its session was closed"
	case wire.ReasonOOM:
		return "out of memory: ended by the kernel"
	case wire.ReasonOutputLimit:
		return fmt.Sprintf("ended: %d bytes of output are over its limit", r.Output.TotalBytes)
	case wire.ReasonWorkerLost:
		return "its worker was lost"
	case wire.ReasonInternal:
		return "failed by a fault of Limpet, not of the command"
	case wire.ReasonSpawnFailed:
		return "could not start"
	case wire.ReasonNeverStarted:
		if r.State == wire.StateCancelled {
			return "cancelled before it started"
		}
		return "never started"
	}
	return string(r.State) + ": " + oneLine(string(r.Reason), maxWords)
}

// howEnded is the signal or the exit code.
func howEnded(r *wire.Receipt) string {
	s := ""
	switch {
	case r.Signal != "" && r.ExitCode != nil:
		s = fmt.Sprintf("SIG%s, exit code %d", r.Signal, *r.ExitCode)
	case r.Signal != "":
		s = "SIG" + r.Signal
	case r.ExitCode != nil:
		s = "exit code " + strconv.Itoa(*r.ExitCode)
	}
	if r.CoreDumped {
		s += ", core dumped"
	}
	return s
}

// stateWords is the state in words.
func stateWords(s wire.State) string {
	switch s {
	case wire.StateStarting:
		return "starting"
	case wire.StateRunning:
		return "still running"
	case wire.StateCancelRequested:
		return "asked to end, still running"
	case wire.StateCompleted, wire.StateFailed, wire.StateCancelled:
		return string(s)
	case wire.StateOutcomeUnknown:
		return "outcome unknown"
	case wire.StateUnreachable:
		return unreachable
	}
	return "state " + oneLine(string(s), maxWords)
}

// errorWords is the error of a receipt, with its code.
func errorWords(r *wire.Receipt) string {
	if r.Error == nil {
		return ""
	}
	return oneLine(r.Error.Message, maxWords) + " (" + string(r.Error.Code) + ")"
}

func because(s, why string) string {
	if why == "" {
		return s
	}
	return s + ": " + why
}

// ended adds how the process ended.
func (t *text) ended(r *wire.Receipt) {
	s := ending(r)
	if s == "" {
		return
	}
	switch r.Reason {
	case wire.ReasonTimeout, wire.ReasonIdleTimeout:
		if r.Output.TotalBytes > 0 {
			s += "; above is what it wrote until then"
		}
	}
	t.note("%s", s)
}

// alive adds that the process lives, and what can be done with it.
func (t *text) alive(r *wire.Receipt) {
	s := stateWords(r.State)
	if how := howEnded(r); how != "" { // and what it left holds the streams
		s = "exited (" + how + "), its streams are still open"
	}
	t.note("%s: process %s; %s", s, r.Process, t.opt.live(r.Process, r.Output.TotalBytes))
	if r.StdinOpen {
		t.note("stdin is open, %s written so far", plural(r.StdinBytes, "byte", "bytes"))
	}
}

// receipt adds what else a receipt has to say.
func (t *text) receipt(r *wire.Receipt) {
	if r.State.Terminal() && !neverRan(r) && !r.Output.Complete {
		t.note("%s", because("the output may be incomplete", oneLine(r.Output.Error, maxWords)))
	}
	if r.Output.DroppedBytes > 0 {
		t.note("no longer kept: %s of the output", plural(r.Output.DroppedBytes, "byte", "bytes"))
	}
	if r.Output.Stalled {
		t.note("it waits: there is no room for its output")
	}
	t.leftovers(r)
	switch r.StateCapture {
	case "", "saved", "unchanged":
	case "missed": // a note says why
	default:
		t.note("directory and environment were not carried over (%s)", oneLine(r.StateCapture, maxWords))
	}
	if r.SessionCwd != "" && r.SessionCwd != r.Cwd {
		t.note("the next command runs in %s", oneLine(r.SessionCwd, maxWords))
	}
	for _, n := range r.Notes {
		if strings.HasPrefix(n, "state: not captured: it was ended") {
			continue // the end is said already, and so is what it left undone
		}
		t.note("note: %s", oneLine(n, maxWords))
	}
}

// leftovers adds what the command left behind, and what could not be ended.
func (t *text) leftovers(r *wire.Receipt) {
	if r.LeftoversKilled > 0 && !stopped(r) {
		t.note("ended %s that it had left running", plural(r.LeftoversKilled, "process", "processes"))
	}
	switch {
	case len(r.Unsignalled) > 0:
		t.note("could not be ended: %s", pids(r.Unsignalled))
	case r.State.Terminal() && r.LeftoversLive > r.LeftoversKilled:
		t.note("still running: %s that it started", plural(r.LeftoversLive-r.LeftoversKilled, "process", "processes"))
	}
	if e := r.Error; e != nil && !neverRan(r) && r.Reason != wire.ReasonInternal && r.State != wire.StateOutcomeUnknown &&
		(e.Code != wire.CodeTeardownFailed || len(r.Unsignalled) == 0) {
		t.note("%s", errorWords(r))
	}
}

// stopped: the whole tree was asked to end, so that nothing of it had been left running.
func stopped(r *wire.Receipt) bool {
	switch r.Reason {
	case wire.ReasonTimeout, wire.ReasonIdleTimeout, wire.ReasonCancel, wire.ReasonSessionClosed, wire.ReasonOutputLimit:
		return true
	}
	return false
}

func pids(list []int) string {
	const most = 8
	shown := list[:min(len(list), most)]
	s := make([]string, 0, most+1)
	for _, p := range shown {
		s = append(s, strconv.Itoa(p))
	}
	if n := len(list) - len(shown); n > 0 {
		s = append(s, fmt.Sprintf("and %d more", n))
	}
	return "pid " + strings.Join(s, ", ")
}

// seconds writes milliseconds as seconds.
func seconds(ms int64) string {
	return strconv.FormatFloat(float64(ms)/1000, 'f', -1, 64) + " s"
}

// oneLine makes a text of somebody else's fit for a notice: one line, cut to so many
// characters, without what would move the cursor of a terminal.
func oneLine(s string, characters int) string {
	clean := []rune(strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))))
	if len(clean) > characters {
		return string(append(slices.Clip(clean[:characters-1]), '…'))
	}
	return string(clean)
}
