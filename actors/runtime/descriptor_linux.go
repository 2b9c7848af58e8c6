package runtime

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Output is the parent's end of an extra descriptor that is captured.
type Output struct {
	Number int // of the descriptor in the child
	File   *os.File
}

// openExtra makes what the child finds at 3 and above. The fork moves our own descriptors
// out of the way of these numbers.
func (c *Child) openExtra(s *Spec, f *files) error {
	last := 2
	for _, d := range s.Descriptors {
		last = max(last, d.Number)
	}
	if s.State {
		last = StateDescriptor
	}
	f.extra = make([]uintptr, last-2)
	for i := range f.extra {
		f.extra[i] = noFile
	}
	for _, d := range s.Descriptors {
		at := &f.extra[d.Number-3]
		if !d.Output {
			fd, err := inputFile(d.Input)
			if err != nil {
				return err
			}
			*at = f.keep(fd)
			continue
		}
		file, child, err := f.pipe(false, "output")
		if err != nil {
			return err
		}
		*at = child
		c.Outputs = append(c.Outputs, Output{d.Number, file})
	}
	if !s.State {
		return nil
	}
	fd, err := stateFile()
	if err != nil {
		return err
	}
	c.state = os.NewFile(uintptr(fd), "state")
	f.extra[StateDescriptor-3] = uintptr(fd)
	return nil
}

// inputFile makes a file of data that nobody can change. It is no pipe: a pipe that the
// kernel made smaller than data (fs.pipe-user-pages-soft) would block who fills it, and
// the child could not open /dev/fd/N when it runs as another user.
func inputFile(data []byte) (int, error) {
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE | unix.F_SEAL_SEAL
	return sealed("limpet-input", seals, func(fd int) error {
		n, err := unix.Pwrite(fd, data, 0) // the child reads from the start
		if err == nil && n < len(data) {
			err = unix.ENOSPC
		}
		return os.NewSyscallError("pwrite", err)
	})
}

// stateFile makes the file of [Spec.State]: as large as it may become, and never larger.
// What is not written takes no memory.
func stateFile() (int, error) {
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	return sealed("limpet-state", seals, func(fd int) error {
		return os.NewSyscallError("ftruncate", unix.Ftruncate(fd, MaxState))
	})
}

// sealed makes a file in memory, fills it, and seals it.
func sealed(name string, seals int, fill func(fd int) error) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, os.NewSyscallError("memfd_create", err)
	}
	if err = fill(fd); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("%s: %w", name, err)
	}
	return fd, nil
}

// State reads the state file up to its last byte that is not NUL, and gives it back. It
// is nil where nothing was written, without [Spec.State], and the second time. Bytes
// behind a hole of a page or more may be missing.
func (c *Child) State() ([]byte, error) {
	c.mu.Lock()
	file := c.state
	c.state = nil
	c.mu.Unlock()
	if file == nil {
		return nil, nil
	}
	defer file.Close()
	var st unix.Stat_t
	err := control(file, func(fd int) error { return unix.Fstat(fd, &st) })
	if err != nil || st.Blocks == 0 {
		return nil, os.NewSyscallError("fstat", err)
	}
	b := make([]byte, min(st.Blocks*512, MaxState))
	if _, err := file.ReadAt(b, 0); err != nil {
		return nil, fmt.Errorf("read the state file: %w", err)
	}
	if b = bytes.TrimRight(b, "\x00"); len(b) == 0 {
		return nil, nil
	}
	return bytes.Clone(b), nil // not all of what was read for it
}
