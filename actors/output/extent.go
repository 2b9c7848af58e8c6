package output

import (
	"encoding/binary"
	"slices"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// extent is what an extra descriptor wrote so far. A log has one for each that wrote
// something, and every record of it has them all as they were before its data, 19 bytes
// each: whatever is lost before a record, it says how to go on. Stdout and stderr have
// their places in the header.
type extent struct {
	stream wire.Stream
	bytes  int64
	lines  int64 // saturating in a record
	state  state
}

const (
	extentLen  = 19 // stream u8, bytes u64, lines u32, state [6]u8
	maxExtents = int(wire.LastStream - wire.Stderr)
)

func (e *extent) append(b []byte) []byte {
	b = append(b, uint8(e.stream))
	b = binary.LittleEndian.AppendUint64(b, uint64(e.bytes))
	b = binary.LittleEndian.AppendUint32(b, saturate(e.lines))
	b = append(b, 0, 0, 0, 0, 0, 0)
	e.state.encode(b[len(b)-6:])
	return b
}

// decodeExtent reads the entry at the start of a table.
func decodeExtent(b []byte) extent {
	le := binary.LittleEndian
	return extent{
		stream: wire.Stream(b[0]), bytes: int64(le.Uint64(b[1:])), lines: int64(le.Uint32(b[9:])),
		state: decodeState(b[13:]),
	}
}

// extent is what a descriptor wrote before the record.
func (r *record) extent(stream wire.Stream) extent {
	for b := r.table; len(b) > 0; b = b[extentLen:] {
		if b[0] == uint8(stream) {
			return decodeExtent(b)
		}
	}
	return extent{stream: stream}
}

// extents is the whole table.
func (r *record) extents() []extent {
	var list []extent
	for b := r.table; len(b) > 0; b = b[extentLen:] {
		list = append(list, decodeExtent(b))
	}
	return list
}

// table is what a record that comes now says of the extra descriptors; valid until the
// next call. guarded by mu.
func (l *Log) table() []byte {
	l.scratch = l.scratch[:0]
	for i := range l.extra {
		l.scratch = l.extra[i].append(l.scratch)
	}
	return l.scratch
}

// extent is the one of a descriptor, made when it is not there. It is valid until the
// next call. guarded by mu.
func (l *Log) extent(stream wire.Stream) *extent {
	i, ok := slices.BinarySearchFunc(l.extra, stream, func(e extent, s wire.Stream) int { return int(e.stream) - int(s) })
	if !ok {
		l.extra = slices.Insert(l.extra, i, extent{stream: stream})
	}
	return &l.extra[i]
}

// others is the bytes of the extra descriptors. guarded by mu.
func (l *Log) others() (n int64) {
	for i := range l.extra {
		n += l.extra[i].bytes
	}
	return n
}

// descriptors lists them as the statistics do. guarded by mu.
func (l *Log) descriptors() []wire.DescriptorBytes {
	var list []wire.DescriptorBytes
	for _, e := range l.extra {
		list = append(list, wire.DescriptorBytes{Number: int(e.stream), Bytes: e.bytes})
	}
	return list
}

// windowChunks bounds the chunks of the window: fewer where a table makes each longer.
// guarded by mu.
func (l *Log) windowChunks() int {
	return WindowChunks * headerLen / (headerLen + extentLen*len(l.extra))
}
