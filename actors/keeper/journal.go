package keeper

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// chunkBytes bounds a chunk.
	chunkBytes = 4096
	// readBytes bounds one splice; it is the capacity of a pipe.
	readBytes = 64 << 10
	// readEntries is the most entries one splice can need.
	readEntries = readBytes / chunkBytes
	// punchBytes is the step in which a journal gives memory back.
	punchBytes = 1 << 20
	// defaultBacklog is how much a journal may hold for the sink: the default window
	// of an output log and 4 MiB.
	defaultBacklog = 256<<10 + 4<<20
	// journalBatch is how many journals a worker gets at once.
	journalBatch = 8
	// journalSpare is how many free journals a worker keeps.
	journalSpare = 64
)

// journal is a memfd with the output of one process. The file offset is the raw
// offset, so its size is the count of bytes read.
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

func (j *journal) size() (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(j.fd, &st); err != nil {
		return 0, fmt.Errorf("stat journal: %w", err)
	}
	return st.Size, nil
}

// read fills p from raw offset off. Bytes that are committed are there; fewer are a
// fault.
func (j *journal) read(p []byte, off int64) error {
	for len(p) > 0 {
		n, err := unix.Pread(j.fd, p, off)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("read journal: %w", err)
		case n == 0:
			return fmt.Errorf("read journal at %d: ends %d bytes early", off, len(p))
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// punch gives back the memory of [from, to). The size stays.
func (j *journal) punch(from, to int64) error {
	err := unix.Fallocate(j.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from)
	if err != nil {
		return fmt.Errorf("punch journal: %w", err)
	}
	return nil
}

// reset makes it as new.
func (j *journal) reset() error {
	if err := unix.Ftruncate(j.fd, 0); err != nil {
		return fmt.Errorf("reset journal: %w", err)
	}
	return nil
}

func (j *journal) close() { _ = unix.Close(j.fd) }
