package runtime

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestExit(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		for _, c := range []struct {
			name, text string
			code       int
			signal     unix.Signal
			shell      int
		}{
			{"zero", "exit 0", 0, 0, 0},
			{"seven", "exit 7", 7, 0, 7},
			{"255", "exit 255", 255, 0, 255},
			{"killed (case 27)", "echo building; kill -s KILL $BASHPID", -1, unix.SIGKILL, 137},
			{"whole group (case 24)", "kill -TERM 0; echo survived", -1, unix.SIGTERM, 143},
			{"a killed last command", "bash -c 'kill -KILL $$'; exit $?", 137, 0, 137},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := start(t, f, bash(t, c.text))
				e := r.end()
				if e.Code != c.code || e.Signal != c.signal || e.Shell() != c.shell || e.At.IsZero() {
					t.Errorf("got %+v, want code %d, signal %d, shell status %d", e, c.code, c.signal, c.shell)
				}
				if n, _, err := r.Survivors(); n != 0 || err != nil {
					t.Errorf("survivors: %d, %v", n, err)
				}
			})
		}
	})
}

// TestCPULimit: the end says why.
func TestCPULimit(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		s := bash(t, "while :; do :; done")
		s.Rlimits = []Rlimit{{unix.RLIMIT_CPU, 1}}
		if e := start(t, f, s).end(); e.Signal != unix.SIGXCPU || e.Usage.UserMS+e.Usage.SystemMS < 500 {
			t.Errorf("got %+v", e)
		}
	})
}
