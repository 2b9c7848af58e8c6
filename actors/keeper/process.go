package keeper

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/limpet-sh/limpet/actors/runtime"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// Spawn says what to run. It is executed as it is: no shell is put in front, no
// variable added.
type Spawn struct {
	// Process is the id, 1..64 bytes, unique in the keeper.
	Process string
	// Path is the program; Argv[0] looked up in PATH of Env when empty.
	Path string
	Argv []string
	// Env is the whole environment, NAME=value each.
	Env []string
	// Dir is an absolute directory; "/" when empty.
	Dir string
	// Stdin gives the process a pipe to read from; /dev/null otherwise. A terminal has
	// its input always.
	Stdin bool
	// TTY gives the process a terminal of this size; its output is all stdout.
	TTY *wire.WindowSize
	// Merged sends stderr where stdout goes.
	Merged bool
	// Descriptors are further descriptors, 3..64, each number once, with input or output;
	// none with TTY. An input can be read to its end, also again by opening /dev/fd/N. An
	// output is stream N of the one log, like stdout and stderr.
	Descriptors []wire.Descriptor
	// CaptureState gives the process a file to write at descriptor
	// [runtime.StateDescriptor], of which [Exited.State] has the content. It takes
	// [runtime.MaxState] bytes from its start; writes beyond fail with EPERM. Whoever
	// inherits it holds nothing up.
	CaptureState bool
	// Umask of the process, 0..0o777.
	Umask int
	// Limits are applied before the exec; nil means none.
	Limits *wire.Limits
	// Timeout ends the process with reason timeout, whether a worker lives or not;
	// 0 means never. Grace is then the time between TERM and KILL; 0 kills at once.
	Timeout, Grace time.Duration
	// Backlog bounds the journal: bytes that were read and not yet trimmed. Beyond it
	// the process waits for the sink. At least 128 KiB; 0 means 256 KiB and 4 MiB.
	Backlog int64
	// Meta is handed back at adoption, as it is; at most 64 KiB.
	Meta []byte
}

const maxMeta = 64 << 10

func (s *Spawn) request() (*spawnRequest, error) {
	switch {
	case s.Process == "" || len(s.Process) > 64:
		return nil, wire.Invalid("process", "1 to 64 bytes")
	case len(s.Argv) == 0:
		return nil, wire.Invalid("argv", "at least the program")
	case len(s.Meta) > maxMeta:
		return nil, wire.Invalid("meta", "%d bytes, at most %d", len(s.Meta), maxMeta)
	case s.Umask < 0 || s.Umask > 0o777:
		return nil, wire.Invalid("umask", "0 to 0o777")
	case s.Timeout < 0 || s.Grace < 0:
		return nil, wire.Invalid("timeout", "not negative")
	case s.Backlog < 0 || (s.Backlog > 0 && s.Backlog < minBacklog):
		return nil, wire.Invalid("backlog", "at least %d bytes", minBacklog)
	}
	r := &spawnRequest{
		Process: s.Process, Path: []byte(s.Path), Argv: asBytes(s.Argv), Env: asBytes(s.Env), Dir: []byte(s.Dir),
		Stdin: s.Stdin, TTY: s.TTY, Merged: s.Merged, Umask: s.Umask, Limits: s.Limits,
		TimeoutNS: int64(s.Timeout), GraceNS: int64(s.Grace), Backlog: s.Backlog, Meta: s.Meta,
		Descriptors: s.Descriptors, State: s.CaptureState,
	}
	if r.Backlog == 0 {
		r.Backlog = defaultBacklog
	}
	return r, nil
}

// Process is one command that the keeper holds, seen by its worker.
type Process struct {
	client *Client
	info   processInfo
	slot   *slot

	fate
	output pump
	input  input
}

// fate is what has been delivered about a process.
type fate struct {
	exited atomic.Pointer[Exited]
	gone   atomic.Pointer[Gone]
}

// note keeps what an event says, before it is delivered.
func (f *fate) note(e Event) {
	if e.Exited != nil {
		f.exited.Store(e.Exited)
	}
	if e.Gone != nil {
		f.gone.Store(e.Gone)
	}
}

// Spawn forks one command and returns when its exec has succeeded. Errors are
// *wire.Error of code spawn_failed, workdir_not_found, pty_unavailable,
// capability_missing, process_quota_exceeded or invalid_arguments; then there is no
// process. If ctx ends first, or [Client.Close] comes first, a process
// that comes to be is killed and forgotten.
func (c *Client) Spawn(ctx context.Context, s Spawn) (*Process, error) {
	request, err := s.request()
	if err != nil {
		return nil, err
	}
	if c.arena == nil {
		return nil, wire.Errorf(wire.CodeUnavailable, "spawn: not attached")
	}
	early := new(fate)
	if err := c.expect(s.Process, early); err != nil {
		return nil, err
	}
	defer c.asking.Done()
	p, err := c.spawn(ctx, request)
	c.mu.Lock()
	delete(c.starting, s.Process)
	closing := c.closing
	if err == nil && !closing {
		p.exited.Store(early.exited.Load())
		p.gone.Store(early.gone.Load())
		c.processes[s.Process] = p
	}
	c.mu.Unlock()
	switch {
	case err != nil:
		return nil, fmt.Errorf("spawn %s: %w", s.Process, err)
	case closing: // Close waits for this before it says good-bye
		p.closeFiles()
		_ = c.link.send(context.Background(), kindRelease, 0, processRequest{Process: s.Process})
		return nil, wire.Errorf(wire.CodeUnavailable, "spawn: %v", errClosed)
	}
	return p, nil
}

// expect makes room for events of a process that is about to be, and holds Close up
// until asking.Done.
func (c *Client) expect(process string, early *fate) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return wire.Errorf(wire.CodeUnavailable, "spawn: %v", errClosed)
	}
	if c.processes[process] != nil || c.starting[process] != nil {
		return wire.Invalid("process", "there is a process %s already", process)
	}
	c.starting[process] = early
	c.asking.Add(1)
	return nil
}

func (c *Client) spawn(ctx context.Context, request *spawnRequest) (*Process, error) {
	var info processInfo
	f, err := c.call(ctx, kindSpawn, request, &info)
	if err != nil {
		return nil, err
	}
	info.Meta = request.Meta
	p, err := c.newProcess(info, f.descriptors)
	if err == nil {
		if p.slot, err = c.arena.slot(info.Slot, info.Wide); err != nil {
			p.closeFiles()
		}
	}
	if err != nil {
		_ = c.link.send(context.Background(), kindRelease, 0, processRequest{Process: info.Process})
		return nil, err
	}
	return p, nil
}

// newProcess takes the descriptors that came with info, also when it fails.
func (c *Client) newProcess(info processInfo, fds []int) (*Process, error) {
	p := &Process{client: c, info: info}
	p.exited.Store(info.Exited)
	p.gone.Store(info.Gone)
	p.output.process = p
	p.output.trims = make(chan struct{}, 1)
	p.input.process = p
	next := func(name string) (*os.File, error) {
		if len(fds) == 0 {
			return nil, fmt.Errorf("process %s: %w: no descriptor for %s", info.Process, errFrame, name)
		}
		fd := fds[0]
		fds = fds[1:]
		return pollable(fd, name)
	}
	var err error
	for _, d := range []struct {
		there bool
		name  string
		file  **os.File
	}{
		{info.Stdout, "stdout", &p.output.stdout},
		{info.Stderr, "stderr", &p.output.stderr},
		{info.Stdin, "stdin", &p.input.stdin},
		{info.Master, "terminal", &p.output.master},
	} {
		if d.there && err == nil {
			*d.file, err = next(d.name)
		}
	}
	for _, n := range info.Outputs {
		if err == nil {
			o := runtime.Output{Number: n}
			if o.File, err = next("output"); err == nil {
				p.output.extra = append(p.output.extra, o)
			}
		}
	}
	switch {
	case !info.Between || err != nil:
	case len(fds) < 2:
		err = fmt.Errorf("process %s: %w: no descriptors for the pipe of its terminal", info.Process, errFrame)
	default:
		p.output.between = &[2]int{fds[0], fds[1]}
		fds = fds[2:]
	}
	if info.Journal > 0 && err == nil && len(fds) >= 1 {
		p.output.journal = &journal{number: info.Journal - 1, fd: fds[0]}
		fds = fds[1:]
	}
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	if err != nil {
		p.closeFiles()
		return nil, err
	}
	return p, nil
}

// ID is the id that the worker gave.
func (p *Process) ID() string { return p.info.Process }

// PID is the process id of the command. It says nothing once the command has ended.
func (p *Process) PID() int { return p.info.PID }

// StartedAt is when it was forked.
func (p *Process) StartedAt() time.Time { return time.Unix(0, p.info.StartedNS).UTC() }

// Deadline is when the keeper will end it; the zero time for never.
func (p *Process) Deadline() time.Time {
	if p.info.Deadline == 0 {
		return time.Time{}
	}
	return time.Unix(0, p.info.Deadline).UTC()
}

// Meta is what the worker that spawned it gave.
func (p *Process) Meta() []byte { return p.info.Meta }

// Exited is the exit, nil while none has been delivered.
func (p *Process) Exited() *Exited { return p.exited.Load() }

// Gone is the result of a stop, nil while none has been delivered.
func (p *Process) Gone() *Gone { return p.gone.Load() }

// Signal sends one signal to the process group. A command that has ended is not_found.
func (p *Process) Signal(ctx context.Context, sig syscall.Signal) error {
	_, err := p.client.call(ctx, kindSignal, signalRequest{Process: p.info.Process, Signal: int(sig)}, nil)
	return err
}

// Stop asks for the end of the tree and returns when the keeper has accepted. The end
// arrives as events. The cause of the first accepted stop, or of the deadline, is the
// one that Exited carries. A second stop can only be harder: Kill ends the grace of a
// Terminate. A tree that is gone is left alone, without an error and without events.
func (p *Process) Stop(ctx context.Context, cause wire.Reason, mode Mode, grace time.Duration) error {
	_, err := p.client.call(ctx, kindStop, stopRequest{
		Process: p.info.Process, Cause: cause, Mode: mode, GraceNS: int64(max(0, grace)),
	}, nil)
	return err
}

// leftoverGrace is A44's: what a command leaves behind gets TERM and half a second.
const leftoverGrace = 500 * time.Millisecond

// KillLeftovers ends what lives on after the command: TERM, 500 ms, KILL. The result
// arrives as Gone. While the command runs it is refused with invalid_arguments.
func (p *Process) KillLeftovers(ctx context.Context) error {
	_, err := p.client.call(ctx, kindStop, stopRequest{
		Process: p.info.Process, Mode: leftovers, GraceNS: int64(leftoverGrace),
	}, nil)
	return err
}

// Release makes worker and keeper forget the process: descriptors are closed, slot,
// journal and cgroup leaf go back. It does not wait for the keeper. A tree that still
// lives is killed first. A pump under way is stopped; the process must not be used
// afterwards. Releasing twice is harmless.
func (p *Process) Release(ctx context.Context) error {
	c := p.client
	c.mu.Lock()
	known := c.processes[p.info.Process] == p
	delete(c.processes, p.info.Process)
	c.mu.Unlock()
	if !known {
		return nil
	}
	p.output.stop(errReleased)
	p.output.giveJournal()
	p.closeFiles()
	// Not bounded by ctx: nothing would tell the keeper later.
	return c.link.send(context.WithoutCancel(ctx), kindRelease, 0, processRequest{Process: p.info.Process})
}

// closeFiles closes what this side has open of the process.
func (p *Process) closeFiles() {
	p.input.shut()
	p.output.closeFiles()
}

func asBytes(list []string) [][]byte {
	out := make([][]byte, len(list))
	for i, s := range list {
		out[i] = []byte(s)
	}
	return out
}

func asStrings(list [][]byte) []string {
	out := make([]string, len(list))
	for i, b := range list {
		out[i] = string(b)
	}
	return out
}
