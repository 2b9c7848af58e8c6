package runtime

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// subtreePrefix starts the name of a keeper's directory: limpet-PID-STARTTIME.
	subtreePrefix = "limpet-"
	// maxIdleLeaves bounds the proven-empty leaves kept for the next start. Making and
	// removing one costs about 80 µs, 6 % of a `bash -c true`.
	maxIdleLeaves = 16
	// maxOpenLeaves bounds the leaves in use that hold their two descriptors; the
	// others open their files when they need them.
	maxOpenLeaves = 16
	// maxDoomedLeaves bounds the leaves that could not be removed yet and are tried
	// again; beyond it they wait for the end of the subtree.
	maxDoomedLeaves = 1024
)

// subtree is this process's directory in the cgroup v2 hierarchy, with a leaf per child.
type subtree struct {
	path string
	dir  *os.File // flocked for as long as this process lives
	log  *slog.Logger

	memory bool // leaves have the memory controller

	mu     sync.Mutex
	next   int     // guarded by mu; names leaves
	idle   []*leaf // guarded by mu
	open   int     // guarded by mu; leaves in use that hold descriptors
	doomed []*leaf // guarded by mu; to be removed as soon as the kernel lets us
	closed bool    // guarded by mu
}

// newSubtree makes the directory below where, or below this process's own cgroup.
func newSubtree(where string, log *slog.Logger) (*subtree, error) {
	if where == "" {
		var err error
		if where, err = ownCgroup(""); err != nil {
			return nil, err
		}
	}
	removeStale(where, log)
	self, err := readStat(os.Getpid())
	if err != nil {
		return nil, err
	}
	// More than one Forker of a process (tests) is told apart by a suffix.
	base := fmt.Sprintf("%s%d-%d", subtreePrefix, os.Getpid(), self.start)
	name := base
	for i := 1; ; i++ {
		err := os.Mkdir(filepath.Join(where, name), 0o755)
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrExist) || i > 1000 {
			return nil, err
		}
		name = base + "-" + strconv.Itoa(i)
	}
	t := &subtree{path: filepath.Join(where, name), log: log}
	if t.dir, err = os.Open(t.path); err == nil {
		err = unix.Flock(int(t.dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	t.memory = enableMemory(where, t.path)
	return t, nil
}

// ownCgroup is the directory of this process for a controller; v2 when empty.
func ownCgroup(controller string) (string, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	membership, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	return cgroupDir(string(mounts), string(membership), controller)
}

// enableMemory hands the memory controller down to the leaves, where the kernel lets
// us: not where the parent has members of its own, unless it is the root.
func enableMemory(parent, own string) bool {
	controllers, err := os.ReadFile(filepath.Join(own, "cgroup.controllers"))
	if err != nil {
		return false
	}
	has := func(text []byte) bool {
		for name := range strings.FieldsSeq(string(text)) {
			if name == "memory" {
				return true
			}
		}
		return false
	}
	if !has(controllers) {
		if writeFile(filepath.Join(parent, "cgroup.subtree_control"), "+memory") != nil {
			return false
		}
	}
	return writeFile(filepath.Join(own, "cgroup.subtree_control"), "+memory") == nil
}

// removeStale removes the subtrees of keepers that are gone, and what still runs in
// them: a keeper's death ends its processes. A subtree is stale when its name's process
// is gone and nobody holds its lock; the lock also speaks for other pid namespaces.
func removeStale(where string, log *slog.Logger) {
	entries, err := os.ReadDir(where)
	if err != nil {
		return
	}
	for _, e := range entries {
		pid, start, ok := parseSubtree(e.Name())
		if !ok || !e.IsDir() {
			continue
		}
		if st, err := readStat(pid); err == nil && st.start == start && st.live() {
			continue
		}
		full := filepath.Join(where, e.Name())
		dir, err := os.Open(full)
		if err != nil {
			continue
		}
		if unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			if err := removeTree(full, killWait); err != nil {
				log.Warn("the cgroup of a dead keeper could not be removed", "path", full, "err", err)
			}
		}
		_ = dir.Close()
	}
}

func parseSubtree(name string) (pid int, start uint64, ok bool) {
	rest, ok := strings.CutPrefix(name, subtreePrefix)
	if !ok {
		return 0, 0, false
	}
	fields := strings.Split(rest, "-")
	if len(fields) < 2 || len(fields) > 3 {
		return 0, 0, false
	}
	pid, perr := strconv.Atoi(fields[0])
	start, serr := strconv.ParseUint(fields[1], 10, 64)
	return pid, start, perr == nil && serr == nil
}

// acquire gives an empty leaf with its directory open.
func (t *subtree) acquire() (*leaf, error) {
	t.mu.Lock()
	if n := len(t.idle); n > 0 {
		l := t.idle[n-1]
		t.idle = t.idle[:n-1]
		l.counted = true
		t.open++
		t.mu.Unlock()
		return l, nil
	}
	t.next++
	name := "p" + strconv.Itoa(t.next)
	t.mu.Unlock()
	l, err := newLeaf(t, name)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	l.counted = true
	t.open++
	t.mu.Unlock()
	return l, nil
}

// settle closes the descriptors of a leaf whose child was forked, when enough other
// leaves hold theirs.
func (t *subtree) settle(l *leaf) {
	t.mu.Lock()
	over := l.counted && t.open > maxOpenLeaves
	if over {
		l.counted = false
		t.open--
	}
	t.mu.Unlock()
	if over {
		l.shut()
	}
}

// release takes a leaf back: into the pool when it is as good as new, else away.
func (t *subtree) release(l *leaf) error {
	reuse := l.pristine()
	t.mu.Lock()
	if l.counted {
		l.counted = false
		t.open--
	}
	if reuse && !t.closed && len(t.idle) < maxIdleLeaves {
		t.idle = append(t.idle, l)
		t.mu.Unlock()
		return nil
	}
	t.mu.Unlock()
	l.shut()
	if err := l.remove(0); err != nil {
		t.doom(l)
	}
	return t.sweepDoomed()
}

func (t *subtree) doom(l *leaf) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.doomed) < maxDoomedLeaves {
		t.doomed = append(t.doomed, l)
		return
	}
	t.log.Warn("a cgroup leaf waits for the end of the subtree", "path", l.path)
}

// sweepDoomed tries again to remove what was still busy.
func (t *subtree) sweepDoomed() error {
	t.mu.Lock()
	list := t.doomed
	t.doomed = nil
	t.mu.Unlock()
	for _, l := range list {
		if err := l.remove(0); err != nil {
			t.doom(l)
		}
	}
	return nil
}

// close kills what is left and removes the directory.
func (t *subtree) close() error {
	t.mu.Lock()
	t.closed = true
	idle := t.idle
	t.idle = nil
	t.mu.Unlock()
	for _, l := range idle {
		l.shut()
	}
	err := removeTree(t.path, killWait)
	if t.dir != nil {
		err = errors.Join(err, t.dir.Close())
	}
	return err
}

// removeTree kills the members of a cgroup and removes it with all below it, trying
// for at most wait while the kernel says that it is busy.
func removeTree(path string, wait time.Duration) error {
	err := removeDirs(path)
	if err == nil || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	_ = writeFile(filepath.Join(path, "cgroup.kill"), "1")
	return poll(nil, wait, 5*time.Millisecond, func() (bool, error) {
		err = removeDirs(path)
		return err == nil || errors.Is(err, os.ErrNotExist), err
	})
}

// removeDirs removes a cgroup directory and those below it. Their files are the
// kernel's and go with them.
func removeDirs(path string) error {
	err := unix.Rmdir(path)
	if err == nil || !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
		return wrapPath("rmdir", path, err)
	}
	entries, rerr := os.ReadDir(path)
	if rerr != nil {
		return rerr
	}
	for _, e := range entries {
		if e.IsDir() {
			err := removeDirs(filepath.Join(path, e.Name()))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
	return wrapPath("rmdir", path, unix.Rmdir(path))
}

func wrapPath(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: op, Path: path, Err: err}
}

// writeFile writes a control file in one write, as the kernel wants it.
func writeFile(path, value string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return wrapPath("open", path, err)
	}
	_, err = unix.Write(fd, []byte(value))
	return errors.Join(wrapPath("write", path, err), unix.Close(fd))
}
