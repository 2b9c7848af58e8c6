package chaos

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// A client within one session cannot tell the processes of another one from those that
// never were: not while they live, nor ended, nor evicted, nor without their worker.
func TestCaseWithinASession(t *testing.T) {
	l := start(t)
	a := newAgent(t, l, wire.Open{Cwd: t.TempDir(), Limits: &wire.SessionLimits{RetainedProcesses: 1}})
	other := newAgent(t, l, wire.Open{Cwd: t.TempDir()})
	live := a.start(t, wire.Command{Text: "read x; echo got $x", Stdin: wire.StdinPipe})
	evicted := a.text(t, "true").Receipt.Process
	retained := a.text(t, "echo kept").Receipt.Process
	eventually(t, "eviction", long, func() bool {
		l, err := a.s.List(t.Context())
		return err == nil && !slices.ContainsFunc(l.Processes, func(r wire.Receipt) bool { return r.Process == evicted })
	})
	within := a.c.Within(other.s.Info().ID)
	verbs := map[string]func(ref wire.ProcessRef) error{
		"status": func(r wire.ProcessRef) error { _, err := within.Status(t.Context(), r.Process); return err },
		"read": func(r wire.ProcessRef) error {
			_, err := within.Read(t.Context(), wire.Read{ProcessRef: r})
			return err
		},
		"wait": func(r wire.ProcessRef) error {
			_, err := within.Wait(t.Context(), wire.Wait{ProcessRef: r, WaitMS: 1})
			return err
		},
		"wait_for": func(r wire.ProcessRef) error {
			_, err := within.WaitFor(t.Context(), wire.WaitFor{ProcessRef: r, WaitMS: 1})
			return err
		},
		"search": func(r wire.ProcessRef) error {
			_, err := within.Search(t.Context(), wire.Search{ProcessRef: r, Pattern: "x"})
			return err
		},
		"write": func(r wire.ProcessRef) error {
			_, err := within.Write(t.Context(), wire.Write{ProcessRef: r, Text: "x\n"})
			return err
		},
		"close_stdin": func(r wire.ProcessRef) error { _, err := within.CloseStdin(t.Context(), r.Process); return err },
		"resize": func(r wire.ProcessRef) error {
			_, err := within.Resize(t.Context(), r.Process, wire.WindowSize{Rows: 1, Cols: 1})
			return err
		},
		"signal": func(r wire.ProcessRef) error { _, err := within.Signal(t.Context(), r.Process, "KILL"); return err },
		"terminate": func(r wire.ProcessRef) error {
			_, err := within.Terminate(t.Context(), wire.Terminate{ProcessRef: r})
			return err
		},
	}
	hidden := func(when string) {
		t.Helper()
		for verb, f := range verbs {
			never := strings.ReplaceAll(fmt.Sprintf("%+v", wire.AsError(f(wire.ProcessRef{Process: "neverWas"}))), "neverWas", "P")
			for what, id := range map[string]string{"live": live, "retained": retained, "evicted": evicted} {
				err := f(wire.ProcessRef{Process: id})
				if got := strings.ReplaceAll(fmt.Sprintf("%+v", wire.AsError(err)), id, "P"); err == nil || got != never {
					t.Errorf("%s, %s of one that is %s:\n%s\nof one that never was:\n%s", when, verb, what, got, never)
				}
			}
		}
	}
	hidden("at first")
	before := l.PID("worker")
	if err := l.Kill("worker"); err != nil {
		t.Fatal(err)
	}
	hidden("without the worker")
	l.another(t, "worker", before)
	hidden("after a restart")
	a.typed(t, live, "it\n") // nothing was done to it
	if out := a.output(t, live); out != "got it\n" {
		t.Errorf("%q", out)
	}
}
