package runtime

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// leaf is the cgroup of one tree. Its fields are touched by one user at a time: the
// start, then the child, then the pool; only counted belongs to the subtree's lock.
type leaf struct {
	tree    *subtree
	path    string
	dir     int         // O_PATH, for the fork; -1 when shut
	events  int         // cgroup.events, read again and again at a seventh of the price of opening it; -1 when shut
	counted bool        // among the open leaves of the subtree
	spent   atomic.Bool // not to be used again
}

func newLeaf(t *subtree, name string) (*leaf, error) {
	l := &leaf{tree: t, path: filepath.Join(t.path, name), dir: -1, events: -1}
	if err := unix.Mkdir(l.path, 0o755); err != nil {
		return nil, wrapPath("mkdir", l.path, err)
	}
	var err error
	if l.dir, err = unix.Open(l.path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
		l.events, err = unix.Open(filepath.Join(l.path, "cgroup.events"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		l.shut()
		_ = unix.Rmdir(l.path)
		return nil, wrapPath("open", l.path, err)
	}
	return l, nil
}

// shut closes the descriptors.
func (l *leaf) shut() {
	if l.dir >= 0 {
		_ = unix.Close(l.dir)
	}
	if l.events >= 0 {
		_ = unix.Close(l.events)
	}
	l.dir, l.events = -1, -1
}

// state reads cgroup.events. Populated counts the whole subtree and no zombies.
func (l *leaf) state() (populated, frozen bool, err error) {
	var buf [128]byte
	fd := l.events
	if fd < 0 {
		if fd, err = unix.Open(filepath.Join(l.path, "cgroup.events"), unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return false, false, wrapPath("open", l.path, err)
		}
		defer unix.Close(fd)
	}
	n, err := unix.Pread(fd, buf[:], 0)
	if err != nil {
		return false, false, wrapPath("read", l.path, err)
	}
	p, ok := keyed(buf[:n], "populated")
	if !ok {
		return false, false, fmt.Errorf("%s: cgroup.events without populated: %q", l.path, buf[:n])
	}
	f, _ := keyed(buf[:n], "frozen")
	return p != 0, f != 0, nil
}

// pristine says whether the next child may have this leaf: nobody in it, nothing below
// it, not frozen, and no count of an earlier tree that could be taken for its own.
func (l *leaf) pristine() bool {
	if l.spent.Load() || l.dir < 0 {
		return false
	}
	populated, frozen, err := l.state()
	if err != nil || populated || frozen {
		return false
	}
	var st unix.Stat_t
	if unix.Fstat(l.dir, &st) != nil || st.Nlink != 2 {
		return false // a child made cgroups below its own
	}
	if !l.tree.memory {
		return true
	}
	n, err := l.oomKills()
	return err == nil && n == 0
}

// oomKills is how many members the kernel killed for want of memory.
func (l *leaf) oomKills() (uint64, error) {
	text, err := os.ReadFile(filepath.Join(l.path, "memory.events"))
	if err != nil {
		return 0, err
	}
	n, ok := keyed(text, "oom_kill")
	if !ok {
		return 0, fmt.Errorf("%s: memory.events without oom_kill", l.path)
	}
	return n, nil
}

// members lists the pids in the leaf and below it.
func (l *leaf) members() ([]int, error) { return membersOf(l.path) }

func membersOf(path string) ([]int, error) {
	text, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	pids, err := parsePIDs(string(text))
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Nlink == 2 {
		return pids, wrapPath("stat", path, err)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		below, err := membersOf(filepath.Join(path, e.Name()))
		if err != nil && !os.IsNotExist(err) {
			return nil, err
		}
		pids = append(pids, below...)
	}
	return pids, nil
}

// kill sends KILL to every member, also to those that are being forked right now. The
// leaf is spent by that: the kernel compares its count of kills with that of the
// forking thread's cgroup (seen on Linux 6.18), so that every later child forked into
// it is killed at birth.
func (l *leaf) kill() error {
	l.spent.Store(true)
	return writeFile(filepath.Join(l.path, "cgroup.kill"), "1")
}

// remove kills and removes the leaf, at once or not at all.
func (l *leaf) remove(wait time.Duration) error { return removeTree(l.path, wait) }
