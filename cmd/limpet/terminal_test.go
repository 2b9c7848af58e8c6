package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// terminal is a person at a terminal who runs limpet.
type terminal struct {
	t    *testing.T
	cmd  *exec.Cmd
	ptmx *os.File
	tty  *os.File
	read chan struct{} // closed at the end of output

	mu  sync.Mutex
	out bytes.Buffer // guarded by mu
}

// sit runs limpet at a terminal of that many rows and columns.
func sit(t *testing.T, rows, cols uint16, args ...string) *terminal {
	t.Helper()
	ptmx, tty, err := pty.Open()
	need(t, "pty", err == nil, "no terminal can be opened")
	if err := pty.Setsize(ptmx, &pty.Winsize{Rows: rows, Cols: cols}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	term := &terminal{t: t, ptmx: ptmx, tty: tty, read: make(chan struct{})}
	term.cmd = exec.CommandContext(t.Context(), "limpet", args...)
	term.cmd.Dir = dir
	term.cmd.Env = append(os.Environ(), "LIMPET_STATE="+filepath.Join(dir, "state"), "HOME="+dir, "TMPDIR="+dir)
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = tty, tty, tty
	term.cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	if err := term.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go term.drain() // ends when the last holder of the terminal has closed it
	t.Cleanup(func() {
		_ = term.cmd.Process.Kill()
		_ = tty.Close()
		_ = ptmx.Close()
		<-term.read
	})
	return term
}

func (m *terminal) drain() {
	defer close(m.read)
	buf := make([]byte, 4096)
	for {
		n, err := m.ptmx.Read(buf)
		m.mu.Lock()
		m.out.Write(buf[:n])
		m.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (m *terminal) screen() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.out.String()
}

// sees waits until a text was shown.
func (m *terminal) sees(text string) {
	m.t.Helper()
	for end := time.Now().Add(patience); !strings.Contains(m.screen(), text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatalf("%q is not shown: %q", text, m.screen())
		}
	}
}

func (m *terminal) types(text string) {
	m.t.Helper()
	if _, err := io.WriteString(m.ptmx, text); err != nil {
		m.t.Fatal(err)
	}
}

// leaves waits for the exit code.
func (m *terminal) leaves(want int) {
	m.t.Helper()
	_ = m.cmd.Wait()
	if got := m.cmd.ProcessState.ExitCode(); got != want {
		m.t.Errorf("exit code %d, not %d; on screen: %q", got, want, m.screen())
	}
}

func (m *terminal) modes() unix.Termios {
	m.t.Helper()
	state, err := unix.IoctlGetTermios(int(m.tty.Fd()), unix.TCGETS)
	if err != nil {
		m.t.Fatal(err)
	}
	return *state
}

// A command with --tty has a terminal of our size that follows it, gets what we type,
// and ours is afterwards as it was.
func TestRunAtATerminal(t *testing.T) {
	t.Parallel()
	m := sit(t, 33, 111, "run", "--tty", "--", `trap 'echo now $(stty size); resized=1' WINCH; echo ready $(stty size)
		until [ "$resized" ]; do sleep 0.05; done
		read -r line; echo "got <$line>"; test -t 0 -a -t 1 -a -t 2; exit $((7 + $?))`)
	m.sees("ready 33 111")
	before := m.modes()
	if before.Lflag&unix.ICANON != 0 {
		t.Error("our terminal still edits lines itself")
	}
	if err := pty.Setsize(m.ptmx, &pty.Winsize{Rows: 44, Cols: 122}); err != nil {
		t.Fatal(err)
	}
	m.sees("now 44 122")
	m.types("typed words\r")
	m.sees("got <typed words>")
	m.leaves(7)
	if after := m.modes(); after.Lflag&unix.ICANON == 0 || after.Lflag&unix.ECHO == 0 || after.Oflag&unix.OPOST == 0 {
		t.Errorf("our terminal was left raw: %+v", after)
	}
}

// At a terminal Ctrl-C is a key: the command's own terminal makes a signal of it, and
// the command may handle it, as an editor does.
func TestCtrlCAtATerminalIsTheCommands(t *testing.T) {
	t.Parallel()
	m := sit(t, 24, 80, "run", "--tty", "--", `trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.1; done`)
	m.sees("ready")
	m.types("\x03")
	m.sees("caught")
	m.leaves(5)
}

// Without --tty our terminal stays in its mode, and Ctrl-C cancels.
func TestCtrlCAtATerminalWithoutTTY(t *testing.T) {
	t.Parallel()
	m := sit(t, 24, 80, "run", "--", `test -t 1 && echo a terminal; echo ready; sleep 300`)
	m.sees("ready")
	m.types("\x03")
	m.leaves(130)
	if out := m.screen(); strings.Contains(out, "a terminal") || !strings.Contains(out, "limpet: the command was cancelled") {
		t.Errorf("on screen: %q", out)
	}
}

// An editor is what a terminal is for.
func TestAnEditorAtATerminal(t *testing.T) {
	_, err := exec.LookPath("vim")
	need(t, "vim", err == nil, "no vim to edit with")
	t.Parallel()
	m := sit(t, 24, 80, "run", "--tty", "--", "vim", "-u", "NONE", "-i", "NONE", "-N", "notes.txt")
	m.sees("notes.txt")
	m.types("ihello from limpet\x1b")
	m.sees("hello from limpet")
	m.types(":wq\r")
	m.leaves(0)
	got, err := os.ReadFile(filepath.Join(m.cmd.Dir, "notes.txt"))
	if err != nil || string(got) != "hello from limpet\n" {
		t.Errorf("vim wrote %q: %v", got, err)
	}
}
