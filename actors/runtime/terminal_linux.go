package runtime

import (
	"errors"
	"os"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// openTerminal opens a terminal of a size; the master goes into c, the slave is for
// the child.
func (c *Child) openTerminal(size Size) (slave int, err error) {
	master, tty, err := pty.Open()
	if err != nil {
		return -1, err
	}
	// The master from pty.Open is in blocking mode and would cost a thread per read.
	// A duplicate is the same terminal without that history.
	own, err := unix.FcntlInt(master.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	slave = -1
	if err == nil {
		slave, err = unix.FcntlInt(tty.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	}
	err = errors.Join(err, master.Close(), tty.Close())
	if err == nil {
		err = setSize(own, size)
	}
	if err == nil {
		err = unix.SetNonblock(own, true)
	}
	if err != nil {
		for _, fd := range []int{own, slave} {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
		}
		return -1, err
	}
	c.Master = os.NewFile(uintptr(own), "ptmx")
	return slave, nil
}

func setSize(fd int, size Size) error {
	if size.Rows == 0 {
		size.Rows = defaultSize.Rows
	}
	if size.Cols == 0 {
		size.Cols = defaultSize.Cols
	}
	ws := unix.Winsize{Row: size.Rows, Col: size.Cols}
	return os.NewSyscallError("ioctl", unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &ws))
}

// control runs f on the descriptor without taking it out of the poller.
func control(file *os.File, f func(fd int) error) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	return errors.Join(conn.Control(func(fd uintptr) { inner = f(int(fd)) }), inner)
}
