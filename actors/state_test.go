package actors

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

func (b *bench) command(s *wire.Session, c wire.Command) *wire.Result {
	b.t.Helper()
	return must[wire.Result](b)(ask[wire.Result](b, b.session(s, "run"), &wire.Run{Version: wire.Version, SessionRef: wire.SessionRef{Session: s.ID}, Command: c}))
}

// said checks what a run wrote, and what became of its state.
func (b *bench) said(res *wire.Result, stdout, capture, cwd string) {
	b.t.Helper()
	rc := res.Receipt
	if res.Stdout.Text != stdout || rc.StateCapture != capture || rc.SessionCwd != cwd {
		b.t.Errorf("it wrote %q (%q), state %q, session in %q; want %q, %q, %q; notes %q",
			res.Stdout.Text, res.Stderr.Text, rc.StateCapture, rc.SessionCwd, stdout, capture, cwd, rc.Notes)
	}
}

func TestStatePersists(t *testing.T) {
	b := newBench(t, nil)
	s := b.open(wire.Open{CaptureState: true})
	sub := filepath.Join(b.cwd, "sub")
	b.said(b.run(s, "pwd"), b.cwd+"\n", "unchanged", b.cwd)
	b.said(b.run(s, `mkdir sub; cd sub; export A='x y' B="line
two"; unset HOME; PLAIN=1; f() { :; }; set -u; umask 0`), "", "saved", sub)
	b.said(b.run(s, `pwd; echo "$A,$B,${HOME-none},${PLAIN-none}"; declare -F; umask; echo $-`),
		sub+"\nx y,line\ntwo,none,none\n0022\nhBc\n", "unchanged", sub)
	b.said(b.run(s, "cd -; export HOME=/h; unset A; export -n B"), b.cwd+"\n", "saved", b.cwd)
	b.said(b.run(s, `echo "${A-none},${B-none},$HOME,$OLDPWD"`), "none,none,/h,"+sub+"\n", "unchanged", b.cwd)

	// What one command is given is its own, unless it changes it.
	b.said(b.command(s, wire.Command{Text: "pwd; echo $X $HOME", Cwd: "/", Env: []wire.EnvVar{{Name: "X", Value: "1"}, {Name: "HOME", Value: "/x"}}}),
		"/\n1 /x\n", "unchanged", b.cwd)
	b.said(b.run(s, "echo ${X-none} $HOME"), "none /h\n", "unchanged", b.cwd)
	res := b.command(s, wire.Command{Argv: []string{"printenv", "HOME"}})
	b.said(res, "/h\n", "", "")

	all := must[wire.Processes](b)(ask[wire.Processes](b, b.session(s, "list"), &wire.List{Version: wire.Version, SessionRef: wire.SessionRef{Session: s.ID}}))
	if got := all.Sessions[0]; !got.CaptureState || got.Shell != "bash" || got.CurrentCwd != b.cwd {
		t.Errorf("%+v", got)
	}
	other := b.open(wire.Open{CaptureState: true})
	b.said(b.run(other, "pwd; echo ${OLDPWD-none}"), b.cwd+"\nnone\n", "unchanged", b.cwd)
}

// A worker that is killed takes no state with it, also where it was not written yet.
func TestStateSurvivesTheWorker(t *testing.T) {
	b := newBench(t, nil)
	s := b.open(wire.Open{Name: "kept", CaptureState: true})
	b.run(s, "cd /; export A=1")
	b.stop(ErrLeave)
	b.bootVictim()
	b.said(b.run(s, "pwd; echo $A; export A=2 B=1"), "/\n1\n", "saved", "/")
	b.kill()
	b.bootVictim()
	b.said(b.run(s, "echo $A $B"), "2 1\n", "unchanged", "/")
	long := b.start(s, wire.Command{Text: "cd /tmp; export A=3; sleep 0.5; unset B"})
	b.kill()
	b.bootVictim()
	rc := b.wait(long.Process)
	if rc.StateCapture != "saved" || rc.SessionCwd != "/tmp" {
		t.Errorf("%q, %q, %q", rc.StateCapture, rc.SessionCwd, rc.Notes)
	}
	b.said(b.run(s, "pwd; echo $A ${B-none}"), "/tmp\n3 none\n", "unchanged", "/tmp")
}

// awayRecords is a store of sessions that is away.
type awayRecords struct{ sessionStore }

func (awayRecords) UpdateSession(context.Context, string, *wire.SessionRecord, uint64) (uint64, error) {
	return 0, bus.ErrDisconnected
}

// The end of a command is recorded, the state that it left is not, and the worker goes:
// the next one finds it with the keeper, and takes it once.
func TestStateThatWasNotStoredIsFoundAgain(t *testing.T) {
	b := newBench(t, nil)
	s := b.open(wire.Open{CaptureState: true})
	b.said(b.run(s, "export A=0"), "", "saved", b.cwd)
	b.stop(ErrLeave) // its writes have ended
	b.boot()
	b.worker.deps.sessions = awayRecords{b.worker.deps.sessions}
	b.said(b.run(s, "cd /; export A=1"), "", "saved", "/")
	b.said(b.run(s, "echo $A; cd /usr; export B=1"), "1\n", "saved", "/usr")
	b.stop(ErrLeave)
	b.boot()
	b.said(b.run(s, "pwd; echo $A $B; cd /tmp; export B=2"), "/usr\n1 1\n", "saved", "/tmp")
	b.stop(ErrLeave)
	b.boot()
	b.said(b.run(s, "pwd; echo $A $B"), "/tmp\n1 2\n", "unchanged", "/tmp")
}

// A directory that went away is said, and left.
func TestStateOfADirectoryThatIsGone(t *testing.T) {
	b := newBench(t, nil)
	s := b.open(wire.Open{CaptureState: true})
	gone := filepath.Join(b.cwd, "gone")
	b.said(b.run(s, "mkdir gone; cd gone; export A=1; rmdir ../gone"), "", "saved", gone)
	_, err := ask[wire.Result](b, b.session(s, "run"), &wire.Run{Version: wire.Version, SessionRef: wire.SessionRef{Session: s.ID}, Command: wire.Command{Text: "echo no"}})
	if e := wire.AsError(err); e.Code != wire.CodeWorkdirNotFound || !strings.Contains(e.Message, gone) || !strings.Contains(e.Message, "back in "+b.cwd) {
		t.Errorf("%v", err)
	}
	b.said(b.run(s, "pwd; echo $A"), b.cwd+"\n1\n", "unchanged", b.cwd)
}

func TestShellAndLoginOfASession(t *testing.T) {
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, ".profile"), []byte("export FROM=profile PATH=$PATH:/more"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := newBench(t, func(c *Config) { c.Environ = []string{"PATH=/usr/bin:/bin", "HOME=" + home} })
	s := b.open(wire.Open{Shell: "sh", Login: true, CaptureState: true})
	res := b.run(s, "echo $0 $FROM; export A=1")
	if rc := res.Receipt; !rc.Login || rc.Shell != "/usr/bin/sh" && rc.Shell != "/bin/sh" || rc.StateCapture != "saved" {
		t.Errorf("%+v", rc)
	}
	if want := res.Receipt.Shell + " profile\n"; res.Stdout.Text != want {
		t.Errorf("%q, want %q", res.Stdout.Text, want)
	}
	b.said(b.command(s, wire.Command{Text: "echo ${BASH_VERSION:+bash} $A $FROM; grep -o more <<< $PATH", Shell: "bash"}), "bash 1 profile\nmore\n", "unchanged", b.cwd)
	if res := b.command(s, wire.Command{Argv: []string{"printenv", "FROM"}}); res.Receipt.Login || res.Receipt.Shell != "" || res.Stdout.Text != "" {
		t.Errorf("%+v", res)
	}
	plain := b.open(wire.Open{})
	b.said(b.run(plain, "cd /; echo ${FROM-none}"), "none\n", "", "")
	b.said(b.command(plain, wire.Command{Text: "echo $FROM; cd /", Login: true, CaptureState: true}), "profile\n", "saved", "/")
	b.said(b.run(plain, "pwd"), "/\n", "", "")
}

func TestStateOfOtherShells(t *testing.T) {
	b := newBench(t, nil)
	cat := "/bin/cat" // any program that is no shell
	_, err := ask[wire.Session](b, b.root().WorkerOpen(tenant, "w1", b.e), &wire.Open{Version: wire.Version, Shell: cat, CaptureState: true})
	if e := wire.AsError(err); e.Code != wire.CodeCapabilityMissing || e.Field != "capture_state" {
		t.Errorf("%v", err)
	}
	_, err = ask[wire.Session](b, b.root().WorkerOpen(tenant, "w1", b.e), &wire.Open{Version: wire.Version, Shell: "/nonexistent"})
	if e := wire.AsError(err); e.Code != wire.CodeInvalidArguments || e.Field != "shell" {
		t.Errorf("%v", err)
	}
	s := b.open(wire.Open{CaptureState: true})
	run := &wire.Run{Version: wire.Version, SessionRef: wire.SessionRef{Session: s.ID}, Command: wire.Command{Text: "x", Shell: cat}}
	res := must[wire.Result](b)(ask[wire.Result](b, b.session(s, "run"), run))
	if rc := res.Receipt; rc.StateCapture != "missed" || !slices.ContainsFunc(rc.Notes, func(n string) bool { return strings.Contains(n, "the state of cat cannot be captured") }) {
		t.Errorf("%q, %q", rc.StateCapture, rc.Notes)
	}
	run.Command.CaptureState = true
	_, err = ask[wire.Result](b, b.session(s, "run"), run)
	if e := wire.AsError(err); e.Code != wire.CodeCapabilityMissing || e.Field != "command.capture_state" {
		t.Errorf("%v", err)
	}
}
