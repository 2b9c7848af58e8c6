package keeper

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

func TestCommandRunsToItsEnd(t *testing.T) {
	c, ev, adopted := attach(t, startKeeper(t, time.Minute), 1)
	if len(adopted) != 0 {
		t.Fatalf("adopted %d processes", len(adopted))
	}
	p := spawn(t, c, bash("p1", "echo out; echo err >&2; exit 7"))
	var sink record
	if err := p.Pump(t.Context(), &sink, 0); err != nil {
		t.Fatal(err)
	}
	if got := sink.text(wire.Stdout); got != "out\n" {
		t.Errorf("stdout %q", got)
	}
	if got := sink.text(wire.Stderr); got != "err\n" {
		t.Errorf("stderr %q", got)
	}
	e := ev.exited(t, p)
	if e.Code != 7 || e.Cause != wire.ReasonExit || e.Signal != "" || !e.Gone || e.Usage == nil {
		t.Errorf("exit: %+v", e)
	}
	if p.Exited() != e {
		t.Error("the process does not know its exit")
	}
	if err := p.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(t.Context(), 15); !errors.Is(err, &wire.Error{Code: wire.CodeNotFound}) {
		t.Errorf("signal after release: %v", err)
	}
}

func TestFirstCauseWins(t *testing.T) {
	c, ev, _ := attach(t, startKeeper(t, time.Minute), 1)
	s := bash("p", "trap '' TERM; echo ready; sleep 60 & wait; sleep 60")
	s.Timeout = 200 * time.Millisecond
	s.Grace = 30 * time.Second
	p := spawn(t, c, s)
	if d := p.Deadline().Sub(p.StartedAt()); d != s.Timeout {
		t.Errorf("deadline after %v", d)
	}
	var sink record
	done := pumped(t.Context(), p, &sink, 0)
	eventually(t, "the command is ready", func() bool { return sink.size() > 0 })
	<-time.After(time.Until(p.Deadline()) + 100*time.Millisecond)
	if p.Exited() != nil {
		t.Fatal("TERM was not trapped")
	}
	// The cancel comes second: it only ends the grace.
	if err := p.Stop(t.Context(), wire.ReasonCancel, Kill, 0); err != nil {
		t.Fatal(err)
	}
	e, g := ev.exited(t, p), ev.gone(t, p)
	if e.Cause != wire.ReasonTimeout || e.Code != 137 {
		t.Errorf("exit %+v", e)
	}
	if !g.Gone || g.Killed == 0 {
		t.Errorf("gone %+v", g)
	}
	if err := done(); err != nil {
		t.Error(err)
	}
	if err := p.Stop(t.Context(), wire.ReasonCancel, Terminate, 0); err != nil {
		t.Errorf("stop of what is gone: %v", err)
	}
}

func TestDeadlineIsKeptWithoutAWorker(t *testing.T) {
	dir := startKeeper(t, time.Minute)
	c, _, _ := attach(t, dir, 1)
	s := bash("p", "sleep 60 & sleep 60")
	s.Timeout, s.Grace, s.Meta = 150*time.Millisecond, 0, []byte{0, 1, 0xff}
	p := spawn(t, c, s)
	natural := spawn(t, c, bash("n", "printf 'last words'; exit 3"))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the keeper ends it", func() bool { return !alive(p.PID()) && !alive(natural.PID()) })
	c, ev, adopted := attach(t, dir, 2)
	if len(adopted) != 2 {
		t.Fatalf("adopted %d", len(adopted))
	}
	for _, a := range adopted {
		e := a.Exited()
		if e == nil {
			e = ev.exited(t, a)
		}
		switch a.ID() {
		case "p":
			if string(a.Meta()) != string(s.Meta) || a.PID() != p.PID() || !a.Deadline().Equal(p.Deadline()) {
				t.Errorf("adopted as %+v", a.info)
			}
			if e.Cause != wire.ReasonTimeout || e.Signal != "KILL" {
				t.Errorf("exit %+v", e)
			}
			eventually(t, "gone", func() bool { return e.Gone || a.Gone() != nil })
		case "n":
			var sink record
			if err := a.Pump(t.Context(), &sink, 0); err != nil || sink.text(wire.Stdout) != "last words" {
				t.Errorf("%q %v", sink.text(wire.Stdout), err)
			}
			if e.Code != 3 || e.Cause != wire.ReasonExit || !e.Gone {
				t.Errorf("exit %+v", e)
			}
		}
	}
	_ = c
}

func TestWindowOfZeroKillsAllAtOnce(t *testing.T) {
	dir := newDir(t)
	cmd, err := Ensure(t.Context(), Config{Dir: dir, Window: 0, Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	c, _, _ := attach(t, dir, 1)
	p := spawn(t, c, bash("p", "trap '' TERM; setsid sleep 60 & echo $!; wait"))
	var sink record
	done := pumped(t.Context(), p, &sink, 0)
	eventually(t, "the pid", func() bool { return sink.size() > 0 })
	c.link.close() // as if this worker had died
	if err := done(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("keeper: %v", err)
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(sink.text(wire.Stdout)))
	if pid == 0 || alive(pid) || alive(p.PID()) {
		t.Errorf("%d or %d lives", pid, p.PID())
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "keeper.*")); len(files) != 1 || filepath.Base(files[0]) != lockName {
		t.Errorf("left behind: %v", files)
	}
}

func TestWindowPassesAndALateWorkerLearnsIt(t *testing.T) {
	dir := startKeeper(t, 300*time.Millisecond)
	c, _, _ := attach(t, dir, 1)
	p := spawn(t, c, bash("p", "sleep 60"))
	_ = c.Close()
	eventually(t, "the window passes", func() bool { return !alive(p.PID()) })
	_, ev, adopted := attach(t, dir, 2)
	if len(adopted) != 1 {
		t.Fatalf("adopted %d", len(adopted))
	}
	e := adopted[0].Exited()
	if e == nil {
		e = ev.exited(t, adopted[0])
	}
	if e.Cause != wire.ReasonWorkerLost {
		t.Errorf("cause %s", e.Cause)
	}
}

func TestOneKeeperPerDirectory(t *testing.T) {
	dir := startKeeper(t, time.Minute)
	var stderr strings.Builder
	second := exec.Command("/proc/self/exe", "keeper", dir)
	second.Stderr = &stderr
	if err := second.Run(); second.ProcessState.ExitCode() != exitHeld {
		t.Errorf("second keeper: %v\n%s", err, stderr.String())
	}
	if cmd, err := Ensure(t.Context(), Config{Dir: dir}); cmd != nil || err != nil {
		t.Errorf("ensure with a keeper there: %v %v", cmd, err)
	}
	c, err := Dial(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.KeeperPID() != keeperPID(t, dir) || c.LastIncarnation() != 0 {
		t.Errorf("pid %d, incarnation %d", c.KeeperPID(), c.LastIncarnation())
	}
	if st, err := os.Stat(filepath.Join(dir, socketName)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v %v", st.Mode(), err)
	}
	if _, err := c.Spawn(t.Context(), bash("p", "true")); !errors.Is(err, &wire.Error{Code: wire.CodeUnavailable}) {
		t.Errorf("spawn without attach: %v", err)
	}
}

func TestKilledKeeperIsNoticed(t *testing.T) {
	dir := newDir(t)
	cmd, err := Ensure(t.Context(), Config{Dir: dir, Window: time.Minute, Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	c, ev, _ := attach(t, dir, 1)
	p := spawn(t, c, bash("p", "sleep 60"))
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	ev.wait(t, "lost", func(e Event) bool { return e.Lost != nil })
	if _, err := c.Spawn(t.Context(), bash("q", "true")); !errors.Is(err, &wire.Error{Code: wire.CodeUnavailable}) {
		t.Errorf("spawn: %v", err)
	}
	_ = c.Close()
	if !alive(p.PID()) {
		t.Error("the command died with the keeper")
	}
	// The next keeper ends what the dead one held, where cgroups can be had.
	cmd, err = Ensure(t.Context(), Config{Dir: dir, Window: 0, Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	if cmd == nil {
		t.Fatal("no new keeper")
	}
	if _, err := os.Stat("/sys/fs/cgroup/unified/cgroup.controllers"); err == nil && os.Geteuid() == 0 {
		eventually(t, "the dead keeper's command ends", func() bool { return !alive(p.PID()) })
	} else {
		_ = syscall.Kill(p.PID(), syscall.SIGKILL)
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestLeftovers(t *testing.T) {
	c, ev, _ := attach(t, startKeeper(t, time.Minute), 1)
	p := spawn(t, c, bash("p", "sleep 60 & echo $!"))
	var sink record
	ctx, cancel := context.WithCancel(t.Context())
	done := pumped(ctx, p, &sink, 0)
	e := ev.exited(t, p)
	if e.Code != 0 || e.Gone || e.Left != 1 {
		t.Errorf("exit %+v", e)
	}
	eventually(t, "output", func() bool { return sink.size() > 0 })
	cancel() // leftovers hold the streams
	if err := done(); !errors.Is(err, context.Canceled) {
		t.Errorf("pump: %v", err)
	}
	if err := p.KillLeftovers(t.Context()); err != nil {
		t.Fatal(err)
	}
	if g := ev.gone(t, p); !g.Gone || g.Proof == wire.ProofNone {
		t.Errorf("gone %+v", g)
	}
	if err := p.Pump(t.Context(), &sink, 1); err != nil {
		t.Errorf("pump to the end: %v", err)
	}
	q := spawn(t, c, bash("q", "sleep 60"))
	if err := q.KillLeftovers(t.Context()); !errors.Is(err, &wire.Error{Code: wire.CodeInvalidArguments}) {
		t.Errorf("leftovers of a running command: %v", err)
	}
	if err := q.Signal(t.Context(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if e := ev.exited(t, q); e.Signal != "USR1" || e.Cause != wire.ReasonSignal || e.Code != 128+10 {
		t.Errorf("exit %+v", e)
	}
	// Release of a command that runs ends it.
	r := spawn(t, c, bash("r", "sleep 60 & sleep 60"))
	if err := r.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the released command ends", func() bool { return !alive(r.PID()) })
	eventually(t, "its id is free", func() bool {
		again, err := c.Spawn(t.Context(), bash("r", "true"))
		return err == nil && again.Release(t.Context()) == nil
	})
}

func TestSpawnErrors(t *testing.T) {
	c, _, _ := attach(t, startKeeper(t, time.Minute), 1)
	running := spawn(t, c, bash("running", "sleep 60"))
	defer running.Release(t.Context())
	for name, x := range map[string]struct {
		change func(*Spawn)
		code   wire.Code
	}{
		"no directory":  {func(s *Spawn) { s.Dir = "/nowhere/at all" }, wire.CodeWorkdirNotFound},
		"no program":    {func(s *Spawn) { s.Path = "/nowhere" }, wire.CodeSpawnFailed},
		"no argv":       {func(s *Spawn) { s.Argv = nil }, wire.CodeInvalidArguments},
		"nul":           {func(s *Spawn) { s.Argv = []string{"bash", "-c", "true\x00"} }, wire.CodeInvalidArguments},
		"meta":          {func(s *Spawn) { s.Meta = make([]byte, maxMeta+1) }, wire.CodeInvalidArguments},
		"backlog":       {func(s *Spawn) { s.Backlog = 1 }, wire.CodeInvalidArguments},
		"umask":         {func(s *Spawn) { s.Umask = -1 }, wire.CodeInvalidArguments},
		"id":            {func(s *Spawn) { s.Process = "" }, wire.CodeInvalidArguments},
		"same id":       {func(s *Spawn) { s.Process = "running" }, wire.CodeInvalidArguments},
		"too long":      {func(s *Spawn) { s.Argv = []string{"bash", "-c", strings.Repeat("x", 200_000)} }, wire.CodeSpawnFailed},
		"over a frame":  {func(s *Spawn) { s.Env = []string{strings.Repeat("x", 9<<20)} }, wire.CodeInvalidArguments},
		"relative path": {func(s *Spawn) { s.Dir = "here" }, wire.CodeInvalidArguments},
	} {
		s := bash("p", "true")
		x.change(&s)
		if _, err := c.Spawn(t.Context(), s); !errors.Is(err, &wire.Error{Code: x.code}) {
			t.Errorf("%s: %v, not %s", name, err, x.code)
		}
	}
	s := bash("bytes", `printf %s "$V$1"`)
	s.Argv = append(s.Argv, "0", "\xff\xfe") // what the kernel takes need not be UTF-8
	s.Env = append(s.Env, "V=\xfd")
	p := spawn(t, c, s)
	var sink record
	if err := p.Pump(t.Context(), &sink, 0); err != nil || sink.text(wire.Stdout) != "\xfd\xff\xfe" {
		t.Errorf("%q %v", sink.text(wire.Stdout), err)
	}
}
