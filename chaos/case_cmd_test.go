package chaos

import (
	"fmt"
	"os"
	"strings"
	"testing"

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
