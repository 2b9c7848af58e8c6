package runtime

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// hunt kills what a list gives, until the list is empty. Members are stopped before they
// are killed: a stopped parent forks no more, and stays the parent by which its children
// are found.
type hunt struct {
	list  func() ([]member, error)
	looks int // empty lists in a row until it is done

	stopped, killed, refused map[memberID]bool
	quiet, freezes           int
}

// memberID names a process for as long as the host is up.
type memberID struct {
	pid   int
	start uint64
}

// step is a step for poll: done when nobody is left, or only who may not be signalled.
func (h *hunt) step() (bool, error) {
	for {
		members, err := h.list()
		if err != nil {
			return false, err
		}
		clear(h.refused)
		fresh := 0
		for _, m := range members {
			key := memberID{m.pid, m.start}
			if !h.stopped[key] {
				h.stopped[key] = true
				fresh++
				_ = m.signal(unix.SIGSTOP)
			}
		}
		if fresh > 0 && h.freezes < 50 {
			h.freezes++
			continue
		}
		for _, m := range members {
			key := memberID{m.pid, m.start}
			switch err := m.signal(unix.SIGKILL); {
			case err == nil:
				h.killed[key] = true
			case errors.Is(err, unix.EPERM):
				h.refused[key] = true
			}
		}
		if len(members) > 0 {
			h.quiet = 0
			return len(h.refused) == len(members), nil
		}
		h.quiet++
		if h.quiet == h.looks {
			return true, nil
		}
	}
}

// EndStrays ends, without cgroups, every tree below this process that has a session of its
// own: what a scan of one tree cannot find, a daemon that cleared its environment and has
// outlived its ancestors, is a child of this process nonetheless. It is for the end of
// this process: what Start returned and is not closed goes, too. With cgroups, whose
// kernel knows every member, it does nothing. It takes 5 s at most.
func (f *Forker) EndStrays() error {
	if f.tree != nil {
		return nil
	}
	f.mu.Lock()
	idle := len(f.live) == 0
	f.mu.Unlock()
	if idle && f.noOrphans() {
		return nil
	}
	h := hunt{list: f.strays, looks: 2, stopped: map[memberID]bool{}, killed: map[memberID]bool{}, refused: map[memberID]bool{}}
	err := poll(nil, killWait, 5*time.Millisecond, h.step)
	if n := len(h.killed); n > 0 {
		f.log.Info("ended what was left of no known tree", "processes", n)
	}
	if n := len(h.refused); err == nil && n > 0 {
		err = fmt.Errorf("%d of them may not be signalled", n)
	}
	if err != nil {
		return fmt.Errorf("runtime: end what is left: %w", err)
	}
	f.Sweep() // they are ours to reap
	return nil
}

// strays lists who is to go: see EndStrays. Children that other threads forked, and who
// shares this process's session, are somebody else's (see the package comment).
func (f *Forker) strays() ([]member, error) {
	own, err := unix.Getsid(0)
	if err != nil {
		return nil, err
	}
	all, err := processes()
	if err != nil {
		return nil, fmt.Errorf("scan /proc: %w", err)
	}
	roots := map[int]bool{}
	orphans, err := f.orphans()
	if err != nil { // a kernel without lists of children
		for pid, m := range all {
			roots[pid] = m.parent == f.self
		}
	}
	for _, pid := range orphans {
		roots[pid] = true
	}
	f.mu.Lock()
	for pid := range f.live {
		roots[pid] = true
	}
	f.mu.Unlock()
	var out []member
	for _, m := range all {
		if m.live() && f.below(m, all, roots, own) {
			out = append(out, m)
		}
	}
	return out, nil
}

// below: the ancestor of m that is a child of this process is a root of its own session.
func (f *Forker) below(m member, all map[int]member, roots map[int]bool, own int) bool {
	for range len(all) {
		if m.parent == f.self {
			return roots[m.pid] && m.session != own
		}
		parent, ok := all[m.parent]
		if !ok {
			return false
		}
		m = parent
	}
	return false // a cycle of a snapshot that tore
}
