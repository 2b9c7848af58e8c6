package wire

import (
	"encoding/binary"
	"time"
)

// A message of the OUTPUT stream is a header, what each stream had before, and whole
// chunks up to the end of the message, all little-endian; PROTOCOL.md, section 16, has
// the table. The format is fixed, and no codec's: chunks are most of what is stored.
const (
	outputMagic      = 0x4f4c // "LO"
	outputHeaderLen  = 56
	outputStreamLen  = 24
	outputChunkLen   = 16
	outputEnd        = 1 // flags of a message
	outputComplete   = 2
	outputNoOrder    = 1 // flag of a chunk
	maxOutputStreams = 64
)

// Bounds of what the OUTPUT stream takes of one process, in bytes of message; and what
// it takes where nothing else is said.
const (
	MinShipBytes     = 64 << 10
	MaxShipBytes     = 16 << 20
	DefaultShipBytes = 1 << 20
)

// OutputOverhead is what a chunk takes in a message beside its bytes.
const OutputOverhead = outputChunkLen

// MaxOutputHeader is the most that a message takes beside its chunks.
const MaxOutputHeader = outputHeaderLen + maxOutputStreams*outputStreamLen

// OutputHeader heads a message of the OUTPUT stream.
type OutputHeader struct {
	// End: nothing follows. Complete, with End: the streams were read to their end.
	End, Complete bool
	Incarnation   uint64 // of the worker that wrote it
	First         int64  // number of the first chunk; without chunks, the one that the next would get
	Offset        int64  // raw bytes of the process before it
	Used          int64  // of the budget, in bytes of message, up to the end of this message
	Raw           int64  // raw bytes of the process in all messages up to the end of this one
	Streams       []OutputStream
}

// OutputStream is what a stream had before the first chunk of a message.
type OutputStream struct {
	Stream Stream
	State  [6]byte // of the decoder of text; opaque
	Bytes  int64
	Lines  int64 // line feeds
}

// OutputChunk is a chunk in a message. Its number and offset follow from the chunks
// before it.
type OutputChunk struct {
	Stream       Stream
	OrderUnknown bool
	At           time.Time
	Source       int    // bytes of the process that it stands for, 1..65,535
	Data         []byte // at most 65,535 bytes
}

// OutputMessage is a decoded message.
type OutputMessage struct {
	OutputHeader
	Chunks []OutputChunk
}

// Next is the number that the chunk behind the message has.
func (m *OutputMessage) Next() int64 { return m.First + int64(len(m.Chunks)) }

// NextOffset is the raw offset of that chunk.
func (m *OutputMessage) NextOffset() int64 {
	n := m.Offset
	for i := range m.Chunks {
		n += int64(m.Chunks[i].Source)
	}
	return n
}

// AppendOutputHeader begins a message at the end of b.
func AppendOutputHeader(b []byte, h *OutputHeader) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(b, outputMagic)
	flags := byte(0)
	if h.End {
		flags |= outputEnd
	}
	if h.Complete {
		flags |= outputComplete
	}
	b = append(b, Version, flags)
	b = append(b, byte(len(h.Streams)), 0, 0, 0)
	for _, v := range []uint64{h.Incarnation, uint64(h.First), uint64(h.Offset), uint64(h.Used), uint64(h.Raw), 0} {
		b = le.AppendUint64(b, v)
	}
	for i := range h.Streams {
		s := &h.Streams[i]
		b = append(b, byte(s.Stream), 0)
		b = append(b, s.State[:]...)
		b = le.AppendUint64(b, uint64(s.Bytes))
		b = le.AppendUint64(b, uint64(s.Lines))
	}
	return b
}

// AppendOutputChunk adds a chunk to a message.
func AppendOutputChunk(b []byte, c *OutputChunk) []byte {
	le := binary.LittleEndian
	flags := byte(0)
	if c.OrderUnknown {
		flags |= outputNoOrder
	}
	b = append(b, byte(c.Stream), flags)
	b = le.AppendUint16(b, uint16(len(c.Data)))
	b = le.AppendUint16(b, uint16(c.Source))
	b = append(b, 0, 0)
	b = le.AppendUint64(b, uint64(c.At.UnixNano()))
	return append(b, c.Data...)
}

// SetOutputUsed notes in an encoded message what is used and stored with it, and whether
// it is the last.
func SetOutputUsed(msg []byte, used, raw int64, end, complete bool) {
	le := binary.LittleEndian
	le.PutUint64(msg[32:], uint64(used))
	le.PutUint64(msg[40:], uint64(raw))
	if end {
		msg[3] |= outputEnd
	}
	if end && complete {
		msg[3] |= outputComplete
	}
}

// DecodeOutput reads a message. The data of its chunks is part of b. An error is an
// *[Error]: unsupported_version, or spool_corrupt.
func DecodeOutput(b []byte) (*OutputMessage, error) {
	m := new(OutputMessage)
	rest, err := m.decodeHeader(b)
	if err != nil {
		return nil, err
	}
	raw := m.Offset
	for len(rest) > 0 {
		c, size, ok := decodeOutputChunk(rest)
		if raw += int64(c.Source); !ok || raw > MaxWhole {
			return nil, corrupt("chunk %d is none", m.Next())
		}
		m.Chunks = append(m.Chunks, c)
		rest = rest[size:]
	}
	return m, nil
}

func (m *OutputMessage) decodeHeader(b []byte) (rest []byte, err error) {
	le := binary.LittleEndian
	if len(b) < outputHeaderLen || le.Uint16(b) != outputMagic {
		return nil, corrupt("it has no header")
	}
	if b[2] != Version {
		return nil, unsupportedVersion("version", int(b[2]))
	}
	m.End, m.Complete = b[3]&outputEnd != 0, b[3]&outputComplete != 0
	n := int(b[4])
	m.Incarnation = le.Uint64(b[8:])
	for i, p := range []*int64{&m.First, &m.Offset, &m.Used, &m.Raw} {
		v := le.Uint64(b[16+8*i:])
		if v > MaxWhole {
			return nil, corrupt("%d is out of range", v)
		}
		*p = int64(v)
	}
	rest = b[outputHeaderLen:]
	if n > maxOutputStreams || len(rest) < n*outputStreamLen {
		return nil, corrupt("%d streams do not fit", n)
	}
	for range n {
		s := OutputStream{Stream: Stream(rest[0]), State: [6]byte(rest[2:8])}
		bytes, lines := le.Uint64(rest[8:]), le.Uint64(rest[16:])
		if !validStream(s.Stream) || bytes > uint64(m.Offset) || lines > MaxWhole {
			return nil, corrupt("stream %d has %d bytes of %d, %d lines", s.Stream, bytes, m.Offset, lines)
		}
		s.Bytes, s.Lines = int64(bytes), int64(lines)
		m.Streams = append(m.Streams, s)
		rest = rest[outputStreamLen:]
	}
	return rest, nil
}

func decodeOutputChunk(b []byte) (c OutputChunk, size int, ok bool) {
	if len(b) < outputChunkLen {
		return c, 0, false
	}
	le := binary.LittleEndian
	c.Stream, c.OrderUnknown = Stream(b[0]), b[1]&outputNoOrder != 0
	size = outputChunkLen + int(le.Uint16(b[2:]))
	c.Source = int(le.Uint16(b[4:]))
	c.At = time.Unix(0, int64(le.Uint64(b[8:]))).UTC()
	if len(b) < size || c.Source == 0 || !validStream(c.Stream) {
		return c, 0, false
	}
	c.Data = b[outputChunkLen:size:size]
	return c, size, true
}

// validStream: stdout, stderr, or a descriptor by its number.
func validStream(s Stream) bool { return s >= 1 && s <= maxOutputStreams }

func corrupt(format string, args ...any) *Error {
	return Errorf(CodeSpoolCorrupt, "a message of the OUTPUT stream cannot be read: "+format, args...)
}
