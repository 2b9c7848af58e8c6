package runtime

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
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
	// A shell that says that it lives and then reads from a socket on which nobody
	// answers. It is forked here, not on the forking thread, and left alone by the
	// sweep for being of this session.
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(p[0]), "probe"), uintptr(p[1])
	defer ours.Close()
	pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", "echo; read x"}, &syscall.ProcAttr{
		Files: []uintptr{theirs, theirs, f.null.Fd()},
		Sys:   &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: l.dir},
	})
	_ = unix.Close(p[1])
	if err != nil {
		return fmt.Errorf("fork into a leaf: %w", err)
	}
	// Without this a child that is killed at birth (see leaf.kill) would pass.
	_, lifeErr := ours.Read(make([]byte, 1))
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
	if err := errors.Join(lifeErr, stateErr, listErr, killErr, err); err != nil {
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

// probeOrphans makes an orphan and looks where it lands.
func (f *Forker) probeOrphans() bool {
	c, err := f.Start(Spec{
		Argv: []string{"/bin/sh", "-c", "sleep 10 & echo $!"}, Env: []string{"PATH=" + DefaultPath},
		Umask: DefaultUmask, Tag: "probe", Merged: true,
	})
	if err != nil {
		return false
	}
	line, _ := bufio.NewReader(c.Stdout).ReadString('\n')
	_, err = c.Wait()
	orphans, listErr := f.orphans()
	_ = c.Signal(unix.SIGKILL) // not Stop, which wants to know what is found out here
	err = errors.Join(err, listErr, c.Close())
	pid, perr := strconv.Atoi(strings.TrimSpace(line))
	return err == nil && perr == nil && slices.Contains(orphans, pid)
}
