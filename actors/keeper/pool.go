package keeper

import (
	"context"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// pool holds the journals that are in no use.
type pool struct {
	mu   sync.Mutex
	free []*journal // guarded by mu; at most journalSpare
}

func (l *pool) add(numbers []uint32, fds []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, n := range numbers {
		l.free = append(l.free, &journal{number: n, fd: fds[i]})
	}
}

func (l *pool) take() *journal {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.free) == 0 {
		return nil
	}
	j := l.free[len(l.free)-1]
	l.free = l.free[:len(l.free)-1]
	return j
}

// give takes an empty journal back and reports whether there was room for it.
func (l *pool) give(j *journal) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.free) >= journalSpare {
		return false
	}
	l.free = append(l.free, j)
	return true
}

func (l *pool) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, j := range l.free {
		j.close()
	}
	l.free = nil
}

// takeJournal gives a free journal, asking the keeper for more when there is none.
func (c *Client) takeJournal(ctx context.Context) (*journal, error) {
	if j := c.journals.take(); j != nil {
		return j, nil
	}
	var list journalList
	f, err := c.call(ctx, kindJournals, journalsRequest{Count: journalBatch}, &list)
	if err != nil {
		return nil, fmt.Errorf("get journals: %w", err)
	}
	if len(list.Journals) != len(f.descriptors) || len(f.descriptors) == 0 {
		f.closeDescriptors()
		return nil, fmt.Errorf("get journals: %w", errFrame)
	}
	j := &journal{number: list.Journals[0], fd: f.descriptors[0]}
	c.journals.add(list.Journals[1:], f.descriptors[1:])
	return j, nil
}

// returnJournal puts a journal back, or drops it on both sides.
func (c *Client) returnJournal(j *journal) {
	if err := j.reset(); err == nil && c.journals.give(j) {
		return
	}
	j.close()
	_ = c.link.send(context.Background(), kindDropJournals, 0, journalList{Journals: []uint32{j.number}})
}

// pollable makes a file of a non-blocking descriptor, for the netpoller.
func pollable(fd int, name string) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
