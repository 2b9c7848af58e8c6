package keeper

import "github.com/limpet-sh/limpet/subjects/wire"

// An entry of the index says how many bytes of stdout were before it; the rest is stderr's
// in the slot of most processes. Where there are more streams, the ring is a little
// shorter, and behind it stands the base: the bytes of each stream before the oldest
// entry. It is there twice, so that a worker that is killed while it writes one leaves the
// other; the one that counts is of the entry that wordOldest names.
const (
	wideEntries = ringEntries - 64
	baseWords   = 64 * entryBytes / 8 / 2 // of one copy: a number, and a count for each stream
	_           = baseWords - 1 - int(wire.LastStream)
)

// base gives word i of a copy of the base: the number of an entry at 0, and at n the bytes
// of stream n before it.
func (s *slot) base(which, i int) int { return wideEntries*entryBytes/8 + which*baseWords + i }

// currentBase is the copy that belongs to the oldest entry.
func (s *slot) currentBase() int {
	if s.ringWord(s.base(1, 0)).Load() == uint64(s.oldest()) && s.oldest() > 0 {
		return 1
	}
	return 0
}

// moveBase makes the other copy the base of entry oldest, before wordOldest says so.
func (s *slot) moveBase(oldest int64) {
	was := s.oldest()
	if oldest == was {
		return
	}
	counts := s.counts(oldest)
	to := 1 - s.currentBase()
	for stream, n := range counts {
		if stream > 0 {
			s.ringWord(s.base(to, stream)).Store(uint64(n))
		}
	}
	s.ringWord(s.base(to, 0)).Store(uint64(oldest))
}

// counts gives the bytes of each stream before an entry that is kept, or is the next.
func (s *slot) counts(number int64) (counts [wire.LastStream + 1]int64) {
	which := s.currentBase()
	for i := 1; i < len(counts); i++ {
		counts[i] = int64(s.ringWord(s.base(which, i)).Load())
	}
	for n := s.oldest(); n < number; n++ {
		if e := s.load(n); e.stream.Valid() {
			counts[e.stream] += int64(e.length)
		}
	}
	return counts
}

// before lists the bytes of the extra descriptors before an entry.
func (s *slot) before(number int64) []wire.DescriptorBytes {
	if !s.wide {
		return nil
	}
	var list []wire.DescriptorBytes
	for stream, n := range s.counts(number) {
		if n > 0 && stream > int(wire.Stderr) {
			list = append(list, wire.DescriptorBytes{Number: stream, Bytes: n})
		}
	}
	return list
}
