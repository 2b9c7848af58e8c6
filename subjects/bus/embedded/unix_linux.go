package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unixListener accepts this user's connections on a socket and splices each to a
// connection of the server, which has no unix listener of its own. Two goroutines
// carry one connection; close waits for all.
type unixListener struct {
	l    *net.UnixListener
	dir  int // descriptor of the socket's directory: the path may be longer than the kernel takes
	name string
	dial func() (net.Conn, error)
	log  *slog.Logger
	max  int
	wg   sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{} // guarded by mu; both ends of each splice
	ended bool                  // guarded by mu
}

func listenUnix(path string, limit int, dial func() (net.Conn, error), log *slog.Logger) (*unixListener, error) {
	dir, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket %s: open its directory: %w", path, err)
	}
	name := filepath.Base(path)
	if err := removeStale(dir, name); err != nil {
		unix.Close(dir)
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		// The mode of the socket's inode is that of the file: set before bind, there
		// is no moment in which another user could connect.
		var err error
		if cerr := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); cerr != nil {
			return cerr
		}
		return err
	}}
	l, err := lc.Listen(context.Background(), "unix", "/proc/self/fd/"+strconv.Itoa(dir)+"/"+name)
	if err != nil {
		unix.Close(dir)
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	u := &unixListener{
		l: l.(*net.UnixListener), dir: dir, name: name, dial: dial, log: log, max: limit,
		conns: make(map[net.Conn]struct{}),
	}
	u.l.SetUnlinkOnClose(false) // close removes it by the directory's descriptor
	u.wg.Go(u.accept)           // ends when close closes the listener
	return u, nil
}

// removeStale removes what an owner that was killed left. Who may bind here owns the
// state directory, so nobody serves the old one; a file that is no socket is not ours.
func removeStale(dir int, name string) error {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return errors.New("a file that is not a socket is in its place")
	}
	return unix.Unlinkat(dir, name, 0)
}

func (u *unixListener) accept() {
	pause := time.NewTimer(0)
	<-pause.C
	defer pause.Stop()
	refused := refusals{log: u.log, socket: u.name}
	for {
		c, err := u.l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors, most likely. close ends the wait at its next turn.
			u.log.Warn("accept on the socket", "err", err)
			pause.Reset(20 * time.Millisecond)
			<-pause.C
			continue
		}
		if err := u.splice(c); err != nil {
			c.Close()
			refused.tell(err)
		}
	}
}

// refusals tells of refused connections once a second at most: one who tries in a loop
// fills no log.
type refusals struct {
	log    *slog.Logger
	socket string
	last   time.Time
	count  int // since last
}

func (r *refusals) tell(err error) {
	r.count++
	if now := time.Now(); now.Sub(r.last) >= time.Second {
		r.log.Warn("refused connections of the socket", "socket", r.socket, "count", r.count, "last_err", err)
		r.last, r.count = now, 0
	}
}

// splice joins c to a new connection of the server.
func (u *unixListener) splice(c *net.UnixConn) error {
	if err := checkPeer(c); err != nil {
		return err
	}
	u.mu.Lock()
	full := len(u.conns) >= 2*u.max
	u.mu.Unlock()
	if full {
		return fmt.Errorf("%d connections are open, and that is the most", u.max)
	}
	in, err := u.dial()
	if err != nil {
		return err
	}
	u.mu.Lock()
	if u.ended {
		u.mu.Unlock()
		in.Close()
		return net.ErrClosed
	}
	u.conns[c], u.conns[in] = struct{}{}, struct{}{}
	u.mu.Unlock()
	end := sync.OnceFunc(func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		c.Close()
		in.Close()
		delete(u.conns, c)
		delete(u.conns, in)
	})
	// Each ends when either end closes: whoever sees it first closes both.
	u.wg.Go(func() { defer end(); carry(in, c) })
	u.wg.Go(func() { defer end(); carry(c, in) })
	return nil
}

// carry copies until an end closes. The buffer is as large as the server's largest
// write, so that a full one is one system call.
func carry(dst, src net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// checkPeer refuses who is neither this user nor root. The mode of the socket says the
// same; this also holds where a directory or mode was loosened by hand.
func checkPeer(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if cerr != nil {
		return fmt.Errorf("peer credentials: %w", cerr)
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("user %d (process %d) is not user %d", cred.Uid, cred.Pid, os.Geteuid())
	}
	return nil
}

// count is how many clients are connected.
func (u *unixListener) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.conns) / 2
}

// close ends all connections and waits for their goroutines.
func (u *unixListener) close() {
	u.mu.Lock()
	u.ended = true
	for c := range u.conns {
		c.Close()
	}
	u.mu.Unlock()
	u.l.Close()
	u.wg.Wait()
	_ = unix.Unlinkat(u.dir, u.name, 0) // best effort; the next owner removes a stale one
	unix.Close(u.dir)
}
