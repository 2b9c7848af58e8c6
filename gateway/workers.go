package gateway

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// workers knows the incarnation of each worker: that of its newest boot. Sessions and
// processes stay with their worker, so this is all of an address that changes.
type workers struct {
	reg     *registry.Registry
	reading chan struct{} // 1: whoever holds it reads the boots; others wait and use what it read

	mu      sync.Mutex
	by      map[string]uint64   // guarded by mu; incarnation by name
	silent  map[string]uint64   // guarded by mu; incarnations that did not answer an open
	asked   map[*asked]struct{} // guarded by mu; requests that wait for an answer
	started time.Time           // guarded by mu; when the newest completed reading began
}

func newWorkers(reg *registry.Registry) *workers {
	return &workers{reg: reg, reading: make(chan struct{}, 1), by: map[string]uint64{}, silent: map[string]uint64{}, asked: map[*asked]struct{}{}}
}

// incarnation of a worker as far as known; 0 if it is not.
func (w *workers) incarnation(name string) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.by[name]
}

// refresh makes sure that the boots were read after the time given.
func (w *workers) refresh(ctx context.Context, after time.Time) error {
	select {
	case w.reading <- struct{}{}:
		defer func() { <-w.reading }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	w.mu.Lock()
	fresh := w.started.After(after)
	w.mu.Unlock()
	if fresh {
		return nil
	}
	start := time.Now()
	list, err := w.reg.Workers(ctx)
	if err != nil {
		return err
	}
	by := make(map[string]uint64, len(list))
	for _, b := range list {
		by[b.Name] = b.Incarnation
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.by, w.started = by, start
	for name, e := range w.silent {
		if by[name] != e {
			delete(w.silent, name)
		}
	}
	return nil
}

// current returns the incarnation of a worker: what is known, or what the boots say.
func (w *workers) current(ctx context.Context, name string) (uint64, error) {
	if e := w.incarnation(name); e != 0 {
		return e, nil
	}
	if err := w.refresh(ctx, time.Now()); err != nil {
		return 0, err
	}
	return w.incarnation(name), nil
}

// asked is a request that waits for an answer of one incarnation.
type asked struct {
	worker string
	e      uint64
	since  time.Time
	end    func()
}

// errSuperseded: the worker has started again and cannot answer any more.
var errSuperseded = errors.New("the worker was restarted")

// watch calls end when the worker turns out to have started again, until stop is called.
func (w *workers) watch(worker string, e uint64, end func()) (stop func()) {
	a := &asked{worker, e, time.Now(), end}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked[a] = struct{}{}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.asked, a)
	}
}

// look is how often the boots are read while requests wait for longer than that.
const look = time.Second

// run ends requests whose worker was killed after it took them: nothing else would,
// before their deadline. It returns when ctx ends.
func (w *workers) run(ctx context.Context) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if !w.waiting(time.Now().Add(-look)) {
			continue
		}
		if err := w.refresh(ctx, time.Now()); err != nil {
			continue // the next tick tries again
		}
		w.mu.Lock()
		for a := range w.asked {
			if now := w.by[a.worker]; now > a.e {
				a.end()
			}
		}
		w.mu.Unlock()
	}
}

// waiting reports whether a request has waited since before a time.
func (w *workers) waiting(before time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for a := range w.asked {
		if a.since.Before(before) {
			return true
		}
	}
	return false
}

// quiet notes that an incarnation did not answer; heard that it did.
func (w *workers) quiet(name string, e uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silent[name] = e
}

func (w *workers) heard(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.silent, name)
}

// candidates lists the workers for a new session in random order, those that did not
// answer lately at the end.
func (w *workers) candidates() (names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var last []string
	for name, e := range w.by {
		if w.silent[name] == e {
			last = append(last, name)
			continue
		}
		names = append(names, name)
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return append(names, last...)
}

// WaitWorker returns when the gateway serves and a worker answers it, or ctx has ended.
func (g *Gateway) WaitWorker(ctx context.Context) error {
	select {
	case <-g.serving:
	case <-ctx.Done():
		return fmt.Errorf("wait for the gateway: %w", context.Cause(ctx))
	}
	retry := time.NewTimer(0)
	defer retry.Stop()
	var last error
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for a worker: %w", errors.Join(context.Cause(ctx), last))
		case <-retry.C:
		}
		if last = g.workers.refresh(ctx, time.Now()); last == nil {
			for _, name := range g.workers.candidates() {
				if last = g.probe(ctx, name); last == nil {
					return nil
				}
			}
		}
		retry.Reset(20 * time.Millisecond)
	}
}

// probe asks a worker for a session that cannot be; any answer says that it serves.
func (g *Gateway) probe(ctx context.Context, worker string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	subject := g.conn.Root().Session("local", worker, g.workers.incarnation(worker), "-", wire.VerbList)
	_, err := g.conn.Request(ctx, subject, nil, nil)
	if errors.Is(err, bus.ErrNoResponders) {
		return fmt.Errorf("worker %s: %w", worker, err)
	}
	return err
}
