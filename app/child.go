package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Restarts of a child that dies at once wait longer and longer, up to the last.
const (
	firstRestart = 100 * time.Millisecond
	lastRestart  = 5 * time.Second
	steady       = 10 * time.Second // a child that lived this long starts anew at the first

	stopChild = 30 * time.Second // from TERM to KILL: a worker ends its trees in it
)

// supervised keeps one child alive: one that it starts, or one that an earlier up left
// running, which it finds by its lock and watches by pidfd.
type supervised struct {
	name    string
	pidFile string
	logFile string
	lock    string // held by the child while it lives
	// start starts it with this log; nil says that one was there after all.
	start func(ctx context.Context, log *os.File) (*exec.Cmd, error)
	// up is closed when one lives for the first time.
	up  chan struct{}
	log *slog.Logger
}

// run returns when ctx has ended and the child with it.
func (s *supervised) run(ctx context.Context) error {
	delay := firstRestart
	for ctx.Err() == nil {
		began := time.Now()
		c, err := s.take(ctx)
		if err == nil {
			s.announce()
			s.log.Info("child up", "child", s.name, "pid", c.pid)
			err = s.watch(ctx, c)
			if ctx.Err() != nil {
				return nil
			}
		}
		if time.Since(began) > steady {
			delay = firstRestart
		}
		s.log.Warn("child ended", "child", s.name, "err", err, "restart_in", delay)
		t := time.NewTimer(delay)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
		delay = min(2*delay, lastRestart)
	}
	return nil
}

// child is one that lives, and what can be done to it without naming a pid that may be
// another's by then.
type child struct {
	pid    int
	wait   func() error // returns when it has ended; called once
	signal func(syscall.Signal) error
}

// take finds the child that lives, or starts one.
func (s *supervised) take(ctx context.Context) (*child, error) {
	unlock, err := lock(s.lock)
	if err != nil {
		return s.find()
	}
	unlock()
	out, err := openLog(s.logFile)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", s.name, err)
	}
	defer out.Close()
	cmd, err := s.start(ctx, out)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.name, err)
	}
	if cmd == nil {
		return s.find()
	}
	c := &child{pid: cmd.Process.Pid, wait: cmd.Wait, signal: func(sig syscall.Signal) error { return cmd.Process.Signal(sig) }}
	s.tell(c)
	return c, nil
}

// tell writes the pid file, which is for people and for nobody to kill by.
func (s *supervised) tell(c *child) {
	if err := writePID(s.pidFile, c.pid); err != nil {
		s.log.Warn("pid file", "child", s.name, "err", err)
	}
}

// find watches the child that an earlier up left running: whoever holds the lock.
func (s *supervised) find() (*child, error) {
	pid, fd, err := holder(s.lock)
	if err != nil {
		return nil, fmt.Errorf("find the %s that runs: %w", s.name, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	c := &child{pid: pid, wait: func() error { defer f.Close(); return waitPidfd(fd, forever) }, signal: func(sig syscall.Signal) error {
		raw, err := f.SyscallConn()
		if err != nil {
			return err
		}
		var sent error
		err = raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
		return errors.Join(err, sent)
	}}
	s.tell(c)
	return c, nil
}

func (s *supervised) announce() {
	select {
	case <-s.up:
	default:
		close(s.up)
	}
}

// startChild runs this binary as a session of its own: a Ctrl-C at our terminal is
// ours alone, and the child outlives a kill -9 of ours.
func startChild(exe string, args ...string) func(context.Context, *os.File) (*exec.Cmd, error) {
	return func(_ context.Context, log *os.File) (*exec.Cmd, error) {
		cmd := exec.Command(exe, args...)
		cmd.Env = calmed(os.Environ())
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return cmd, cmd.Start()
	}
}

// watch waits for the child; when ctx ends it ends the child.
func (s *supervised) watch(ctx context.Context, c *child) error {
	gone := make(chan error, 1)
	go func() { gone <- c.wait() }() // ends with the child, for which this function waits
	select {
	case err := <-gone:
		return err
	case <-ctx.Done():
	}
	_ = c.signal(unix.SIGTERM) // fails for one that has ended
	t := time.NewTimer(stopChild)
	defer t.Stop()
	select {
	case <-gone:
	case <-t.C:
		s.log.Error("child did not end in time", "child", s.name)
		_ = c.signal(unix.SIGKILL)
		<-gone
	}
	_ = os.Remove(s.pidFile)
	return nil
}

// forever is for waitPidfd.
const forever = time.Duration(-1)

// waitPidfd waits for a process that is not our child, at most for limit; then it
// returns os.ErrDeadlineExceeded.
func waitPidfd(fd int, limit time.Duration) error {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	end := time.Now().Add(limit)
	for {
		ms := -1
		if limit != forever {
			ms = max(0, int(time.Until(end).Milliseconds()))
		}
		n, err := unix.Poll(p, ms)
		switch {
		case err == nil && n > 0:
			return nil
		case err == nil:
			return os.ErrDeadlineExceeded
		case err != unix.EINTR:
			return fmt.Errorf("wait on a pidfd: %w", err)
		}
	}
}
