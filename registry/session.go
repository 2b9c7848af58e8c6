package registry

import (
	"context"
	"errors"
	"fmt"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// kindSessionID holds pointers from a session's id to its name: the record is kept
// under the name, because the name is what must be unique.
const kindSessionID = "session-id"

type sessionPointer struct {
	Version int    `json:"version"`
	Name    string `json:"name"`
}

// CreateSession reserves a session's name, 1 to 64 letters, digits, '_' or '-'. It
// returns the revision, or the session that already holds the name (open or closed),
// with its revision, whichever worker wrote it. A closed one may be replaced by
// UpdateSession.
func (r *Registry) CreateSession(ctx context.Context, tenant string, rec *wire.SessionRecord) (rev uint64, existing *wire.SessionRecord, err error) {
	if err := check("worker", r.worker, "tenant", tenant, "name", rec.Name, "session", rec.ID); err != nil {
		return 0, nil, err
	}
	w, err := r.prepare(r.records,
		r.root.Record(r.worker, tenant, subjects.KindSession, rec.Name),
		r.root.RecordFilter(tenant, subjects.KindSession, rec.Name),
		0, rec.Closed, rec)
	if err != nil {
		return 0, nil, err
	}
	if err := r.point(ctx, r.worker, tenant, rec); err != nil {
		return 0, nil, fmt.Errorf("create session %s: %w", rec.Name, err)
	}
	rev, other, err := r.put(ctx, w)
	switch {
	case err == nil:
		return rev, nil, nil
	case !errors.Is(err, ErrConflict):
		return 0, nil, fmt.Errorf("create session %s: %w", rec.Name, err)
	}
	existing, err = decode[wire.SessionRecord](other)
	if err != nil {
		return 0, nil, err
	}
	return other.Seq, existing, nil
}

// UpdateSession replaces the session at rev under its name, whichever worker wrote that
// one: a change, a close, a new incarnation, or a new session in place of a closed one.
// ErrConflict: another write came first. A closed session is kept for [Retention].
func (r *Registry) UpdateSession(ctx context.Context, tenant string, rec *wire.SessionRecord, rev uint64) (uint64, error) {
	if err := check("worker", rec.Worker, "tenant", tenant, "name", rec.Name, "session", rec.ID); err != nil {
		return 0, err
	}
	if err := r.point(ctx, rec.Worker, tenant, rec); err != nil {
		return 0, err
	}
	return r.update(ctx,
		r.root.Record(rec.Worker, tenant, subjects.KindSession, rec.Name),
		r.root.RecordFilter(tenant, subjects.KindSession, rec.Name), rev, rec.Closed, rec)
}

// point writes the pointer from the id to the name. It goes before the record, so there
// is no record without one, and a failure here means that no record was written. One
// whose record was then not written points to a name that another id has: nothing is
// found by it.
func (r *Registry) point(ctx context.Context, worker, tenant string, rec *wire.SessionRecord) error {
	data, err := wire.Marshal(subjects.TypeMsgpack, &sessionPointer{wire.Version, rec.Name})
	if err != nil {
		return err
	}
	var h bus.Header
	if rec.Closed {
		h = bus.Header{bus.HeaderTTL: {Retention.String()}}
	}
	ctx, cancel := patient(ctx)
	defer cancel()
	subject := r.root.Record(worker, tenant, kindSessionID, rec.ID)
	_, err = r.conn.Append(ctx, subject, h, data, bus.ExpectAny())
	if errors.Is(err, bus.ErrUnknownOutcome) && ctx.Err() == nil {
		_, err = r.conn.Append(ctx, subject, h, data, bus.ExpectAny()) // twice is as good as once
	}
	if err != nil {
		return fmt.Errorf("point session %s to %s: %w", rec.ID, rec.Name, err)
	}
	return nil
}

// Session reads a session by its name.
func (r *Registry) Session(ctx context.Context, tenant, name string) (*wire.SessionRecord, uint64, error) {
	if err := check("tenant", tenant, "name", name); err != nil {
		return nil, 0, err
	}
	return last[wire.SessionRecord](ctx, r, r.root.RecordFilter(tenant, subjects.KindSession, name))
}

// SessionByID reads a session by its id. One that was replaced under its name is not
// found any more.
func (r *Registry) SessionByID(ctx context.Context, tenant, id string) (*wire.SessionRecord, uint64, error) {
	if err := check("tenant", tenant, "session", id); err != nil {
		return nil, 0, err
	}
	p, _, err := last[sessionPointer](ctx, r, r.root.RecordFilter(tenant, kindSessionID, id))
	if err != nil {
		return nil, 0, err
	}
	rec, rev, err := r.Session(ctx, tenant, p.Name)
	if err == nil && rec.ID != id {
		return nil, 0, fmt.Errorf("session %s: %w", id, ErrNotFound)
	}
	return rec, rev, err
}

// Sessions lists as Executions does.
func (r *Registry) Sessions(ctx context.Context, tenant string) ([]Entry[wire.SessionRecord], error) {
	return list[wire.SessionRecord](ctx, r, tenant, subjects.KindSession)
}
