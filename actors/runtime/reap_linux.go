package runtime

import (
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// sweepPause gathers the ends of orphans: at most ten sweeps a second, and none in the
// moment in which a managed child's own end is answered.
const sweepPause = 100 * time.Millisecond

// reapLoop sweeps after SIGCHLD.
func (f *Forker) reapLoop() {
	defer f.ended.Done()
	notified := make(chan os.Signal, 1) // full: a sweep is due anyway
	signal.Notify(notified, unix.SIGCHLD)
	defer signal.Stop(notified)
	timer := time.NewTimer(sweepPause)
	defer timer.Stop()
	armed := true
	for {
		select {
		case <-f.stop:
			f.Sweep()
			return
		case <-notified:
			if !armed {
				timer.Reset(sweepPause)
				armed = true
			}
		case <-timer.C:
			armed = false
			f.Sweep()
		}
	}
}

// Sweep reaps the orphans that were reparented to this process and have ended. It runs
// by itself after SIGCHLD; a call makes it now. It never touches a child that Start
// returned or is about to return, nor any child in this process's own session.
//
// The kernel gives orphans to the first living thread of a subreaper, its main thread,
// and that is whose children are looked at; what was forked belongs to the thread that
// forked it, and so another Forker's children are safe as well.
func (f *Forker) Sweep() {
	own, err := unix.Getsid(0)
	if err != nil {
		return
	}
	pids, err := f.orphans()
	if err != nil { // a kernel without lists of children
		all, err := processes()
		if err != nil {
			return
		}
		for pid := range all {
			pids = append(pids, pid)
		}
	}
	for _, pid := range pids {
		f.sweep(pid, own)
	}
}

// sweep reaps pid if it is an orphan and a zombie.
func (f *Forker) sweep(pid, ownSession int) {
	if f.manages(pid) {
		return
	}
	m, err := readStat(pid)
	if err != nil || m.state != 'Z' || m.parent != f.self || m.session == ownSession {
		return
	}
	f.forking.Lock()
	defer f.forking.Unlock()
	if f.manages(pid) {
		return // forked and ended while we looked
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, unix.WNOHANG, nil); err != nil && err != unix.ECHILD {
		f.log.Warn("reap an orphan", "pid", pid, "err", err)
	}
}

func (f *Forker) manages(pid int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.live[pid] != nil
}
