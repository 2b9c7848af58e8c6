package runtime

import (
	"os"

	"golang.org/x/sys/unix"
)

// files are the descriptors a child is born with. The child's ends are closed in this
// process as soon as the fork is over.
type files struct {
	child [3]uintptr
	extra []uintptr // from descriptor 3 on, noFile where there is none
	own   [3]int    // descriptors to close after the fork, from the front
	n     int
	more  []int // those that own has no room for
}

// noFile is what stands in a table of descriptors for one that is closed in the child.
const noFile = ^uintptr(0)

// table is the child's descriptors in order.
func (f *files) table() []uintptr {
	if f.extra == nil {
		return f.child[:]
	}
	return append(f.child[:], f.extra...)
}

func (f *files) close() {
	for _, fd := range f.own[:f.n] {
		_ = unix.Close(fd)
	}
	for _, fd := range f.more {
		_ = unix.Close(fd)
	}
	f.n, f.more = 0, nil
}

func (f *files) keep(fd int) uintptr {
	if f.n < len(f.own) {
		f.own[f.n] = fd
		f.n++
	} else {
		f.more = append(f.more, fd)
	}
	return uintptr(fd)
}

// open makes the pipes or the terminal of s; the parent's ends are put into c.
func (c *Child) open(s *Spec, null *os.File) (_ files, err error) {
	var f files
	defer func() {
		if err != nil {
			f.close()
			c.discard()
		}
	}()
	if s.TTY != nil {
		slave, err := c.openTerminal(*s.TTY)
		if err != nil {
			return f, &StartError{Kind: TerminalUnavailable, Err: err}
		}
		fd := f.keep(slave)
		f.child = [3]uintptr{fd, fd, fd}
	} else if err = c.openPipes(s, &f, null); err != nil {
		return f, &StartError{Kind: StartOther, Err: err}
	}
	if len(s.Descriptors) > 0 || s.State {
		if err = c.openExtra(s, &f); err != nil {
			return f, &StartError{Kind: StartOther, Err: err}
		}
	}
	return f, nil
}

func (c *Child) openPipes(s *Spec, f *files, null *os.File) (err error) {
	f.child[0] = null.Fd()
	if s.Stdin {
		if c.Stdin, f.child[0], err = f.pipe(true, "stdin"); err != nil {
			return err
		}
	}
	if c.Stdout, f.child[1], err = f.pipe(false, "stdout"); err != nil {
		return err
	}
	f.child[2] = f.child[1]
	if !s.Merged {
		c.Stderr, f.child[2], err = f.pipe(false, "stderr")
	}
	return err
}

// pipe makes a pipe whose parent end (the write end when write is set) does not block.
// The child's end must: a program that meets EAGAIN on its stdout loses output.
func (f *files) pipe(write bool, name string) (*os.File, uintptr, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, 0, os.NewSyscallError("pipe2", err)
	}
	parent, child := p[0], p[1]
	if write {
		parent, child = p[1], p[0]
	}
	kept := f.keep(child)
	if err := unix.SetNonblock(parent, true); err != nil {
		_ = unix.Close(parent)
		return nil, 0, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(parent), name), kept, nil
}
