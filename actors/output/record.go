package output

import (
	"encoding/binary"
	"hash/crc32"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// MaxChunk is the most bytes one chunk may hold.
const MaxChunk = 4096

// A record is a header of 64 bytes, a table, and the data, all little-endian:
//
//	 0 magic u16, stream u8, flags u8: the order is unknown, entries of the table from bit 2 on
//	 4 crc32c u32 of all but itself
//	 8 number u64           16 raw offset u64
//	24 stdout offset u64    32 time, unix ns, i64
//	40 length of table and data u16      42 source length u16
//	44 decoder state of stdout before the data: carry [3]u8, carry length with
//	   escape state and CR u8, argument u16
//	50 the same of stderr: whatever is lost before a record, it says how to go on
//	56 lines of stdout before the data u32 (saturating), 60 of stderr
//
// The table says the same of each extra descriptor that wrote something before: see
// extent. Most processes have none.
const (
	headerLen  = 64
	recordMax  = headerLen + MaxChunk + maxExtents*extentLen
	magic      = 0x10c1 // format 1
	flagNoRank = 1      // the order against the other streams is unknown
	tableShift = 2      // of the flags
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// record is a decoded header and the data it heads. Data points into the buffer it
// was decoded from.
type record struct {
	number int64
	raw    int64 // offset over all streams
	stdout int64 // bytes of stdout before this record
	nanos  int64
	source int // bytes of the process this record stands for
	stream wire.Stream
	flags  uint8
	states [2]state // of each stream, before data
	lines  [2]uint32
	table  []byte // of extents, encoded
	data   []byte
}

func (r *record) size() int     { return headerLen + len(r.table) + len(r.data) }
func (r *record) end() int64    { return r.raw + int64(r.source) }
func (r *record) at() time.Time { return time.Unix(0, r.nanos).UTC() }

// pos is the offset of the record in its own stream.
func (r *record) pos() int64 {
	switch r.stream {
	case wire.Stdout:
		return r.stdout
	case wire.Stderr:
		return r.pair() - r.stdout
	}
	return r.extent(r.stream).bytes
}

// pair is the bytes of stdout and stderr before the record.
func (r *record) pair() int64 {
	n := r.raw
	for b := r.table; len(b) > 0; b = b[extentLen:] {
		n -= decodeExtent(b).bytes
	}
	return n
}

// state is the state of the record's stream before the data.
func (r *record) state() state {
	if r.stream <= wire.Stderr {
		return r.states[r.stream-1]
	}
	return r.extent(r.stream).state
}

// stdoutEnd is the count of stdout bytes up to the end of the record.
func (r *record) stdoutEnd() int64 {
	if r.stream == wire.Stdout {
		return r.stdout + int64(r.source)
	}
	return r.stdout
}

// appendRecord encodes r at the end of buf; the checksum is left to seal.
func appendRecord(buf []byte, r *record) []byte {
	n := len(buf)
	buf = buf[:n+headerLen]
	h := buf[n:]
	le := binary.LittleEndian
	le.PutUint16(h, magic)
	h[2], h[3] = uint8(r.stream), r.flags|uint8(len(r.table)/extentLen)<<tableShift
	le.PutUint32(h[4:], 0)
	le.PutUint64(h[8:], uint64(r.number))
	le.PutUint64(h[16:], uint64(r.raw))
	le.PutUint64(h[24:], uint64(r.stdout))
	le.PutUint64(h[32:], uint64(r.nanos))
	le.PutUint16(h[40:], uint16(len(r.table)+len(r.data)))
	le.PutUint16(h[42:], uint16(r.source))
	r.states[0].encode(h[44:])
	r.states[1].encode(h[50:])
	le.PutUint32(h[56:], r.lines[0])
	le.PutUint32(h[60:], r.lines[1])
	buf = append(buf, r.table...)
	return append(buf, r.data...)
}

// decode reads the record at the start of b without its checksum. It reports false
// for what cannot be a record.
func decode(b []byte, r *record) bool {
	if len(b) < headerLen {
		return false
	}
	le := binary.LittleEndian
	n, table := int(le.Uint16(b[40:])), extentLen*int(b[3]>>tableShift)
	if le.Uint16(b) != magic || n < table || n > table+MaxChunk || len(b) < headerLen+n {
		return false
	}
	r.number = int64(le.Uint64(b[8:]))
	r.raw = int64(le.Uint64(b[16:]))
	r.stdout = int64(le.Uint64(b[24:]))
	r.nanos = int64(le.Uint64(b[32:]))
	r.source = int(le.Uint16(b[42:]))
	r.stream = wire.Stream(b[2])
	r.flags = b[3] & (1<<tableShift - 1)
	r.states = [2]state{decodeState(b[44:]), decodeState(b[50:])}
	r.lines = [2]uint32{le.Uint32(b[56:]), le.Uint32(b[60:])}
	r.table = b[headerLen : headerLen+table : headerLen+table]
	r.data = b[headerLen+table : headerLen+n : headerLen+n]
	return r.number >= 0 && r.raw >= 0 && r.stdout >= 0 && r.stdout <= r.raw &&
		r.source > 0 && r.stream.Valid()
}

func checksum(rec []byte) uint32 {
	return crc32.Update(crc32.Checksum(rec[:4], castagnoli), castagnoli, rec[8:])
}

// seal writes the checksums of the records in b.
func seal(b []byte) {
	le := binary.LittleEndian
	for len(b) >= headerLen {
		n := headerLen + int(le.Uint16(b[40:]))
		le.PutUint32(b[4:], checksum(b[:n]))
		b = b[n:]
	}
}

// verify decodes the record at the start of b and checks its checksum.
func verify(b []byte, r *record) bool {
	return decode(b, r) && binary.LittleEndian.Uint32(b[4:]) == checksum(b[:r.size()])
}

// run is a contiguous sequence of records: in a segment file, or in a block.
type run struct {
	first, next int64 // numbers, next exclusive
	raw, rawEnd int64
	streams     uint64 // that have bytes in it, by streamBit
	pos, size   int64  // in the file
}

func (u *run) add(r *record, pos int64) {
	if u.next == u.first {
		u.first, u.raw, u.streams, u.pos = r.number, r.raw, 0, pos
	}
	u.next, u.rawEnd = r.number+1, r.end()
	u.streams |= streamBit(r.stream)
	u.size = pos + int64(r.size()) - u.pos
}

func (u *run) bytes() int64 { return u.rawEnd - u.raw }

// holds reports whether u may have bytes of a stream; 0 means any.
func (u *run) holds(stream wire.Stream) bool { return stream == 0 || u.streams&streamBit(stream) != 0 }

func streamBit(s wire.Stream) uint64 { return 1 << (s - 1) }
