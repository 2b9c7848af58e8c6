package chaos

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

func TestCaseCommandPlace(t *testing.T) {
	dir := t.TempDir()
	a := newAgent(t, start(t), wire.Open{Cwd: dir})
	target := filepath.Join(dir, "target")
	for _, err := range []error{
		os.Mkdir(target, 0o700), os.Mkdir(filepath.Join(dir, "sp ace 語"), 0o700),
		os.WriteFile(filepath.Join(dir, "file"), nil, 0o600), os.Symlink(target, filepath.Join(dir, "link")),
		os.Symlink("nowhere", filepath.Join(dir, "dangling")), os.Symlink("loop", filepath.Join(dir, "loop")),
		os.WriteFile(filepath.Join(dir, "script"), []byte("echo no shebang\n"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Run("a directory that cannot be entered is refused by name", func(t *testing.T) {
		for cwd, code := range map[string]wire.Code{
			"/nonexistent/x": wire.CodeWorkdirNotFound, filepath.Join(dir, "file"): wire.CodeWorkdirNotFound,
			filepath.Join(dir, "dangling"): wire.CodeWorkdirNotFound, filepath.Join(dir, "loop"): wire.CodeWorkdirNotFound,
			filepath.Join(dir, "file/x"):   wire.CodeWorkdirNotFound,
			"/" + strings.Repeat("x", 300): wire.CodeWorkdirNotFound,
			"relative":                     wire.CodeInvalidArguments, ".": wire.CodeInvalidArguments, "~": wire.CodeInvalidArguments,
			"/" + strings.Repeat("x/", 2100): wire.CodeInvalidArguments,
		} {
			a.refusedStart(t, wire.Command{Text: "pwd", Cwd: cwd}, code, "command.cwd")
		}
		refused(t, a.raw(t, wire.VerbOpen, wire.Open{Version: 1, Cwd: "/nonexistent/x"}), wire.CodeWorkdirNotFound, "cwd")
		refused(t, a.raw(t, wire.VerbOpen, wire.Open{Version: 1, Cwd: "x"}), wire.CodeInvalidArguments, "cwd")
	})
	t.Run("a link and odd names are entered", func(t *testing.T) {
		exited(t, a.run(t, wire.Command{Text: "pwd -P", Cwd: filepath.Join(dir, "link")}), 0, target+"\n")
		exited(t, a.run(t, wire.Command{Text: "pwd -P; cd ..; pwd", Cwd: filepath.Join(dir, "sp ace 語")}), 0, dir+"/sp ace 語\n"+dir+"\n")
		exited(t, a.run(t, wire.Command{Argv: []string{"pwd", "-P"}, Cwd: "/"}), 0, "/\n")
		if r := a.text(t, "true").Receipt; r.Cwd != dir {
			t.Errorf("the receipt says %s", r.Cwd)
		}
	})
	t.Run("a session whose directory went away refuses and lives on", func(t *testing.T) {
		gone := filepath.Join(dir, "gone")
		if err := os.Mkdir(gone, 0o700); err != nil {
			t.Fatal(err)
		}
		b := agent{c: a.c}
		var err error
		if b.s, err = a.c.Open(t.Context(), wire.Open{Cwd: gone}); err != nil {
			t.Fatal(err)
		}
		exited(t, b.text(t, "rmdir "+gone+"; echo here"), 0, "here\n")
		b.refusedStart(t, wire.Command{Text: "pwd"}, wire.CodeWorkdirNotFound, "command.cwd")
		exited(t, b.run(t, wire.Command{Text: "pwd", Cwd: dir}), 0, dir+"\n")
	})
	t.Run("a program that cannot be run is an error and no other program", func(t *testing.T) {
		before := a.s.Info()
		for _, argv0 := range []string{"no-such-program-anywhere", "/nonexistent/x", dir, filepath.Join(dir, "file"), "./target"} {
			_, err := a.try(t, wire.Run{Command: wire.Command{Argv: []string{argv0, "x"}}})
			if refused(t, err, wire.CodeSpawnFailed, ""); err != nil && !strings.Contains(err.Error(), argv0) {
				t.Errorf("%s is not named: %v", argv0, err)
			}
		}
		for _, shell := range []string{"/nonexistent/bash", filepath.Join(dir, "file"), dir} {
			a.refusedStart(t, wire.Command{Text: "true", Shell: shell}, wire.CodeInvalidArguments, "command.shell")
		}
		for _, shell := range []string{"zsh", "fish", "bash -x", "./bash"} {
			a.refusedStart(t, wire.Command{Text: "true", Shell: shell}, wire.CodeInvalidArguments, "command.shell")
		}
		a.refusedStart(t, wire.Command{Argv: []string{"true"}, Shell: "bash"}, wire.CodeInvalidArguments, "command.shell")
		res := a.run(t, wire.Command{Text: "echo $0", Shell: "sh"})
		if !strings.HasSuffix(res.Receipt.Shell, "/sh") || res.Stdout.Text != res.Receipt.Shell+"\n" {
			t.Errorf("shell %q wrote %q", res.Receipt.Shell, res.Stdout.Text)
		}
		if now := a.s.Info(); now.ID != before.ID {
			t.Error("another session")
		}
	})
}

func TestCaseCommandIdentity(t *testing.T) {
	dir := t.TempDir()
	l := start(t)
	a := newAgent(t, l, wire.Open{Cwd: dir})
	lines := func(t *testing.T, name string) int {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.Count(string(b), "\n")
	}
	t.Run("one execution id is one process, however often it is sent", func(t *testing.T) {
		m := wire.Start{ExecutionID: subjects.NewID(), Command: wire.Command{Text: "echo x >> once; sleep 0.2"}}
		var mu sync.Mutex
		ids := map[string]int{}
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				r, err := a.s.Start(t.Context(), m)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				ids[r.Process]++
			})
		}
		all.Wait()
		if len(ids) != 1 {
			t.Errorf("%v", ids)
		}
		res, err := a.try(t, wire.Run{ExecutionID: m.ExecutionID, Command: m.Command})
		if err != nil || ids[res.Receipt.Process] != 20 || res.Receipt.State != wire.StateCompleted {
			t.Errorf("a run of the same id: %+v, %v", res, err)
		}
		if n := lines(t, "once"); n != 1 {
			t.Errorf("it ran %d times", n)
		}
	})
	t.Run("another command under the same id is a conflict", func(t *testing.T) {
		m := wire.Start{ExecutionID: subjects.NewID(), Command: wire.Command{Text: "echo x >> first"}}
		if _, err := a.s.Start(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		for _, c := range []wire.Command{
			{Text: "echo x >> second"},
			{Text: "echo x >> first "},
			{Text: m.Command.Text, TimeoutMS: 1000},
			{Text: m.Command.Text, Env: []wire.EnvVar{{Name: "A"}}},
			{Text: m.Command.Text, TTY: tty},
			{Argv: []string{"touch", "second"}},
		} {
			_, err := a.s.Start(t.Context(), wire.Start{ExecutionID: m.ExecutionID, Command: c})
			refused(t, err, wire.CodeExecutionConflict, "execution_id")
		}
		if n := lines(t, "second"); n != 0 {
			t.Error("the second command ran")
		}
	})
	t.Run("an id belongs to the tenant and not to a session", func(t *testing.T) {
		m := wire.Start{ExecutionID: subjects.NewID(), Command: wire.Command{Text: "echo x >> tenant"}}
		one, err := a.s.Start(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		b := newAgent(t, l, wire.Open{Cwd: dir})
		two, err := b.s.Start(t.Context(), m)
		if err != nil || two.Process != one.Process {
			t.Errorf("%+v, %v", two, err)
		}
		a.end(t, one.Process)
		if n := lines(t, "tenant"); n != 1 {
			t.Errorf("it ran %d times", n)
		}
	})
	t.Run("what was cancelled before its start does not start", func(t *testing.T) {
		m := wire.Start{ExecutionID: subjects.NewID(), Command: wire.Command{Text: "echo x >> cancelled"}}
		for range 2 {
			r, err := a.s.Cancel(t.Context(), m.ExecutionID)
			if err != nil || r.State != wire.StateCancelled || r.Reason != wire.ReasonNeverStarted {
				t.Errorf("%+v, %v", r, err)
			}
		}
		for range 2 {
			_, err := a.s.Start(t.Context(), m)
			refused(t, err, wire.CodeExecutionCancelled, "execution_id")
			_, err = a.try(t, wire.Run{ExecutionID: m.ExecutionID, Command: m.Command})
			refused(t, err, wire.CodeExecutionCancelled, "execution_id")
		}
		if n := lines(t, "cancelled"); n != 0 {
			t.Error("it ran")
		}
	})
	t.Run("a cancel and a start at once have one outcome", func(t *testing.T) {
		for i := range 20 {
			m := wire.Start{ExecutionID: subjects.NewID(), Command: wire.Command{Text: "sleep 300"}}
			var all sync.WaitGroup
			var startErr, cancelErr error
			var started, cancelled *wire.Receipt
			all.Go(func() { started, startErr = a.s.Start(t.Context(), m) })
			all.Go(func() {
				time.Sleep(time.Duration(i) * 300 * time.Microsecond)
				cancelled, cancelErr = a.s.Cancel(t.Context(), m.ExecutionID)
			})
			all.Wait()
			if cancelErr != nil {
				t.Fatalf("cancel: %v", cancelErr)
			}
			if startErr != nil {
				refused(t, startErr, wire.CodeExecutionCancelled, "")
				continue
			}
			if cancelled.Process != started.Process {
				t.Errorf("cancel answered for %q, start for %q", cancelled.Process, started.Process)
			}
			if r := a.end(t, started.Process); r.State != wire.StateCancelled || r.Reason != wire.ReasonCancel {
				t.Errorf("it ended as %s, %s", r.State, r.Reason)
			}
		}
	})
	t.Run("what describes a command changes nothing", func(t *testing.T) {
		res := a.run(t, wire.Command{Text: "env | grep -c described", Description: "described", Labels: map[string]string{"described": "described"}})
		if res.Stdout.Text != "0\n" || res.Receipt.Description != "described" || res.Receipt.Labels["described"] != "described" {
			t.Errorf("%q, %+v", res.Stdout.Text, res.Receipt)
		}
	})
}
