package actors

import (
	"context"
	"sync"

	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// fakeFeed remembers what it was told.
type fakeFeed struct {
	mu     sync.Mutex
	told   []string // guarded by mu; phases
	last   wire.EventStatus
	panics string // guarded by mu; the phase that panics
	times  int    // guarded by mu; how often it still does; 0 always
}

func (f *fakeFeed) get() feed { return f }

func (f *fakeFeed) tell(phase string, s wire.EventStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.panics == phase {
		if f.times--; f.times == 0 {
			f.panics = ""
		}
		panic("feed: " + phase)
	}
	f.told = append(f.told, phase)
	f.last = s
}

func (f *fakeFeed) Started(s wire.EventStatus)        { f.tell("started", s) }
func (f *fakeFeed) Backgrounded(s wire.EventStatus)   { f.tell("backgrounded", s) }
func (f *fakeFeed) State(s wire.EventStatus)          { f.tell("state", s) }
func (f *fakeFeed) Finished(s wire.EventStatus)       { f.tell("finished", s) }
func (f *fakeFeed) OutputFunc(int, func() wire.Chunk) {}
func (f *fakeFeed) Dropped() int64                    { return 0 }
func (f *fakeFeed) set(phase string, times int) {
	f.mu.Lock()
	f.panics, f.times = phase, times
	f.mu.Unlock()
}

func (f *fakeFeed) count(phase string) (n int, s wire.EventStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.told {
		if p == phase {
			n++
		}
	}
	return n, f.last
}

// fakeStore holds records by compare-and-set.
type fakeStore struct {
	mu      sync.Mutex
	rev     uint64                   // guarded by mu, as all below
	execs   map[string]*execution    // by execution id
	procs   map[string]registry.Life // by process id
	ends    map[string]int           // terminal records written, by execution id
	down    error                    // every call fails
	hang    bool                     // every call waits for its context
	unknown int                      // creates that are stored and answered "unknown outcome"
	panics  int                      // updates that panic
	async   error                    // what the wait for a process record fails with
	gate    chan struct{}            // creates wait for it
	sent    int                      // asynchronous writes not waited for
	closed  []string                 // sessions
}

func newFakeStore() *fakeStore {
	return &fakeStore{rev: 1, execs: map[string]*execution{}, procs: map[string]registry.Life{}, ends: map[string]int{}}
}

func (s *fakeStore) set(f func(*fakeStore)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

func (s *fakeStore) waits() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent
}

// reach is what a call meets before it gets to the records.
func (s *fakeStore) reach(ctx context.Context) error {
	s.mu.Lock()
	hang, down := s.hang, s.down
	s.mu.Unlock()
	if hang {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return down
}

func (s *fakeStore) CreateExecution(ctx context.Context, _ string, rec *wire.ExecutionRecord) (uint64, *wire.ExecutionRecord, error) {
	s.mu.Lock()
	gate := s.gate
	s.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return 0, nil, context.Cause(ctx)
		}
	}
	if err := s.reach(ctx); err != nil {
		return 0, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.execs[rec.ExecutionID]; e != nil {
		other := *e.Record
		return e.Rev, &other, nil
	}
	s.put(rec)
	if s.unknown > 0 {
		s.unknown--
		return 0, nil, bus.ErrUnknownOutcome
	}
	return s.rev, nil, nil
}

// put stores rec; mu is held.
func (s *fakeStore) put(rec *wire.ExecutionRecord) {
	s.rev++
	own := *rec
	s.execs[rec.ExecutionID] = &execution{Record: &own, Rev: s.rev}
	if rec.Receipt.State.Terminal() {
		s.ends[rec.ExecutionID]++
	}
}

func (s *fakeStore) UpdateExecution(ctx context.Context, _ string, rec *wire.ExecutionRecord, rev uint64) (uint64, error) {
	if err := s.reach(ctx); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.panics > 0 {
		s.panics--
		panic("update")
	}
	if e := s.execs[rec.ExecutionID]; e == nil || e.Rev != rev {
		return 0, registry.ErrConflict
	}
	s.put(rec)
	return s.rev, nil
}

func (s *fakeStore) CreateProcessAsync(ctx context.Context, _ string, rec *wire.ProcessRecord, life registry.Life) (func(context.Context) (uint64, error), error) {
	if err := s.reach(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent++
	s.procs[rec.Process] = life
	return func(context.Context) (uint64, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.sent--
		return 7, s.async
	}, nil
}

func (s *fakeStore) UpdateProcess(ctx context.Context, _ string, rec *wire.ProcessRecord, _ uint64, life registry.Life) (uint64, error) {
	if err := s.reach(ctx); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.procs[rec.Process] = life
	return 8, nil
}

func (s *fakeStore) process(context.Context, string, string) (*wire.ProcessRecord, uint64, error) {
	return &wire.ProcessRecord{}, 7, nil
}

func (s *fakeStore) UpdateSession(ctx context.Context, _ string, rec *wire.SessionRecord, _ uint64) (uint64, error) {
	if err := s.reach(ctx); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if rec.Closed {
		s.closed = append(s.closed, rec.ID)
	}
	return 2, nil
}

// record is the stored record of an execution, and how often an end of it was written.
func (s *fakeStore) record(execution string) (rc wire.Receipt, ends int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.execs[execution]; e != nil {
		rc = e.Record.Receipt
	}
	return rc, s.ends[execution]
}
