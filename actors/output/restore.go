package output

import (
	"github.com/limpet-sh/limpet/subjects/wire"
)

// Restore makes a log of messages of the OUTPUT stream, oldest first, to be read like
// the one they were made of: the same numbers, offsets and texts. It is all in memory,
// and takes nothing more. What is not in the messages is a gap of reason not_shipped;
// with row it ends before the first one. A message that does not fit the ones before it
// is passed over.
func Restore(process string, tty, row bool, messages []*wire.OutputMessage) (*Log, error) {
	l, err := Open(Config{Process: process, TTY: tty})
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range messages {
		if m.First > l.next && m.Offset > l.total {
			if row {
				break
			}
			l.skip(m.First, m.Offset)
		}
		if m.First == l.next && m.Offset == l.total {
			l.resumeAt(m.Streams)
		}
		offset := m.Offset
		for i := range m.Chunks {
			c := &m.Chunks[i]
			if m.First+int64(i) == l.next && offset == l.total && max(c.Source, len(c.Data)) <= MaxChunk {
				l.put(c)
			}
			offset += int64(c.Source)
		}
	}
	return l, nil
}

// put adds a chunk as it was shipped. guarded by mu.
func (l *Log) put(c *wire.OutputChunk) {
	stands := c.Data
	if len(stands) != c.Source { // masked: only the count of what it stands for is known
		stands = make([]byte, c.Source)
	}
	l.add(&Chunk{Number: l.next, Offset: l.total, Stream: c.Stream, Data: stands, At: c.At, OrderUnknown: c.OrderUnknown}, c.Data)
}

// skip makes a gap up to a number and an offset. guarded by mu.
func (l *Log) skip(number, offset int64) {
	l.lose(l.next, number, wire.GapNotShipped)
	l.dropped += offset - l.total
	l.next, l.total = number, offset
	l.resumeAt(nil)
}

// resumeAt takes over what the streams had before. guarded by mu.
func (l *Log) resumeAt(streams []wire.OutputStream) {
	l.states, l.lines, l.extra = [2]state{}, [2]int64{}, nil
	for _, s := range streams {
		i := int(s.Stream) - 1
		if i >= len(l.states) {
			*l.extent(s.Stream) = extent{stream: s.Stream, bytes: s.Bytes, lines: s.Lines, state: decodeState(s.State[:])}
			continue
		}
		l.states[i], l.lines[i] = decodeState(s.State[:]), s.Lines
		if s.Stream == wire.Stdout {
			l.stdout = s.Bytes
		}
	}
}

// Finish ends a restored log with what is recorded of the whole output: what is missing
// at its end is a gap, and nothing follows.
func (l *Log) Finish(o wire.OutputStats) {
	l.mu.Lock()
	if o.LatestCursor > l.next && o.TotalBytes > l.total {
		l.skip(o.LatestCursor, o.TotalBytes)
		l.stdout = o.StdoutBytes
		for _, d := range o.Descriptors {
			l.extent(wire.Stream(d.Number)).bytes = d.Bytes
		}
	}
	l.mu.Unlock()
	l.Close(o.Complete, o.Error)
}
