package runtime

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// probe shows that leaves work here: it forks into one, sees the member, kills it by
// the cgroup, and sees it gone. Nothing less is a proof: the mount says nothing about
// permissions, clone3 may be filtered, and cgroup.kill came with Linux 5.14.
func (f *Forker) probe() error {
	l, err := newLeaf(f.tree, "probe")
	if err != nil {
		return err
	}
	defer func() {
		l.shut()
		_ = l.remove(killWait)
	}()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	// A shell that reads from a pipe nobody writes to. It is forked here, not on the
	// forking thread, and known to the sweep by being of this session.
	pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", "read x"}, &syscall.ProcAttr{
		Files: []uintptr{uintptr(p[0]), f.null.Fd(), f.null.Fd()},
		Sys:   &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: l.dir},
	})
	if err != nil {
		return fmt.Errorf("fork into a leaf: %w", err)
	}
	populated, _, stateErr := l.state()
	members, listErr := l.members()
	killErr := l.kill()
	if killErr != nil {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	var status unix.WaitStatus
	for {
		if _, err = unix.Wait4(pid, &status, 0, nil); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err := errors.Join(stateErr, listErr, killErr, err); err != nil {
		return err
	}
	if !populated || len(members) != 1 || members[0] != pid || status.Signal() != unix.SIGKILL {
		return fmt.Errorf("a leaf does not tell the truth: populated %t, members %v of %d, status %#x", populated, members, pid, status)
	}
	populated, _, err = l.state()
	if err == nil && populated {
		err = errors.New("a killed leaf is not empty")
	}
	return err
}
