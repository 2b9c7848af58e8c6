package gateway

import "sync"

// cache remembers about the last size to 2*size entries used. It forgets the older
// half at once instead of keeping an order, which makes a hit one map look-up.
type cache[T any] struct {
	size int

	mu     sync.Mutex
	recent map[string]T // guarded by mu; at most size
	older  map[string]T // guarded by mu; what was recent before
}

func newCache[T any](size int) *cache[T] {
	return &cache[T]{size: size, recent: make(map[string]T)}
}

func (c *cache[T]) get(key string) (T, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.recent[key]
	if ok {
		return v, true
	}
	if v, ok = c.older[key]; ok {
		c.set(key, v)
	}
	return v, ok
}

func (c *cache[T]) put(key string, v T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(key, v)
}

func (c *cache[T]) drop(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.recent, key)
	delete(c.older, key)
}

// set stores v; mu is held.
func (c *cache[T]) set(key string, v T) {
	if _, ok := c.recent[key]; !ok && len(c.recent) >= c.size {
		c.older, c.recent = c.recent, make(map[string]T)
	}
	c.recent[key] = v
}
