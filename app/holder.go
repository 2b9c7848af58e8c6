package app

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// holder finds the process that holds the flock of a file, and opens a pidfd of it. It
// asks the kernel and no pid file: that may be stale, and its pid somebody else's.
func holder(path string) (pid, fd int, err error) {
	file, err := os.Stat(path)
	if err != nil {
		return 0, 0, err
	}
	stat, ok := file.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, errors.New("no inode number")
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return 0, 0, err
	}
	defer locks.Close()
	// "1: FLOCK  ADVISORY  WRITE 1234 fe:00:9994913 0 EOF". The device is that of the
	// file system below an overlay, so the open files of the process decide.
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 6 || f[1] != "FLOCK" || !strings.HasSuffix(f[5], ":"+strconv.FormatUint(stat.Ino, 10)) {
			continue
		}
		pid, err := strconv.Atoi(f[4])
		if err != nil || pid <= 0 { // not of our pid namespace
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		if opened(pid, file) {
			return pid, fd, nil
		}
		_ = unix.Close(fd)
	}
	return 0, 0, fmt.Errorf("nobody to be seen holds %s", path)
}

// opened reports whether a process has a file open.
func opened(pid int, file os.FileInfo) bool {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		if f, err := os.Stat(fd); err == nil && os.SameFile(f, file) {
			return true
		}
	}
	return false
}
