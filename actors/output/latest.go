package output

import (
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// Latest is when the newest chunk of a stream (0: any) came that is kept and has number
// from or a later one: the zero time when there is none. next is where to go on from. It
// looks through what came since from, without its text where the stream is any.
func (l *Log) Latest(from int64, stream wire.Stream) (at time.Time, next int64) {
	if stream == 0 {
		from = max(from, l.Next()-1)
	}
	var buf []byte
	for {
		c := l.load(from, stream, maxBlock, buf)
		if c.gap != nil {
			from = c.gap.NextCursor
		}
		switch {
		case c.end:
			return at, from
		case c.pass.next > c.pass.first:
			from = c.pass.next
			continue
		}
		buf = c.buf
		var r record
		for b := buf; decode(b, &r); b = b[r.size():] {
			from = r.number + 1
			if stream == 0 || stream == r.stream {
				at = r.at()
			}
		}
	}
}

// Closed reports whether the log is closed: nothing is added to it any more.
func (l *Log) Closed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed || l.removed
}
