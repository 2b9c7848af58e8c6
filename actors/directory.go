package actors

import (
	"sync"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// directory finds the mailbox of an address. The router reads it on the bus's
// goroutine; actors enter and leave.
type directory struct {
	mu        sync.RWMutex
	sessions  map[string]*session // guarded by mu; by session id
	processes map[string]*process // guarded by mu; by process id
}

func newDirectory() *directory {
	return &directory{sessions: map[string]*session{}, processes: map[string]*process{}}
}

func (d *directory) session(tenant, id string) *session {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if s := d.sessions[id]; s != nil && s.rec.Load().Tenant == tenant {
		return s
	}
	return nil
}

// process finds a process of a tenant: another's is as good as missing.
func (d *directory) process(tenant, id string) *process {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if p := d.processes[id]; p != nil && p.tenant == tenant {
		return p
	}
	return nil
}

// abandoned reports whether a record is of a start of this incarnation that ended before
// its fork, its create of unknown outcome. Who replaces it has the right to fork: an
// actor that may have forked is here until its end is recorded.
func (d *directory) abandoned(rec *wire.ExecutionRecord, worker string, incarnation uint64) bool {
	rc := &rec.Receipt
	return rc.State == wire.StateStarting && rc.Worker == worker && rc.Incarnation == incarnation &&
		d.process(rc.Tenant, rc.Process) == nil
}

func (d *directory) anyProcess(id string) *process {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.processes[id]
}

func (d *directory) everyProcess() (ps []*process) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, p := range d.processes {
		ps = append(ps, p)
	}
	return ps
}

func (d *directory) all() (ss []*session) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, s := range d.sessions {
		ss = append(ss, s)
	}
	return ss
}

func (d *directory) addSession(s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sessions[s.rec.Load().ID] = s
}

func (d *directory) addProcess(p *process) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.processes[p.id] = p
}

// removeSession and removeProcess take out what is there under its id, if it still is.
func (d *directory) removeSession(s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if id := s.rec.Load().ID; d.sessions[id] == s {
		delete(d.sessions, id)
	}
}

func (d *directory) removeProcess(p *process) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.processes[p.id] == p {
		delete(d.processes, p.id)
	}
}
