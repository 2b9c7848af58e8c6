package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/limpet-sh/limpet/actors/runtime"
	"github.com/limpet-sh/limpet/subjects/wire"
)

const (
	// firstWorker is how long a new keeper waits at least: a window of 0 is about
	// workers that were there.
	firstWorker = 30 * time.Second
	// stopGrace is what processes get when the keeper is told to end.
	stopGrace = 2 * time.Second
	// stopLimit bounds how long the keeper waits for trees that it has killed.
	stopLimit = 10 * time.Second
)

// keeper is the state behind one socket. Connections, children and stops have
// goroutines of their own; what they share is guarded by mu, which is never held over
// a system call that can wait.
type keeper struct {
	window time.Duration
	log    *slog.Logger
	forker *runtime.Forker
	arena  *arena
	work   sync.WaitGroup // every goroutine but the forker's

	attaching sync.Mutex // one hand-over at a time

	changed chan struct{} // wakes run: a worker came or went, a child was forgotten

	mu          sync.Mutex
	children    map[string]*child     // guarded by mu
	names       map[string]struct{}   // guarded by mu; ids that are taken, also by starts under way
	free        []uint32              // guarded by mu; arena slots
	journals    map[uint32]*journal   // guarded by mu
	lastJournal uint32                // guarded by mu
	incarnation uint64                // guarded by mu; the highest seen
	worker      *session              // guarded by mu; who is served
	holder      *holder               // guarded by mu; who may still read the pipes
	sessions    map[*session]struct{} // guarded by mu
	closing     bool                  // guarded by mu
}

func newKeeper(set settings, log *slog.Logger) (*keeper, error) {
	f, err := runtime.NewForker(runtime.Config{Cgroup: set.cgroup, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("start the forker: %w", err)
	}
	a, err := newArena()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &keeper{
		window: set.window, log: log, forker: f, arena: a, changed: make(chan struct{}, 1),
		children: map[string]*child{}, names: map[string]struct{}{},
		journals: map[uint32]*journal{}, sessions: map[*session]struct{}{},
	}, nil
}

// close gives everything back. Nothing else runs.
func (k *keeper) close() error {
	for _, j := range k.journals {
		j.close()
	}
	if k.holder != nil {
		_ = unix.Close(k.holder.pidfd)
	}
	k.arena.close()
	return k.forker.Close()
}

// run serves until ctx ends or there is nothing left to hold.
func (k *keeper) run(ctx context.Context, l *net.UnixListener) error {
	k.work.Go(func() { k.accept(l) }) // ends with the listener
	k.wait(ctx)
	k.mu.Lock()
	k.closing = true
	k.mu.Unlock()
	k.stopAll(wire.ReasonWorkerLost, Terminate, stopGrace)
	_ = l.Close()
	k.mu.Lock()
	for s := range k.sessions {
		s.link.close()
	}
	k.mu.Unlock()
	idle := make(chan struct{})
	go func() { k.work.Wait(); close(idle) }() // ends with the last goroutine, or with this process
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	select {
	case <-idle:
		return k.close()
	case <-limit.C:
		return errors.Join(errors.New("some processes could not be waited for"), k.forker.EndStrays())
	}
}

// wait returns when the keeper has to end. It watches over the adoption window: when
// no worker comes in time, everything is killed, and what happened is kept for one
// more window.
func (k *keeper) wait(ctx context.Context) {
	timer := time.NewTimer(max(k.window, firstWorker))
	defer timer.Stop()
	served, swept, seen := false, false, uint64(0)
	for {
		select {
		case <-ctx.Done():
			k.log.Info("told to end")
			return
		case <-k.changed:
			now, incarnation := k.served()
			switch left := served || incarnation != seen; {
			case now:
				timer.Stop()
			case left: // also a worker that came and went unseen
				k.log.Info("no worker", "window", k.window)
				swept = false
				timer.Reset(k.window)
			}
			served, seen = now, incarnation
		case <-timer.C:
			if now, _ := k.served(); now {
				continue
			}
			live := k.live()
			if swept || live+k.count() == 0 {
				k.log.Info("nothing left to hold")
				return
			}
			swept = true
			k.log.Warn("no worker came back in time; killing all processes", "processes", live, "window", k.window)
			k.stopAll(wire.ReasonWorkerLost, Kill, 0)
			timer.Reset(k.window)
		}
	}
}

func (k *keeper) wake() {
	select {
	case k.changed <- struct{}{}:
	default: // run will look anyway
	}
}

// served reports whether there is a worker, and the highest incarnation seen.
func (k *keeper) served() (bool, uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.worker != nil, k.incarnation
}

func (k *keeper) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.names)
}

// live counts the trees that may still be there.
func (k *keeper) live() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := 0
	for _, c := range k.children {
		if c.gone == nil {
			n++
		}
	}
	return n
}

// stopAll ends every tree and waits, at most stopLimit longer than the grace.
func (k *keeper) stopAll(cause wire.Reason, mode Mode, grace time.Duration) {
	limit := time.NewTimer(grace + stopLimit)
	defer limit.Stop()
	k.mu.Lock()
	all := make([]*child, 0, len(k.children))
	for _, c := range k.children {
		all = append(all, c)
	}
	k.mu.Unlock()
	for _, c := range all {
		if err := k.stop(c, cause, mode, grace); err != nil {
			k.log.Error("stop", "process", c.info.Process, "err", err)
		}
	}
	for _, c := range all {
		select {
		case <-c.ended:
		case <-limit.C:
			k.log.Error("processes could not be ended", "processes", k.live())
			return
		}
	}
}

// slot takes a free arena slot.
func (k *keeper) slot(wide bool) (*slot, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.free) == 0 {
		n, err := k.arena.grow()
		if err != nil {
			return nil, wire.Errorf(wire.CodeProcessQuotaExceeded, "the keeper holds no more processes: %v", err)
		}
		for i := n*segmentSlots - 1; i >= (n-1)*segmentSlots; i-- {
			k.free = append(k.free, uint32(i))
		}
	}
	s, err := k.arena.slot(k.free[len(k.free)-1], wide)
	if err == nil {
		k.free = k.free[:len(k.free)-1]
	}
	return s, err
}

func (k *keeper) freeSlot(s *slot) {
	if err := k.arena.clear(s); err != nil {
		k.log.Error("free a slot", "err", err)
		return // and lose it: it would not be empty
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.free = append(k.free, s.number)
}

// moreJournals makes n journals.
func (k *keeper) moreJournals(n int) (numbers []uint32, fds []int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for range n {
		j, err := newJournal(k.lastJournal)
		if err != nil {
			if len(numbers) > 0 {
				break
			}
			return nil, nil, err
		}
		k.lastJournal++
		k.journals[j.number] = j
		numbers, fds = append(numbers, j.number), append(fds, j.fd)
	}
	return numbers, fds, nil
}

func (k *keeper) dropJournals(numbers []uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range numbers {
		if j := k.journals[n]; j != nil {
			j.close()
			delete(k.journals, n)
		}
	}
}
