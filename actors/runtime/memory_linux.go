package runtime

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// memoryV1 is this process's directory in the v1 memory hierarchy.
type memoryV1 struct {
	own  string // where the forking thread lives
	path string
	dir  *os.File

	mu   sync.Mutex
	next int // guarded by mu
}

// memoryLeaf bounds one tree; v1 only. In v2 the tree's own leaf does.
type memoryLeaf struct {
	path string
	home string // the cgroup the forking thread returns to
}

// newMemoryV1 makes a directory in the v1 memory hierarchy. Nil where v2 leaves have
// the controller, and where there is no such hierarchy or it cannot be written.
func newMemoryV1(t *subtree, log *slog.Logger) *memoryV1 {
	if t != nil && t.memory {
		return nil
	}
	own, err := ownCgroup("memory")
	if err != nil {
		return nil
	}
	removeStale(own, log)
	self, err := readStat(os.Getpid())
	if err != nil {
		return nil
	}
	base := filepath.Join(own, fmt.Sprintf("%s%d-%d", subtreePrefix, os.Getpid(), self.start))
	path := base
	for i := 1; ; i++ {
		if err = os.Mkdir(path, 0o755); err == nil {
			break
		}
		if !errors.Is(err, os.ErrExist) || i > 1000 {
			return nil
		}
		path = base + "-" + strconv.Itoa(i)
	}
	m := &memoryV1{own: own, path: path}
	if m.dir, err = os.Open(path); err == nil {
		err = unix.Flock(int(m.dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		_ = m.close()
		return nil
	}
	return m
}

func (m *memoryV1) make(bytes int64) (*memoryLeaf, error) {
	m.mu.Lock()
	m.next++
	name := "p" + strconv.Itoa(m.next)
	m.mu.Unlock()
	l := &memoryLeaf{path: filepath.Join(m.path, name), home: m.own}
	if err := os.Mkdir(l.path, 0o755); err != nil {
		return nil, err
	}
	value := strconv.FormatInt(bytes, 10)
	err := writeFile(filepath.Join(l.path, "memory.limit_in_bytes"), value)
	if err == nil {
		// With swap the tree would outgrow its limit. The file is missing where swap
		// is not accounted.
		err = writeFile(filepath.Join(l.path, "memory.memsw.limit_in_bytes"), value)
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return nil, errors.Join(err, l.remove())
	}
	return l, nil
}

func (m *memoryV1) close() error {
	err := removeTree(m.path, killWait)
	if m.dir != nil {
		err = errors.Join(err, m.dir.Close())
	}
	return err
}

// bound gives the tree of c its memory limit.
func (f *Forker) bound(c *Child, bytes int64) (*memoryLeaf, error) {
	fail := func(err error) (*memoryLeaf, error) {
		return nil, &StartError{Kind: MemoryLimit, Err: errors.Join(ErrNoMemoryLimit, err)}
	}
	if c.leaf != nil && f.tree.memory {
		c.leaf.spent.Store(true) // its limit and its charges are this tree's
		if err := writeFile(filepath.Join(c.leaf.path, "memory.max"), strconv.FormatInt(bytes, 10)); err != nil {
			return fail(err)
		}
		err := writeFile(filepath.Join(c.leaf.path, "memory.swap.max"), "0")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fail(err)
		}
		return nil, nil
	}
	if f.limit == nil {
		return fail(nil)
	}
	l, err := f.limit.make(bytes)
	if err != nil {
		return fail(err)
	}
	return l, nil
}

// join moves the calling thread into the leaf, so that what it forks is born there,
// and gives the way back. A v1 cgroup is a matter of threads. Nil joins nothing.
func (l *memoryLeaf) join() (leave func() error, err error) {
	if l == nil {
		return func() error { return nil }, nil
	}
	tid := strconv.Itoa(unix.Gettid())
	if err := writeFile(filepath.Join(l.path, "tasks"), tid); err != nil {
		return nil, err
	}
	return func() error { return writeFile(filepath.Join(l.home, "tasks"), tid) }, nil
}

func (l *memoryLeaf) oomKills() (uint64, error) {
	text, err := os.ReadFile(filepath.Join(l.path, "memory.oom_control"))
	if err != nil {
		return 0, err
	}
	n, ok := keyed(text, "oom_kill")
	if !ok {
		return 0, fmt.Errorf("%s: memory.oom_control without oom_kill", l.path)
	}
	return n, nil
}

// remove waits a little: v1 keeps a cgroup busy until its last exit is complete.
func (l *memoryLeaf) remove() error {
	if l == nil {
		return nil
	}
	return removeTree(l.path, 500*time.Millisecond)
}

// oomKilled says whether the kernel killed a member of the tree for want of memory.
func (c *Child) oomKilled() bool {
	var n uint64
	var err error
	switch {
	case c.memory != nil:
		n, err = c.memory.oomKills()
	case c.leaf != nil && c.forker.tree.memory:
		n, err = c.leaf.oomKills()
	}
	if err != nil {
		c.forker.log.Warn("the memory events of a tree could not be read", "pid", c.PID, "err", err)
	}
	return n > 0
}
