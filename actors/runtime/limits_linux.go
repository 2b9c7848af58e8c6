package runtime

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// limitAtExec sets the limits of a child that was forked traced and has stopped, or
// will stop, at its exec; then it lets go. It runs on the thread that forked. A child
// that was killed meanwhile is left to be reaped by Wait.
func limitAtExec(pid int, limits []Rlimit) error {
	for {
		var info unix.Siginfo
		// Only look: the status of an exit is not ours to take.
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT|unix.WALL, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for the exec of %d: %w", pid, err)
		}
		const exited, dumped = 1, 3 // CLD_EXITED … CLD_DUMPED
		if info.Code >= exited && info.Code <= dumped {
			return nil
		}
		break
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, syscall.WALL, nil); err != nil {
		return fmt.Errorf("wait for the exec of %d: %w", pid, err)
	}
	var errs []error
	for _, l := range limits {
		if err := setLimit(pid, l); err != nil {
			errs = append(errs, fmt.Errorf("set limit %d to %d: %w", l.Resource, l.Value, err))
		}
	}
	if len(errs) > 0 {
		_ = unix.Kill(pid, unix.SIGKILL) // before its first instruction
	}
	// Detach hands on the signal that stopped it, unless that is the trap of the exec.
	sig := status.StopSignal()
	if sig == syscall.SIGTRAP {
		sig = 0
	}
	_, _, errno := syscall.Syscall6(syscall.SYS_PTRACE, syscall.PTRACE_DETACH, uintptr(pid), 0, uintptr(sig), 0, 0)
	if errno != 0 && errno != unix.ESRCH {
		errs = append(errs, fmt.Errorf("let go of %d: %w", pid, errno))
	}
	return errors.Join(errs...)
}

// setLimit sets soft and hard limit. Who may not raise a hard limit keeps the lower
// one, which bounds as well. The hard limit of CPU time lies a second above the soft
// one, so that the end is told by XCPU and not by a KILL that could mean anything.
func setLimit(pid int, l Rlimit) error {
	limit := unix.Rlimit{Cur: l.Value, Max: l.Value}
	if l.Resource == unix.RLIMIT_CPU && l.Value < unix.RLIM_INFINITY {
		limit.Max++
	}
	err := unix.Prlimit(pid, l.Resource, &limit, nil)
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	var now unix.Rlimit
	if err := unix.Prlimit(pid, l.Resource, nil, &now); err != nil {
		return err
	}
	limit.Max = min(limit.Max, now.Max)
	limit.Cur = min(limit.Cur, limit.Max)
	return unix.Prlimit(pid, l.Resource, &limit, nil)
}
