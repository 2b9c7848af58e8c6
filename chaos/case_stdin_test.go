package chaos

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// long bounds what must not hang. It is never waited for when all is well.
const long = 60 * time.Second

// agent is a session as the cases use it.
type agent struct {
	s *client.Session
	c *client.Client
}

func newAgent(t testing.TB, l *Lab, m wire.Open) agent {
	t.Helper()
	if m.Name == "" {
		m.Name = subjects.NewID()
	}
	s, err := l.Client.Open(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	return agent{s, l.Client}
}

func (a agent) try(t testing.TB, m wire.Run) (*wire.Result, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	return a.s.Run(ctx, m)
}

// run runs a command to its end.
func (a agent) run(t testing.TB, c wire.Command) *wire.Result {
	t.Helper()
	res, err := a.try(t, wire.Run{Command: c})
	if err != nil {
		t.Fatalf("run: %v", err)
	}
	return res
}

func (a agent) text(t testing.TB, text string) *wire.Result {
	t.Helper()
	return a.run(t, wire.Command{Text: text, TimeoutMS: long.Milliseconds()})
}

func (a agent) start(t testing.TB, c wire.Command) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	r, err := a.s.Start(ctx, wire.Start{Command: c})
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	return r.Process
}

// end waits for the end of a process.
func (a agent) end(t testing.TB, id string) *wire.Receipt {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	r, err := a.c.WaitEnd(ctx, id)
	if err != nil {
		t.Fatalf("wait for the end: %v", err)
	}
	return r
}

func (a agent) kill(t testing.TB, id string) *wire.Receipt {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	r, err := a.c.Terminate(ctx, wire.Terminate{ProcessRef: wire.ProcessRef{Process: id}, Mode: "kill"})
	if err != nil {
		t.Fatalf("kill: %v", err)
	}
	return r
}

func (a agent) status(t testing.TB, id string) *wire.Receipt {
	t.Helper()
	r, err := a.c.Status(t.Context(), id)
	if err != nil {
		t.Fatalf("status: %v", err)
	}
	return r
}

// until reads a process's output until it holds want, and gives what was read.
func (a agent) until(t testing.TB, id, want string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	var got []byte
	cursor := int64(0)
	for {
		p, err := a.c.Read(ctx, wire.Read{
			ProcessRef: wire.ProcessRef{Process: id}, Cursor: &cursor, WaitMS: 10_000,
			MaxBytes: wire.MaxPageBytes, View: wire.ViewBase64,
		})
		if err != nil {
			t.Fatalf("%q has not come: %v; there is %q", want, err, got)
		}
		for _, ch := range p.Chunks {
			b, err := client.Bytes(ch)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, b...)
		}
		if bytes.Contains(got, []byte(want)) {
			return string(got)
		}
		if p.End {
			t.Fatalf("the end, and no %q in %q", want, got)
		}
		cursor = p.NextCursor
	}
}

// output is all output of a process, which must end.
func (a agent) output(t testing.TB, id string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	var got []byte
	if _, err := a.c.Follow(ctx, id, 0, func(ch wire.Chunk) error {
		b, err := client.Bytes(ch)
		got = append(got, b...)
		return err
	}); err != nil {
		t.Fatalf("follow: %v", err)
	}
	return string(got)
}

func (a agent) write(t testing.TB, id string, m wire.Write) (*wire.Receipt, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	m.Process = id
	return a.c.Write(ctx, m)
}

// typed writes text and must succeed.
func (a agent) typed(t testing.TB, id, text string) *wire.Receipt {
	t.Helper()
	r, err := a.write(t, id, wire.Write{Text: text})
	if err != nil {
		t.Fatalf("write %.40q: %v", text, err)
	}
	return r
}

func (a agent) closeStdin(t testing.TB, id string) {
	t.Helper()
	if _, err := a.c.CloseStdin(t.Context(), id); err != nil {
		t.Fatalf("close stdin: %v", err)
	}
}

// raw sends a message as it is, without the client's own checks.
func (a agent) raw(t testing.TB, verb string, m any) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	data, err := wire.Marshal("", m)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := a.c.Conn().Request(ctx, a.c.Conn().Root().API(a.c.Tenant(), verb), nil, data)
	if err != nil {
		t.Fatalf("%s: no answer: %v", verb, err)
	}
	_, err = wire.DecodeReply[struct{}]("", answer.Data)
	return err
}

// refused checks the code of an error, and its field unless that is empty.
func refused(t testing.TB, err error, code wire.Code, field string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error; want %s of %q", code, field)
		return
	}
	if e := wire.AsError(err); e.Code != code || field != "" && e.Field != field {
		t.Errorf("%s of %q (%v); want %s of %q", e.Code, e.Field, err, code, field)
	}
}

// exited checks how a run ended and what it wrote to stdout.
func exited(t testing.TB, res *wire.Result, exit int, stdout string) {
	t.Helper()
	r := res.Receipt
	if r.ExitCode == nil || *r.ExitCode != exit || res.Stdout.Text != stdout {
		t.Errorf("exit %v, stdout %q; want %d, %q (%s %s, stderr %q)",
			value(r.ExitCode), res.Stdout.Text, exit, stdout, r.State, r.Reason, res.Stderr.Text)
	}
}

func value(n *int) any {
	if n == nil {
		return nil
	}
	return *n
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

var tty = &wire.WindowSize{}

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

func TestCaseStdinWrites(t *testing.T) {
	a := newAgent(t, start(t), wire.Open{Cwd: t.TempDir()})
	pipe := func(text string) wire.Command { return wire.Command{Text: text, Stdin: wire.StdinPipe} }

	t.Run("closing twice is harmless and a write after it is refused", func(t *testing.T) {
		id := a.start(t, pipe("cat; sleep 60"))
		a.typed(t, id, "x")
		a.closeStdin(t, id)
		a.closeStdin(t, id)
		if _, err := a.write(t, id, wire.Write{Close: true}); err != nil {
			t.Errorf("a third close: %v", err)
		}
		_, err := a.write(t, id, wire.Write{Text: "y"})
		refused(t, err, wire.CodeStdinClosed, "")
		if r := a.status(t, id); r.StdinOpen || r.StdinBytes != 1 || r.State != wire.StateRunning {
			t.Errorf("%+v", r)
		}
		a.kill(t, id)
		_, err = a.write(t, id, wire.Write{Text: "y"})
		refused(t, err, wire.CodeStdinClosed, "")
		a.closeStdin(t, id)
	})
	t.Run("a process without an input takes none", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "sleep 60"})
		_, err := a.write(t, id, wire.Write{Text: "y"})
		refused(t, err, wire.CodeStdinClosed, "")
		a.closeStdin(t, id)
		a.kill(t, id)
	})
	t.Run("a process that closed its input says so", func(t *testing.T) {
		id := a.start(t, pipe("exec <&-; echo closed; sleep 60"))
		a.until(t, id, "closed")
		_, err := a.write(t, id, wire.Write{Text: "y"})
		refused(t, err, wire.CodeStdinClosed, "")
		a.kill(t, id)
	})
	t.Run("a write that nobody reads ends in five seconds and is not repeated", func(t *testing.T) {
		id := a.start(t, pipe("sleep 300"))
		full := strings.Repeat("x", wire.MaxInputBytes)
		a.typed(t, id, full) // a pipe holds this much
		began := time.Now()
		_, err := a.write(t, id, wire.Write{Text: full, Offset: new(int64(len(full)))})
		refused(t, err, wire.CodeDeliveryUnknown, "")
		if d := time.Since(began); d > 30*time.Second {
			t.Errorf("the write took %v", d)
		}
		_, err = a.write(t, id, wire.Write{Text: "y"})
		refused(t, err, wire.CodeStdinClosed, "")
		if r := a.status(t, id); r.StdinOpen || r.State != wire.StateRunning {
			t.Errorf("open %v, %s", r.StdinOpen, r.State)
		}
		a.kill(t, id)
	})
	t.Run("other processes are not held up by one that does not read", func(t *testing.T) {
		id := a.start(t, pipe("sleep 300"))
		full := strings.Repeat("x", wire.MaxInputBytes)
		a.typed(t, id, full)
		done := make(chan error, 1)
		go func() { _, err := a.write(t, id, wire.Write{Text: full}); done <- err }() // ends within the write's limit
		exited(t, a.text(t, "echo free"), 0, "free\n")
		a.status(t, id)
		a.kill(t, id)
		if err := <-done; err == nil {
			t.Error("a write to a killed process succeeded")
		}
	})
	t.Run("a retried write is not typed twice", func(t *testing.T) {
		id := a.start(t, pipe("cat"))
		for range 3 {
			if r, err := a.write(t, id, wire.Write{Text: "once\n", Offset: new(int64(0))}); err != nil || r.StdinBytes != 5 {
				t.Errorf("%+v, %v", r, err)
			}
		}
		_, err := a.write(t, id, wire.Write{Text: "ahead\n", Offset: new(int64(6))})
		refused(t, err, wire.CodeOffsetConflict, "offset")
		_, err = a.write(t, id, wire.Write{Text: "overlap\n", Offset: new(int64(4))})
		refused(t, err, wire.CodeOffsetConflict, "offset")
		if _, err := a.write(t, id, wire.Write{Text: "twice\n", Offset: new(int64(5)), Close: true}); err != nil {
			t.Error(err)
		}
		if out := a.output(t, id); out != "once\ntwice\n" {
			t.Errorf("%q", out)
		}
	})
	t.Run("the largest write passes whole and one more byte is refused", func(t *testing.T) {
		id := a.start(t, pipe("sha256sum | cut -c1-64"))
		full := []byte(strings.Repeat("0123456789abcdef", wire.MaxInputBytes/16))
		if r, err := a.write(t, id, wire.Write{Data: full}); err != nil || r.StdinBytes != int64(len(full)) {
			t.Errorf("%+v, %v", r, err)
		}
		refused(t, a.raw(t, wire.VerbWrite, wire.Write{Version: 1, ProcessRef: wire.ProcessRef{Process: id}, Data: append(full, 'x')}),
			wire.CodeInvalidArguments, "data")
		refused(t, a.raw(t, wire.VerbWrite, wire.Write{Version: 1, ProcessRef: wire.ProcessRef{Process: id}, Text: string(full) + "x"}),
			wire.CodeInvalidArguments, "text")
		a.closeStdin(t, id)
		if out := a.output(t, id); out != sum(full)+"\n" {
			t.Errorf("%q", out)
		}
	})
	t.Run("every byte value arrives", func(t *testing.T) {
		all := make([]byte, 256)
		for i := range all {
			all[i] = byte(i)
		}
		id := a.start(t, pipe("cat"))
		if _, err := a.write(t, id, wire.Write{Data: all, Close: true}); err != nil {
			t.Fatal(err)
		}
		if out := a.output(t, id); out != string(all) {
			t.Errorf("%q", out)
		}
	})
	t.Run("a bad read writes nothing", func(t *testing.T) { // A36
		id := a.start(t, pipe("cat"))
		_, err := a.write(t, id, wire.Write{Text: "x", Read: &wire.Read{Cursor: new(int64(1000))}})
		refused(t, err, wire.CodeCursorAhead, "")
		if r := a.status(t, id); r.StdinBytes != 0 {
			t.Errorf("%d bytes were written", r.StdinBytes)
		}
		r, err := a.write(t, id, wire.Write{Text: "pong\n", Read: &wire.Read{WaitMS: 20_000}})
		if err != nil || r.Page == nil || len(r.Page.Chunks) != 1 || r.Page.Chunks[0].Text != "pong\n" {
			t.Errorf("%+v, %v", r, err)
		}
		a.kill(t, id)
	})
	t.Run("writes at once keep their lines whole", func(t *testing.T) {
		id := a.start(t, pipe("cat"))
		line := func(i int) string { return strings.Repeat(string(rune('a'+i)), 3000) + "\n" }
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() {
				if _, err := a.write(t, id, wire.Write{Text: line(i)}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		a.closeStdin(t, id)
		out := a.output(t, id)
		for i := range 12 {
			if !strings.Contains(out, line(i)) {
				t.Errorf("line %d is torn", i)
			}
		}
		if len(out) != 12*3001 {
			t.Errorf("%d bytes", len(out))
		}
	})
	t.Run("more writes than may wait are refused and not kept waiting", func(t *testing.T) {
		id := a.start(t, pipe("sleep 300"))
		full := strings.Repeat("x", wire.MaxInputBytes)
		a.typed(t, id, full)
		var mu sync.Mutex
		codes := map[wire.Code]int{}
		var all sync.WaitGroup
		for range 40 {
			all.Go(func() {
				_, err := a.write(t, id, wire.Write{Text: full})
				mu.Lock()
				defer mu.Unlock()
				codes[wire.AsError(err).Code]++
			})
		}
		all.Wait()
		if codes[wire.CodeInputBackpressure] == 0 || codes[wire.CodeDeliveryUnknown] != 1 ||
			codes[wire.CodeInputBackpressure]+codes[wire.CodeDeliveryUnknown]+codes[wire.CodeStdinClosed] != 40 {
			t.Errorf("%v", codes)
		}
		a.kill(t, id)
	})
}

func TestCaseStdinTerminal(t *testing.T) {
	need(t, "pty")
	a := newAgent(t, start(t), wire.Open{Cwd: t.TempDir()})
	const bare = "stty -echo; echo ready; "

	t.Run("a terminal has an end of input", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: bare + "cat; echo rc=$?", TTY: tty})
		a.until(t, id, "ready")
		a.typed(t, id, "abc\n")
		a.closeStdin(t, id)
		a.closeStdin(t, id)
		if out := a.output(t, id); out != "ready\r\nabc\r\nrc=0\r\n" {
			t.Errorf("%q", out)
		}
		_, err := a.write(t, id, wire.Write{Text: "x"})
		refused(t, err, wire.CodeStdinClosed, "")
	})
	t.Run("an unfinished line is delivered before the end", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: bare + "cat; echo; echo rc=$?", TTY: tty})
		a.until(t, id, "ready")
		if r, err := a.write(t, id, wire.Write{Text: "abc", Close: true}); err != nil || r.StdinOpen {
			t.Errorf("%+v, %v", r, err)
		}
		if out := a.output(t, id); out != "ready\r\nabc\r\nrc=0\r\n" {
			t.Errorf("%q", out)
		}
	})
	t.Run("a raw terminal has no end of input", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "stty raw -echo; echo ready; head -c 3; echo; echo over", TTY: tty})
		a.until(t, id, "ready")
		_, err := a.c.CloseStdin(t.Context(), id)
		refused(t, err, wire.CodeInvalidArguments, "close")
		a.typed(t, id, "ab\x04") // the byte is data now, and input still open
		if out := a.output(t, id); !strings.Contains(out, "ab\x04") || !strings.Contains(out, "over") {
			t.Errorf("%q", out)
		}
	})
	t.Run("the longest line of a terminal passes and a longer one is refused whole", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: bare + "head -n 1 | wc -c; head -n 1", TTY: tty})
		a.until(t, id, "ready")
		a.typed(t, id, strings.Repeat("x", 4095)+"\n")
		a.until(t, id, "4096")
		_, err := a.write(t, id, wire.Write{Text: strings.Repeat("y", 4096) + "\n"})
		refused(t, err, wire.CodeInvalidArguments, "data")
		a.typed(t, id, "next\n")
		if out := a.output(t, id); out != "ready\r\n4096\r\nnext\r\n" {
			t.Errorf("%q", out)
		}
	})
	t.Run("a line may come in pieces but not grow too long", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: bare + "head -n 1 | wc -c", TTY: tty})
		a.until(t, id, "ready")
		a.typed(t, id, strings.Repeat("x", 4000))
		_, err := a.write(t, id, wire.Write{Text: strings.Repeat("x", 96)})
		refused(t, err, wire.CodeInvalidArguments, "data")
		a.typed(t, id, strings.Repeat("x", 95)+"\n")
		if out := a.output(t, id); out != "ready\r\n4096\r\n" {
			t.Errorf("%q", out)
		}
	})
	t.Run("many lines pass though each has a limit", func(t *testing.T) {
		lines := strings.Repeat(strings.Repeat("x", 99)+"\n", 600)
		id := a.start(t, wire.Command{Text: bare + "head -n 600 | wc", TTY: tty})
		a.until(t, id, "ready")
		a.typed(t, id, lines)
		if out := strings.Fields(a.output(t, id)); len(out) != 4 || out[1] != "600" || out[3] != fmt.Sprint(len(lines)) {
			t.Errorf("%q", out)
		}
	})
	t.Run("control characters are the terminal's", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.05; done", TTY: tty})
		a.until(t, id, "ready")
		a.typed(t, id, "\x03")
		if r := a.end(t, id); *r.ExitCode != 3 || r.State != wire.StateFailed || r.Reason != wire.ReasonExit {
			t.Errorf("%s %s %v", r.State, r.Reason, value(r.ExitCode))
		}
	})
	t.Run("input of a terminal is typed and the terminal stays open", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: `read a; echo "got $a"; read b; echo "got $b"`, Input: []byte("one\n"), TTY: tty})
		a.until(t, id, "got one")
		a.typed(t, id, "two\n")
		if out := a.output(t, id); !strings.HasSuffix(out, "got two\r\n") {
			t.Errorf("%q", out)
		}
	})
	t.Run("a terminal that nobody reads ends in five seconds", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "stty raw -echo; echo ready; sleep 300", TTY: tty})
		a.until(t, id, "ready")
		var err error
		for range 4 {
			if _, err = a.write(t, id, wire.Write{Text: strings.Repeat("x", 60_000)}); err != nil {
				break
			}
		}
		refused(t, err, wire.CodeDeliveryUnknown, "")
		_, err = a.write(t, id, wire.Write{Text: "y"})
		refused(t, err, wire.CodeStdinClosed, "")
		a.kill(t, id)
	})
}
