package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
)

// LocalOptions of everything in one process.
type LocalOptions struct {
	// State keeps records and the spool, and other commands find what runs by it. Empty:
	// everything is in memory and in one private directory.
	State State
	// Exe is run as the keeper; by default /proc/self/exe.
	Exe string
	// Cwd of sessions that give none.
	Cwd    string
	Logger *slog.Logger
}

// Local is NATS, gateway and worker in this process, with a keeper as its child. Without
// a state directory it is in memory, the keeper ends everything at once should this
// process die, and all files are in one private directory, which the next StartLocal or
// Up removes where Stop could not. With one, processes outlive a kill -9 of this process
// as they outlive that of an up.
type Local struct {
	host  *host
	state State
	dir   string // private; empty with a state directory
	free  func() // unlocks dir
	stop  context.CancelFunc
	done  <-chan struct{} // closed by stop
	own   sync.WaitGroup
	mu    sync.Mutex
	err   error // guarded by mu; why a part ended by itself
}

// StartLocal starts everything and returns when it serves.
func StartLocal(ctx context.Context, o LocalOptions) (_ *Local, err error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Exe == "" {
		o.Exe = "/proc/self/exe"
	}
	l := &Local{state: o.State}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.stop, l.done = cancel, own.Done()
	defer func() {
		if err != nil {
			l.Stop()
		}
	}()
	w, err := l.prepare(ctx, o)
	if err != nil {
		return nil, err
	}
	l.own.Go(func() { l.ended(w.Run(own)) })
	l.own.Go(func() { l.ended(l.host.gateway.Run(own)) })
	select {
	case <-w.Up():
		return l, l.announce()
	case <-own.Done():
		return nil, errors.Join(errors.New("a part did not start"), l.cause())
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// prepare starts the host and makes the worker.
func (l *Local) prepare(ctx context.Context, o LocalOptions) (*Worker, error) {
	removeDead(o.Logger)
	up := UpOptions{State: o.State, Logger: o.Logger}
	k := KeeperOptions{Exe: o.Exe, Config: keeper.Config{Window: AdoptionWindow}, End: true}
	dir := o.State.Worker()
	ship := int64(0)
	var err error
	if o.State != "" {
		if err = os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("state directory: %w", err)
		}
	} else {
		if l.dir, l.free, err = newPrivate(); err != nil {
			return nil, err
		}
		dir, k.Config.Window = filepath.Join(l.dir, "worker"), 0
		ship = -1 // to a store that ends with the worker
	}
	if l.host, err = startHost(ctx, up, l.dir); err != nil {
		return nil, err
	}
	return NewWorker(WorkerOptions{
		Name: WorkerName, Dir: dir, Cwd: o.Cwd, ShipBytes: ship, Logger: o.Logger,
		Bus: l.host.bus(subjects.RoleWorker, WorkerName), Keeper: k,
	})
}

// announce lets other commands find us, where we have a state directory.
func (l *Local) announce() error {
	if l.state == "" {
		return nil
	}
	if err := writeJSON(l.state.discovery(), l.host.discovery(l.state)); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	return nil
}

// Done is closed when a part has ended by itself; Stop then says why.
func (l *Local) Done() <-chan struct{} { return l.done }

// Bus is how to connect as the tenant.
func (l *Local) Bus(name string) bus.Config {
	c := l.host.bus(subjects.RoleTenant, Tenant)
	c.Name = name
	return c
}

func (l *Local) ended(err error) {
	l.mu.Lock()
	l.err = errors.Join(l.err, err)
	l.mu.Unlock()
	l.stop()
}

func (l *Local) cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Stop ends all processes and then everything. It returns what went wrong.
func (l *Local) Stop() error {
	if l.state != "" && l.host != nil {
		_ = os.Remove(l.state.discovery()) // first of all, as up does; it may not be there yet
	}
	l.stop()
	l.own.Wait()
	if l.host != nil {
		l.host.close()
	}
	err := l.cause()
	if l.dir != "" {
		err = errors.Join(err, os.RemoveAll(l.dir))
		l.free()
	}
	return err
}
