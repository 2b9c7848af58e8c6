package keeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// killLimit is how long an older worker may take to die.
const killLimit = 10 * time.Second

// holder is a worker that may still read the pipes: one that attached, until it says
// that it does not, or is dead.
type holder struct {
	pid, pidfd  int
	incarnation uint64
}

// attach makes s the worker, as incarnation e, and hands everything over.
func (s *session) attach(id, e uint64) error {
	k := s.keeper
	k.attaching.Lock()
	defer k.attaching.Unlock()
	k.mu.Lock()
	last, old, h, closing := k.incarnation, k.worker, k.holder, k.closing
	k.mu.Unlock()
	switch {
	case closing:
		return wire.Errorf(wire.CodeSupervisorShuttingDown, "the keeper ends")
	case e <= last:
		return wire.Invalid("incarnation", "%d is not above %d, which this keeper has served", e, last)
	case old == s:
		return wire.Invalid("incarnation", "this connection is attached already; close it and dial again")
	}
	if err := k.displace(h, old, s.pid); err != nil {
		return err
	}
	numbers, fds, err := k.prepareJournals()
	if err != nil {
		return err
	}
	ctx := context.Background() // each frame has its limit
	// Events for the new worker wait for the lock until it knows its processes.
	s.link.sending <- struct{}{}
	defer func() { <-s.link.sending }()
	k.mu.Lock()
	k.incarnation, k.worker = e, s
	k.holder = &holder{pid: s.pid, pidfd: s.pidfd, incarnation: e}
	s.pidfd = -1
	held := make([]*child, 0, len(k.children))
	infos := make([]processInfo, 0, len(k.children))
	for _, c := range k.children {
		if !c.released {
			held, infos = append(held, c), append(infos, k.describe(c))
		}
	}
	k.mu.Unlock()
	k.wake()
	for i, c := range held {
		list := c.descriptors(&infos[i])
		if infos[i].Journal > 0 {
			list = append(list, k.journalDescriptor(infos[i].Journal-1))
		}
		if err := s.link.sendHeld(ctx, kindAdopted, 0, infos[i], list...); err != nil {
			s.link.close() // a worker that knows a part of them
			return fmt.Errorf("hand over %s: %w", infos[i].Process, err)
		}
	}
	k.log.Info("worker attached", "pid", s.pid, "incarnation", e, "processes", len(held))
	return s.link.sendHeld(ctx, kindReply, id, attachReply{Processes: len(held), Journals: numbers}, append([]int{k.arena.fd}, fds...)...)
}

// displace makes sure that no older worker reads: it is killed unless it said that it
// stopped, and its last starts are waited for.
func (k *keeper) displace(h *holder, old *session, pid int) error {
	if h != nil {
		if h.pid == pid && !dead(h.pidfd, 0) {
			return wire.Invalid("incarnation", "this process still holds incarnation %d; close that connection first", h.incarnation)
		}
		if !dead(h.pidfd, 0) {
			k.log.Warn("killing the older worker", "pid", h.pid, "incarnation", h.incarnation)
			if err := unix.PidfdSendSignal(h.pidfd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill the older worker %d: %w", h.pid, err)
			}
			if !dead(h.pidfd, killLimit) {
				return wire.Errorf(wire.CodeUnavailable, "the older worker %d does not die", h.pid)
			}
		}
		k.mu.Lock()
		if k.holder == h {
			k.holder = nil
			_ = unix.Close(h.pidfd)
		}
		k.mu.Unlock()
	}
	if old != nil {
		old.link.close()
		<-old.done
	}
	return nil
}

// dead waits for the exit of a process.
func dead(pidfd int, limit time.Duration) bool {
	end := time.Now().Add(limit)
	for {
		fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(max(0, time.Until(end)).Milliseconds()))
		if err != unix.EINTR {
			return err == nil && n > 0
		}
	}
}

// prepareJournals drops the journals that no process uses, which a dead worker may
// have left dirty, and makes new ones.
func (k *keeper) prepareJournals() ([]uint32, []int, error) {
	k.mu.Lock()
	used := map[uint32]bool{}
	for _, c := range k.children {
		if n := c.slot.word(wordJournal).Load(); n > 0 {
			used[uint32(n-1)] = true
		}
	}
	for n, j := range k.journals {
		if !used[n] {
			j.close()
			delete(k.journals, n)
		}
	}
	k.mu.Unlock()
	return k.moreJournals(journalBatch)
}

func (k *keeper) journalDescriptor(number uint32) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if j := k.journals[number]; j != nil {
		return j.fd
	}
	return -1
}

// detach: the worker has stopped reading and goes.
func (k *keeper) detach(s *session) {
	k.mu.Lock()
	k.worker = nil
	h := k.holder
	k.holder = nil
	k.mu.Unlock()
	if h != nil {
		_ = unix.Close(h.pidfd)
	}
	k.wake()
}
