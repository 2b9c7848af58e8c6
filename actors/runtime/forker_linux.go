package runtime

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	goruntime "runtime"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxWaitingStarts bounds the starts that hold descriptors while they wait for the
// forking thread. Further callers wait without holding anything.
const maxWaitingStarts = 64

// Forker forks children, from an operating-system thread of its own where the child
// needs one (its umask, its limits).
type Forker struct {
	log   *slog.Logger
	self  int
	null  *os.File  // the stdin of everything that has none
	tree  *subtree  // nil: scan only
	limit *memoryV1 // nil: memory is bounded by the leaves of tree, or not at all
	// orphansOnMain says that orphans are seen to become children of the main thread,
	// so that its list of children tells at once that there are none. It is found out
	// when it is first needed.
	orphansOnMain func() bool

	slots chan struct{} // one per waiting start
	jobs  chan *job     // unbuffered: an accepted job is always answered
	stop  chan struct{}
	ended sync.WaitGroup // the forking loop and the reaper
	once  sync.Once
	err   error // of Close

	// forking is held shared from before a fork until the child is registered, and
	// exclusively while Sweep decides whose zombie it sees: else a child that exits
	// at once would be taken for an orphan.
	forking sync.RWMutex

	mu   sync.Mutex
	live map[int]*Child // guarded by mu; forked and not reaped
}

// job is one fork for the forking thread.
type job struct {
	child   *Child
	spec    *Spec
	program string
	attr    syscall.ProcAttr
	sys     syscall.SysProcAttr
	done    chan error // buffered, one answer
}

// NewForker starts the forking thread, makes the process a child subreaper, its
// descriptors from 3 on close-on-exec and its umask [DefaultUmask], finds out what cgroups can be had here by using
// them, and removes what dead keepers left.
func NewForker(cfg Config) (*Forker, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("runtime: become a child subreaper: %w", err)
	}
	// What this process itself was born with must not reach every child. Go's own
	// descriptors are close-on-exec already. Linux 5.11; before, they are what they are.
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		cfg.Logger.Info("inherited descriptors may reach children", "err", err)
	}
	unix.Umask(DefaultUmask) // of what is forked without the forking thread
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("runtime: %w", err)
	}
	f := &Forker{
		log: cfg.Logger, self: os.Getpid(), null: null,
		slots: make(chan struct{}, maxWaitingStarts),
		jobs:  make(chan *job),
		stop:  make(chan struct{}),
		live:  make(map[int]*Child),
	}
	f.orphansOnMain = sync.OnceValue(f.probeOrphans)
	ready := make(chan error, 1)
	f.ended.Add(2)
	go f.forkLoop(ready) // ends on f.stop
	go f.reapLoop()      // ends on f.stop
	if err := <-ready; err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := f.openCgroups(cfg.Cgroup); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// openCgroups makes and probes the subtree. A configured directory must work; a
// discovered one that does not is left alone, and said in the log.
func (f *Forker) openCgroups(where string) error {
	if where == "off" {
		f.orphansOnMain() // now, not at the first exit
		return nil
	}
	tree, err := newSubtree(where, f.log)
	if err == nil {
		f.tree = tree
		if err = f.probe(); err != nil {
			f.tree = nil
			err = errors.Join(err, tree.close())
		}
	}
	if err != nil {
		if where != "" {
			return fmt.Errorf("runtime: cgroup %s: %w", where, err)
		}
		f.log.Info("no cgroup v2 leaf can be used; trees are found by scanning", "err", err)
		f.orphansOnMain()
	}
	f.limit = newMemoryV1(f.tree, f.log)
	return nil
}

// Cgroup is the directory of the subtree, or empty in scan mode. Whoever finds this
// process dead may end all its children there.
func (f *Forker) Cgroup() string {
	if f.tree == nil {
		return ""
	}
	return f.tree.path
}

// Close ends the forking thread and the reaper, waits for them, kills what is left in
// the subtree and removes it; without one it does [Forker.EndStrays]. Children should have
// been stopped and closed before.
func (f *Forker) Close() error {
	f.once.Do(func() {
		close(f.stop)
		// Starts that are under way use what is closed below. Holding all slots, this
		// waits for them and lets no new one in.
		for range cap(f.slots) {
			f.slots <- struct{}{}
		}
		f.ended.Wait()
		errs := []error{f.EndStrays()}
		if f.limit != nil {
			errs = append(errs, f.limit.close())
		}
		if f.tree != nil {
			errs = append(errs, f.tree.close())
		}
		errs = append(errs, f.null.Close())
		f.err = errors.Join(errs...)
	})
	return f.err
}

// forkLoop owns the forking thread. The goroutine never unlocks it, so the thread ends
// with the loop and its private umask with the thread.
func (f *Forker) forkLoop(ready chan<- error) {
	goruntime.LockOSThread()
	if unix.Gettid() == f.self {
		// The main thread cannot end, and what is reparented to this process lands
		// among its children; keep forked children apart. While this goroutine holds
		// it, a new one must run elsewhere.
		started := make(chan struct{})
		go func() { // takes this loop's place, and its count in f.ended
			goruntime.LockOSThread()
			close(started)
			f.forkOn(ready)
		}()
		<-started
		goruntime.UnlockOSThread()
		return
	}
	f.forkOn(ready)
}

func (f *Forker) forkOn(ready chan<- error) {
	defer f.ended.Done()
	// From here on the umask and the working directory are this thread's own.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		ready <- fmt.Errorf("runtime: unshare the file system attributes of the forking thread: %w", err)
		return
	}
	umask := DefaultUmask
	unix.Umask(umask)
	ready <- nil
	for {
		select {
		case <-f.stop:
			return
		case j := <-f.jobs:
			if j.spec.Umask != umask {
				umask = j.spec.Umask
				unix.Umask(umask)
			}
			j.done <- f.fork(j)
		}
	}
}

// fork runs on the forking thread.
func (f *Forker) fork(j *job) error {
	f.forking.RLock()
	defer f.forking.RUnlock()
	leave, err := j.child.memory.join()
	if err != nil {
		return &StartError{Kind: MemoryLimit, Err: err}
	}
	j.sys.Ptrace = len(j.spec.Rlimits) > 0
	pid, err := syscall.ForkExec(j.program, j.spec.Argv, &j.attr)
	if lerr := leave(); lerr != nil {
		f.log.Error("the forking thread could not leave a memory cgroup", "err", lerr)
	}
	if err != nil {
		return err
	}
	j.child.PID = pid
	f.mu.Lock()
	f.live[pid] = j.child
	f.mu.Unlock()
	if j.sys.Ptrace {
		j.child.setupErr = limitAtExec(pid, j.spec.Rlimits) // killed when that fails
	}
	return nil
}

// Start starts s and returns when its program runs. Errors are a [wire.Error] for a
// bad Spec, a [*StartError], or [ErrClosed]; nothing is left behind by any of them.
func (f *Forker) Start(s Spec) (*Child, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	program, err := lookProgram(&s)
	if err != nil {
		return nil, err
	}
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	case <-f.stop:
		return nil, ErrClosed
	}
	c, err := f.start(&s, program)
	if errors.Is(err, unix.ENODEV) && f.tree != nil {
		// Somebody removed an idle leaf behind our back. It is gone from the pool.
		c, err = f.start(&s, program)
	}
	if err != nil && f.isClosed() {
		return nil, ErrClosed // and what failed was what Close took away
	}
	return c, err
}

func (f *Forker) isClosed() bool {
	select {
	case <-f.stop:
		return true
	default:
		return false
	}
}

func (f *Forker) start(s *Spec, program string) (_ *Child, err error) {
	c := &Child{forker: f, tag: s.Tag, exited: make(chan struct{}), fd: -1}
	files, err := c.open(s, f.null)
	if err != nil {
		return nil, err
	}
	defer func() {
		files.close()
		if err != nil {
			c.discard()
		}
	}()
	j := &job{child: c, spec: s, program: program, done: make(chan error, 1)}
	j.sys = syscall.SysProcAttr{Setsid: true, Setctty: s.TTY != nil, PidFD: &c.fd}
	if f.tree != nil {
		if c.leaf, err = f.tree.acquire(); err != nil {
			return nil, &StartError{Kind: StartOther, Err: err}
		}
		j.sys.UseCgroupFD, j.sys.CgroupFD = true, c.leaf.dir
	}
	if s.MemoryBytes > 0 {
		if c.memory, err = f.bound(c, s.MemoryBytes); err != nil {
			return nil, err
		}
	}
	j.attr = syscall.ProcAttr{Dir: s.Dir, Env: tagged(s.Env, s.Tag), Files: files.table(), Sys: &j.sys}
	if err := f.hand(j); err != nil {
		if errors.Is(err, unix.ENODEV) && c.leaf != nil {
			c.leaf.spent.Store(true)
		}
		var known *StartError
		if errors.As(err, &known) || errors.Is(err, ErrClosed) {
			return nil, err
		}
		return nil, explain(s, program, err)
	}
	if err := c.begin(); err != nil {
		return nil, err
	}
	return c, nil
}

// hand gives the job to the forking thread, and waits for it. A fork that asks nothing
// of the thread it comes from is done right here: the hand-over costs 57 µs, 4 % of a
// `bash -c true`. Without a cgroup every fork goes over the thread, because orphans are
// told from children by whose children they are.
func (f *Forker) hand(j *job) error {
	s := j.spec
	if f.tree != nil && s.Umask == DefaultUmask && len(s.Rlimits) == 0 && s.MemoryBytes == 0 {
		// Not from the main thread, whose children are taken for orphans.
		goruntime.LockOSThread()
		defer goruntime.UnlockOSThread()
		if unix.Gettid() != f.self {
			return f.fork(j)
		}
	}
	select {
	case f.jobs <- j:
		return <-j.done
	case <-f.stop:
		return ErrClosed
	}
}

// tagged is env with the tag as its only value of [TagVariable].
func tagged(env []string, tag string) []string {
	out := make([]string, 0, len(env)+1)
	for _, v := range env {
		if !strings.HasPrefix(v, TagVariable+"=") {
			out = append(out, v)
		}
	}
	return append(out, TagVariable+"="+tag)
}
