package actors

import (
	"context"
	"syscall"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// Spawner forks. The keeper is the real one; tests that drive time use a fake.
type Spawner interface {
	// Spawn forks one command and returns when its exec has succeeded. Errors are
	// *wire.Error of code spawn_failed, workdir_not_found, pty_unavailable,
	// capability_missing or process_quota_exceeded; then there is no process.
	Spawn(ctx context.Context, s keeper.Spawn) (Child, error)
}

// Child is one command that the keeper holds. Its end arrives as keeper.Event.
type Child interface {
	// Stop asks the keeper for the end of the tree; the first cause wins there.
	Stop(ctx context.Context, cause wire.Reason, mode keeper.Mode, grace time.Duration) error
	Signal(ctx context.Context, sig syscall.Signal) error
	KillLeftovers(ctx context.Context) error
	// Pump moves output into the sink, from chunk next on, and returns when the
	// streams are at their end or ctx is.
	Pump(ctx context.Context, sink keeper.Sink, next int64) error
	// Trim frees the journal below a raw offset; Release forgets the command.
	Trim(raw int64)
	Release(ctx context.Context) error
}

// Input is the way into a command that has one.
type Input interface {
	WriteInput(ctx context.Context, offset int64, p []byte) (int, error)
	CloseInput(ctx context.Context) error
	Resize(ctx context.Context, size wire.WindowSize) error
	InputOffset() int64
}

// store is what a process needs of the registry.
type store interface {
	// CreateExecution is the right to fork: existing is set when somebody holds the id.
	CreateExecution(ctx context.Context, tenant string, rec *wire.ExecutionRecord) (rev uint64, existing *wire.ExecutionRecord, err error)
	UpdateExecution(ctx context.Context, tenant string, rec *wire.ExecutionRecord, rev uint64) (uint64, error)
	// CreateProcessAsync sends the write and returns the wait for its ack.
	CreateProcessAsync(ctx context.Context, tenant string, rec *wire.ProcessRecord, life registry.Life) (wait func(context.Context) (uint64, error), err error)
	UpdateProcess(ctx context.Context, tenant string, rec *wire.ProcessRecord, rev uint64, life registry.Life) (uint64, error)
}

// feed takes the observations of one process; it never blocks.
type feed interface {
	Started(wire.EventStatus)
	Backgrounded(wire.EventStatus)
	OutputFunc(size int, render func() wire.Chunk)
	State(wire.EventStatus)
	Finished(wire.EventStatus)
	Dropped() int64
}

// keeperSpawner gives the keeper's client the shape of a Spawner.
type keeperSpawner struct{ c *keeper.Client }

func (k keeperSpawner) Spawn(ctx context.Context, s keeper.Spawn) (Child, error) {
	p, err := k.c.Spawn(ctx, s)
	if err != nil {
		return nil, err
	}
	return p, nil
}
