package runtime

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
	"golang.org/x/sys/unix"
)

func TestStreams(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		r := start(t, f, self(t, "streams"))
		if out, errOut := r.text(), r.errOut.String(); out != "out" || errOut != "err" {
			t.Errorf("got %q and %q", out, errOut)
		}
		s := self(t, "streams")
		s.Merged = true
		r = start(t, f, s)
		if out := r.text(); out != "outerr" || r.Stderr != nil {
			t.Errorf("merged: got %q, stderr %v", out, r.Stderr)
		}
	})
}

func TestStdin(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		if out := start(t, f, self(t, "echo")).text(); out != "" {
			t.Errorf("without a pipe: read %q", out)
		}
		s := self(t, "echo")
		s.Stdin = true
		r := start(t, f, s)
		long := strings.Repeat("0123456789", 100_000)
		if _, err := r.Stdin.WriteString(long); err != nil {
			t.Fatal(err)
		}
		if err := r.Stdin.Close(); err != nil {
			t.Fatal(err)
		}
		if out := r.text(); out != long {
			t.Errorf("wrote %d bytes, read back %d", len(long), len(out))
		}
	})
}

func TestChildDescriptors(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		// One that this process holds open for children of its own making.
		p, err := unix.Open("/dev/null", unix.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(p)
		other, err := NewForker(Config{Cgroup: "off"}) // cuts off what was inherited
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		s := bash(t, "ls /proc/self/fd")
		s.Stdin = true
		if out := strings.Fields(start(t, f, s).text()); len(out) != 4 { // ls reads the directory by a fourth
			t.Errorf("the child holds %q", out)
		}
		s = self(t, "blocking")
		s.Stdin = true
		if out := start(t, f, s).text(); out != "0:false:<nil> 1:false:<nil> 2:false:<nil> " {
			t.Errorf("descriptors that do not block: %q", out)
		}
	})
}

func TestWhatTheChildSees(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		dir := t.TempDir()
		for _, c := range []struct {
			name, text, want string
			set              func(*Spec)
		}{
			{"dir", "pwd -P", dir, func(s *Spec) { s.Dir = dir }},
			{"umask", "umask", "0077", func(s *Spec) { s.Umask = 0o077 }},
			{"umask of another", "umask", "0022", func(*Spec) {}},
			{"umask zero", "umask", "0000", func(s *Spec) { s.Umask = 0 }},
			{"tag wins over the environment", "echo $" + TagVariable, "mine", func(s *Spec) {
				s.Env, s.Tag = append(s.Env, TagVariable+"=other"), "mine"
			}},
			{"session and group", `set -- $(cat /proc/$$/stat); echo $(( $5 - $$ )) $(( $6 - $$ ))`, "0 0", func(*Spec) {}},
			{"limits", "ulimit -n; ulimit -f; ulimit -t", "77\n8\n9", func(s *Spec) {
				s.Rlimits = []Rlimit{{unix.RLIMIT_NOFILE, 77}, {unix.RLIMIT_FSIZE, 8192}, {unix.RLIMIT_CPU, 9}}
			}},
			{"own limits are untouched", "ulimit -t", "unlimited", func(*Spec) {}},
			{"no job control noise (case 79)", "sleep 0.1 & wait; echo done", "done", func(*Spec) {}},
			{"a signal nobody blocked", "trap 'echo term' TERM; kill $$", "term", func(*Spec) {}},
		} {
			t.Run(c.name, func(t *testing.T) {
				s := bash(t, c.text)
				c.set(&s)
				r := start(t, f, s)
				if got := strings.TrimSpace(r.text()); got != c.want || r.errOut.String() != "" {
					t.Errorf("got %q and %q, want %q", got, r.errOut.String(), c.want)
				}
				if r.end().Code != 0 {
					t.Error("exit", r.end())
				}
			})
		}
	})
}

func TestStartErrors(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		dir := t.TempDir()
		file := filepath.Join(dir, "plain")
		if err := os.WriteFile(file, []byte("echo\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		noFormat := filepath.Join(dir, "noformat")
		if err := os.WriteFile(noFormat, []byte{0x7f, 'E', 'L', 'F', 9, 9}, 0o755); err != nil {
			t.Fatal(err)
		}
		script := filepath.Join(dir, "script")
		if err := os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		marker := filepath.Join(dir, "ran")
		program := func(argv ...string) func(*Spec) { return func(s *Spec) { s.Argv = argv } }
		before := measure(t, f)
		for _, c := range []struct {
			name  string
			set   func(*Spec)
			kind  StartErrorKind // empty: refused by validation
			code  wire.Code
			field string
		}{
			{"workdir missing", func(s *Spec) { s.Dir = filepath.Join(dir, "none") }, WorkdirMissing, wire.CodeWorkdirNotFound, "cwd"},
			{"workdir is a file", func(s *Spec) { s.Dir = file }, WorkdirNotDirectory, wire.CodeWorkdirNotFound, "cwd"},
			{"workdir below a file", func(s *Spec) { s.Dir = filepath.Join(file, "x") }, WorkdirMissing, wire.CodeWorkdirNotFound, "cwd"},
			{"workdir relative", func(s *Spec) { s.Dir = "x" }, "", wire.CodeInvalidArguments, "cwd"},
			{"no such program", program("limpet-no-such-program"), ProgramNotFound, wire.CodeSpawnFailed, "argv"},
			{"no such path", program("/no/such/program"), ProgramNotFound, wire.CodeSpawnFailed, "argv"},
			{"not executable", program(file), ProgramPermission, wire.CodeSpawnFailed, "argv"},
			{"a directory", program(dir), ProgramPermission, wire.CodeSpawnFailed, "argv"},
			{"no interpreter", program(script), InterpreterMissing, wire.CodeSpawnFailed, "argv"},
			{"no such limit", func(s *Spec) {
				s.Argv = []string{"bash", "-c", "echo > " + marker}
				s.Rlimits = []Rlimit{{unix.RLIMIT_CPU, 9}, {99, 1}}
			}, ResourceLimit, wire.CodeCapabilityMissing, "limits"},
			{"no format", program(noFormat), ProgramFormat, wire.CodeSpawnFailed, "argv"},
			{"one argument too big", program("bash", strings.Repeat("x", 1<<18)), ArgumentsTooBig, wire.CodeSpawnFailed, "argv"},
			{"NUL", program("bash", "a\x00b"), ArgumentNUL, wire.CodeInvalidArguments, "argv"},
			{"no argv", program(), "", wire.CodeInvalidArguments, "argv"},
			{"empty program", program(""), "", wire.CodeInvalidArguments, "argv"},
			{"no tag", func(s *Spec) { s.Tag = "" }, "", wire.CodeInvalidArguments, "tag"},
			{"umask", func(s *Spec) { s.Umask = 0o1000 }, "", wire.CodeInvalidArguments, "umask"},
			{"memory", func(s *Spec) { s.MemoryBytes = -1 }, "", wire.CodeInvalidArguments, "limits.memory_bytes"},
			{"in a terminal", func(s *Spec) { s.Argv, s.TTY = []string{"/no/such/program"}, &Size{} }, ProgramNotFound, wire.CodeSpawnFailed, "argv"},
			{"with a pipe and limits", func(s *Spec) {
				s.Argv, s.Stdin, s.Rlimits = []string{"/no/such/program"}, true, []Rlimit{{unix.RLIMIT_CPU, 9}}
			}, ProgramNotFound, wire.CodeSpawnFailed, "argv"},
		} {
			t.Run(c.name, func(t *testing.T) {
				s := bash(t, "true")
				c.set(&s)
				child, err := f.Start(s)
				var start *StartError
				var typed *wire.Error
				if child != nil || !errors.As(err, &typed) || typed.Code != c.code || typed.Field != c.field {
					t.Fatalf("got %v, %v; want code %s and field %s", child, err, c.code, c.field)
				}
				if errors.As(err, &start); c.kind != "" && (start == nil || start.Kind != c.kind) {
					t.Errorf("got %v, want kind %s", err, c.kind)
				}
			})
		}
		if _, err := os.Stat(marker); !errors.Is(err, os.ErrNotExist) {
			t.Error("a program ran whose start failed")
		}
		before.compare(t, f)
	})
}

func TestLookProgram(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	for path, mode := range map[string]os.FileMode{a + "/tool": 0o644, b + "/tool": 0o755, a + "/plain": 0o644} {
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, path, argv0, env, want string
		err                          error
	}{
		{"skips what is not executable", "", "tool", a + ":" + b, b + "/tool", nil},
		{"the child's PATH, not ours", "", "bash", a, "", unix.ENOENT},
		{"an empty element is not the directory", "", "tool", ":", "", unix.ENOENT},
		{"found but not executable", "", "plain", a, "", unix.EACCES},
		{"a slash is no lookup", "", "./x", b, "./x", nil},
		{"Path wins", "/bin/x", "tool", b, "/bin/x", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := lookProgram(&Spec{Path: c.path, Argv: []string{c.argv0}, Env: []string{"PATH=/nowhere", "PATH=" + c.env}})
			if got != c.want || !errors.Is(err, c.err) {
				t.Errorf("got %q, %v; want %q, %v", got, err, c.want, c.err)
			}
		})
	}
}

// TestEarlyExit has 2,000 children exit at once while sweeps run all the time: each
// status must reach its Wait.
func TestEarlyExit(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		stop := make(chan struct{})
		var others sync.WaitGroup
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					f.Sweep()
				}
			}
		})
		var callers sync.WaitGroup
		for range 8 {
			callers.Go(func() {
				for range 125 {
					s := Spec{Argv: []string{"/bin/sh", "-c", "exit 7"}, Tag: tagFor(t), Umask: DefaultUmask}
					c, err := f.Start(s)
					if err != nil {
						t.Error(err)
						return
					}
					if e, err := c.Wait(); err != nil || e.Code != 7 {
						t.Error("lost the status:", e, err)
					}
					if err := c.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		callers.Wait()
		close(stop)
		others.Wait()
	})
}

// TestForkersBesideEachOther: the sweep of one leaves the children of the other alone.
func TestForkersBesideEachOther(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		other := forker(t, "scan")
		for range 200 {
			r := start(t, f, Spec{Argv: []string{"/bin/sh", "-c", "exit 7"}, Tag: tagFor(t), Umask: DefaultUmask})
			eventually(t, "it has ended", func() bool { m, err := readStat(r.PID); return err == nil && !m.live() })
			other.Sweep()
			f.Sweep()
			if e := r.end(); e.Code != 7 {
				t.Fatal(e)
			}
		}
	})
}

// TestCloseWhileStarting closes a Forker that is in use: every Start has an answer.
func TestCloseWhileStarting(t *testing.T) {
	needBash(t)
	for range 20 {
		f, err := NewForker(Config{})
		if err != nil {
			t.Fatal(err)
		}
		var callers sync.WaitGroup
		for range 100 {
			callers.Go(func() {
				c, err := f.Start(Spec{Argv: []string{"/bin/true"}, Tag: "x", Umask: DefaultUmask})
				if err != nil {
					if !errors.Is(err, ErrClosed) {
						t.Error(err)
					}
					return
				}
				if _, err := c.Wait(); err != nil {
					t.Error(err)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		callers.Wait()
		if dir := f.Cgroup(); dir != "" {
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Error("the subtree is still there:", err)
			}
		}
	}
}
