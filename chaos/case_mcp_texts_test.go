package chaos

import (
	"fmt"
	"strings"
	"testing"
)

// mcpRefused is a call that is refused before anything happens.
type mcpRefused struct {
	name        string
	args        params
	code, field string
	says        string // in the text
}

// refuses makes each call over one connection: none may start anything.
func refuses(t *testing.T, c *mcpClient, cases []mcpRefused) {
	t.Helper()
	before := len(c.ok(params{"action": "list"}).data["processes"].([]any))
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			r := c.call(tt.args)
			if !r.failed || r.code() != tt.code || tt.field != "" && r.field() != tt.field {
				t.Errorf("failed %t with %s of %q: %s", r.failed, r.code(), r.field(), r.text)
			}
			if !strings.HasPrefix(r.text, "["+tt.code+": ") || !strings.Contains(r.text, tt.says) {
				t.Errorf("%q is not in %s", tt.says, r.text)
			}
		})
	}
	if n := len(c.ok(params{"action": "list"}).data["processes"].([]any)); n != before {
		t.Errorf("%d processes were started", n-before)
	}
}

// TestCaseMCPStdin: a command never waits for input that nobody gives, and never takes
// that of the server.
func TestCaseMCPStdin(t *testing.T) {
	const ask = `read -p "Proceed? [y/N] " a; [ "$a" = y ] && echo YES || echo NO`
	git := params{
		"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.com",
		"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.com", "EDITOR": "vi", "VISUAL": "vi",
	}
	sees(t, newMCPHost(t), []mcpCase{
		{name: "Stdin56Inherited", args: run("cat; echo rc=$?"), text: "rc=0\n", data: ok("rc=0\n")},
		{name: "Stdin56WhatItIs", args: run("readlink /proc/self/fd/0; [ -t 0 ] || echo no terminal"), text: "/dev/null\nno terminal\n"},
		{name: "Stdin56Interpreter", needs: "python3", args: run("python3 -c 'input()' 2>&1 | tail -n 1"), text: "EOFError: EOF when reading a line\n"},
		{name: "Stdin58SearchOfFiles", args: run("mkdir s58 && cd s58 && echo needle > f.txt && grep -r needle"), text: "f.txt:needle\n"},
		{name: "Stdin58SearchOfInput", args: run("grep needle; echo rc=$?"), text: "rc=1\n"},
		{name: "Stdin60EditorWithoutAMessage", needs: "git", args: params{"command": "git init -q g1 && cd g1 && git commit --allow-empty", "env": git, "tty": true}, data: params{"exit_code": 1}, check: func(t *testing.T, _ *mcpClient, r result) {
			if !strings.Contains(r.text, "empty commit message") {
				t.Errorf("%s", r.text)
			}
		}},
		{name: "Stdin60AmendKeepsTheMessage", needs: "git", args: params{"command": "git init -q g2 && cd g2 && git commit -q --allow-empty -m first && git commit -q --amend --allow-empty && git log -1 --format=%s | cat", "env": git, "tty": true}, text: "first\n", data: params{"exit_code": 0}},
		{name: "Stdin62PromptAtTheTerminal", args: run("read -p 'Ok? ' a </dev/tty; echo rc=$?"), text: "rc=1\n[stderr]\n/usr/bin/bash: line 1: /dev/tty: No such device or address\n"},
		{name: "Stdin62PipedAnswer", args: run("echo y | (read a </dev/tty; echo rc=$?)"), data: params{"stdout": "rc=1\n"}},
		{name: "Stdin64QuestionWithoutATerminal", args: run(ask), text: "NO\n", data: ok("NO\n")},
		{name: "Stdin64AnswerGivenBefore", args: params{"command": ask, "stdin": "y\n"}, text: "YES\n", data: ok("YES\n")},
		{name: "Stdin64AnswerAtATerminal", needs: "pty", args: params{"command": ask, "tty": true, "stdin": "y\n", "timeout_s": 20}, data: params{"exit_code": 0}, check: func(t *testing.T, _ *mcpClient, r result) {
			if !strings.HasSuffix(r.text, "YES\n") {
				t.Errorf("%q", r.text)
			}
		}},
		{name: "Stdin66HereDocument", args: run("cat <<'EOF'\nhi $HOME\nEOF"), text: "hi $HOME\n", data: ok("hi $HOME\n")},
		{name: "Stdin66UnfinishedHereDocument", args: run("cat <<'EOF'\nhi\n"), data: params{"exit_code": 0, "stdout": "hi\n"}, check: func(t *testing.T, c *mcpClient, r result) {
			if !strings.Contains(r.str("stderr"), "delimited by end-of-file (wanted `EOF')") || !strings.Contains(r.text, "[note: the parser rejects the text: ") {
				t.Errorf("%s", r.text)
			}
			c.ok(run("echo next")).is(t, "next\n", nil)
		}},
		{name: "Stdin66OpenQuote", args: run("echo 'open"), data: params{"exit_code": 2, "stdout": ""}},
		{name: "Stdin68ProgramEatsTheScript", args: run("echo one\ncat >/dev/null\nread x\necho two\n"), text: "one\ntwo\n"},
		{name: "Stdin68GivenInput", args: params{"command": "cat; echo rc=$?", "stdin": "one\n"}, text: "one\nrc=0\n"},
		{name: "StdinLargest", args: params{"command": "wc -c", "stdin": strings.Repeat("0123456789abcde\n", 4096)}, text: "65536\n"},
		{name: "StdinIsNotShell", args: params{"command": "cat", "stdin": "$(echo no) `echo no` $HOME \\n \x00 é\n"}, data: params{"total_bytes": 35}, check: hasBytes("$(echo no) `echo no` $HOME \\n \x00 é\n")},
	})
}

// TestCaseMCPTerminal: a terminal is one for the command, and plain text for the model.
func TestCaseMCPTerminal(t *testing.T) {
	need(t, "pty")
	in := func(command string) params { return params{"command": command, "tty": true, "timeout_s": 20} }
	sees(t, newMCPHost(t), []mcpCase{
		{name: "Pty69LastWords", args: in("printf bye"), text: "bye", data: ok("bye")},
		{name: "Pty69LastWordsOnStderr", args: in("printf bye >&2; exit 4"), text: "bye\n[exit code 4]", data: fails(4, "bye")},
		{name: "Pty73LineEnds", args: in(`printf 'a\nb\n'; printf 'c\r\n'`), text: "a\nb\nc\n", check: hasBytes("a\r\nb\r\nc\r\r\n")},
		{name: "Pty75Size", args: params{"command": "stty size; echo ${COLUMNS:-unset}", "tty": true, "rows": 33, "cols": 101}, check: func(t *testing.T, _ *mcpClient, r result) {
			if !strings.HasPrefix(r.text, "33 101\n") {
				t.Errorf("%q", r.text)
			}
		}},
		{name: "Pty79NoJobControl", args: run("sleep 0.2 & wait; echo done"), text: "done\n", data: ok("done\n")},
		{name: "Pty79NotATerminal", args: run("tty; echo $-"), text: "not a tty\nhBc\n"},
		{name: "PtyColours", args: in(`ls --color=always -d /tmp; printf '\e[1;31mred\e[0m \e]0;t\aend\n'`), text: "/tmp\nred end\n"},
		{name: "PtyCursorMoves", args: in(`printf 'abc\b\b\bxyz\n'; printf '12345\e[3DZ\n'`), check: func(t *testing.T, _ *mcpClient, r result) {
			if strings.ContainsAny(r.text, "\x1b\b") {
				t.Errorf("%q", r.text)
			}
		}},
		{name: "PtyFullScreenProgram", args: in(`printf '\e[?1049h\e[2J\e[H\e[31mscreen\e[0m\e[?1049l'; echo after`), check: func(t *testing.T, _ *mcpClient, r result) {
			if strings.Contains(r.text, "\x1b") || !strings.HasSuffix(r.text, "after\n") {
				t.Errorf("%q", r.text)
			}
		}},
	})
}

// TestCaseMCPCommands: the text arrives in bash as it was given.
func TestCaseMCPCommands(t *testing.T) {
	t.Setenv("BROKER_PASSWORD", "zz-of-the-server")
	h := newMCPHost(t)
	padded := func(n int) string {
		const rest = "; echo ok"
		return ": " + strings.Repeat("x", n-len(": ")-len(rest)) + rest
	}
	const escaped = "[note: The command looks HTML-escaped (it holds %s). It was run as given and not decoded; if && or > was meant, send it unescaped.]"
	hasNote := func(what string) func(*testing.T, *mcpClient, result) {
		return func(t *testing.T, _ *mcpClient, r result) {
			if note := fmt.Sprintf(escaped, what); !strings.HasSuffix(r.text, "\n"+note) || !strings.Contains(fmt.Sprint(r.data["notes"]), "HTML-escaped") {
				t.Errorf("%s", r.text)
			}
		}
	}
	var cases []mcpCase
	for _, tt := range []struct{ name, text, out string }{
		{"Cmd100BeyondASCII", "x=語; echo ${#x}; printf %s 'naïve–日本' | wc -c", "1\n15\n"},
		{"Cmd100AstralAndUpperCase", "x=éÀß😀; echo ${x^^} ${#x}", "ÉÀß😀 4\n"},
		{"CmdQuotes", `echo 'a"b' "c'd" \$x "\\" "$(printf '%s' "q\"q")"`, "a\"b c'd $x \\ q\"q\n"},
		{"CmdHistoryExpansion", "echo hi!! !$ !1 \"!x\"", "hi!! !$ !1 !x\n"},
		{"CmdComment", "# nothing but a comment", ""},
		{"CmdCommentBehind", "echo a # not b", "a\n"},
		{"CmdManyLines", "echo a;\n\n\necho b\n", "a\nb\n"},
		{"CmdContinuedLine", "echo a \\\n  b", "a b\n"},
		{"CmdIndented", "\t  echo indented", "indented\n"},
		{"CmdPositional", `echo $# "$*"`, "0 \n"},
		{"CmdAmpersandsAsTheyAre", `echo 'a &amp' && echo "x<y>z"`, "a &amp\nx<y>z\n"},
		{"CmdNestedBash", `bash -c 'bash -c "echo \"deep \$((1+1))\""'`, "deep 2\n"},
		{"CmdLiteralEscapes", `printf '%s\n' '\n\t\u00e9' $'\u00e9'`, "\\n\\t\\u00e9\né\n"},
		{"CmdGlobAndTilde", `cd / && echo ~root '*' "*" [u]sr`, "/root * * usr\n"},
	} {
		text := tt.out
		if text == "" {
			text = "(no output)"
		}
		cases = append(cases, mcpCase{name: tt.name, args: run(tt.text), text: text, data: ok(tt.out)})
	}
	cases = append(
		cases,
		mcpCase{name: "Cmd94LongestText", args: run(padded(131_071)), data: ok("ok\n")},
		mcpCase{name: "CmdDash", args: run("-n hi"), text: "/usr/bin/bash: line 1: -n: command not found\n[exit code 127]", data: fails(127, "")},
		mcpCase{name: "CmdDashDash", args: run("--version"), text: "/usr/bin/bash: line 1: --version: command not found\n[exit code 127]", data: fails(127, "")},
		mcpCase{name: "CmdDashC", args: run("-c 'echo no'"), data: fails(127, "")},
		mcpCase{name: "CmdCarriageReturns", args: params{"command": "echo a\r\necho b\r\n", "view": "text"}, data: params{"stdout": "a\r\nb\r\n", "exit_code": 0}},
		mcpCase{name: "Cmd98EscapedAmpersands", args: run("echo a &amp;&amp; echo b"), data: fails(2, ""), check: hasNote("&amp;")},
		mcpCase{name: "Cmd98EscapedRedirect", args: run("echo x 2&gt;/dev/null"), data: fails(126, "x 2\n"), check: hasNote("&gt;")},
		mcpCase{name: "Cmd98EscapedQuote", args: run("echo a&quot;"), data: fails(127, "a\n"), check: hasNote("&quot;")},
		mcpCase{name: "CmdEnvironment", args: params{"command": `printf '[%s]' "$A" "$B" "$C"`, "env": params{"A": "a b\nc", "B": "", "C": "$(no) \"é\" &lt;"}}, text: "[a b\nc][][$(no) \"é\" &lt;]"},
		mcpCase{name: "State88CredentialsOfTheServer", args: run("env; cat /proc/$PPID/environ 2>/dev/null | tr '\\0' '\\n'"), check: func(t *testing.T, _ *mcpClient, r result) {
			for _, bad := range []string{"LIMPET_STATE", "BROKER", "zz-of-the-server", "NATS"} {
				if strings.Contains(r.str("stdout"), bad) {
					t.Errorf("%s in %s", bad, r.text)
				}
			}
		}},
		mcpCase{name: "State92ParallelCalls", args: run("true"), check: func(t *testing.T, c *mcpClient, _ result) {
			done := make(chan result, 4)
			for _, letter := range []string{"A", "B", "C", "D"} {
				go func() { done <- c.call(run("for i in 1 2 3; do echo " + letter + "$i; sleep 0.05; done")) }() // all are waited for
			}
			for range 4 {
				r := <-done
				letter := r.text[:1]
				r.is(t, strings.ReplaceAll("X1\nX2\nX3\n", "X", letter), nil)
			}
		}},
	)
	sees(t, h, cases)
	refuses(t, stdio(t, h.Server, nil), []mcpRefused{
		{"Cmd94TooLong", run(padded(200_000)), "invalid_arguments", "command", "200000 bytes; at most 131071"},
		{"Cmd96NUL", run("echo a\x00b"), "invalid_arguments", "command", "NUL"},
		{"Cmd96NULInTheEnvironment", params{"command": "true", "env": params{"A": "a\x00"}}, "invalid_arguments", "env", "NUL"},
		{"Cmd102ListOfWords", params{"command": []string{"ls", "&&", "echo", "x"}}, "invalid_arguments", "command", "give text"},
		{"CmdBlank", run(" \n\t "), "invalid_arguments", "command", "blank"},
		{"CmdMissing", params{}, "invalid_arguments", "command", "missing"},
		{"CmdNumber", params{"command": 5}, "invalid_arguments", "command", "5; give text"},
		{"State80DirectoryGone", params{"command": "true", "cwd": "/no/such"}, "workdir_not_found", "cwd", "/no/such"},
		{"State80NoDirectory", params{"command": "true", "cwd": "/etc/passwd"}, "workdir_not_found", "cwd", "/etc/passwd"},
		{"CmdRelativeDirectory", params{"command": "true", "cwd": "src"}, "invalid_arguments", "cwd", "absolute"},
	})
}
