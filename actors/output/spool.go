package output

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// segment is one file of the spool. Records follow each other from its start; what
// lies behind size is of no interest (a recycled file keeps its old bytes there).
type segment struct {
	path    string
	head    bool
	size    int64 // of the records
	limit   int64 // size may grow to
	charged int64 // taken from the budget
	runs    []run
	gone    bool // dropped from the spool; guarded by Log.mu
}

func (s *segment) bytes() (n int64) {
	for i := range s.runs {
		n += s.runs[i].bytes()
	}
	return n
}

// errBudget: the limits leave no room.
var errBudget = errors.New("spool budget is used up")

func (l *Log) dir() string { return filepath.Join(l.cfg.Dir, l.cfg.Process) }

func segmentPath(dir string, first int64, head bool) string {
	ext := ".tail"
	if head {
		ext = ".head"
	}
	return filepath.Join(dir, fmt.Sprintf("%016x%s", first, ext))
}

// drain moves the blocks that leave the window to the spool, and tells the journal.
func (l *Log) drain() {
	l.disk.Lock()
	defer l.disk.Unlock()
	for {
		l.mu.Lock()
		b := l.leaving()
		if b == nil || l.removed {
			l.mu.Unlock()
			break
		}
		part, u := b.sealed()
		l.mu.Unlock()
		err := l.store(part, u)
		l.report(err)
		if err != nil && l.cfg.Limits.Lossless {
			break // the block stays; Append answers ErrFull
		}
		l.mu.Lock()
		if err != nil {
			l.dropped += u.bytes()
			if !errors.Is(err, errBudget) {
				l.lose(u.first, u.next, gapSpool)
			}
		}
		l.pop()
		l.mu.Unlock()
	}
	l.trim()
}

// report logs the first failure of a row, and its end. guarded by disk.
func (l *Log) report(err error) {
	if failing := err != nil && !errors.Is(err, errBudget); failing != l.failing {
		l.failing = failing
		if failing {
			l.cfg.Logger.Warn("output spool fails; its bytes are dropped and counted", "process", l.cfg.Process, "err", err)
		} else {
			l.cfg.Logger.Info("output spool works again", "process", l.cfg.Process)
		}
	}
}

// lose remembers why chunks are gone. guarded by mu.
func (l *Log) lose(from, to int64, reason string) {
	if n := len(l.lost); n > 0 && l.lost[n-1].to == from && l.lost[n-1].reason == reason {
		l.lost[n-1].to = to
		return
	}
	if len(l.lost) == maxLost {
		l.lost = slices.Delete(l.lost, 0, 1)
	}
	l.lost = append(l.lost, lostSpan{from, to, reason})
}

// trim tells the journal what is not needed any more. guarded by disk.
func (l *Log) trim() {
	l.mu.Lock()
	raw, at := l.total, l.next
	if len(l.blocks) > 0 {
		raw, at = l.blocks[0].kept.raw, l.blocks[0].kept.first
	}
	l.evicted, l.evictedAt = raw, at
	l.mu.Unlock()
	if raw > l.trimmed {
		l.trimmed = raw
		l.cfg.OnTrim(raw)
	}
}

// store writes one run of records to the spool. On a full disk the ring gives way
// to what is newer. guarded by disk.
func (l *Log) store(part []byte, u run) error {
	for {
		seg, err := l.segmentFor(int64(len(part)), u.first)
		if err == nil {
			_, err = l.file.WriteAt(part, seg.size)
		}
		if err == nil {
			u.pos = seg.size
			l.mu.Lock()
			seg.size += u.size
			seg.runs = append(seg.runs, u)
			l.mu.Unlock()
			return nil
		}
		if !errors.Is(err, syscall.ENOSPC) || l.cfg.Limits.Lossless {
			return err
		}
		old := l.dropTail(1)
		if old == nil {
			return err
		}
		l.discard(old)
	}
}

// segmentFor gives the segment, open in l.file, that takes n bytes. guarded by disk.
func (l *Log) segmentFor(n, first int64) (*segment, error) {
	if k := len(l.segs); k > 0 && l.file != nil {
		s := l.segs[k-1]
		if s.size+n <= s.limit && l.charge(s, n) {
			return s, nil
		}
	}
	l.closeFile()
	if s, err := l.rollHead(n, first); s != nil || err != nil {
		return s, err
	}
	if l.cfg.Limits.Lossless {
		return nil, errBudget
	}
	return l.rollTail(n, first)
}

// rollHead starts a head segment, or gives nothing when the head is complete.
func (l *Log) rollHead(n, first int64) (*segment, error) {
	if l.headDone {
		return nil, nil
	}
	left := l.cfg.Limits.HeadBytes
	for _, s := range l.segs {
		left -= s.size
	}
	s := &segment{head: true, limit: min(left, l.cfg.segmentSize(l.cfg.Limits.HeadBytes))}
	if left < n || !l.charge(s, n) {
		// Lossless keeps asking: the budget may have room later.
		l.headDone = !l.cfg.Limits.Lossless
		return nil, nil
	}
	s.limit = max(s.limit, n)
	return l.start(s, nil, first)
}

// rollTail starts a tail segment, in the file of the oldest one when the ring is
// full. The charge of a recycled file goes with it.
func (l *Log) rollTail(n, first int64) (*segment, error) {
	ring := l.cfg.Limits.SpoolBytes - l.cfg.Limits.HeadBytes
	s := &segment{limit: l.cfg.segmentSize(ring)}
	if ring < s.limit || s.limit < n {
		return nil, errBudget
	}
	var spare *segment
	for {
		used := s.limit // by what the files take, which is more than the records of a recycled one
		for _, t := range l.segs {
			if !t.head {
				used += max(t.size, t.charged)
			}
		}
		if used <= ring && l.charge(s, n) {
			return l.start(s, spare, first)
		}
		old := l.dropTail(0)
		if old == nil {
			if spare != nil {
				l.discard(spare)
			}
			l.cfg.Budget.give(s.charged) // with what it took over from spares
			s.charged = 0
			return nil, errBudget
		}
		if spare != nil {
			l.discard(old)
			continue
		}
		spare, s.charged = old, s.charged+old.charged
		old.charged = 0
	}
}

// charge takes from the budget what s needs to grow by n. guarded by disk.
func (l *Log) charge(s *segment, n int64) bool {
	need := s.size + n - s.charged
	if need <= 0 {
		return true
	}
	if !l.cfg.Budget.take(need, false) {
		return false
	}
	s.charged += need
	return true
}

// start makes the file of s, from spare when given, and makes s the last segment.
func (l *Log) start(s, spare *segment, first int64) (*segment, error) {
	s.path = segmentPath(l.dir(), first, s.head)
	if spare != nil {
		if err := os.Rename(spare.path, s.path); err != nil {
			os.Remove(spare.path)
		}
	}
	err := os.MkdirAll(l.dir(), 0o700)
	if err == nil {
		l.file, err = os.OpenFile(s.path, os.O_CREATE|os.O_WRONLY, 0o600)
	}
	if err != nil {
		if spare != nil {
			os.Remove(s.path)
		}
		l.cfg.Budget.give(s.charged)
		return nil, err
	}
	l.mu.Lock()
	l.segs = append(l.segs, s)
	l.mu.Unlock()
	return s, nil
}

// closeFile ends the writing of a segment. The bytes are with the kernel: a close has
// nothing left to fail at that we could mend. guarded by disk.
func (l *Log) closeFile() {
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}

// dropTail takes the oldest tail segment out of the log, if there are more than
// keep, and counts its bytes as dropped. guarded by disk.
func (l *Log) dropTail(keep int) *segment {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.segs, func(s *segment) bool { return !s.head })
	if i < 0 || len(l.segs)-i <= keep {
		return nil
	}
	s := l.segs[i]
	s.gone = true
	l.dropped += s.bytes()
	l.segs = slices.Delete(l.segs, i, i+1)
	return s
}

// discard removes the file of a dropped segment and gives its charge back. guarded by disk.
func (l *Log) discard(s *segment) {
	if err := os.Remove(s.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		l.cfg.Logger.Warn("cannot remove an output segment", "process", l.cfg.Process, "err", err)
	}
	l.cfg.Budget.give(s.charged)
	s.charged = 0
}

// Flush moves the window of a closed log to the spool, so that the journal and the
// memory can go. Where that fails nothing is lost: the rest of the window stays, and
// Flush may be called again. Without a spool it does nothing, and the journal stays
// needed until Remove.
func (l *Log) Flush() error {
	l.disk.Lock()
	defer l.disk.Unlock()
	l.mu.Lock()
	closed := l.closed
	l.mu.Unlock()
	if !closed {
		return fmt.Errorf("flush output of %s: the log is open", l.cfg.Process)
	}
	if !l.cfg.spooled() {
		return nil
	}
	for {
		l.mu.Lock()
		if len(l.blocks) == 0 {
			l.blocks, l.free = nil, nil
			l.mu.Unlock()
			break
		}
		part, u := l.blocks[0].sealed()
		l.mu.Unlock()
		if err := l.store(part, u); err != nil {
			l.closeFile()
			l.trim()
			return fmt.Errorf("flush output of %s: %w", l.cfg.Process, err)
		}
		l.mu.Lock()
		l.pop()
		l.mu.Unlock()
	}
	l.closeFile()
	l.trim()
	return nil
}

// Remove deletes the output: files, memory, and its share of the budget. Later reads
// answer "expired".
func (l *Log) Remove() error {
	l.disk.Lock()
	defer l.disk.Unlock()
	l.mu.Lock()
	if l.removed {
		l.mu.Unlock()
		return nil
	}
	l.removed, l.dropped = true, l.total
	segs := l.segs
	l.segs, l.blocks, l.free, l.bytes, l.chunks = nil, nil, nil, 0, 0
	l.wakeAll()
	l.mu.Unlock()
	l.closeFile()
	var err error
	if l.cfg.Dir != "" {
		if err = os.RemoveAll(l.dir()); err != nil {
			err = fmt.Errorf("remove output of %s: %w", l.cfg.Process, err)
		}
	}
	for _, s := range segs {
		l.cfg.Budget.give(s.charged)
	}
	l.trim()
	return err
}

// earliest is the number of the first chunk that is kept. guarded by mu.
func (l *Log) earliest() int64 {
	for _, s := range l.segs {
		if len(s.runs) > 0 {
			return s.runs[0].first
		}
	}
	if len(l.blocks) > 0 {
		return l.blocks[0].kept.first
	}
	return l.next
}
