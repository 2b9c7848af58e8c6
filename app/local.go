package app

import (
	"context"
	"errors"
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
	// Exe is run as the keeper; by default /proc/self/exe.
	Exe string
	// Cwd of sessions that give none.
	Cwd    string
	Logger *slog.Logger
}

// Local is NATS, gateway and worker in this process, in memory, with a keeper as its
// child that ends everything at once should this process die. All its files are in one
// private directory, which the next StartLocal or Up removes where Stop could not.
type Local struct {
	host *host
	dir  string
	free func() // unlocks dir
	stop context.CancelFunc
	own  sync.WaitGroup
	mu   sync.Mutex
	err  error // guarded by mu; why a part ended by itself
}

// StartLocal starts everything and returns when it serves.
func StartLocal(ctx context.Context, o LocalOptions) (_ *Local, err error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Exe == "" {
		o.Exe = "/proc/self/exe"
	}
	l := &Local{}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = cancel
	defer func() {
		if err != nil {
			l.Stop()
		}
	}()
	removeDead(o.Logger)
	if l.dir, l.free, err = newPrivate(); err != nil {
		return nil, err
	}
	if l.host, err = startHost(ctx, UpOptions{Logger: o.Logger}, l.dir); err != nil {
		return nil, err
	}
	w, err := NewWorker(WorkerOptions{
		Name: WorkerName, Dir: filepath.Join(l.dir, "worker"), Cwd: o.Cwd, Logger: o.Logger,
		Bus:    l.host.bus(subjects.RoleWorker, WorkerName),
		Keeper: KeeperOptions{Exe: o.Exe, Config: keeper.Config{Window: 0}, End: true},
	})
	if err != nil {
		return nil, err
	}
	l.own.Go(func() { l.ended(w.Run(own)) })
	l.own.Go(func() { l.ended(l.host.gateway.Run(own)) })
	select {
	case <-w.Up():
		return l, nil
	case <-own.Done():
		return nil, errors.Join(errors.New("a part did not start"), l.cause())
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

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
