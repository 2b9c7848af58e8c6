package chaos

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// STATE 92: each call has a shell of its own.
func TestCaseStateInParallel(t *testing.T) {
	inShells(t, func(t *testing.T, l *Lab, shell string) {
		a := newAgent(t, l, wire.Open{Cwd: "/", Shell: shell, CaptureState: true})
		t.Run("92: outputs of two calls do not mix", func(t *testing.T) {
			var all sync.WaitGroup
			for _, letter := range []string{"A", "B"} {
				all.Go(func() {
					a.carries(t, "for i in 1 2 3; do echo "+letter+"$i; sleep 0.1; done", 0, letter+"1\n"+letter+"2\n"+letter+"3\n", "unchanged")
				})
			}
			all.Wait()
		})
		t.Run("the last to end wins what both have changed, and each has its own", func(t *testing.T) {
			dir := t.TempDir()
			late := a.start(t, wire.Command{Text: "cd /usr; export BOTH=late LATE=1; while [ ! -e " + dir + "/go ]; do sleep 0.01; done; pwd; echo $BOTH ${EARLY-none}"})
			a.carries(t, "cd /tmp; export BOTH=early EARLY=1", 0, "", "saved")
			a.carries(t, "pwd; echo $BOTH $EARLY ${LATE-none}; touch "+dir+"/go", 0, "/tmp\nearly 1 none\n", "unchanged")
			if r := a.end(t, late); r.StateCapture != "saved" || r.SessionCwd != "/usr" {
				t.Errorf("%q, %q", r.StateCapture, r.SessionCwd)
			}
			if out := a.output(t, late); out != "/usr\nlate none\n" {
				t.Errorf("%q", out)
			}
			a.carries(t, "pwd; echo $BOTH $EARLY $LATE", 0, "/usr\nlate 1 1\n", "unchanged")
		})
		t.Run("of many calls at once nothing is lost, and nothing torn", func(t *testing.T) {
			var all sync.WaitGroup
			for i := range 20 {
				all.Go(func() {
					n := strconv.Itoa(i)
					if res := a.text(t, "export N"+n+"="+n+" LAST="+n+" PAIR="+n); res.Receipt.StateCapture != "saved" {
						t.Errorf("%d: %q %q", i, res.Receipt.StateCapture, res.Receipt.Notes)
					}
				})
			}
			all.Wait()
			res := a.text(t, `for i in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19; do eval "echo \$N$i"; done; [ "$LAST" = "$PAIR" ] && echo whole`)
			var want strings.Builder
			for i := range 20 {
				fmt.Fprintln(&want, i)
			}
			exited(t, res, 0, want.String()+"whole\n")
		})
	})
}

// The state of a session is its record's: it is there after a kill -9 of any part.
func TestCaseStateSurvives(t *testing.T) {
	l := start(t)
	open := wire.Open{Name: "survivor", Cwd: "/", CaptureState: true}
	a := newAgent(t, l, open)
	running := a.start(t, wire.Command{Text: "cd /usr; export A=1; sleep 1.5; export B=1; unset C", Env: []wire.EnvVar{{Name: "C", Value: "1"}}})
	a.carries(t, "export D=1", 0, "", "saved")
	if err := l.Kill("worker"); err != nil {
		t.Fatal(err)
	}
	if r := a.end(t, running); r.StateCapture != "saved" || r.SessionCwd != "/usr" {
		t.Errorf("%q, %q, %q", r.StateCapture, r.SessionCwd, r.Notes)
	}
	a.carries(t, "pwd; echo $A $B ${C-none} $D; cd /tmp", 0, "/usr\n1 1 none 1\n", "saved")
	if err := l.Kill("up"); err != nil {
		t.Fatal(err)
	}
	a.c.Close()
	if err := l.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := newAgent(t, l, open)
	if got := b.s.Info(); got.ID != a.s.Info().ID || got.CurrentCwd != "/tmp" || !got.CaptureState {
		t.Errorf("%+v", got)
	}
	b.carries(t, "pwd; echo $A $B ${C-none} $D", 0, "/tmp\n1 1 none 1\n", "unchanged")
}
