package actors

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// fakeOutputs is an OUTPUT stream of one subject.
type fakeOutputs struct {
	w       *world
	mu      sync.Mutex
	stored  []*wire.OutputMessage // guarded by mu, as all below
	at      []time.Duration       // when
	seq     uint64
	calls   int
	down    error // every call fails
	unknown int   // appends that are stored and not acknowledged
	lost    int   // appends that are neither
	gate    chan struct{}
}

func (f *fakeOutputs) set(do func(*fakeOutputs)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do(f)
}

func (f *fakeOutputs) Append(ctx context.Context, _, _ string, msg []byte, behind uint64) (uint64, error) {
	f.mu.Lock()
	gate := f.gate
	f.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	switch {
	case f.down != nil:
		return 0, f.down
	case f.lost > 0:
		f.lost--
		return 0, bus.ErrUnknownOutcome
	case behind != f.seq:
		return 0, bus.ErrWrongSequence
	}
	f.put(msg)
	if f.unknown > 0 {
		f.unknown--
		return 0, bus.ErrUnknownOutcome
	}
	return f.seq, nil
}

// put stores a message; mu is held.
func (f *fakeOutputs) put(msg []byte) {
	m, err := wire.DecodeOutput(slices.Clone(msg))
	if err != nil {
		f.w.t.Error(err)
		return
	}
	f.seq += 2
	f.stored, f.at = append(f.stored, m), append(f.at, f.w.after())
}

func (f *fakeOutputs) Last(context.Context, string, string) (uint64, []byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down != nil {
		return 0, nil, f.down
	}
	if len(f.stored) == 0 {
		return 0, nil, bus.ErrNotFound
	}
	m := f.stored[len(f.stored)-1]
	b := wire.AppendOutputHeader(nil, &m.OutputHeader)
	for i := range m.Chunks {
		b = wire.AppendOutputChunk(b, &m.Chunks[i])
	}
	return f.seq, b, nil
}

// text is what the messages hold. It checks that they follow each other, and what they
// count; gap is how many chunks are missing.
func (f *fakeOutputs) text() (text string, gap int64, last *wire.OutputMessage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	next, raw := int64(0), int64(0)
	for i, m := range f.stored {
		if m.First < next || i > 0 && f.stored[i-1].End {
			f.w.t.Errorf("message %d begins at %d, behind %d", i, m.First, next)
		}
		gap += m.First - next
		for _, c := range m.Chunks {
			b.Write(c.Data)
		}
		next, raw, last = m.Next(), raw+m.NextOffset()-m.Offset, m
		if m.Raw != raw {
			f.w.t.Errorf("message %d says %d raw bytes, %d are there", i, m.Raw, raw)
		}
	}
	return b.String(), gap, last
}

func (f *fakeOutputs) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.stored)
}

// shipping lets the processes of a world ship to a fake.
func (w *world) shipping() *fakeOutputs {
	f := &fakeOutputs{w: w}
	w.worker.deps.ship = newShipping(f, wire.DefaultShipBytes, 5)
	return f
}
