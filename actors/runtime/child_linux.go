package runtime

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Child is one started tree, named by its leader.
type Child struct {
	// PID of the leader, which is also the id of its session and process group.
	PID int
	// StartTime of the leader in clock ticks since boot (/proc/PID/stat, field 22).
	// With PID it identifies the process for as long as this host is up. It is 0 where
	// a cgroup does, because reading it while the program is being loaded takes 75 µs.
	StartTime uint64
	// Parent ends, non-blocking and close-on-exec; nil where the Spec asked for none.
	// With a terminal only Master is set. They are closed by [Child.Close], or by
	// the caller before.
	Stdin, Stdout, Stderr, Master *os.File
	// Outputs are the parent ends of the captured descriptors, in the order of the Spec.
	Outputs []Output

	forker   *Forker
	tag      string
	leaf     *leaf       // nil in scan mode
	memory   *memoryLeaf // nil without a limit
	pidfd    *os.File    // kept until Close, so that the number below stays ours
	fd       int
	setupErr error

	once   sync.Once
	exited chan struct{} // closed when exit and waitErr are final
	exit   Exit
	err    error

	mu     sync.Mutex
	state  *os.File // guarded by mu; nil without one, or when it has been read
	reaped bool     // guarded by mu
	closed bool     // guarded by mu
}

// begin completes a child after its fork. On error the child is ended and reaped.
func (c *Child) begin() error {
	err := c.setupErr
	if c.fd < 0 {
		err = errors.Join(err, errors.New("the kernel gives no pidfd"))
	} else {
		err = errors.Join(err, unix.SetNonblock(c.fd, true))
		c.pidfd = os.NewFile(uintptr(c.fd), "pidfd")
	}
	if c.leaf != nil {
		c.forker.tree.settle(c.leaf)
	} else {
		// The leader cannot be reaped before this returns, so the number is its own.
		st, statErr := readStat(c.PID)
		c.StartTime = st.start
		err = errors.Join(err, statErr)
	}
	if err == nil {
		return nil
	}
	_ = unix.Kill(c.PID, unix.SIGKILL)
	if c.pidfd == nil {
		var status unix.WaitStatus
		_, _ = unix.Wait4(c.PID, &status, 0, nil)
		c.forget()
	} else {
		_, werr := c.Wait()
		err = errors.Join(err, werr)
	}
	kind := StartOther
	if c.setupErr != nil {
		kind = ResourceLimit
	}
	return &StartError{Kind: kind, Err: err}
}

// forget takes the reaped leader out of the forker's table. The number may by then
// belong to a newer child, which stays.
func (c *Child) forget() {
	f := c.forker
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.live[c.PID] == c {
		delete(f.live, c.PID)
	}
}

// Exited is closed once [Child.Wait] has a result. Somebody must call Wait for that.
func (c *Child) Exited() <-chan struct{} { return c.exited }

// Wait waits until the leader has ended, reaps it, and says how it ended. It says
// nothing about descendants or streams. Any number of callers get the same answer.
func (c *Child) Wait() (Exit, error) {
	c.once.Do(func() {
		c.exit, c.err = c.reap()
		close(c.exited)
	})
	return c.exit, c.err
}

// childInfo is the part of siginfo_t that waitid fills in.
type childInfo struct {
	signo, errno, code int32
	_                  [unsafe.Sizeof(uintptr(0))/4 - 1]int32
	pid                int32
	uid                uint32
	status             int32
}

func (c *Child) reap() (Exit, error) {
	conn, err := c.pidfd.SyscallConn()
	if err != nil {
		return Exit{}, fmt.Errorf("wait for %d: %w", c.PID, err)
	}
	var (
		info    unix.Siginfo
		usage   unix.Rusage
		waitErr error
	)
	// Read parks in the poller whenever the function answers false.
	err = conn.Read(func(fd uintptr) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for {
			info = unix.Siginfo{}
			waitErr = unix.Waitid(unix.P_PIDFD, int(fd), &info, unix.WEXITED|unix.WNOHANG, &usage)
			if !errors.Is(waitErr, unix.EINTR) {
				break
			}
		}
		c.reaped = waitErr == nil && info.Signo != 0
		return waitErr != nil || c.reaped
	})
	at := time.Now()
	if err = errors.Join(err, waitErr); err != nil {
		return Exit{}, fmt.Errorf("wait for %d: %w", c.PID, err)
	}
	c.forget()
	exit := exitOf((*childInfo)(unsafe.Pointer(&info)), &usage)
	exit.At = at
	if exit.Code == 128+int(unix.SIGKILL) || exit.Signal == unix.SIGKILL || c.memory != nil {
		exit.OOM = c.oomKilled()
	}
	return exit, nil
}

func exitOf(info *childInfo, usage *unix.Rusage) Exit {
	const exited, dumped = 1, 3 // CLD_EXITED, CLD_DUMPED
	var e Exit
	if info.code == exited {
		e.Code = int(info.status)
	} else {
		e.Code, e.Signal, e.CoreDumped = -1, syscall.Signal(info.status), info.code == dumped
	}
	e.Usage.UserMS = usage.Utime.Nano() / 1e6
	e.Usage.SystemMS = usage.Stime.Nano() / 1e6
	e.Usage.MaxRSSBytes = usage.Maxrss * 1024
	return e
}

// signalGroup makes pidfd_send_signal address the process group (Linux 6.9).
const signalGroup = 4

// Signal sends sig to the leader's process group. After the leader's end it still
// reaches the members that are left; [os.ErrProcessDone] says that there are none.
// It never reaches a process that only inherited the number.
func (c *Child) Signal(sig syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return os.ErrProcessDone
	}
	// The pidfd pins the kernel's own record of the number, so this is exact even
	// when leader and number are gone.
	err := unix.PidfdSendSignal(c.fd, sig, nil, signalGroup)
	if errors.Is(err, unix.EINVAL) { // an older kernel, or no such signal
		if c.reaped {
			return c.signalRemaining(sig)
		}
		err = unix.Kill(-c.PID, sig)
	}
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	if err != nil {
		return fmt.Errorf("signal process group %d: %w", c.PID, err)
	}
	return nil
}

// signalRemaining serves kernels that cannot signal a group by pidfd: the members of
// the reaped leader's group, each by a pidfd of its own.
func (c *Child) signalRemaining(sig syscall.Signal) error {
	members, err := c.forker.scan(c, c.reaped)
	if err != nil {
		return fmt.Errorf("signal process group %d: %w", c.PID, err)
	}
	sent := false
	for _, m := range members {
		if m.group != c.PID {
			continue
		}
		if err := m.signal(sig); err == nil {
			sent = true
		} else if !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("signal %d: %w", m.pid, err)
		}
	}
	if !sent {
		return os.ErrProcessDone
	}
	return nil
}

// Close gives back the descriptors and the cgroup leaf. What still lives in the leaf
// is killed; call [Child.Stop] before to know about it. [ErrRunning] when the leader's
// end has not been observed by Wait. A second Close does nothing.
func (c *Child) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	if !c.reaped {
		return ErrRunning
	}
	c.closed = true
	return c.release()
}

// discard undoes a start that failed.
func (c *Child) discard() {
	c.closed = true
	if err := c.release(); err != nil {
		c.forker.log.Warn("clean up after a failed start", "err", err)
	}
}

func (c *Child) release() error {
	var errs []error
	open := []*os.File{c.Stdin, c.Stdout, c.Stderr, c.Master, c.pidfd, c.state}
	for _, o := range c.Outputs {
		open = append(open, o.File)
	}
	for _, file := range open {
		if file == nil {
			continue
		}
		if err := file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if c.leaf != nil {
		errs = append(errs, c.forker.tree.release(c.leaf))
	}
	errs = append(errs, c.memory.remove())
	return errors.Join(errs...)
}
