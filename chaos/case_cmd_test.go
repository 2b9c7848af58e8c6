package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// started is the first attempt to start a command as the tenant, unchecked by the client.
func (a agent) refusedStart(t *testing.T, c wire.Command, code wire.Code, field string) {
	t.Helper()
	ref := wire.SessionRef{SessionName: a.s.Info().Name}
	refused(t, a.raw(t, wire.VerbStart, wire.Start{Version: 1, SessionRef: ref, Command: c}), code, field)
	refused(t, a.raw(t, wire.VerbRun, wire.Run{Version: 1, SessionRef: ref, Command: c}), code, field)
	refused(t, a.raw(t, wire.VerbPrepare, wire.Prepare{Version: 1, SessionRef: ref, Command: c}), code, field)
}

// processes counts what the session holds: a refused start leaves nothing.
func (a agent) processes(t *testing.T) int {
	t.Helper()
	l, err := a.s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return len(l.Processes)
}

func TestCaseCommandSize(t *testing.T) {
	l := start(t)
	a := newAgent(t, l, wire.Open{Cwd: t.TempDir()})
	worker := l.PID("worker")
	padded := func(n int) string {
		const rest = "; echo ok"
		return ": " + strings.Repeat("x", n-len(": ")-len(rest)) + rest
	}
	// CMD 94
	t.Run("the longest text runs whole and one more byte is refused with the limit", func(t *testing.T) {
		exited(t, a.text(t, padded(100_000)), 0, "ok\n")
		exited(t, a.text(t, padded(131_071)), 0, "ok\n")
		before := a.processes(t)
		for _, n := range []int{131_072, 200_000, 4 << 20} {
			a.refusedStart(t, wire.Command{Text: padded(n)}, wire.CodeInvalidArguments, "command.text")
		}
		_, err := a.try(t, wire.Run{Command: wire.Command{Text: padded(200_000)}})
		if refused(t, err, wire.CodeInvalidArguments, "command.text"); !strings.Contains(err.Error(), "131,071") {
			t.Errorf("the limit is not named: %v", err)
		}
		if n := a.processes(t); n != before {
			t.Errorf("%d processes, %d before", n, before)
		}
	})
	t.Run("ten megabytes are refused before they are sent", func(t *testing.T) { // CMD 94
		_, err := a.try(t, wire.Run{Command: wire.Command{Text: padded(10 << 20)}})
		refused(t, err, wire.CodeInvalidArguments, "command.text")
		_, err = a.try(t, wire.Run{Command: wire.Command{Argv: []string{"echo", strings.Repeat("x", 10<<20)}}})
		refused(t, err, wire.CodeInvalidArguments, "command.argv[1]")
	})
	t.Run("an argument has the same limit", func(t *testing.T) { // CMD 94
		count := func(n int) wire.Command {
			return wire.Command{Argv: []string{"bash", "-c", `echo ${#1}`, "x", strings.Repeat("y", n)}}
		}
		exited(t, a.run(t, count(131_071)), 0, "131071\n")
		a.refusedStart(t, count(131_072), wire.CodeInvalidArguments, "command.argv[4]")
	})
	t.Run("a hundred thousand arguments pass and more are refused", func(t *testing.T) { // CMD 94
		args := func(n int) wire.Command {
			c := wire.Command{Argv: []string{"bash", "-c", "echo $# ${100} ${@: -1}", "x"}}
			for i := range n - 4 {
				c.Argv = append(c.Argv, fmt.Sprint(i))
			}
			return c
		}
		exited(t, a.run(t, args(100_000)), 0, "99996 99 99995\n")
		a.refusedStart(t, args(100_001), wire.CodeInvalidArguments, "command.argv")
		wide := wire.Command{Argv: []string{"true"}}
		for range 40 {
			wide.Argv = append(wide.Argv, strings.Repeat("x", 60_000))
		}
		a.refusedStart(t, wide, wire.CodeInvalidArguments, "command.argv") // 2.4 MB: the kernel would not start it
	})
	t.Run("the largest that is allowed is one that the kernel starts", func(t *testing.T) { // CMD 94
		c := wire.Command{Argv: []string{"bash", "-c", "echo $#", "x"}}
		room := wire.MaxArgumentsTotal - len("bash-cecho $#x") - 4*9
		for room > 9 {
			n := min(131_000, room-9)
			c.Argv = append(c.Argv, strings.Repeat("x", n))
			room -= n + 9
		}
		exited(t, a.run(t, c), 0, fmt.Sprintln(len(c.Argv)-4))
		text := padded(131_071)
		c = wire.Command{Text: text}
		for room = wire.MaxArgumentsTotal - len(text) - 100; room > 200; {
			n := min(130_000, room-20)
			c.Env = append(c.Env, wire.EnvVar{Name: fmt.Sprintf("V%d", len(c.Env)), Value: strings.Repeat("x", n)})
			room -= n + 20
		}
		exited(t, a.run(t, c), 0, "ok\n")
	})
	if l.PID("worker") != worker {
		t.Error("the worker has been restarted")
	}
}

func TestCaseCommandText(t *testing.T) {
	l := start(t, "SECRET_OF_THE_HOST=leak", "BASH_ENV=/nonexistent/leak", "ENV=/nonexistent/leak", "LC_ALL=", "LANG=", "PROMPT_COMMAND=echo leak")
	a := newAgent(t, l, wire.Open{Cwd: t.TempDir()})

	// CMD 96
	t.Run("a NUL is refused before anything judges the text", func(t *testing.T) {
		for field, c := range map[string]wire.Command{
			"command.text":         {Text: "echo a\x00b"},
			"command.argv[1]":      {Argv: []string{"echo", "a\x00b"}},
			"command.argv[0]":      {Argv: []string{"ec\x00ho"}},
			"command.env[0].name":  {Text: "true", Env: []wire.EnvVar{{Name: "a\x00b"}}},
			"command.env[0].value": {Text: "true", Env: []wire.EnvVar{{Name: "a", Value: "a\x00b"}}},
			"command.cwd":          {Text: "true", Cwd: "/\x00"},
			"command.shell":        {Text: "true", Shell: "/bin/ba\x00sh"},
			"command.description":  {Text: "true", Description: "\x00"},
		} {
			a.refusedStart(t, c, wire.CodeInvalidArguments, field)
		}
	})
	t.Run("text that is not UTF-8 is refused", func(t *testing.T) { // CMD 96
		a.refusedStart(t, wire.Command{Text: "echo \xff"}, wire.CodeInvalidArguments, "command.text")
		a.refusedStart(t, wire.Command{Argv: []string{"echo", "\xc3"}}, wire.CodeInvalidArguments, "command.argv[1]")
		exited(t, a.text(t, `printf '\xff' | od -An -tx1`), 0, " ff\n")
	})
	// CMD 98
	t.Run("text that looks HTML-escaped is run as it is and noted", func(t *testing.T) {
		for text, exit := range map[string]int{"echo a &amp;&amp; echo b": 2, "echo x 2&gt;/dev/null": 126, "echo a&quot;": 127} {
			res := a.text(t, text)
			if *res.Receipt.ExitCode != exit || !strings.Contains(strings.Join(res.Receipt.Notes, "\n"), "HTML-escaped") {
				t.Errorf("%s: exit %d, notes %q", text, *res.Receipt.ExitCode, res.Receipt.Notes)
			}
		}
		if res := a.text(t, "echo a && echo b; x='a&b'"); len(res.Receipt.Notes) != 0 {
			t.Errorf("a note on an honest text: %q", res.Receipt.Notes)
		}
	})
	// CMD 100
	t.Run("text beyond ASCII is counted and kept", func(t *testing.T) {
		exited(t, a.text(t, "x=語; echo ${#x}; printf %s 'naïve–日本' | wc -c"), 0, "1\n15\n")
		exited(t, a.text(t, "x=éÀß😀; echo ${x^^} ${#x} ${x:1:2}; echo 'ü' | tr -d a"), 0, "ÉÀß😀 4 Àß\nü\n")
		exited(t, a.text(t, "mkdir -p 日本 && cd 日本 && touch 'ä b' && ls; pwd | tail -c 7"), 0, "ä b\n日本\n")
		exited(t, a.run(t, wire.Command{Argv: []string{"printf", "%s", "naïve–日本"}}), 0, "naïve–日本")
		exited(t, a.run(t, wire.Command{Text: "x=語; echo ${#x}", Env: []wire.EnvVar{{Name: "LC_ALL", Value: "C"}}}), 0, "3\n")
		exited(t, a.text(t, "echo -e '\\u00e9' \"$VAR\"; echo $LANG"), 0, "é \nC.UTF-8\n")
	})
	// CMD 102
	t.Run("operators in argv are arguments and noted", func(t *testing.T) {
		res := a.run(t, wire.Command{Argv: []string{"ls", "&&", "echo", "x"}})
		if *res.Receipt.ExitCode != 2 || len(res.Receipt.Notes) != 1 || !strings.Contains(res.Receipt.Notes[0], "argv[1]") ||
			!strings.Contains(res.Stderr.Text, "&&") {
			t.Errorf("exit %d, notes %q, stderr %q", *res.Receipt.ExitCode, res.Receipt.Notes, res.Stderr.Text)
		}
		for _, op := range []string{"|", ">", ";", "2>&1", "&"} {
			if res := a.run(t, wire.Command{Argv: []string{"echo", op, "x"}}); len(res.Receipt.Notes) != 1 || res.Stdout.Text != op+" x\n" {
				t.Errorf("%s: %q, notes %q", op, res.Stdout.Text, res.Receipt.Notes)
			}
		}
		exited(t, a.run(t, wire.Command{Argv: []string{"printf", "[%s]", "$HOME", "*", "~", "`id`", "a b", "", "-n", "'\""}}), 0, "[$HOME][*][~][`id`][a b][][-n]['\"]")
	})
	t.Run("text is one text, however it begins and ends", func(t *testing.T) {
		for _, tt := range []struct {
			text string
			exit int
			out  string
		}{
			{"-n hi", 127, ""},
			{"--version", 127, ""},
			{"-c 'echo no'", 127, ""},
			{"# nothing but a comment", 0, ""},
			{"echo a # not b", 0, "a\n"},
			{"echo hi!! !$ !1", 0, "hi!! !$ !1\n"},
			{`echo 'a"b' "c'd" \$x "\\"`, 0, "a\"b c'd $x \\\n"},
			{"echo a;\n\n\necho b\n", 0, "a\nb\n"},
			{"echo a \\\n  b", 0, "a b\n"},
			{"\t  echo indented", 0, "indented\n"},
			{"echo a\r", 0, "a\r\n"},
			{"true &", 0, ""},
			{"{ echo group; }", 0, "group\n"},
			{"(exit 3)", 3, ""},
			{"exit 300", 44, ""},
			{"f() { echo $1; }; f x", 0, "x\n"},
			{"alias e=echo; e x", 127, ""},
			{"echo $# ${0##*/} \"$*\"", 0, "0 bash \n"},
			{"case $- in *i*) echo interactive;; *) echo no;; esac", 0, "no\n"},
			{"shopt -q login_shell || echo no; set -o | grep -c 'histexpand.*on'", 1, "no\n0\n"},
		} {
			res := a.text(t, tt.text)
			if got := res.Stdout.Text; *res.Receipt.ExitCode != tt.exit || got != tt.out && strings.ReplaceAll(got, "\r", "") != strings.ReplaceAll(tt.out, "\r", "") {
				t.Errorf("%q: exit %d, %q; want %d, %q (%s)", tt.text, *res.Receipt.ExitCode, got, tt.exit, tt.out, res.Stderr.Text)
			}
		}
	})
	t.Run("text that does not parse runs with a note", func(t *testing.T) {
		for _, text := range []string{"echo a; )", "if true", "echo 'open", "for", "a=(1", "echo ${"} {
			res := a.text(t, text)
			if r := res.Receipt; len(r.Notes) == 0 || *r.ExitCode == 0 || r.Reason != wire.ReasonExit {
				t.Errorf("%q: exit %d, notes %q", text, *r.ExitCode, r.Notes)
			}
		}
	})
	t.Run("blank and missing texts are refused", func(t *testing.T) {
		for _, text := range []string{"", " ", "\n\t\r\n", "\u00a0"} {
			a.refusedStart(t, wire.Command{Text: text}, wire.CodeInvalidArguments, "command.text")
		}
		a.refusedStart(t, wire.Command{Argv: []string{""}}, wire.CodeInvalidArguments, "command.argv[0]")
		a.refusedStart(t, wire.Command{Argv: []string{"ls"}, Text: "ls"}, wire.CodeInvalidArguments, "command.text")
	})
	t.Run("a text is in nobody's arguments but its shell's", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "sleep 60 # marker-of-this-text"})
		for _, part := range []string{"up", "worker", "keeper"} {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", l.PID(part)))
			if err != nil || strings.Contains(string(b), "marker-of-this-text") {
				t.Errorf("%s: %q, %v", part, b, err)
			}
		}
		a.kill(t, id)
	})
	t.Run("the environment is built and not inherited", func(t *testing.T) {
		out := a.text(t, "env").Stdout.Text
		for _, bad := range []string{"SECRET_OF_THE_HOST", "leak", "NATS", "PASSWORD", "GO"} {
			if strings.Contains(out, bad) {
				t.Errorf("%s in %s", bad, out)
			}
		}
		for _, want := range []string{"PATH=", "HOME=", "LANG=C.UTF-8"} {
			if !strings.Contains(out, want) {
				t.Errorf("no %s in %s", want, out)
			}
		}
	})
	t.Run("variables with odd names and values arrive", func(t *testing.T) {
		odd := []wire.EnvVar{
			{Name: "a.b", Value: "1"},
			{Name: "1x", Value: "2"},
			{Name: "with space", Value: "3"},
			{Name: "é", Value: "ü"},
			{Name: "EMPTY"},
			{Name: "LINES2", Value: "a\nb"},
			{Name: "EQ", Value: "a=b=c"},
			{Name: "TWICE", Value: "no"},
			{Name: "TWICE", Value: "yes"},
			{Name: "PATH", Value: "/usr/bin:/bin:/odd"},
			{Name: "BASH_FUNC_greet%%", Value: "() { echo hello; }"},
		}
		res, err := a.try(t, wire.Run{Command: wire.Command{Argv: []string{"env", "-0"}, Env: odd}, Render: wire.Render{View: wire.ViewText}})
		if err != nil {
			t.Fatal(err)
		}
		got := "\x00" + res.Stdout.Text
		for _, want := range []string{"a.b=1", "1x=2", "with space=3", "é=ü", "EMPTY=", "LINES2=a\nb", "EQ=a=b=c", "TWICE=yes", "PATH=/usr/bin:/bin:/odd"} {
			if !strings.Contains(got, "\x00"+want+"\x00") {
				t.Errorf("no %q in %q", want, got)
			}
		}
		if strings.Contains(got, "TWICE=no") {
			t.Error("both values of a name arrived")
		}
		exited(t, a.run(t, wire.Command{Text: "greet", Env: odd}), 0, "hello\n")
		a.refusedStart(t, wire.Command{Text: "true", Env: []wire.EnvVar{{Name: "a=b"}}}, wire.CodeInvalidArguments, "command.env[0].name")
		a.refusedStart(t, wire.Command{Text: "true", Env: []wire.EnvVar{{Name: "ok"}, {Value: "x"}}}, wire.CodeInvalidArguments, "command.env[1].name")
	})
}

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
