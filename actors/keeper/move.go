package keeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// What follows is called with turn held.

// resume indexes what a worker spliced and died over, and hands the sink what it has
// not got.
func (u *pump) resume(sink Sink, next int64) error {
	u.turn.Lock()
	defer u.unlock()
	if u.released {
		return errReleased
	}
	u.sink, u.failed, u.fresh = sink, nil, true
	if err := u.recover(); err != nil {
		return err
	}
	s := u.process.slot
	if next > s.next() {
		return wire.Errorf(wire.CodeCursorAhead, "chunk %d does not exist; the next one is %d", next, s.next())
	}
	u.next = max(next, s.oldest())
	return u.handOver()
}

// recover puts bytes into the index that are in the journal beyond it: spliced by a
// worker that was killed before its commit. The slot says of which stream they are.
func (u *pump) recover() error {
	if u.journal == nil {
		return nil
	}
	at, err := u.journal.position()
	if err != nil {
		return err
	}
	s := u.process.slot
	end, _ := s.ends()
	committed := u.place(end)
	switch {
	case at == 0 && committed > 0: // killed inside rewind
		s.word(wordBase).Store(uint64(end))
		return nil
	case at == u.capacity() && committed == 0: // killed at the end of the ring
		return nil
	case at == committed:
		return nil
	case at < committed || at-committed > readBytes || s.room() < readEntries:
		return fmt.Errorf("journal is at %d and its index at %d", at, committed)
	}
	stream := wire.Stream(s.word(wordIntent).Load())
	unknown := !stream.Valid()
	if unknown {
		stream = wire.Stdout
	}
	s.index(stream, int(at-committed), time.Now(), unknown)
	return nil
}

// capacity is the size of the ring.
func (u *pump) capacity() int64 { return u.process.info.Backlog / readBytes * readBytes }

// place is where the byte at raw offset raw is in the ring.
func (u *pump) place(raw int64) int64 {
	return (raw - int64(u.process.slot.word(wordBase).Load())) % u.capacity()
}

// handOver gives the sink what is indexed and not yet given.
func (u *pump) handOver() error {
	s := u.process.slot
	if u.next == s.next() {
		return nil
	}
	if u.journal == nil {
		return fmt.Errorf("%d chunks are indexed and there is no journal", s.next()-u.next)
	}
	buf := u.process.client.buffers.Get().(*[]byte)
	defer u.process.client.buffers.Put(buf)
	for u.next < s.next() {
		at, count, n := u.place(s.load(u.next).raw), int64(0), 0
		room := min(int64(len(*buf)), u.capacity()-at)
		for number := u.next; number < s.next(); number++ {
			length := s.load(number).length
			if int64(n+length) > room { // no chunk lies across the end of the ring
				break
			}
			n += length
			count++
		}
		if count == 0 || n == 0 {
			return fmt.Errorf("index entry %d is broken", u.next)
		}
		data := (*buf)[:n]
		if err := u.journal.read(data, at); err != nil {
			return err
		}
		for ; count > 0; count-- {
			e := s.load(u.next)
			c := Chunk{
				Number: u.next, Offset: e.raw, Stream: e.stream, Data: data[:e.length:e.length],
				At: time.Unix(0, e.nanos).UTC(), OrderUnknown: e.orderUnknown, StdoutOffset: e.stdout,
			}
			if u.fresh {
				u.fresh = false
				c.Descriptors = s.before(u.next)
			}
			if err := u.sink.Append(c); err != nil {
				return fmt.Errorf("chunk %d: %w", u.next, err)
			}
			data = data[e.length:]
			u.next++
		}
	}
	return nil
}

// readable asks whether there are bytes, before a journal is spent on them. At the end
// of the stream there are none, and no error.
func (u *pump) readable(fd int) (bool, error) {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if u.between != nil {
		fds = append(fds, unix.PollFd{Fd: int32(u.between[0]), Events: unix.POLLIN})
	}
	for {
		n, err := unix.Poll(fds, 0)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return false, fmt.Errorf("poll output: %w", err)
		case n == 0:
			return false, unix.EAGAIN
		}
		for _, f := range fds {
			if f.Revents&unix.POLLIN != 0 {
				return true, nil
			}
		}
		return false, nil // hung up
	}
}

// assignJournal takes a free journal and names it in the slot before its first byte.
func (u *pump) assignJournal(ctx context.Context) error {
	j, err := u.process.client.takeJournal(ctx)
	if err != nil {
		return err
	}
	u.process.slot.word(wordJournal).Store(uint64(j.number) + 1)
	u.journal = j
	return nil
}

// waitRoom waits until index and journal have room for one more read. It keeps turn:
// the other stream would have to wait for the same room.
func (u *pump) waitRoom(ctx context.Context) error {
	s := u.process.slot
	for {
		u.trim()
		end, _ := s.ends()
		if s.room() >= readEntries && end-s.trimmed()+readBytes <= u.capacity() {
			return nil
		}
		select {
		case <-u.trims:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// splice moves bytes of a pipe to the end of what is in the journal.
func (u *pump) splice(fd int) (int, error) {
	s := u.process.slot
	end, _ := s.ends()
	at := u.place(end)
	switch {
	case s.trimmed() == end && at >= rewindBytes:
		// The position first: recover tells a rewind from a read by a position of 0.
		if err := u.journal.rewind(); err != nil {
			return 0, err
		}
		s.word(wordBase).Store(uint64(end))
		at = 0
	case at == 0 && end > 0: // behind the end of the ring, or there already
		if err := u.journal.rewind(); err != nil {
			return 0, err
		}
	}
	room := min(readBytes, int(u.capacity()-at))
	for {
		n, err := unix.Splice(fd, nil, u.journal.fd, nil, room, unix.SPLICE_F_NONBLOCK)
		switch err {
		case nil:
			return int(n), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, unix.EAGAIN
		default:
			return 0, fmt.Errorf("splice output: %w", err)
		}
	}
}

// spliceTerminal does the same for a terminal, by way of the pipe between. What an
// earlier worker left in that pipe comes first.
func (u *pump) spliceTerminal(fd int) (int, error) {
	if n, err := u.splice(u.between[0]); n > 0 || (err != nil && !errors.Is(err, unix.EAGAIN)) {
		return n, err
	}
	for {
		n, err := unix.Splice(fd, nil, u.between[1], nil, readBytes, unix.SPLICE_F_NONBLOCK)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return 0, unix.EAGAIN
		case err == unix.EIO || (err == nil && n == 0):
			return 0, nil // nobody holds the terminal any more
		case err != nil:
			return 0, fmt.Errorf("splice terminal: %w", err)
		default:
			return u.splice(u.between[0])
		}
	}
}

// trim does what Trim was called for.
func (u *pump) trim() {
	if u.released {
		return
	}
	s := u.process.slot
	end, _ := s.ends()
	if to := min(u.wanted.Load(), end); to > s.trimmed() {
		s.forget(to)
		u.tidyLater()
	}
}

// tidyLater sees to it that a journal does not keep memory that nobody needs. A
// process that moves all the time pays for four timers a second, an idle one for none.
func (u *pump) tidyLater() {
	s := u.process.slot
	if u.tidying || u.journal == nil || u.tidied == [2]int64{s.next(), s.trimmed()} {
		return
	}
	u.tidying = true
	moved := s.next()
	time.AfterFunc(tidyAfter, func() { u.tidy(moved) })
}

// tidy frees what has been trimmed, unless chunk number moved has come since.
func (u *pump) tidy(moved int64) {
	u.turn.Lock()
	defer u.unlock()
	u.tidying = false
	if u.released || u.journal == nil {
		return
	}
	s := u.process.slot
	if s.next() != moved {
		u.tidyLater()
		return
	}
	end, _ := s.ends()
	u.tidied = [2]int64{s.next(), s.trimmed()}
	from, to, capacity := u.place(s.trimmed()), u.place(end), u.capacity()
	var err error
	switch {
	case s.trimmed() == end:
		if err = u.journal.reset(); err == nil { // as in splice: the position first
			s.word(wordBase).Store(uint64(end))
		}
	case from < to:
		err = errors.Join(u.journal.punch(0, from), u.journal.punch(to, capacity))
	default: // what is needed lies across the end of the ring
		err = u.journal.punch(to, from)
	}
	if err != nil {
		u.fail(err)
	}
}

// unlock gives turn up. A Trim that came too late for trim and too early for the lock
// is served here.
func (u *pump) unlock() {
	for {
		u.trim()
		seen := u.wanted.Load()
		u.turn.Unlock()
		if u.wanted.Load() == seen || !u.turn.TryLock() {
			return
		}
	}
}

// giveJournal returns the journal and lets go of the slot, for ever. The slot lets go
// of the journal first: one that no slot names is dropped when a worker attaches.
func (u *pump) giveJournal() {
	u.turn.Lock()
	defer u.turn.Unlock()
	u.released = true
	if u.journal == nil {
		return
	}
	u.process.slot.word(wordJournal).Store(0)
	u.process.client.returnJournal(u.journal)
	u.journal = nil
}

// closeFiles closes what this side has open. No pump runs.
func (u *pump) closeFiles() {
	u.turn.Lock()
	defer u.turn.Unlock()
	u.released = true
	for _, f := range []interface{ Close() error }{u.stdout, u.stderr, u.master} {
		_ = f.Close() // nil or closed before: an error that says so
	}
	for _, o := range u.extra {
		_ = o.File.Close()
	}
	if u.between != nil {
		_ = unix.Close(u.between[0])
		_ = unix.Close(u.between[1])
		u.between = nil
	}
	if u.journal != nil {
		u.journal.close()
		u.journal = nil
	}
}
