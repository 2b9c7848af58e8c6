package mcp

import (
	"io"
	"os"
	"syscall"
	"time"
)

// pollable gives, for a pipe or socket that blocks a thread when it is read, one that the
// runtime polls: a thread that is blocked in a read keeps the processor from all other
// goroutines until the runtime's monitor notices, which costs a call over half a
// millisecond. A terminal, which others share, is left alone. done puts everything back.
func pollable(in io.ReadCloser) (_ io.ReadCloser, done func()) {
	f, ok := in.(*os.File)
	if !ok || f.SetReadDeadline(time.Time{}) == nil {
		return in, func() {}
	}
	st, err := f.Stat()
	if err != nil || st.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 {
		return in, func() {}
	}
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		return in, func() {}
	}
	syscall.CloseOnExec(fd)
	if err := syscall.SetNonblock(fd, true); err != nil {
		_ = syscall.Close(fd)
		return in, func() {}
	}
	return os.NewFile(uintptr(fd), f.Name()), func() { _ = syscall.SetNonblock(int(f.Fd()), false) }
}
