package registry

import (
	"context"
	"errors"
	"fmt"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// Worker is a worker's newest boot.
type Worker struct {
	Name        string
	Incarnation uint64
	Boot        *wire.BootRecord
}

// Boot writes the boot record of this registry's worker and returns its incarnation:
// the larger of the record's sequence and MinIncarnation. Incarnations of a worker
// only grow.
func (r *Registry) Boot(ctx context.Context, rec wire.BootRecord) (uint64, error) {
	if err := check("worker", r.worker); err != nil {
		return 0, err
	}
	if rec.Worker != r.worker {
		return 0, wire.Invalid("worker", "%q boots as %q", r.worker, rec.Worker)
	}
	ctx, cancel := patient(ctx)
	defer cancel()
	subject := r.root.Boot(r.worker)
	for {
		// Compared and set like any record: an attempt whose acknowledgement was lost
		// must not be stored later, behind the one we count as ours.
		var rev uint64
		now, err := r.conn.Last(ctx, r.boots, subject)
		switch {
		case err == nil:
			rev = now.Seq
		case !errors.Is(err, ErrNotFound):
			return 0, fmt.Errorf("boot %s: %w", r.worker, err)
		}
		w, err := r.prepare(r.boots, subject, subject, rev, false, &rec)
		if err != nil {
			return 0, err
		}
		seq, _, err := r.put(ctx, w)
		if err == nil {
			return incarnation(seq, &rec), nil
		}
		if !errors.Is(err, ErrConflict) {
			return 0, fmt.Errorf("boot %s: %w", r.worker, err)
		}
	}
}

func incarnation(seq uint64, rec *wire.BootRecord) uint64 { return max(seq, rec.MinIncarnation) }

// Workers lists the newest boot of each worker, oldest boot first, less those that
// cannot be decoded. Whether a worker
// still lives is for its lease to say.
func (r *Registry) Workers(ctx context.Context) ([]Worker, error) {
	stored, err := r.conn.LastPerSubject(ctx, r.boots, r.root.BootAll())
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	out := make([]Worker, 0, len(stored))
	for i := range stored {
		rec, err := decode[wire.BootRecord](&stored[i])
		if err != nil {
			r.passOver(&stored[i], err)
			continue
		}
		out = append(out, Worker{rec.Worker, incarnation(stored[i].Seq, rec), rec})
	}
	return out, nil
}
