package keeper

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// The arena is one memfd of segments. A segment holds the headers of its slots, dense,
// so that an idle process costs 256 bytes of it, and then their index rings, of which
// only what is written takes memory.
const (
	segmentSlots = 64
	headerBytes  = 256
	entryBytes   = 32
	ringEntries  = 8192
	ringBytes    = ringEntries * entryBytes
	segmentBytes = segmentSlots * (headerBytes + ringBytes)
	maxSegments  = 256 // 16,384 processes
)

// arena maps the segments that this side has seen. Mappings last as long as the
// arena, because a slot may be read as long as its process is known.
type arena struct {
	fd int

	mu       sync.Mutex
	segments [][]byte // guarded by mu
}

// newArena makes an empty one. It can only grow: a mapping never loses its pages.
func newArena() (*arena, error) {
	fd, err := unix.MemfdCreate("limpet-arena", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("create arena: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("seal arena: %w", err)
	}
	return &arena{fd: fd}, nil
}

// openArena uses one that the keeper made. It owns fd.
func openArena(fd int) *arena { return &arena{fd: fd} }

// grow makes room for one more segment and returns the count of segments.
func (a *arena) grow() (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := len(a.segments)
	if n == maxSegments {
		return n, fmt.Errorf("arena is full: %d slots", n*segmentSlots)
	}
	if err := unix.Ftruncate(a.fd, int64(n+1)*segmentBytes); err != nil {
		return n, fmt.Errorf("grow arena: %w", err)
	}
	if err := a.mapTo(n); err != nil {
		return n, err
	}
	return n + 1, nil
}

// slot gives slot number n, mapping its segment when needed.
func (a *arena) slot(n uint32, wide bool) (*slot, error) {
	segment, place := int(n)/segmentSlots, int(n)%segmentSlots
	if segment >= maxSegments {
		return nil, fmt.Errorf("arena slot %d out of range", n)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.mapTo(segment); err != nil {
		return nil, err
	}
	mem := a.segments[segment]
	ring := segmentSlots*headerBytes + place*ringBytes
	return &slot{
		number: n, wide: wide,
		header: mem[place*headerBytes : (place+1)*headerBytes : (place+1)*headerBytes],
		ring:   mem[ring : ring+ringBytes : ring+ringBytes],
	}, nil
}

// mapTo maps all segments up to and including number last. It checks the size first:
// touching a page beyond the end of a memfd would kill this process.
func (a *arena) mapTo(last int) error {
	if last < len(a.segments) {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(a.fd, &st); err != nil {
		return fmt.Errorf("stat arena: %w", err)
	}
	if st.Size < int64(last+1)*segmentBytes {
		return fmt.Errorf("arena has no segment %d", last)
	}
	for n := len(a.segments); n <= last; n++ {
		mem, err := unix.Mmap(a.fd, int64(n)*segmentBytes, segmentBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return fmt.Errorf("map arena segment %d: %w", n, err)
		}
		a.segments = append(a.segments, mem)
	}
	return nil
}

// clear makes slot n as new and gives the memory of its ring back.
func (a *arena) clear(s *slot) error {
	used := s.next() > 0
	clear(s.header)
	if !used {
		return nil
	}
	segment, place := int64(s.number)/segmentSlots, int64(s.number)%segmentSlots
	at := segment*segmentBytes + segmentSlots*headerBytes + place*ringBytes
	err := unix.Fallocate(a.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, ringBytes)
	if err != nil {
		return fmt.Errorf("clear arena slot %d: %w", s.number, err)
	}
	return nil
}

// close unmaps everything. No slot may be used afterwards.
func (a *arena) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, mem := range a.segments {
		_ = unix.Munmap(mem)
	}
	a.segments = nil
	_ = unix.Close(a.fd)
}
