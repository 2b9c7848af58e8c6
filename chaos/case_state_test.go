package chaos

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// carries runs a text and checks how it ended, what it wrote, and what became of its state.
func (a agent) carries(t testing.TB, text string, exit int, stdout, capture string) *wire.Receipt {
	t.Helper()
	res := a.text(t, text)
	exited(t, res, exit, stdout)
	if got := res.Receipt.StateCapture; got != capture {
		t.Errorf("%q: its state is %q; want %q (%q)", text, got, capture, res.Receipt.Notes)
	}
	if capture == "missed" && !slices.ContainsFunc(res.Receipt.Notes, func(n string) bool { return strings.HasPrefix(n, "state: ") }) {
		t.Errorf("%q: nobody says why: %q", text, res.Receipt.Notes)
	}
	return &res.Receipt
}

// inShells runs a test in a session of each shell whose state can be captured.
func inShells(t *testing.T, f func(t *testing.T, l *Lab, shell string)) {
	l := start(t)
	for _, shell := range []string{"bash", "dash"} {
		t.Run(shell, func(t *testing.T) {
			need(t, shell)
			t.Parallel()
			path := "bash"
			if shell == "dash" {
				path = lookDash(t)
			}
			f(t, l, path)
		})
	}
}

func lookDash(t *testing.T) string {
	t.Helper()
	need(t, "dash")
	path, err := exec.LookPath("dash")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCaseStateDirectory(t *testing.T) {
	inShells(t, func(t *testing.T, l *Lab, shell string) {
		dir, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		open := wire.Open{Cwd: dir, Shell: shell, CaptureState: true}
		t.Run("80: a directory that is gone is said, and left", func(t *testing.T) {
			a := newAgent(t, l, open)
			a.carries(t, "mkdir d && cd d", 0, "", "saved")
			if got := a.carries(t, "rmdir ../d", 0, "", "unchanged").SessionCwd; got != dir+"/d" {
				t.Errorf("the session is in %s", got)
			}
			for range 2 {
				if _, err := a.s.Prepare(t.Context(), wire.Prepare{Command: wire.Command{Text: "pwd"}}); err == nil {
					t.Error("a preparation has found it")
				} else {
					refused(t, err, wire.CodeWorkdirNotFound, "command.cwd") // and moves nothing
				}
			}
			_, err := a.try(t, wire.Run{Command: wire.Command{Text: "touch ran; pwd"}})
			if refused(t, err, wire.CodeWorkdirNotFound, "command.cwd"); err == nil || !strings.Contains(err.Error(), dir+"/d") || !strings.Contains(err.Error(), "back in "+dir) {
				t.Errorf("it says %v", err)
			}
			if got := wire.AsError(err).Details["session_cwd"]; got != dir {
				t.Errorf("the details say %v", got)
			}
			a.carries(t, "ls; cd /tmp && echo ok", 0, "ok\n", "saved")
			a.carries(t, "pwd", 0, "/tmp\n", "unchanged")
		})
		t.Run("80: a file in its place, and one that comes back", func(t *testing.T) {
			a := newAgent(t, l, open)
			a.carries(t, "mkdir e && cd e && rmdir ../e && : > ../e", 0, "", "saved")
			_, err := a.try(t, wire.Run{Command: wire.Command{Text: "pwd"}})
			refused(t, err, wire.CodeWorkdirNotFound, "command.cwd")
			a.carries(t, "pwd; rm e; mkdir e; cd e", 0, dir+"\n", "saved")
			a.carries(t, "pwd; cd ..; rmdir e; mkdir e; cd e", 0, dir+"/e\n", "unchanged")
			a.carries(t, "rmdir ../e; mkdir ../e; pwd", 0, dir+"/e\n", "unchanged")
			a.carries(t, "pwd", 0, dir+"/e\n", "unchanged")
		})
		t.Run("82: another session's directory is its own", func(t *testing.T) {
			parent, child := newAgent(t, l, open), newAgent(t, l, open)
			child.carries(t, "mkdir tmp1; cd tmp1; export LEAK=1", 0, "", "saved")
			if _, err := child.s.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			parent.carries(t, "pwd; echo ${LEAK-none}", 0, dir+"\nnone\n", "unchanged")
			again := newAgent(t, l, wire.Open{Name: child.s.Info().Name, Cwd: dir, Shell: shell, CaptureState: true})
			again.carries(t, "pwd; echo ${LEAK-none} ${OLDPWD-none}", 0, dir+"\nnone none\n", "unchanged")
		})
		t.Run("names of every kind are entered", func(t *testing.T) {
			a := newAgent(t, l, open)
			for i, name := range []string{"a b", "-dash", "line\nfeed\n", "'\"$x`\\", "語 ü", "*?[a]", "~", "#"} {
				odd := filepath.Join(dir, fmt.Sprint(i), name)
				if err := os.MkdirAll(odd, 0o700); err != nil {
					t.Fatal(err)
				}
				res := a.run(t, wire.Command{Text: `cd "$ODD"`, Env: []wire.EnvVar{{Name: "ODD", Value: odd}}})
				if exited(t, res, 0, ""); res.Receipt.SessionCwd != odd {
					t.Errorf("%q: the session is in %q", odd, res.Receipt.SessionCwd)
				}
				a.carries(t, `printf %s "$PWD"; echo; pwd -P`, 0, odd+"\n"+odd+"\n", "unchanged")
			}
		})
		t.Run("a link keeps its name, cd - and CDPATH work", func(t *testing.T) {
			a := newAgent(t, l, open)
			a.carries(t, "mkdir -p real/deep other; ln -s real/deep link; cd link", 0, "", "saved")
			a.carries(t, "pwd; pwd -P; cd ..", 0, dir+"/link\n"+dir+"/real/deep\n", "saved")
			a.carries(t, "pwd; cd - >/dev/null", 0, dir+"\n", "saved")
			a.carries(t, "pwd; cd - >/dev/null; export CDPATH="+dir+"/real", 0, dir+"/link\n", "saved")
			a.carries(t, "cd deep >/dev/null; pwd", 0, dir+"/real/deep\n", "saved")
			res := a.run(t, wire.Command{Argv: []string{"pwd"}})
			exited(t, res, 0, dir+"/real/deep\n")
			a.carries(t, "cd "+dir, 0, "", "saved")
			if got := a.carries(t, "cd nosuch 2>/dev/null; pwd", 0, dir+"\n", "unchanged").SessionCwd; got != dir {
				t.Errorf("the session is in %s", got)
			}
		})
		t.Run("a directory that a call gives is that call's", func(t *testing.T) {
			a := newAgent(t, l, open)
			exited(t, a.run(t, wire.Command{Text: "pwd", Cwd: "/"}), 0, "/\n")
			a.carries(t, "pwd", 0, dir+"\n", "unchanged")
			exited(t, a.run(t, wire.Command{Text: "cd /usr", Cwd: "/"}), 0, "")
			a.carries(t, "pwd", 0, "/usr\n", "unchanged")
		})
	})
}

func TestCaseStateEnvironment(t *testing.T) {
	inShells(t, func(t *testing.T, l *Lab, shell string) {
		open := wire.Open{Cwd: "/", Shell: shell, CaptureState: true, Env: []wire.EnvVar{{Name: "GIVEN", Value: "1"}, {Name: "GONE", Value: "1"}}}
		t.Run("what is exported persists, what is unset stays unset", func(t *testing.T) {
			a := newAgent(t, l, open)
			a.carries(t, "export NEW=1 GIVEN=2 EMPTY=; unset GONE HOME; PLAIN=1; export DECLARED", 0, "", "saved")
			show := "echo $NEW,$GIVEN,${EMPTY-none},${GONE-none},${HOME-none},${PLAIN-none},${DECLARED-none}"
			a.carries(t, show, 0, "1,2,,none,none,none,none\n", "unchanged")
			res := a.run(t, wire.Command{Argv: []string{"printenv", "NEW", "GIVEN", "GONE", "HOME"}})
			exited(t, res, 1, "1\n2\n")
			res = a.run(t, wire.Command{Text: show, Env: []wire.EnvVar{{Name: "GIVEN", Value: "3"}, {Name: "GONE", Value: "3"}}})
			exited(t, res, 0, "1,3,,3,none,none,none\n")
			a.carries(t, show, 0, "1,2,,none,none,none,none\n", "unchanged")
			a.carries(t, "unset NEW; export GIVEN=1 GONE=1", 0, "", "saved")
			a.carries(t, show, 0, ",1,,1,none,none,none\n", "unchanged")
		})
		t.Run("every text comes back as it is", func(t *testing.T) {
			a := newAgent(t, l, open)
			for _, v := range []string{
				"two\nlines\n", "\n", "it's", `a"b`, "$HOME `id` $(id) \\", `\n\t\x41`, "$'\\n'", "語 naïve 😀", "\t\r\x1b[0m\x01\x7f",
				"=", " a  b ", "*", "!", "-n", "'", `"`, `\`, "declare -x A=\"1\"\nexport B='2'", strings.Repeat("x", 30_000),
			} {
				res := a.run(t, wire.Command{Text: `export V="$GIVEN_NOW"`, Env: []wire.EnvVar{{Name: "GIVEN_NOW", Value: v}}})
				exited(t, res, 0, "")
				if res.Receipt.StateCapture != "saved" {
					t.Errorf("%.40q: %s, %q", v, res.Receipt.StateCapture, res.Receipt.Notes)
				}
				res = a.run(t, wire.Command{Argv: []string{"printenv", "V"}, Output: &wire.OutputLimits{}})
				if out := a.output(t, res.Receipt.Process); out != v+"\n" {
					t.Errorf("%.40q came back as %.40q", v, out)
				}
				a.carries(t, "echo ${GIVEN_NOW-none}", 0, "none\n", "unchanged")
			}
		})
		t.Run("what cannot be kept is said", func(t *testing.T) {
			a := newAgent(t, l, open)
			r := a.carries(t, `export ODD="$(printf '\377')" GOOD=1`, 0, "", "saved")
			if !slices.Contains(r.Notes, "state: not captured, because it is not UTF-8: ODD") {
				t.Errorf("%q", r.Notes)
			}
			a.carries(t, "echo ${ODD-none} $GOOD", 0, "none 1\n", "unchanged")
			a.carries(t, `export ODD="$(printf '\377')"`, 0, "", "missed")
			more := `v=0123456789; v=$v$v$v$v$v$v$v$v; v=$v$v$v$v$v$v$v$v$v$v; v=$v$v$v$v$v$v$v$v$v$v; for i in 1 $REST; do export "BIG$i=$v"; done; `
			a.carries(t, more, 0, "", "saved") // dash gets more room as its environment grows
			more = "REST='2 3 4 5 6 7'; " + more
			a.carries(t, more, 0, "", "saved")
			capture := "saved" // the directory is
			if shell != "bash" {
				capture = "missed" // dash has no room to say it
			}
			r = a.carries(t, more+`export BIG8=$v BIG9=$v; cd /tmp`, 0, "", capture)
			if shell == "bash" && !slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "may have 65536") }) {
				t.Errorf("%q", r.Notes)
			}
			a.carries(t, "echo ${#BIG7} ${BIG8-none}", 0, "8000 none\n", "unchanged")
		})
		t.Run("88: the supervisor's credentials are nobody's", func(t *testing.T) {
			l := start(t, "BROKER_PASSWORD=zz88zz")
			a := newAgent(t, l, open)
			exited(t, a.text(t, "env | grep -c zz88zz; tr '\\0' '\\n' </proc/$PPID/environ | grep -c zz88zz"), 1, "0\n0\n")
			a.carries(t, "export MINE=1", 0, "", "saved")
			exited(t, a.text(t, "env | grep -c zz88zz; tr '\\0' '\\n' </proc/$PPID/environ | grep -c 'MINE\\|zz88zz'"), 1, "0\n0\n")
		})
	})
}

func TestCaseStateOfTheShellItself(t *testing.T) {
	l := start(t)
	home := t.TempDir()
	for name, text := range map[string]string{
		".bash_profile": "_h() { echo hi; }; wave() { _h; }; sed() { echo shadowed; }; export -f sed; pwd() { echo no; }; printf() { echo no; }; export() { echo no; }",
	} {
		if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	open := wire.Open{Cwd: "/", CaptureState: true, Env: []wire.EnvVar{{Name: "HOME", Value: home}}}
	login := open
	login.Login = true
	t.Run("84: functions are those of the profile, whole, or none", func(t *testing.T) {
		a := newAgent(t, l, login)
		for range 2 {
			a.carries(t, "wave", 0, "hi\n", "unchanged")
			a.carries(t, "cd /tmp; builtin export A=1; own() { _h; }; builtin export -f own; other() { :; }", 0, "", "saved")
			a.carries(t, "own 2>/dev/null || other 2>/dev/null || echo none; cd /; unset A", 0, "none\n", "saved")
		}
		b := newAgent(t, l, open)
		exited(t, b.text(t, "wave 2>/dev/null"), 127, "")
		exited(t, b.text(t, "_h() { echo hi; }; wave() { _h; }; export -f wave; cd /tmp; bash -c wave 2>/dev/null"), 127, "")
		exited(t, b.text(t, "wave 2>/dev/null || _h 2>/dev/null; declare -F; pwd"), 0, "/tmp\n")
	})
	t.Run("86: functions named like tools and builtins break nothing of ours", func(t *testing.T) {
		a := newAgent(t, l, login)
		a.carries(t, "declare -F | wc -l; sed", 0, "6\nshadowed\n", "unchanged")
		a.carries(t, "cd /usr", 0, "", "saved")
		a.carries(t, "builtin pwd; sed", 0, "/usr\nshadowed\n", "unchanged")
		b := newAgent(t, l, open)
		b.carries(t, "builtin() { echo no; }; trap() { echo no; }; exit() { echo no; }; eval() { echo no; }; cd /usr; export -f builtin", 0, "", "saved")
		b.carries(t, "pwd; enable -n export", 0, "/usr\n", "missed")
		b.carries(t, "unset() { echo no; }; builtin() { echo no; }; cd /tmp", 0, "", "missed")
		res := b.run(t, wire.Command{Text: "builtin pwd; cd /tmp", Env: []wire.EnvVar{{Name: "BASH_FUNC_builtin%%", Value: "() { echo mine; }"}}})
		if exited(t, res, 0, "mine\n"); res.Receipt.StateCapture != "missed" {
			t.Errorf("%s, %q", res.Receipt.StateCapture, res.Receipt.Notes)
		}
		b.carries(t, "pwd", 0, "/usr\n", "unchanged")
	})
	t.Run("nothing but directory and environment persists", func(t *testing.T) {
		a := newAgent(t, l, open)
		a.carries(t, "umask 0; set -fu; shopt -s expand_aliases nullglob; alias ls=nosuch; f() { :; }; ulimit -n 100; declare -ax list=(1 2); declare -r fixed=1; export fixed; trap 'echo bye' USR1; IFS=x", 0, "", "saved")
		a.carries(t, "umask; echo $-; shopt expand_aliases nullglob | tr -s '\\t' ' '; alias; declare -F; trap -p USR1; echo ${list-none} $fixed; fixed=2; echo \"$IFS\" | od -An -c | tr -d ' \\n'",
			0, "0022\nhBc\nexpand_aliases off\nnullglob off\nnone 1\n\\t\\n\\n", "saved")
		a.carries(t, "echo $fixed; ulimit -n | grep -c '^100$'", 1, "2\n0\n", "unchanged")
	})
}

func TestCaseStateEnds(t *testing.T) {
	inShells(t, func(t *testing.T, l *Lab, shell string) {
		a := newAgent(t, l, wire.Open{Cwd: "/", Shell: shell, CaptureState: true})
		t.Run("90: exit and exec end a call and nothing else", func(t *testing.T) {
			a.carries(t, "cd /tmp; exit 5", 5, "", "saved")
			a.carries(t, "pwd; cd /; exec sleep 0.05", 0, "/tmp\n", "missed")
			a.carries(t, "pwd; cd /; exec /bin/sh -c 'exit 6'", 6, "/tmp\n", "missed")
			a.carries(t, "pwd; exec 2>&1; cd /usr", 0, "/tmp\n", "saved")
			a.carries(t, "pwd; cd /; false", 1, "/usr\n", "saved")
			a.carries(t, "pwd; cd /usr; set -e; false; echo no", 1, "/\n", "saved")
			a.carries(t, "pwd; (cd /; exit 7); echo $?; $(exit 8); echo $?", 0, "/usr\n7\n8\n", "unchanged")
			a.carries(t, "f() { cd /; exit 3; }; f | cat; f", 3, "", "saved")
		})
		t.Run("a trap of its own is heard as long as it runs to its end", func(t *testing.T) {
			a.carries(t, "trap 'echo bye $?' EXIT; cd /tmp; false", 1, "bye 1\n", "saved")
			a.carries(t, "pwd; trap 'echo bye; exit 9' EXIT; cd /usr", 9, "/tmp\nbye\n", "saved")
			a.carries(t, "pwd; trap 'echo bye $?' EXIT; cd /; exit 4", 4, "/usr\nbye 4\n", "missed")
			a.carries(t, "pwd; trap 'cd /' EXIT", 0, "/usr\n", "unchanged")
			a.carries(t, "pwd; trap 'exit 6' TERM; cd /tmp; kill -TERM $$; echo no", 6, "/usr\n", "saved")
		})
		t.Run("a text that is none fails as without us", func(t *testing.T) {
			a.carries(t, "cd /; if", 2, "", "unchanged")
			a.carries(t, "cd /\nif\ncd /usr", 2, "", "saved")
			res := a.text(t, "pwd\nfor x\ndo done")
			if exited(t, res, 2, "/\n"); !strings.Contains(strings.ToLower(res.Stderr.Text), "syntax error") || !strings.Contains(res.Stderr.Text, "3: ") {
				t.Errorf("it says %q", res.Stderr.Text)
			}
		})
		t.Run("who is ended leaves the session as it was", func(t *testing.T) {
			a.carries(t, "cd /usr", 0, "", "saved")
			a.carries(t, "cd /; kill -9 $$", 137, "", "missed")
			a.carries(t, "cd /; kill -TERM $$", 143, "", "missed")
			res := a.run(t, wire.Command{Text: "cd /; export A=1; sleep 300", TimeoutMS: 300})
			if res.Receipt.Reason != wire.ReasonTimeout || res.Receipt.StateCapture != "missed" {
				t.Errorf("%s", show(&res.Receipt))
			}
			for mode, code := range map[string]int{"terminate": 143, "kill": 137, "interrupt": 130} {
				id := a.start(t, wire.Command{Text: "cd /; echo there; sleep 300"})
				a.until(t, id, "there")
				if _, err := a.c.Terminate(t.Context(), wire.Terminate{ProcessRef: wire.ProcessRef{Process: id}, Mode: mode}); err != nil {
					t.Fatal(err)
				}
				if r := a.end(t, id); r.ExitCode == nil || *r.ExitCode != code || r.StateCapture != "missed" || r.SessionCwd != "/usr" {
					t.Errorf("%s: %s, state %q", mode, show(r), r.StateCapture)
				}
			}
			a.carries(t, "pwd; echo ${A-none}", 0, "/usr\nnone\n", "unchanged")
		})
		t.Run("what it leaves in the background holds nothing up", func(t *testing.T) {
			began := time.Now()
			a.carries(t, "sleep 300 & cd /tmp; exit 3", 3, "", "saved")
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("it took %s", took)
			}
			res := a.run(t, wire.Command{Text: "(sleep 0.2; cd /; exit 1) & export B=1", Leftovers: wire.LeftoversKeep})
			exited(t, res, 0, "")
			a.carries(t, "pwd; echo $B", 0, "/tmp\n1\n", "unchanged")
		})
		t.Run("input and a terminal are the text's", func(t *testing.T) {
			res := a.run(t, wire.Command{Text: `read x; cat; cd /usr`, Input: []byte("one\ntwo\n")})
			exited(t, res, 0, "two\n")
			res = a.run(t, wire.Command{Text: `[ -t 0 ] && tty >/dev/null && echo $TERM; export TERM=mine COLUMNS=7; cd /`, TTY: tty})
			exited(t, res, 0, "xterm-256color\n")
			a.carries(t, "pwd; echo $TERM ${COLUMNS-none}", 0, "/\ndumb none\n", "unchanged")
		})
		t.Run("the longest text is run", func(t *testing.T) {
			text := "cd /usr; : '"
			text += strings.Repeat("x\"$\n", (wire.MaxArgument-len(text)-20)/4)
			text += strings.Repeat("y", wire.MaxArgument-len(text)-len("'\necho ok")) + "'\necho ok"
			if len(text) != wire.MaxArgument {
				t.Fatalf("it has %d bytes", len(text))
			}
			a.carries(t, text, 0, "ok\n", "saved")
		})
	})
}
