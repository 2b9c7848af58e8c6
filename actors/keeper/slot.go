package keeper

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// Words of a slot's header, as indices of 8 bytes.
const (
	wordJournal = iota // number of the journal + 1; 0 while there was no output
	wordIntent         // the stream that is being read; 0 before the first read
	wordNext           // number the next chunk gets: the commit of the index
	wordOldest         // first entry that is still needed
	wordTrimmed        // raw offset, at a chunk; bytes below are not needed
	wordBase           // raw offset of the front of the journal
	wordInput          // bytes written to stdin
	wordWriting        // length of the write to stdin under way; 0 none
	wordLine           // bytes of the unfinished input line of a terminal
	wordClosed         // 1: stdin is closed or refused
	headerWords = 10
	_           = headerBytes - 8*headerWords // the header has room for them
)

// slot is the shared memory of one process. One side writes it at a time: the worker
// that is attached; the keeper before the first hand-over and after the release.
// Every word is stored atomically so that a worker that dies between two
// instructions leaves a state that can be read.
type slot struct {
	number uint32
	wide   bool // the process has more streams than stdout and stderr
	header []byte
	ring   []byte
}

func (s *slot) word(i int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&s.header[8*i]))
}

func (s *slot) next() int64   { return int64(s.word(wordNext).Load()) }
func (s *slot) oldest() int64 { return int64(s.word(wordOldest).Load()) }

// entry is one chunk in the index. Its number is its place in the ring.
type entry struct {
	raw          int64 // raw offset of its first byte
	stdout       int64 // stdout bytes before it
	nanos        int64 // time of the read, Unix
	length       int
	stream       wire.Stream
	orderUnknown bool
}

func (e entry) end() int64 { return e.raw + int64(e.length) }

const flagOrderUnknown = 1 << 40

func (s *slot) cell(number int64, i int) *atomic.Uint64 {
	place := number % ringEntries
	if s.wide {
		place = number % wideEntries
	}
	return s.ringWord(int(place)*entryBytes/8 + i)
}

// ringWord is word i of the ring's memory.
func (s *slot) ringWord(i int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&s.ring[8*i]))
}

func (s *slot) load(number int64) entry {
	about := s.cell(number, 3).Load()
	return entry{
		raw:          int64(s.cell(number, 0).Load()),
		stdout:       int64(s.cell(number, 1).Load()),
		nanos:        int64(s.cell(number, 2).Load()),
		length:       int(uint32(about)),
		stream:       wire.Stream(about >> 32 & 0xff),
		orderUnknown: about&flagOrderUnknown != 0,
	}
}

func (s *slot) store(number int64, e entry) {
	about := uint64(uint32(e.length)) | uint64(e.stream)<<32
	if e.orderUnknown {
		about |= flagOrderUnknown
	}
	s.cell(number, 0).Store(uint64(e.raw))
	s.cell(number, 1).Store(uint64(e.stdout))
	s.cell(number, 2).Store(uint64(e.nanos))
	s.cell(number, 3).Store(about)
}

// ends gives the raw and the stdout offset behind the last committed entry. They are
// not stored: with one word as the commit there is nothing that could disagree.
func (s *slot) ends() (raw, stdout int64) {
	next := s.next()
	if next == 0 {
		return 0, 0
	}
	e := s.load(next - 1)
	stdout = e.stdout
	if e.stream == wire.Stdout {
		stdout += int64(e.length)
	}
	return e.end(), stdout
}

// room is the count of entries that can be added.
func (s *slot) room() int64 {
	room := ringEntries - (s.next() - s.oldest())
	if s.wide {
		room -= ringEntries - wideEntries
	}
	return room
}

// index adds n bytes of stream behind the last entry, as chunks of at most chunkBytes,
// and commits them together. The caller has seen that there is room.
func (s *slot) index(stream wire.Stream, n int, at time.Time, orderUnknown bool) {
	raw, stdout := s.ends()
	number, nanos := s.next(), at.UnixNano()
	for n > 0 {
		e := entry{raw: raw, stdout: stdout, nanos: nanos, length: min(n, chunkBytes), stream: stream, orderUnknown: orderUnknown}
		s.store(number, e)
		number++
		n -= e.length
		raw = e.end()
		if stream == wire.Stdout {
			stdout += int64(e.length)
		}
	}
	s.word(wordNext).Store(uint64(number))
}

// forget gives up the entries that end at or below raw, and with them their bytes: not
// those of an entry that is needed in part. The last one stays readable: the offsets
// continue from it.
func (s *slot) forget(raw int64) {
	oldest, next := s.oldest(), s.next()
	for oldest < next && s.load(oldest).end() <= raw {
		oldest++
	}
	trimmed, _ := s.ends()
	if oldest < next {
		trimmed = s.load(oldest).raw
	}
	if s.wide {
		s.moveBase(oldest)
	}
	s.word(wordOldest).Store(uint64(oldest))
	s.word(wordTrimmed).Store(uint64(trimmed))
}

func (s *slot) trimmed() int64 { return int64(s.word(wordTrimmed).Load()) }
