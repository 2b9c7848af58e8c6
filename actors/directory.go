package actors

import "sync"

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

func (d *directory) removeSession(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.sessions, id)
}

func (d *directory) removeProcess(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.processes, id)
}
