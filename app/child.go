package app

import (
	"context"
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
		pid, wait, err := s.take(ctx)
		if err == nil {
			s.announce()
			s.log.Info("child up", "child", s.name, "pid", pid)
			err = s.watch(ctx, pid, wait)
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

// take finds the child that lives, or starts one. wait returns when it has ended.
func (s *supervised) take(ctx context.Context) (pid int, wait func() error, err error) {
	unlock, err := lock(s.lock)
	if err != nil {
		return s.find()
	}
	unlock()
	out, err := os.OpenFile(s.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, nil, fmt.Errorf("log of %s: %w", s.name, err)
	}
	defer out.Close()
	cmd, err := s.start(ctx, out)
	if err != nil {
		return 0, nil, fmt.Errorf("start %s: %w", s.name, err)
	}
	if cmd == nil {
		return s.find()
	}
	if err := writePID(s.pidFile, cmd.Process.Pid); err != nil {
		s.log.Warn("pid file", "child", s.name, "err", err)
	}
	return cmd.Process.Pid, cmd.Wait, nil
}

// find watches the child that an earlier up left running.
func (s *supervised) find() (int, func() error, error) {
	pid := readPID(s.pidFile)
	if pid == 0 {
		return 0, nil, fmt.Errorf("%s runs, but %s does not say where", s.name, s.pidFile)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0, nil, fmt.Errorf("watch %s %d: %w", s.name, pid, err)
	}
	return pid, func() error { defer unix.Close(fd); return waitPidfd(fd) }, nil
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
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return cmd, cmd.Start()
	}
}

// watch waits for the child; when ctx ends it ends the child.
func (s *supervised) watch(ctx context.Context, pid int, wait func() error) error {
	gone := make(chan error, 1)
	go func() { gone <- wait() }() // ends with the child, for which this function waits
	select {
	case err := <-gone:
		return err
	case <-ctx.Done():
	}
	_ = unix.Kill(pid, unix.SIGTERM) // ours, or held by a pidfd and its lock: no other has this pid
	t := time.NewTimer(stopChild)
	defer t.Stop()
	select {
	case <-gone:
	case <-t.C:
		s.log.Error("child did not end in time", "child", s.name)
		_ = unix.Kill(pid, unix.SIGKILL)
		<-gone
	}
	_ = os.Remove(s.pidFile)
	return nil
}

// waitPidfd waits for a process that is not our child.
func waitPidfd(fd int) error {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(p, -1)
		if err == nil {
			return nil
		}
		if err != unix.EINTR {
			return fmt.Errorf("wait on a pidfd: %w", err)
		}
	}
}
