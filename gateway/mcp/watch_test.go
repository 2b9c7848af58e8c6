package mcp

import (
	"context"
	"testing"
)

// TestWatchAfterEnd: who wants to know of a process while its end is being told does not
// join a watch that tells nothing more.
func TestWatchAfterEnd(t *testing.T) {
	c := &conn{}
	_, stop := context.WithCancel(t.Context())
	p := &watched{uris: make(map[string]*subscribed), stop: stop}
	c.watch.byProcess = map[string]*watched{"P": p}
	c.tell("P", p, true, true, false)
	if c.watch.byProcess["P"] != p {
		t.Error("a change ended the watch")
	}
	c.tell("P", p, true, true, true)
	if c.watch.byProcess["P"] != nil {
		t.Error("a watch that has told the end is still joined")
	}
	c.unwatch("P", p)
}
