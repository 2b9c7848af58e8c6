package keeper

import (
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/limpet-sh/limpet/actors/runtime"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// spawn answers one start. The watch begins after the answer, so that no event comes
// before it.
func (s *session) spawn(f frame) {
	var r spawnRequest
	err := f.decode(&r)
	if err == nil {
		err = r.validate()
	}
	if err == nil && !s.keeper.serves(s) {
		err = wire.Errorf(wire.CodeUnavailable, "this connection is not the attached worker")
	}
	if err != nil {
		_ = s.reply(f.id, nil, nil, err)
		return
	}
	k := s.keeper
	c, err := k.start(&r)
	if err != nil {
		_ = s.reply(f.id, nil, nil, err)
		return
	}
	info := c.info
	info.Meta = nil // the worker has it
	fds := c.descriptors(&info)
	s.announce(f.id, c, info, fds)
	k.work.Go(func() { k.watch(c) }) // ends with the command
	k.mu.Lock()
	closing := k.closing
	k.mu.Unlock()
	if closing { // stopAll may have looked before start put c in the list
		_ = k.stop(c, wire.ReasonWorkerLost, Kill, 0)
	}
}

// announce answers a start with the process. Where its descriptors cannot be passed,
// the process is ended and the start has failed. Where the connection has ended, the
// process runs on: the next worker adopts it.
func (s *session) announce(id uint64, c *child, info processInfo, fds []int) {
	err := s.reply(id, info, fds, nil)
	if err == nil || !refused(err) {
		return
	}
	s.keeper.release(c)
	_ = s.reply(id, nil, nil, quota(err))
}

func (r *spawnRequest) validate() error {
	switch {
	case r.Process == "" || len(r.Process) > 64:
		return wire.Invalid("process", "1 to 64 bytes")
	case len(r.Argv) == 0:
		return wire.Invalid("argv", "at least the program")
	case len(r.Meta) > maxMeta:
		return wire.Invalid("meta", "at most %d bytes", maxMeta)
	case r.TimeoutNS < 0 || r.GraceNS < 0:
		return wire.Invalid("timeout_ns", "not negative")
	case r.Backlog < minBacklog:
		return wire.Invalid("backlog", "at least %d bytes", minBacklog)
	}
	return nil
}

// start forks r and registers the child.
func (k *keeper) start(r *spawnRequest) (_ *child, err error) {
	if err := k.reserve(r.Process); err != nil {
		return nil, err
	}
	c := &child{done: make(chan struct{}), ended: make(chan struct{})}
	defer func() {
		if err != nil {
			k.undo(c, r.Process)
		}
	}()
	if c.slot, err = k.slot(r.wide()); err != nil {
		return nil, err
	}
	if r.TTY != nil {
		c.between = new([2]int)
		if err := unix.Pipe2(c.between[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			c.between = nil
			return nil, quota(os.NewSyscallError("pipe2", err))
		}
	}
	began := time.Now()
	if c.tree, err = k.forker.Start(r.spec()); err != nil {
		return nil, quota(err)
	}
	c.info = processInfo{
		Process: r.Process, PID: c.tree.PID, StartedNS: began.UnixNano(), Slot: c.slot.number,
		TTY: r.TTY != nil, Backlog: r.Backlog, Meta: r.Meta,
		Stdout: c.tree.Stdout != nil, Stderr: c.tree.Stderr != nil, Stdin: c.tree.Stdin != nil,
		Master: c.tree.Master != nil, Between: c.between != nil, Wide: c.slot.wide,
	}
	for _, o := range c.tree.Outputs {
		c.info.Outputs = append(c.info.Outputs, o.Number)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.children[r.Process] = c
	if r.TimeoutNS > 0 {
		timeout, grace := time.Duration(r.TimeoutNS), time.Duration(r.GraceNS)
		c.info.Deadline = began.Add(timeout).UnixNano()
		mode := Terminate
		if grace == 0 {
			mode = Kill
		}
		c.deadline = time.AfterFunc(time.Until(began.Add(timeout)), func() {
			_ = k.stop(c, wire.ReasonTimeout, mode, grace) // its mode is right
		})
	}
	return c, nil
}

// reserve takes an id.
func (k *keeper) reserve(process string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closing {
		return wire.Errorf(wire.CodeSupervisorShuttingDown, "the keeper ends")
	}
	if _, taken := k.names[process]; taken {
		return wire.Invalid("process", "the keeper holds a process %s already", process)
	}
	k.names[process] = struct{}{}
	return nil
}

// undo takes back a start that failed.
func (k *keeper) undo(c *child, process string) {
	if c.between != nil {
		_ = unix.Close(c.between[0])
		_ = unix.Close(c.between[1])
	}
	if c.slot != nil {
		k.freeSlot(c.slot)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.names, process)
}

// quota tells the host's own limits from what is wrong with the command.
func quota(err error) error {
	for _, full := range []error{unix.EMFILE, unix.ENFILE, unix.EAGAIN, unix.ENOMEM, unix.ENOSPC, unix.ETOOMANYREFS} {
		if errors.Is(err, full) {
			return wire.Errorf(wire.CodeProcessQuotaExceeded, "the host has no room for one more process: %v", full)
		}
	}
	return err
}

// wide: there are more streams than stdout and stderr.
func (r *spawnRequest) wide() bool {
	return slices.ContainsFunc(r.Descriptors, func(d wire.Descriptor) bool { return d.Output })
}

func (r *spawnRequest) spec() runtime.Spec {
	s := runtime.Spec{
		Argv: asStrings(r.Argv), Path: string(r.Path), Env: asStrings(r.Env), Dir: string(r.Dir),
		Stdin: r.Stdin, Merged: r.Merged, Umask: r.Umask, Tag: r.Process,
		Descriptors: r.Descriptors, State: r.State,
	}
	if s.Dir == "" {
		s.Dir = "/"
	}
	if r.TTY != nil {
		s.TTY = &runtime.Size{Rows: uint16(r.TTY.Rows), Cols: uint16(r.TTY.Cols)}
	}
	if r.Limits != nil {
		s.MemoryBytes = r.Limits.MemoryBytes
		s.Rlimits = rlimits(r.Limits)
	}
	return s
}

// rlimits: zero is no limit of ours, but for core files, which are then not written.
func rlimits(l *wire.Limits) []runtime.Rlimit {
	out := []runtime.Rlimit{{Resource: unix.RLIMIT_CORE, Value: uint64(max(0, l.CoreBytes))}}
	for _, x := range []struct {
		resource int
		value    int64
	}{
		{unix.RLIMIT_CPU, l.CPUSeconds},
		{unix.RLIMIT_NOFILE, l.OpenFiles},
		{unix.RLIMIT_NPROC, l.Processes},
		{unix.RLIMIT_FSIZE, l.FileBytes},
		{unix.RLIMIT_STACK, l.StackBytes},
	} {
		if x.value > 0 {
			out = append(out, runtime.Rlimit{Resource: x.resource, Value: uint64(x.value)})
		}
	}
	return out
}
