package keeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	socketName = "keeper.sock"
	lockName   = "keeper.lock"
	pidName    = "keeper.pid"
	logName    = "keeper.log"
)

// socketPath names the socket through a descriptor of its directory: the address of a
// unix socket has 108 bytes, a state directory may have a longer name.
func socketPath(dir *os.File) string {
	return "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + socketName
}

// listen makes the socket in dir. The caller holds the lock, so an old one is dead.
func listen(dir *os.File) (*net.UnixListener, error) {
	path := socketPath(dir)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the old socket: %w", err)
	}
	old := unix.Umask(0o177) // 0600 from the first moment; the keeper has one thread of control here
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", socketName, err)
	}
	l.SetUnlinkOnClose(false)
	return l, nil
}

// connect opens the socket in dir and checks who serves it.
func connect(ctx context.Context, dir string) (*net.UnixConn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open state directory: %w", err)
	}
	defer d.Close()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", socketPath(d))
	if err != nil {
		return nil, fmt.Errorf("connect to the keeper: %w", err)
	}
	conn := c.(*net.UnixConn)
	if _, err := credentials(conn); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("keeper socket: %w", err)
	}
	return conn, nil
}

// credentials gives the peer's, which must be of our own user or of root.
func credentials(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var optErr error
	if err := raw.Control(func(fd uintptr) {
		cred, optErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	if optErr != nil {
		return nil, fmt.Errorf("peer credentials: %w", optErr)
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("the peer runs as user %d, not %d or root", cred.Uid, os.Geteuid())
	}
	return cred, nil
}

// peerPidfd gives a pidfd of the process that connected: from the socket where the
// kernel can (6.5), else by its pid, which it cannot have lost yet in practice.
func peerPidfd(conn *net.UnixConn, pid int) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, optErr := -1, error(nil)
	if err := raw.Control(func(s uintptr) {
		fd, optErr = unix.GetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	}); err != nil {
		return -1, err
	}
	if optErr == nil {
		unix.CloseOnExec(fd)
		return fd, nil
	}
	fd, err = unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, fmt.Errorf("open the worker's pidfd: %w", err)
	}
	return fd, nil
}
