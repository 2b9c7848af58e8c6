package runtime

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func needPTY(t *testing.T) {
	t.Helper()
	_, err := os.Stat("/dev/ptmx")
	need(t, "pty", err == nil, "no /dev/ptmx")
}

func terminal(t *testing.T, f *Forker, text string, size Size) *running {
	t.Helper()
	s := bash(t, text)
	s.TTY = &size
	return start(t, f, s)
}

func TestTerminal(t *testing.T) {
	needPTY(t)
	each(t, func(t *testing.T, f *Forker) {
		for _, c := range []struct {
			name, text, want string
			size             Size
			shell            int
		}{
			{"output to its end (case 69)", "printf bye", "bye", Size{}, 0},
			{"line ends (case 73)", `printf 'a\nb\n'; printf 'c\r\n'`, "a\r\nb\r\nc\r\r\n", Size{}, 0},
			{"default size", "stty size", "24 80\r\n", Size{}, 0},
			{"size before the first instruction", "stty size", "50 200\r\n", Size{50, 200}, 0},
			{"one of both", "stty size", "24 132\r\n", Size{0, 132}, 0},
			{"all three are the terminal", "test -t 0 && test -t 1 && test -t 2 && tty >/dev/null && echo yes", "yes\r\n", Size{}, 0},
			{"it is the controlling one", "echo yes >/dev/tty", "yes\r\n", Size{}, 0},
			{"exit status", "exit 3", "", Size{}, 3},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := terminal(t, f, c.text, c.size)
				if e := r.end(); e.Shell() != c.shell || r.Stdin != nil || r.Stdout != nil || r.Stderr != nil {
					t.Errorf("exit %+v, pipes %v %v %v", e, r.Stdin, r.Stdout, r.Stderr)
				}
				if out := r.text(); out != c.want {
					t.Errorf("got %q, want %q", out, c.want)
				}
			})
		}
	})
}

func TestTerminalControl(t *testing.T) {
	needPTY(t)
	each(t, func(t *testing.T, f *Forker) {
		r := terminal(t, f, "echo ready; sleep 100", Size{})
		r.await("ready")
		if n, err := r.Master.Write([]byte{3}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if e := r.end(); e.Signal != unix.SIGINT {
			t.Errorf("interrupted (case 77): %+v", e)
		}

		// In the environment a size would go stale; Environment leaves it out. (bash
		// itself keeps a shell variable of that name up to date: checkwinsize.)
		s := bash(t, "trap 'stty size; printenv COLUMNS || echo unset; exit' WINCH; echo ready; while :; do sleep 0.02; done")
		s.TTY = &Size{}
		s.Env = Environment(os.Environ(), nil, nil, true)
		r = start(t, f, s)
		r.await("ready")
		if err := control(r.Master, func(fd int) error { return setSize(fd, Size{50, 200}) }); err != nil {
			t.Fatal(err)
		}
		r.end()
		if out := r.text(); !strings.HasSuffix(out, "50 200\r\nunset\r\n") {
			t.Errorf("resized (case 75): %q", out)
		}
	})
}

// TestTerminalLeftover is case 10: with job control a background job outlives the shell
// and keeps the terminal open; the exit is told at once, and the job is found.
func TestTerminalLeftover(t *testing.T) {
	needPTY(t)
	each(t, func(t *testing.T, f *Forker) {
		r := terminal(t, f, "set -m; sleep 40 & exit 3", Size{})
		if e := r.end(); e.Code != 3 {
			t.Errorf("exit %+v", e)
		}
		if n, _, err := r.Survivors(); n != 1 || err != nil {
			t.Errorf("survivors %d, %v", n, err)
		}
		gone(t, f, r, r.Stop(t.Context(), StopOptions{First: unix.SIGTERM, Grace: 0}))
		r.text() // ends now
	})
}
