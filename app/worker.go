package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/limpet-sh/limpet/actors"
	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
)

// WorkerOptions of a worker with its keeper beside it.
type WorkerOptions struct {
	// Name in every subject; required.
	Name string
	// Dir is the worker's directory, absolute; required. One worker and one keeper use it.
	Dir string
	// Bus says how to connect as the worker; required.
	Bus bus.Config
	// Cwd of sessions that give none.
	Cwd string
	// ShipBytes of each output go to the OUTPUT stream; -1 none, default 1 MiB.
	ShipBytes int64
	Keeper    KeeperOptions
	Logger    *slog.Logger
}

// KeeperOptions say how the keeper is started where none runs.
type KeeperOptions struct {
	// Exe is this binary, by default /proc/self/exe; a test gives its own.
	Exe string
	// Config but for Dir and Exe.
	Config keeper.Config
	// End ends the keeper with the worker: what is private ends with its owner.
	End bool
}

// Worker is a worker role.
type Worker struct {
	opts WorkerOptions
	up   chan struct{}
}

// NewWorker checks the options.
func NewWorker(o WorkerOptions) (*Worker, error) {
	if err := subjects.CheckToken("name", o.Name); err != nil {
		return nil, err
	}
	if o.Dir == "" {
		return nil, errors.New("dir: a worker needs a directory")
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Worker{opts: o, up: make(chan struct{})}, nil
}

// Up is closed when the worker serves requests.
func (w *Worker) Up() <-chan struct{} { return w.up }

// Run starts the keeper where none runs, boots an incarnation and serves until ctx
// ends. A second worker on the same directory is refused.
func (w *Worker) Run(ctx context.Context) error {
	o := w.opts
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return fmt.Errorf("worker directory: %w", err)
	}
	unlock, err := lock(o.Dir + "/worker.lock")
	if err != nil {
		return fmt.Errorf("worker directory %s: %w", o.Dir, err)
	}
	defer unlock()
	k := o.Keeper.Config
	k.Dir, k.Exe = o.Dir, o.Keeper.Exe
	cmd, err := keeper.Ensure(ctx, k)
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	defer reap(cmd)
	if o.Keeper.End {
		defer w.endKeeper(stopKeeper)
	}
	control, err := w.connect(ctx, "control")
	if err != nil {
		return err
	}
	defer control.Close()
	events, err := w.connect(ctx, "events")
	if err != nil {
		return err
	}
	defer events.Close()
	output := events
	if o.ShipBytes != -1 {
		if output, err = w.connect(ctx, "output"); err != nil {
			return err
		}
		defer output.Close()
	}
	a, err := actors.New(actors.Config{
		Name: o.Name, Dir: o.Dir, Control: control, Events: events, Output: output, Cwd: o.Cwd, ShipBytes: o.ShipBytes,
		Environ: os.Environ(), Build: Version(), Logger: o.Logger,
		OnUp: func() { close(w.up) },
	})
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// stopKeeper is the time from TERM to KILL of a keeper that ends with its worker.
const stopKeeper = 10 * time.Second

// endKeeper ends the keeper of our directory, which ends what it still holds. One that
// has not ended after patience is killed.
func (w *Worker) endKeeper(patience time.Duration) {
	path := filepath.Join(w.opts.Dir, "keeper.lock")
	pid, fd, err := holder(path)
	if err != nil {
		if unlock, lerr := lock(path); lerr == nil {
			unlock() // nobody holds it: there is no keeper
			return
		}
		w.opts.Logger.Warn("end the keeper", "err", err)
		return
	}
	defer unix.Close(fd)
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		err := unix.PidfdSendSignal(fd, sig, nil, 0)
		if err == nil {
			err = waitPidfd(fd, patience)
		}
		if err == nil || errors.Is(err, unix.ESRCH) {
			return
		}
		w.opts.Logger.Warn("end the keeper", "pid", pid, "signal", sig, "err", err)
	}
}

// reap waits for a keeper that we started and that has ended; one that lives on is
// left to whoever comes after us.
func reap(cmd *exec.Cmd) {
	if cmd == nil {
		return
	}
	var ws unix.WaitStatus
	_, _ = unix.Wait4(cmd.Process.Pid, &ws, unix.WNOHANG, nil)
}

func (w *Worker) connect(ctx context.Context, role string) (*bus.Conn, error) {
	c := w.opts.Bus
	c.Name = w.opts.Name + " " + role
	c.Logger = w.opts.Logger
	conn, err := bus.Connect(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("connect %s: %w", role, err)
	}
	return conn, nil
}

// lock takes the flock of a file, which the kernel frees when we die.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { _ = f.Close() }, nil
}

var errLocked = errors.New("another process uses it")
