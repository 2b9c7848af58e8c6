package chaos

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
)

func TestCaseStdinPrompts(t *testing.T) {
	need(t, "pty")
	a := newAgent(t, start(t), wire.Open{Cwd: t.TempDir()})

	// STDIN 56
	t.Run("a command that reads finds the end at once", func(t *testing.T) {
		exited(t, a.text(t, "cat; echo rc=$?"), 0, "rc=0\n")
		exited(t, a.text(t, "readlink /proc/self/fd/0; [ -t 0 ] || echo no terminal"), 0, "/dev/null\nno terminal\n")
		exited(t, a.run(t, wire.Command{Argv: []string{"cat"}}), 0, "")
		exited(t, a.text(t, "python3 -c 'input()' 2>&1 | tail -n 1"), 0, "EOFError: EOF when reading a line\n")
	})
	// STDIN 58
	t.Run("a search looks into files and not for input", func(t *testing.T) {
		exited(t, a.text(t, "mkdir -p s && cd s && echo needle > f.txt; grep -r needle"), 0, "f.txt:needle\n")
		exited(t, a.text(t, "grep needle; echo rc=$?"), 0, "rc=1\n")
	})
	t.Run("rg looks into files and not for input", func(t *testing.T) { // STDIN 58
		need(t, "rg")
		exited(t, a.text(t, "mkdir -p s && cd s && echo needle > f.txt; rg needle"), 0, "f.txt:needle\n")
	})
	// STDIN 62
	t.Run("a prompt at the terminal device fails where there is none", func(t *testing.T) {
		res := a.text(t, "read -p 'Ok? ' a </dev/tty; echo rc=$?")
		exited(t, res, 0, "rc=1\n")
		if !strings.Contains(res.Stderr.Text, "No such device") {
			t.Errorf("stderr %q", res.Stderr.Text)
		}
		exited(t, a.text(t, "echo y | (read a </dev/tty; echo rc=$?)"), 0, "rc=1\n")
		exited(t, a.text(t, "echo hi >/dev/tty; echo rc=$?"), 0, "rc=1\n")
	})
	t.Run("a password prompt fails where there is no terminal", func(t *testing.T) { // STDIN 62
		need(t, "git")
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		}))
		defer srv.Close()
		res := a.text(t, "git ls-remote "+srv.URL+"/x.git")
		if *res.Receipt.ExitCode == 0 || !strings.Contains(res.Stderr.Text, "could not read Username") {
			t.Errorf("exit %d, stderr %q", *res.Receipt.ExitCode, res.Stderr.Text)
		}
		id := a.start(t, wire.Command{Text: "git ls-remote " + srv.URL + "/x.git", TTY: tty})
		a.until(t, id, "Username for")
		a.typed(t, id, "me\n")
		a.until(t, id, "Password for")
		a.typed(t, id, "secret\n")
		if out := a.output(t, id); strings.Contains(out, "secret") || !strings.Contains(out, "Authentication failed") {
			t.Errorf("output %q", out)
		}
	})
	// STDIN 64
	t.Run("a question is answered at a terminal", func(t *testing.T) {
		const ask = `read -p "Proceed? [y/N] " a; [ "$a" = y ] && echo YES || echo NO`
		id := a.start(t, wire.Command{Text: ask, TTY: tty})
		a.until(t, id, "Proceed? [y/N] ")
		a.typed(t, id, "y\n")
		if r, out := a.end(t, id), a.output(t, id); *r.ExitCode != 0 || !strings.HasSuffix(out, "YES\r\n") {
			t.Errorf("exit %d, %q", *r.ExitCode, out)
		}
		exited(t, a.text(t, ask), 0, "NO\n")
		id = a.start(t, wire.Command{Text: ask, Stdin: wire.StdinPipe})
		a.typed(t, id, "y\n")
		if r, out := a.end(t, id), a.output(t, id); *r.ExitCode != 0 || out != "YES\n" {
			t.Errorf("pipe: exit %d, %q", *r.ExitCode, out)
		}
	})
	t.Run("a hidden answer is not echoed", func(t *testing.T) { // STDIN 64
		id := a.start(t, wire.Command{Text: `read -s -p "Password: " p </dev/tty; echo; echo "${#p} characters"`, TTY: tty})
		a.until(t, id, "Password: ")
		a.typed(t, id, "hunter2\n")
		if out := a.output(t, id); strings.Contains(out, "hunter2") || !strings.Contains(out, "7 characters") {
			t.Errorf("%q", out)
		}
	})
	t.Run("a passphrase is asked for at a terminal", func(t *testing.T) { // STDIN 64
		need(t, "ssh-keygen")
		id := a.start(t, wire.Command{Text: "ssh-keygen -q -t ed25519 -f key1", TTY: tty})
		a.until(t, id, "Enter passphrase")
		a.typed(t, id, "\n")
		a.until(t, id, "again")
		a.typed(t, id, "\n")
		if r := a.end(t, id); r.State != wire.StateCompleted {
			t.Errorf("%s: %q", r.State, a.output(t, id))
		}
		a.text(t, "ssh-keygen -q -t ed25519 -f key2") // however it ends, it ends
	})
}

// STDIN 60
func TestCaseStdinEditors(t *testing.T) {
	need(t, "git")
	need(t, "pty")
	a := newAgent(t, start(t), wire.Open{Cwd: t.TempDir(), Env: []wire.EnvVar{
		{Name: "GIT_CONFIG_GLOBAL", Value: "/dev/null"},
		{Name: "GIT_CONFIG_SYSTEM", Value: "/dev/null"},
		{Name: "GIT_AUTHOR_NAME", Value: "a"},
		{Name: "GIT_AUTHOR_EMAIL", Value: "a@example.com"},
		{Name: "GIT_COMMITTER_NAME", Value: "a"},
		{Name: "GIT_COMMITTER_EMAIL", Value: "a@example.com"},
		{Name: "EDITOR", Value: "vi"},
		{Name: "VISUAL", Value: "vi"},
	}})
	exited(t, a.text(t, "git init -q -b main . && git config core.editor vi && git config core.pager less"), 0, "")
	for _, tt := range []struct {
		name, text string
		exit       int
		want       string
	}{
		{"commit without a message fails and says why", "git commit --allow-empty", 1, "empty commit message"},
		{"commit with a message", "git commit -q --allow-empty -m first && git log -1 --format=%s", 0, "first"},
		{"amend keeps the message", "git commit -q --amend --allow-empty && git log -1 --format=%s", 0, "first"},
		{"rebase goes on", "git commit -q --allow-empty -m second; git rebase -i --keep-empty HEAD~1 && git log -1 --format=%s", 0, "second"},
		{"merge takes its own message", "git checkout -q -b side HEAD~1; git commit -q --allow-empty -m side; git checkout -q main; git merge -q --no-ff side && git log -1 --format=%s", 0, "Merge branch 'side'"},
		{"a tag without a message fails", "git tag -a v1", 128, "no tag message"},
		{"a log needs no key to be left", "git log --oneline --all; echo over", 0, "over"},
		{"revert", "git revert --no-edit HEAD -m 1 >/dev/null 2>&1; git -c color.ui=never status --short; echo over", 0, "over"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			id := a.start(t, wire.Command{Text: tt.text, TTY: tty})
			r, out := a.end(t, id), a.output(t, id)
			if *r.ExitCode != tt.exit || !strings.Contains(out, tt.want) {
				t.Errorf("exit %d, %q; want %d and %q", *r.ExitCode, out, tt.exit, tt.want)
			}
			if r.Reason != wire.ReasonExit {
				t.Errorf("ended by %s", r.Reason)
			}
		})
	}
	t.Run("an editor that was asked for is used", func(t *testing.T) {
		res := a.run(t, wire.Command{
			Text: "git commit -q --allow-empty && git log -1 --format=%s",
			Env:  []wire.EnvVar{{Name: "GIT_EDITOR", Value: "echo chosen >"}},
		})
		exited(t, res, 0, "chosen\n")
	})
}

func TestCaseStdinScripts(t *testing.T) {
	a := newAgent(t, start(t), wire.Open{Cwd: t.TempDir()})

	// STDIN 66
	t.Run("a here-document is complete or ends with the text", func(t *testing.T) {
		exited(t, a.text(t, "cat > f <<'EOF'\nhi\nEOF"), 0, "")
		exited(t, a.text(t, "cat f"), 0, "hi\n")
		res := a.text(t, "cat > g <<'EOF'\nhi\n")
		exited(t, res, 0, "")
		if !strings.Contains(res.Stderr.Text, "here-document") {
			t.Errorf("no warning of bash in %q", res.Stderr.Text)
		}
		exited(t, a.text(t, "cat g; echo next"), 0, "hi\nnext\n")
		exited(t, a.text(t, "cat <<-E\n\t\ttabs\n\tE\ncat <<<string"), 0, "tabs\nstring\n")
		exited(t, a.text(t, "cat <<A <<B\nfirst\nA\nsecond\nB\necho after"), 0, "second\nafter\n")
	})
	t.Run("an unfinished text is a syntax error and not a wait", func(t *testing.T) { // STDIN 66
		for _, text := range []string{"if true; then", "echo 'open", `echo "open`, "echo $(", "for i in 1; do", "{ echo", "cat <(", "case x in"} {
			if res := a.text(t, text); res.Receipt.ExitCode == nil || *res.Receipt.ExitCode == 0 {
				t.Errorf("%q ended as %s", text, res.Receipt.State)
			}
		}
		exited(t, a.text(t, "echo next"), 0, "next\n")
	})
	// STDIN 68
	t.Run("a program that reads does not eat the script", func(t *testing.T) {
		exited(t, a.text(t, "echo one; cat >/dev/null; echo two"), 0, "one\ntwo\n")
		exited(t, a.text(t, "echo one\ncat >/dev/null\necho two\n"), 0, "one\ntwo\n")
		exited(t, a.text(t, "echo one\npython3 -c 'import sys; sys.stdin.read()'\nread x\nhead -c 100\necho two"), 0, "one\ntwo\n")
		exited(t, a.text(t, `printf 'a\nb\n' | while read x; do cat </dev/null; echo $x; done`), 0, "a\nb\n")
		id := a.start(t, wire.Command{Text: "echo one\ncat\necho two", Stdin: wire.StdinPipe})
		a.typed(t, id, "middle\n")
		a.closeStdin(t, id)
		if out := a.output(t, id); out != "one\nmiddle\ntwo\n" {
			t.Errorf("%q", out)
		}
	})
	t.Run("input comes first and then the end", func(t *testing.T) {
		exited(t, a.run(t, wire.Command{Text: "cat; echo rc=$?", Input: []byte("hello\n")}), 0, "hello\nrc=0\n")
		exited(t, a.run(t, wire.Command{Argv: []string{"cat"}, Input: []byte("hello")}), 0, "hello")
		exited(t, a.run(t, wire.Command{Text: "true", Input: bytes.Repeat([]byte("x"), wire.MaxInputBytes)}), 0, "")
		full := bytes.Repeat([]byte("0123456789abcdef"), wire.MaxInputBytes/16)
		exited(t, a.run(t, wire.Command{Text: "sha256sum | cut -c1-64", Input: full}), 0, sum(full)+"\n")
		id := a.start(t, wire.Command{Text: "cat", Input: []byte("one "), Stdin: wire.StdinPipe})
		a.until(t, id, "one ")
		if r := a.typed(t, id, "two"); r.StdinBytes != 7 || !r.StdinOpen {
			t.Errorf("after both: %d bytes, open %v", r.StdinBytes, r.StdinOpen)
		}
		a.closeStdin(t, id)
		if out := a.output(t, id); out != "one two" {
			t.Errorf("%q", out)
		}
		refused(t, a.raw(t, wire.VerbStart, wire.Start{
			Version: 1, SessionRef: wire.SessionRef{SessionName: a.s.Info().Name},
			Command: wire.Command{Text: "true", Input: make([]byte, wire.MaxInputBytes+1)},
		}), wire.CodeInvalidArguments, "command.input")
	})
}
