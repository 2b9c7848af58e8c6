package keeper

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// chunkBytes bounds a chunk.
	chunkBytes = 4096
	// readBytes bounds one splice; it is the capacity of a pipe.
	readBytes = 64 << 10
	// readEntries is the most entries one splice can need.
	readEntries = readBytes / chunkBytes
	// minBacklog is the smallest ring.
	minBacklog = 2 * readBytes
	// defaultBacklog is how much a journal may hold for the sink: the default window
	// of an output log and 4 MiB.
	defaultBacklog = 256<<10 + 4<<20
	// rewindBytes is where a ring starts from its front again once nothing in it is
	// needed: bytes then go to memory that is warm and already there.
	rewindBytes = 256 << 10
	// tidyAfter is how long a journal that nobody needs keeps its memory.
	tidyAfter = 250 * time.Millisecond
	// journalBatch is how many journals a worker gets at once.
	journalBatch = 8
	// journalSpare is how many free journals a worker keeps.
	journalSpare = 64
)

// journal is a memfd with the output of one process, a ring of as many bytes as the
// process may have read and not trimmed.
//
// Its file position is where the next splice writes. Keeper and worker share it, and
// the kernel moves it in the same call that moves the bytes: a position ahead of the
// index is how a new worker sees what a dead one has read.
type journal struct {
	number uint32
	fd     int
}

func newJournal(number uint32) (*journal, error) {
	fd, err := unix.MemfdCreate("limpet-journal", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create journal: %w", err)
	}
	return &journal{number: number, fd: fd}, nil
}

// position is where the next splice writes.
func (j *journal) position() (int64, error) {
	at, err := unix.Seek(j.fd, 0, unix.SEEK_CUR)
	if err != nil {
		return 0, fmt.Errorf("position of the journal: %w", err)
	}
	return at, nil
}

// rewind makes the next splice write to the front.
func (j *journal) rewind() error {
	if _, err := unix.Seek(j.fd, 0, unix.SEEK_SET); err != nil {
		return fmt.Errorf("rewind journal: %w", err)
	}
	return nil
}

// read fills p from position at. Bytes that are committed are there; fewer are a fault.
func (j *journal) read(p []byte, at int64) error {
	for len(p) > 0 {
		n, err := unix.Pread(j.fd, p, at)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("read journal: %w", err)
		case n == 0:
			return fmt.Errorf("read journal at %d: ends %d bytes early", at, len(p))
		}
		p, at = p[n:], at+int64(n)
	}
	return nil
}

// punch gives back the memory of whole pages in [from, to).
func (j *journal) punch(from, to int64) error {
	if from >= to {
		return nil
	}
	err := unix.Fallocate(j.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from)
	if err != nil {
		return fmt.Errorf("punch journal: %w", err)
	}
	return nil
}

// reset makes it as new and gives its memory back.
func (j *journal) reset() error {
	if err := unix.Ftruncate(j.fd, 0); err != nil {
		return fmt.Errorf("reset journal: %w", err)
	}
	return j.rewind()
}

func (j *journal) close() { _ = unix.Close(j.fd) }
