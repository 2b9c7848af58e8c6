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
	most    int           // requests of one tenant that wait for one worker
	reading chan struct{} // 1: whoever holds it reads the boots; others wait and use what it read

	mu      sync.Mutex
	by      map[string]uint64   // guarded by mu; incarnation by name
	silent  map[string]silence  // guarded by mu; incarnations that did not answer an open
	asked   map[*asked]struct{} // guarded by mu; requests that wait for an answer
	inside  map[string]int      // guarded by mu; how many, by tenant and worker
	missed  map[string]missed   // guarded by mu; probes without a responder, by worker
	started time.Time           // guarded by mu; when the newest completed reading began
}

func newWorkers(reg *registry.Registry, most int) *workers {
	return &workers{
		reg: reg, most: most, reading: make(chan struct{}, 1), by: map[string]uint64{}, silent: map[string]silence{},
		asked: map[*asked]struct{}{}, inside: map[string]int{}, missed: map[string]missed{},
	}
}

// enter counts a request of a tenant to a worker, until leave is called: a worker that
// hangs must not take all the requests that the tenant may have in work.
func (w *workers) enter(tenant, worker string) (leave func(), err error) {
	key := tenant + "." + worker
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.inside[key] >= w.most {
		return nil, &wire.Error{
			Code:    wire.CodeOverloaded,
			Message: "too many requests wait for this worker; nothing was started; try again shortly",
			Details: map[string]any{"worker": worker},
		}
	}
	w.inside[key]++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.inside[key]--; w.inside[key] == 0 {
			delete(w.inside, key)
		}
	}, nil
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
	for name, s := range w.silent {
		if by[name] != s.e || time.Since(s.at) > silenceTime {
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

// errWent: the worker went away, or was started again, and does not answer any more.
var errWent = errors.New("the worker went away")

// watch calls end when the worker turns out to have gone, until stop is called.
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

const (
	// look is how often workers are looked at that let requests wait for longer than that.
	look = time.Second
	// misses of probes in a row say that an incarnation is gone. One alone may be its
	// connection that comes back, and its answers with it.
	misses = 3
	// probesAtOnce bounds the probes under way.
	probesAtOnce = 64
)

// missed counts the probes of an incarnation that found nobody, in a row.
type missed struct {
	e uint64
	n int
}

// run ends requests whose worker was killed after it took them: nothing else would,
// before their deadline. It returns when ctx ends.
func (w *workers) run(ctx context.Context, probe func(ctx context.Context, worker string, e uint64) error) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		slow := w.waiting(time.Now().Add(-look))
		if len(slow) == 0 {
			continue
		}
		if err := w.refresh(ctx, time.Now()); err == nil {
			w.end(func(a *asked) bool { return w.by[a.worker] > a.e })
		}
		w.probe(ctx, slow, probe)
	}
}

// probe asks each worker that lets somebody wait whether anybody is there.
func (w *workers) probe(ctx context.Context, slow map[string]uint64, ask func(context.Context, string, uint64) error) {
	var all sync.WaitGroup
	defer all.Wait()
	slots := make(chan struct{}, probesAtOnce)
	for name, e := range slow {
		slots <- struct{}{}
		all.Go(func() { // ends with the probe, which is bounded
			defer func() { <-slots }()
			gone := errors.Is(ask(ctx, name, e), bus.ErrNoResponders)
			w.mu.Lock()
			m := w.missed[name]
			if m.e != e || !gone {
				m = missed{e: e}
			}
			if gone {
				m.n++
			}
			w.missed[name] = m
			if m.n == 0 {
				delete(w.missed, name)
			}
			w.mu.Unlock()
			if m.n >= misses {
				w.end(func(a *asked) bool { return a.worker == name && a.e == e })
			}
		})
	}
}

// end ends the requests that gone says; it is called with mu held.
func (w *workers) end(gone func(*asked) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for a := range w.asked {
		if gone(a) {
			a.end()
		}
	}
}

// waiting gives the incarnations that have let a request wait since before a time.
func (w *workers) waiting(before time.Time) map[string]uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	slow := map[string]uint64{}
	for a := range w.asked {
		if a.since.Before(before) {
			slow[a.worker] = max(slow[a.worker], a.e)
		}
	}
	return slow
}

// silence is that of an incarnation that did not answer an open. It is forgotten after
// silenceTime: one that hung may go on.
type silence struct {
	e  uint64
	at time.Time
}

const silenceTime = 30 * time.Second

// quiet notes that an incarnation did not answer; heard that it did.
func (w *workers) quiet(name string, e uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silent[name] = silence{e, time.Now()}
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
		if w.silent[name].e == e {
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
				if last = g.probe(ctx, name, g.workers.incarnation(name)); last == nil {
					return nil
				}
			}
		}
		retry.Reset(20 * time.Millisecond)
	}
}

// probe asks a worker for a session that cannot be; any answer says that it serves.
func (g *Gateway) probe(ctx context.Context, worker string, e uint64) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := g.conn.Request(ctx, g.conn.Root().Session("local", worker, e, "-", wire.VerbList), nil, nil)
	if errors.Is(err, bus.ErrNoResponders) {
		return fmt.Errorf("worker %s: %w", worker, err)
	}
	return err
}
