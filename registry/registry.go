// Package registry keeps the records of an installation in the RECORDS and BOOT
// streams: sessions, executions, processes, and the boots of workers. Each write
// compares and sets, and says exactly whether it happened: a lost acknowledgement is
// resolved by reading back, for which every write carries a nonce beside the record.
//
// The create of an execution is the right to fork: of any number of creates of one
// execution id, over all workers of an installation, one succeeds. The same holds for
// a session's name. Records of what has ended are removed after [Retention].
//
// A registry knows no processes; it writes what it is given.
//
// # Concurrency
//
// All methods may be called from any goroutine. Each blocks for the round trips it
// makes, until ctx ends, and at most 30 s where ctx has no deadline. While the
// connection is away they fail at once with [bus.ErrDisconnected] and have written
// nothing, unless a write was already under way: it is resolved when the connection
// returns, or is [bus.ErrUnknownOutcome] when ctx ends first.
package registry

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// Retention is how long the records of what has ended are kept: ended executions, so
// their ids are not accepted anew before, ended processes, closed sessions.
const Retention = 7 * 24 * time.Hour

// addressRetention is the same for process records. One of a command with a time limit
// is written once, at the start, so it is kept for the longest limit on top.
const addressRetention = Retention + wire.MaxTimeoutMS*time.Millisecond

// patience bounds a call whose context has no deadline.
const patience = 30 * time.Second

// ErrConflict: another write came first. Nothing of this one is stored.
var ErrConflict = errors.New("the record was changed by another")

// ErrNotFound: there is no such record, or it is past its retention.
var ErrNotFound = bus.ErrNotFound

// Registry reads and writes records.
type Registry struct {
	conn    *bus.Conn
	root    subjects.Root
	worker  string
	records string // name of the stream
	boots   string
	prefix  string // of nonces; random, so that no two registries share one
	writes  atomic.Uint64
	// unreadable counts records that lists passed over.
	unreadable atomic.Int64
}

// New returns a registry over conn. Creates are written as worker, a valid token; a
// gateway, which creates nothing, gives none.
func New(conn *bus.Conn, worker string) *Registry {
	root := conn.Root()
	return &Registry{
		conn: conn, root: root, worker: worker,
		records: root.Stream(subjects.StreamRecords), boots: root.Stream(subjects.StreamBoot),
		prefix: subjects.NewID() + "-",
	}
}

// headerNonce tells a write of ours from any other.
const headerNonce = "Limpet-Nonce"

// write is one record on its way to the stream.
type write struct {
	stream  string
	subject string
	scope   string // what the expectation is about: the subject itself, or a filter over all workers
	rev     uint64 // the sequence expected there; 0 none
	nonce   string
	header  bus.Header
	data    []byte
}

// prepare encodes a record. The nonce is stored beside it.
func (r *Registry) prepare(stream, subject, scope string, rev uint64, ended bool, record any) (*write, error) {
	data, err := wire.Marshal(subjects.TypeMsgpack, record)
	if err != nil {
		return nil, err
	}
	w := &write{stream: stream, subject: subject, scope: scope, rev: rev, data: data}
	w.nonce = r.prefix + strconv.FormatUint(r.writes.Add(1), 36)
	w.header = bus.Header{headerNonce: {w.nonce}}
	if ended {
		w.header[bus.HeaderTTL] = []string{Retention.String()}
	}
	return w, nil
}

func (w *write) expect() bus.Expect {
	if w.scope == w.subject {
		return bus.ExpectLast(w.rev)
	}
	return bus.ExpectLastOn(w.scope, w.rev)
}

// put stores w and returns its revision. When another record stands in its scope, that
// record comes back with ErrConflict.
func (r *Registry) put(ctx context.Context, w *write) (uint64, *bus.Stored, error) {
	rev, err := r.conn.Append(ctx, w.subject, w.header, w.data, w.expect())
	if err == nil {
		return rev, nil, nil
	}
	return r.settle(ctx, w, err)
}

// settle finds out what became of w after an append that failed with err. Sending the
// same bytes with the same expectation again is safe at any time: of all attempts at
// most one can be stored, and the nonce says whether one was.
func (r *Registry) settle(ctx context.Context, w *write, err error) (uint64, *bus.Stored, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	wait := 5 * time.Millisecond
	unknown := false
	for {
		unknown = unknown || errors.Is(err, bus.ErrUnknownOutcome)
		switch {
		case errors.Is(err, bus.ErrWrongSequence), errors.Is(err, bus.ErrUnknownOutcome):
		case unknown && errors.Is(err, bus.ErrDisconnected):
		default:
			return 0, nil, unsettled(unknown, err)
		}
		now, rerr := r.conn.Last(ctx, w.stream, w.scope)
		switch {
		case rerr == nil && now.Header.Get(headerNonce) == w.nonce:
			return now.Seq, nil, nil
		case rerr == nil && now.Seq != w.rev:
			return 0, now, ErrConflict
		case errors.Is(rerr, ErrNotFound) && w.rev != 0:
			return 0, nil, ErrNotFound // it expired
		}
		// Unchanged, or not readable now: again, a little later each time.
		retry.Reset(wait)
		select {
		case <-retry.C:
		case <-ctx.Done():
			return 0, nil, unsettled(unknown, errors.Join(context.Cause(ctx), err, rerr))
		}
		wait = min(2*wait, 250*time.Millisecond)
		if rerr != nil && !errors.Is(rerr, ErrNotFound) {
			continue
		}
		rev, aerr := r.conn.Append(ctx, w.subject, w.header, w.data, w.expect())
		if aerr == nil {
			return rev, nil, nil
		}
		err = aerr
	}
}

// unsettled keeps it visible that an earlier attempt may still be stored.
func unsettled(unknown bool, err error) error {
	if unknown && !errors.Is(err, bus.ErrUnknownOutcome) {
		return fmt.Errorf("%w: %w", bus.ErrUnknownOutcome, err)
	}
	return err
}

func patient(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, patience)
}

// last reads the record in scope.
func last[T any](ctx context.Context, r *Registry, scope string) (*T, uint64, error) {
	s, err := r.conn.Last(ctx, r.records, scope)
	if err != nil {
		return nil, 0, err
	}
	rec, err := decode[T](s)
	if err != nil {
		return nil, 0, err
	}
	return rec, s.Seq, nil
}

func decode[T any](s *bus.Stored) (*T, error) {
	rec := new(T)
	if err := wire.Unmarshal(subjects.TypeMsgpack, s.Data, rec, false); err != nil {
		return nil, fmt.Errorf("record %s at %d: %w", s.Subject, s.Seq, err)
	}
	return rec, nil
}

// Unreadable counts the records that a list found and could not decode, each time that
// it did.
func (r *Registry) Unreadable() int64 { return r.unreadable.Load() }

// passOver leaves out of a list what cannot be decoded: one bad record must not hide all
// the others.
func (r *Registry) passOver(s *bus.Stored, err error) {
	r.unreadable.Add(1)
	r.conn.Logger().Error("a record cannot be read, and is left out of a list", "subject", s.Subject, "seq", s.Seq, "err", err)
}

// Entry is a record with its revision.
type Entry[T any] struct {
	Record *T
	Rev    uint64
}

// list reads all records of a kind: of this registry's worker, or of all where it has
// none. An empty tenant means all. Where a key was written by several workers, the
// newest counts. What cannot be decoded is left out, and counted.
func list[T any](ctx context.Context, r *Registry, tenant, kind string) ([]Entry[T], error) {
	worker := r.worker
	if worker == "" {
		worker = "*"
	}
	if tenant == "" {
		tenant = "*"
	}
	stored, err := r.conn.LastPerSubject(ctx, r.records, r.root.Record(worker, tenant, kind, "*"))
	if err != nil {
		return nil, fmt.Errorf("list %s records: %w", kind, err)
	}
	out := make([]Entry[T], 0, len(stored))
	at := make(map[string]int, len(stored))
	for i := range stored { // oldest first
		rec, err := decode[T](&stored[i])
		if err != nil {
			r.passOver(&stored[i], err)
			continue
		}
		e := Entry[T]{rec, stored[i].Seq}
		key := unique(stored[i].Subject)
		if j, ok := at[key]; ok {
			out[j] = e
			continue
		}
		at[key] = len(out)
		out = append(out, e)
	}
	return out, nil
}

// unique is the part of a record's subject that is unique whoever wrote it: tenant, kind
// and key.
func unique(subject string) string {
	i := len(subject)
	for range 3 {
		i = strings.LastIndexByte(subject[:max(i, 0)], '.')
	}
	return subject[i+1:]
}

// check validates the tokens that a record's subject is made of.
func check(pairs ...string) error {
	for i := 0; i < len(pairs); i += 2 {
		if !subjects.ValidToken(pairs[i+1]) {
			return wire.Invalid(pairs[i], "%q is not 1 to 64 letters, digits, '_' or '-'", pairs[i+1])
		}
	}
	return nil
}
