package registry

import (
	"context"
	"errors"
	"fmt"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// CreateExecution reserves an execution id: the right to fork. It returns the revision,
// or the record that already holds the id, with its revision, whichever worker wrote
// it; comparing request hashes is the caller's. A record that is born terminal (a
// cancel that came first) is kept for [Retention].
//
// After an error nothing may be forked. [bus.ErrUnknownOutcome] means that the id may
// be reserved all the same.
func (r *Registry) CreateExecution(ctx context.Context, tenant string, rec *wire.ExecutionRecord) (rev uint64, existing *wire.ExecutionRecord, err error) {
	if err := check("worker", r.worker, "tenant", tenant, "execution_id", rec.ExecutionID); err != nil {
		return 0, nil, err
	}
	w, err := r.prepare(r.records,
		r.root.Record(r.worker, tenant, subjects.KindExecution, rec.ExecutionID),
		r.root.RecordFilter(tenant, subjects.KindExecution, rec.ExecutionID),
		0, rec.Receipt.State.Terminal(), rec)
	if err != nil {
		return 0, nil, err
	}
	rev, other, err := r.put(ctx, w)
	if err == nil {
		return rev, nil, nil
	}
	if !errors.Is(err, ErrConflict) {
		return 0, nil, fmt.Errorf("create execution %s: %w", rec.ExecutionID, err)
	}
	existing, err = decode[wire.ExecutionRecord](other)
	if err != nil {
		return 0, nil, err
	}
	return other.Seq, existing, nil
}

// UpdateExecution replaces the record at rev, on the subject of the worker the receipt
// names. ErrConflict: another write came first; ErrNotFound: it is gone. A terminal
// record is kept for [Retention].
func (r *Registry) UpdateExecution(ctx context.Context, tenant string, rec *wire.ExecutionRecord, rev uint64) (uint64, error) {
	if err := check("worker", rec.Receipt.Worker, "tenant", tenant, "execution_id", rec.ExecutionID); err != nil {
		return 0, err
	}
	subject := r.root.Record(rec.Receipt.Worker, tenant, subjects.KindExecution, rec.ExecutionID)
	return r.update(ctx, subject, subject, rev, rec.Receipt.State.Terminal(), rec)
}

// update replaces what stands at rev in scope.
func (r *Registry) update(ctx context.Context, subject, scope string, rev uint64, ended bool, rec any) (uint64, error) {
	if rev == 0 {
		return 0, errors.New("registry: an update needs the revision it replaces")
	}
	w, err := r.prepare(r.records, subject, scope, rev, ended, rec)
	if err != nil {
		return 0, err
	}
	rev, _, err = r.put(ctx, w)
	if err != nil {
		return 0, fmt.Errorf("update %s: %w", subject, err)
	}
	return rev, nil
}

// Execution reads a record by its id, whichever worker wrote it.
func (r *Registry) Execution(ctx context.Context, tenant, id string) (*wire.ExecutionRecord, uint64, error) {
	if err := check("tenant", tenant, "execution_id", id); err != nil {
		return nil, 0, err
	}
	return last[wire.ExecutionRecord](ctx, r, r.root.RecordFilter(tenant, subjects.KindExecution, id))
}

// Executions lists the records of a tenant (all when empty): those of this registry's
// worker, or of all workers where it has none.
func (r *Registry) Executions(ctx context.Context, tenant string) ([]Entry[wire.ExecutionRecord], error) {
	return list[wire.ExecutionRecord](ctx, r, tenant, subjects.KindExecution)
}
