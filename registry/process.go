package registry

import (
	"context"
	"fmt"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// Life says whether a process record is of a process with no known end, or of one that
// has ended or will within the longest time limit; the latter is kept for a day more
// than [Retention].
type Life bool

// Lives.
const (
	Live  Life = true
	Ended Life = false
)

// CreateProcess writes the record of a new process.
func (r *Registry) CreateProcess(ctx context.Context, tenant string, rec *wire.ProcessRecord, life Life) (uint64, error) {
	wait, err := r.CreateProcessAsync(ctx, tenant, rec, life)
	if err != nil {
		return 0, err
	}
	return wait(ctx)
}

// CreateProcessAsync sends the record of a new process and leaves the wait to wait,
// which must be called exactly once and gives the revision. A process that ended
// meanwhile is created as Ended, in one write.
func (r *Registry) CreateProcessAsync(ctx context.Context, tenant string, rec *wire.ProcessRecord, life Life) (wait func(context.Context) (uint64, error), err error) {
	if err := check("worker", r.worker, "tenant", tenant, "process", rec.Process); err != nil {
		return nil, err
	}
	subject := r.root.Record(r.worker, tenant, subjects.KindProcess, rec.Process)
	return r.putAsync(ctx, subject, 0, life == Ended, rec)
}

func (r *Registry) putAsync(ctx context.Context, subject string, rev uint64, ended bool, rec any) (func(context.Context) (uint64, error), error) {
	w, err := r.prepare(r.records, subject, subject, rev, false, rec)
	if err != nil {
		return nil, err
	}
	if ended {
		w.header[bus.HeaderTTL] = []string{addressRetention.String()}
	}
	p, err := r.conn.AppendAsync(ctx, w.subject, w.header, w.data, w.expect())
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", subject, err)
	}
	return func(ctx context.Context) (uint64, error) {
		rev, err := p.Wait(ctx)
		if err != nil {
			rev, _, err = r.settle(ctx, w, err)
		}
		if err != nil {
			return 0, fmt.Errorf("write %s: %w", subject, err)
		}
		return rev, nil
	}, nil
}

// UpdateProcess replaces the record at rev: its owner after an adopt, or its end.
func (r *Registry) UpdateProcess(ctx context.Context, tenant string, rec *wire.ProcessRecord, rev uint64, life Life) (uint64, error) {
	if err := check("worker", rec.Worker, "tenant", tenant, "process", rec.Process); err != nil {
		return 0, err
	}
	subject := r.root.Record(rec.Worker, tenant, subjects.KindProcess, rec.Process)
	return r.update(ctx, subject, subject, rev, life == Ended, rec)
}

// Process reads a record by the process's id, whichever worker wrote it.
func (r *Registry) Process(ctx context.Context, tenant, id string) (*wire.ProcessRecord, uint64, error) {
	if err := check("tenant", tenant, "process", id); err != nil {
		return nil, 0, err
	}
	return last[wire.ProcessRecord](ctx, r, r.root.RecordFilter(tenant, subjects.KindProcess, id))
}
