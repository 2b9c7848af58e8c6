package output

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Recovery says what Open found of an earlier incarnation's spool.
type Recovery struct {
	Bytes int64 // of output, found whole
	// Torn is 1 when the last write was cut short; its chunks are wanted again.
	Torn int
	// Corrupt counts the places where bytes on disk were no records; they are gaps.
	Corrupt int
}

// Recovery tells what Open found.
func (l *Log) Recovery() Recovery {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.recovery
}

// Recover lists the processes that have a spool in a directory, sorted. A directory
// that does not exist holds none.
func Recover(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list output spools: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if !e.IsDir() || !processRE.MatchString(e.Name()) {
			continue
		}
		files, err := segmentFiles(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("list output spools: %w", err)
		}
		if len(files) > 0 {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// segmentFile is a file by its name: the number of its first record, and its part.
type segmentFile struct {
	path  string
	first int64
	head  bool
}

// segmentFiles lists the segments of a spool: head first, then by number.
func segmentFiles(dir string) ([]segmentFile, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var files []segmentFile
	for _, e := range entries {
		name, ext, _ := strings.Cut(e.Name(), ".")
		first, err := strconv.ParseInt(name, 16, 64)
		if err != nil || len(name) != 16 || ext != "head" && ext != "tail" || !e.Type().IsRegular() {
			continue
		}
		files = append(files, segmentFile{filepath.Join(dir, e.Name()), first, ext == "head"})
	}
	slices.SortFunc(files, func(a, b segmentFile) int {
		if a.head != b.head {
			if a.head {
				return -1
			}
			return 1
		}
		return int(min(max(a.first-b.first, -1), 1))
	})
	return files, nil
}

// recover rebuilds the log from the files. Called by Open only.
func (l *Log) recover() error {
	files, err := segmentFiles(l.dir())
	if err != nil {
		return err
	}
	var last record
	for i, f := range files {
		b, err := os.ReadFile(f.path)
		if err != nil {
			// Not ours to lose silently, and not a reason to lose the rest.
			l.cfg.Logger.Warn("cannot read an output segment", "process", l.cfg.Process, "err", err)
			l.recovery.Corrupt++
			continue
		}
		sc := scanner{next: max(l.next, f.first), split: int64(maxBlock)}
		sc.scan(b, func(r *record) { last = *r })
		l.recovery.Corrupt += len(sc.bad)
		if sc.torn && i == len(files)-1 {
			l.recovery.Torn = 1
		}
		if len(sc.runs) == 0 {
			os.Remove(f.path)
			continue
		}
		l.adopt(f, &sc, int64(len(b)))
	}
	if last.stream.Valid() {
		l.stdout, l.states, l.extra = last.stdoutEnd(), last.states, last.extents()
		l.lines = [2]int64{int64(last.lines[0]), int64(last.lines[1])}
		l.advance(&last)
	}
	l.dropped = l.total - l.recovery.Bytes
	return nil
}

// adopt takes a scanned file as a segment.
func (l *Log) adopt(f segmentFile, sc *scanner, size int64) {
	end := sc.runs[len(sc.runs)-1]
	s := &segment{path: f.path, head: f.head, size: end.pos + end.size, charged: size, runs: sc.runs}
	s.limit = s.size // the next write starts a segment of its own
	l.cfg.Budget.take(size, true)
	for i, u := range sc.runs {
		// Where the ring begins, what is missing is the budget's. Elsewhere the bytes
		// of the missing records are there and bad, or they were never written.
		ring := i == 0 && !f.head && (len(l.segs) == 0 || l.segs[len(l.segs)-1].head)
		if bad := sc.badBefore(u.pos); u.first > l.next && (bad || !ring) {
			reason := gapSpool
			if bad {
				reason = gapTorn
			}
			l.lose(l.next, u.first, reason)
		}
		l.recovery.Bytes += u.bytes()
		l.next, l.total = u.next, u.rawEnd
	}
	l.headDone = l.headDone || !f.head
	l.segs = append(l.segs, s)
}

// scanner finds the records in the bytes of a segment.
type scanner struct {
	next  int64 // no record has a lower number: what has is left over from a recycled file
	raw   int64
	split int64 // runs are at most this long
	runs  []run
	bad   []int64 // where bytes between records are no records
	torn  bool    // the bytes after the last record begin like the next one
}

// badBefore reports whether the bytes right before pos are no record.
func (sc *scanner) badBefore(pos int64) bool {
	end := int64(0)
	for i := range sc.runs {
		if u := &sc.runs[i]; u.pos < pos {
			end = u.pos + u.size
		}
	}
	return end < pos
}

var magicBytes = binary.LittleEndian.AppendUint16(nil, magic)

// scan walks b. After bytes that are no record it goes on at the next place where a
// whole one starts, so that one bad byte costs one record.
func (sc *scanner) scan(b []byte, found func(*record)) {
	var u run
	var r record
	lost := int64(-1)
	for pos := 0; pos < len(b); {
		if !verify(b[pos:], &r) || r.number < sc.next || r.raw < sc.raw {
			if lost < 0 {
				lost = int64(pos)
			}
			i := bytes.Index(b[pos+1:], magicBytes)
			if i < 0 {
				break
			}
			pos += 1 + i
			continue
		}
		if lost >= 0 {
			sc.bad, lost = append(sc.bad, lost), -1
		}
		size := int64(r.size())
		if u.next != u.first && (r.number != u.next || r.raw != u.rawEnd || u.pos+u.size != int64(pos) || u.size+size > sc.split) {
			sc.runs = append(sc.runs, u)
			u = run{}
		}
		u.add(&r, int64(pos))
		sc.next, sc.raw = u.next, u.rawEnd
		if found != nil {
			found(&r)
		}
		pos += int(size)
	}
	if u.next != u.first {
		sc.runs = append(sc.runs, u)
	}
	if lost >= 0 {
		rest := b[lost:]
		sc.torn = len(rest) < headerLen && bytes.HasPrefix(magicBytes, rest[:min(len(magicBytes), len(rest))]) ||
			len(rest) >= 16 && bytes.HasPrefix(rest, magicBytes) && int64(binary.LittleEndian.Uint64(rest[8:])) == sc.next
	}
}
