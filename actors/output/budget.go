package output

import "sync"

// DefaultBudget is the spool space of one worker, in bytes.
const DefaultBudget int64 = 2 << 30

// Budget is the spool space that the logs of one worker share. It is safe for use by
// several goroutines.
type Budget struct {
	mu      sync.Mutex
	max     int64
	used    int64             // guarded by mu
	stalled map[*Log]struct{} // guarded by mu; told when space is given back
}

// NewBudget makes a budget of max bytes; 0 means [DefaultBudget].
func NewBudget(max int64) *Budget {
	if max == 0 {
		max = DefaultBudget
	}
	return &Budget{max: max, stalled: make(map[*Log]struct{})}
}

// Used is the bytes taken now.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// take takes n bytes if they are free; forced takes them in any case, for files that
// were there before us.
func (b *Budget) take(n int64, forced bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !forced && b.used+n > b.max {
		return false
	}
	b.used += n
	return true
}

func (b *Budget) give(n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	b.used -= n
	logs := make([]*Log, 0, len(b.stalled))
	for l := range b.stalled {
		logs = append(logs, l)
	}
	b.mu.Unlock()
	for _, l := range logs {
		l.wakeRoom()
	}
}

func (b *Budget) watch(l *Log, on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if on {
		b.stalled[l] = struct{}{}
	} else {
		delete(b.stalled, l)
	}
}
