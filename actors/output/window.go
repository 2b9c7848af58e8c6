package output

// block is records back to back. Its buffer never moves; bytes once written stay as
// they are, but for the checksums, which are set under mu before it is written out.
type block struct {
	buf  []byte
	lo   int // of the first record that is kept
	kept run // buf[lo:]
}

func (b *block) add(r *record) {
	pos := int64(len(b.buf))
	b.buf = appendRecord(b.buf, r)
	b.kept.add(r, pos)
}

// skip drops the oldest record.
func (b *block) skip(r *record) {
	b.lo += r.size()
	b.kept.first, b.kept.raw = r.number+1, r.end()
}

// sealed gives the records with their checksums, and where they belong. guarded by mu.
func (b *block) sealed() ([]byte, run) {
	part, u := b.buf[b.lo:], b.kept
	seal(part)
	u.size = int64(len(part))
	return part, u
}

func (b *block) bytes() int64 { return b.kept.bytes() }
func (b *block) count() int   { return int(b.kept.next - b.kept.first) }

// blockFor is the block that takes r: the newest, or a fresh one. guarded by mu.
//
// The first block of a log is small: most processes write little, and a worker holds
// the logs of thousands.
func (l *Log) blockFor(r *record) *block {
	if n := len(l.blocks); n > 0 {
		b := l.blocks[n-1]
		if cap(b.buf)-len(b.buf) >= r.size() && b.kept.next == r.number {
			return b
		}
	}
	size := l.cfg.blockSize()
	var b *block
	switch k := len(l.free); {
	case len(l.blocks) == 0 && len(l.segs) == 0:
		b = &block{buf: make([]byte, 0, minBlock)}
	case k > 0:
		b = l.free[k-1]
		l.free = l.free[:k-1]
		*b = block{buf: b.buf[:0]}
	default:
		b = &block{buf: make([]byte, 0, size)}
	}
	l.blocks = append(l.blocks, b)
	return b
}

// pop lets go of the oldest block. guarded by mu.
func (l *Log) pop() {
	b := l.blocks[0]
	l.bytes -= b.bytes()
	l.chunks -= b.count()
	n := copy(l.blocks, l.blocks[1:])
	l.blocks[n] = nil
	l.blocks = l.blocks[:n]
	if len(l.free) < 2 && cap(b.buf) == l.cfg.blockSize() {
		l.free = append(l.free, b)
	}
}

// leaving is the oldest block once the window is full without it; never the newest.
// guarded by mu.
func (l *Log) leaving() *block {
	if len(l.blocks) < 2 {
		return nil
	}
	b := l.blocks[0]
	if l.bytes-b.bytes() < l.cfg.Limits.WindowBytes && l.chunks-b.count() < l.windowChunks() {
		return nil
	}
	return b
}

// overfull: a block waits to leave and another is full behind it.
func (l *Log) overfull() bool { return l.leaving() != nil }

// evict drops the oldest chunks of a log without a spool until the rest fits the
// window, and reports whether enough is gone to tell the journal. guarded by mu.
func (l *Log) evict() bool {
	const step = 64 << 10 // a journal is trimmed by pages, not by chunks
	for l.bytes > l.cfg.Limits.WindowBytes || l.chunks > l.windowChunks() {
		b := l.blocks[0]
		var r record
		decode(b.buf[b.lo:], &r)
		b.skip(&r)
		l.bytes -= int64(r.source)
		l.chunks--
		l.dropped += int64(r.source)
		if b.count() == 0 {
			l.pop()
		}
	}
	return len(l.blocks) > 0 &&
		(l.blocks[0].kept.raw-l.evicted >= step || l.blocks[0].kept.first-l.evictedAt >= int64(l.windowChunks()/4))
}
