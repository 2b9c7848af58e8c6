package runtime

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
	"golang.org/x/sys/unix"
)

// killWait bounds how long a killed tree is watched. What the kernel cannot end by
// then (a member in an uninterruptible sleep) is reported as not gone.
const killWait = 5 * time.Second

// Survivors counts the live members of the tree besides its leader and says how that
// is known. Zombies are not live.
func (c *Child) Survivors() (int, wire.Proof, error) {
	if c.leaf != nil {
		populated, _, err := c.leaf.state()
		if err != nil || !populated {
			return 0, wire.ProofCgroup, err
		}
		pids, err := c.leaf.members()
		n := 0
		for _, pid := range pids {
			if pid != c.PID || c.isReaped() {
				n++
			}
		}
		return n, wire.ProofCgroup, err
	}
	members, err := c.forker.scan(c, c.isReaped())
	n := 0
	for _, m := range members {
		if m.pid != c.PID || m.start != c.StartTime {
			n++
		}
	}
	return n, wire.ProofScan, err
}

func (c *Child) isReaped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reaped
}

// Stop ends the tree: o.First to all members, o.Grace for them to end, KILL, and a
// look whether it worked. When ctx ends, the grace does; KILL is sent in any case.
// After KILL the tree is watched for at most 5 s. Stop reaps nothing: somebody must be
// in [Child.Wait], as always.
func (c *Child) Stop(ctx context.Context, o StopOptions) StopResult {
	var r StopResult
	if o.First != 0 {
		c.signalTree(o.First)
		if poll(ctx.Done(), o.Grace, c.pollStep(), c.empty) == nil {
			r.Gone = true
		}
	}
	if c.leaf != nil {
		c.killLeaf(&r)
	} else {
		r.Gone = false
	}
	// Also after a cgroup kill: what left the cgroup by itself still carries the tag.
	// It would have been orphaned by now.
	if !r.Gone || !c.forker.noOrphans() {
		c.killScanned(&r)
	}
	return r
}

// pollStep is the longest pause between two looks: a look at a cgroup costs a
// microsecond, a scan milliseconds.
func (c *Child) pollStep() time.Duration {
	if c.leaf != nil {
		return 5 * time.Millisecond
	}
	return 50 * time.Millisecond
}

// empty says whether no live member is left, the leader included.
func (c *Child) empty() (bool, error) {
	if c.leaf != nil {
		populated, _, err := c.leaf.state()
		return !populated, err
	}
	members, err := c.forker.scan(c, c.isReaped())
	return len(members) == 0, err
}

// signalTree sends sig to the leader's group, then to the members that are elsewhere:
// by group where a group's own leader lives, because the kernel signals a group at one
// moment, and a process that is being forked just then is not missed. A stopped process
// would not notice, so all are continued.
func (c *Child) signalTree(sig unix.Signal) {
	_ = c.Signal(sig)
	_ = c.Signal(unix.SIGCONT)
	members := c.outsiders()
	whole := make(map[int]bool)
	for _, m := range members {
		if m.pid == m.group && m.signalGroup(sig) == nil {
			_ = m.signalGroup(unix.SIGCONT)
			whole[m.group] = true
		}
	}
	for _, m := range members {
		if !whole[m.group] {
			_ = m.signal(sig)
			_ = m.signal(unix.SIGCONT)
		}
	}
}

// outsiders are the members outside of the leader's process group.
func (c *Child) outsiders() []member {
	var out []member
	if c.leaf == nil {
		members, _ := c.forker.scan(c, c.isReaped())
		for _, m := range members {
			if m.group != c.PID {
				out = append(out, m)
			}
		}
		return out
	}
	for _, m := range identified(c.leaf.members, readStat) {
		if m.group != c.PID {
			out = append(out, m)
		}
	}
	return out
}

// identified gives the members of a list of numbers with their start times, by which a
// signal will know them. A number of the list may be another's by the time it is looked
// at; so those count that are in the list afterwards, too.
func identified(list func() ([]int, error), stat func(pid int) (member, error)) []member {
	pids, err := list()
	if err != nil {
		return nil
	}
	looked := make([]member, 0, len(pids))
	for _, pid := range pids {
		if m, err := stat(pid); err == nil {
			looked = append(looked, m)
		}
	}
	if len(looked) == 0 {
		return nil
	}
	if pids, err = list(); err != nil {
		return nil
	}
	return slices.DeleteFunc(looked, func(m member) bool { return !slices.Contains(pids, m.pid) })
}

// killLeaf kills by cgroup and waits until the kernel says that nobody is in it.
func (c *Child) killLeaf(r *StopResult) {
	r.Proof = wire.ProofCgroup
	if populated, _, err := c.leaf.state(); err == nil && !populated {
		r.Gone = true
		return
	}
	pids, _ := c.leaf.members()
	r.Killed = len(pids)
	if err := c.leaf.kill(); err != nil {
		c.forker.log.Error("cgroup.kill", "pid", c.PID, "err", err)
	}
	r.Gone = poll(nil, killWait, c.pollStep(), c.empty) == nil
}

// killScanned kills what a scan finds, again and again until two scans find nothing.
func (c *Child) killScanned(r *StopResult) {
	looks := 2
	if c.leaf != nil {
		looks = 1
	}
	h := hunt{
		list:    func() ([]member, error) { return c.forker.scan(c, c.isReaped()) },
		looks:   looks,
		stopped: map[memberID]bool{}, killed: map[memberID]bool{}, refused: map[memberID]bool{},
	}
	err := poll(nil, killWait, 5*time.Millisecond, h.step)
	for key := range h.refused {
		r.Unsignalled = append(r.Unsignalled, key.pid)
	}
	r.Killed += len(h.killed)
	if c.leaf == nil {
		r.Proof = wire.ProofScan
		r.Gone = err == nil && len(h.refused) == 0
		return
	}
	if len(h.stopped) > 0 {
		r.Proof = wire.ProofScan
	}
	r.Gone = r.Gone && err == nil && len(h.refused) == 0
}

var errStillThere = errors.New("members are left")

// poll asks done until it says yes, at most for span and until cancelled is closed.
// It asks at once, then after 200 µs, then ever more slowly up to step, and once more
// at the end. An error of done is returned when time is up.
func poll(cancelled <-chan struct{}, span, step time.Duration, done func() (bool, error)) error {
	end := time.Now().Add(span)
	pause := 200 * time.Microsecond
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for last := false; ; {
		ok, err := done()
		if ok {
			return nil
		}
		if err == nil {
			err = errStillThere
		}
		left := time.Until(end)
		if last || left <= 0 {
			return err
		}
		timer.Reset(min(pause, left))
		pause = min(2*pause, step)
		select {
		case <-timer.C:
		case <-cancelled:
			last = true
		}
	}
}
