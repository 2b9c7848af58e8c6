package runtime

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// ShellText says what a shell is to run.
type ShellText struct {
	// Shell is "bash" (also when empty), "sh", or an absolute path. One that is not there
	// is an error, never another shell.
	Shell string
	// Login makes it a login shell (-l), which reads the profile first. A shell that knows
	// no -l says so itself and ends.
	Login bool
	// Text is one argument, also when it starts with a dash.
	Text string
	// Args follow the text: the first is the shell's $0, the others are $1 and on.
	Args []string
}

// argv is what runs t in the shell at path. After the `--` a text that starts with a dash
// is a text.
func (t *ShellText) argv(path string) []string {
	flag := "-c"
	if t.Login {
		flag = "-lc"
	}
	return append([]string{path, flag, "--", t.Text}, t.Args...)
}

// ShellArgv gives the argument vector of t: the shell's absolute path, -c or -lc, --, the
// text as one element, and its arguments.
func ShellArgv(t ShellText) ([]string, error) {
	path, err := lookShell(t.Shell)
	if err != nil {
		return nil, err
	}
	return t.argv(path), nil
}

// Shells is ShellArgv with a memory: a shell that was found is believed to be there for
// shellMemory, because looking through PATH costs more than the rest of a start. The
// zero value is ready; it may be used by many goroutines.
type Shells struct {
	mu    sync.Mutex
	found map[string]foundShell // guarded by mu; at most maxShells
}

type foundShell struct {
	path, program string
	at            time.Time
}

const (
	shellMemory = 10 * time.Second
	maxShells   = 64
)

// Argv is [ShellArgv].
func (s *Shells) Argv(t ShellText) ([]string, error) {
	f, err := s.find(t.Shell)
	if err != nil {
		return nil, err
	}
	return t.argv(f.path), nil
}

// Find gives the absolute path of a shell, and that of the program which it is in the end:
// sh may be a link to dash.
func (s *Shells) Find(shell string) (path, program string, err error) {
	f, err := s.find(shell)
	return f.path, f.program, err
}

func (s *Shells) find(shell string) (foundShell, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.found[shell]
	if ok && time.Since(f.at) <= shellMemory {
		return f, nil
	}
	path, err := lookShell(shell)
	if err != nil {
		return foundShell{}, err
	}
	program, err := filepath.EvalSymlinks(path)
	if err != nil { // it was there just now
		program = path
	}
	if s.found == nil || len(s.found) >= maxShells {
		s.found = map[string]foundShell{}
	}
	f = foundShell{path, program, time.Now()}
	s.found[shell] = f
	return f, nil
}

func lookShell(shell string) (string, error) {
	switch {
	case shell == "":
		shell = "bash"
	case shell == "bash", shell == "sh":
	case filepath.IsAbs(shell):
		info, err := os.Stat(shell)
		if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
			return "", wire.Invalid("command.shell", "%s is not an executable file", shell)
		}
		return shell, nil
	default:
		return "", wire.Invalid("command.shell", "%q is neither bash, sh, nor an absolute path", shell)
	}
	path, err := exec.LookPath(shell)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		e := wire.Errorf(wire.CodeCapabilityMissing, "the shell %s is not installed on this host", shell)
		e.Field = "command.shell"
		return "", e
	}
	return path, nil
}
