package keeper

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc64"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// workerMain plays a worker: attach, spawn if there is nothing to adopt, pump into
// files, note the exit, release. Whatever it has written survives kill -9, and the
// next one goes on from there.
//
//	worker DIR E OUT pipe|tty|fds BYTES
func workerMain(args []string) int {
	if err := work(args); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		return 1
	}
	return 0
}

func work(args []string) error {
	ctx := context.Background()
	dir, out := args[0], args[2]
	e, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return err
	}
	c, err := Dial(ctx, dir)
	if err != nil {
		return err
	}
	news := make(chan struct{}, 4)
	adopted, err := c.Attach(ctx, e, func(Event) {
		select {
		case news <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return err
	}
	var p *Process
	if len(adopted) > 0 {
		p = adopted[0]
		if string(p.Meta()) != "meta" {
			return fmt.Errorf("meta %q", p.Meta())
		}
	} else {
		exe, _ := os.Executable()
		s := Spawn{Process: "p", Path: exe, Argv: []string{exe, "produce", args[3], args[4]}, Env: testEnv, Meta: []byte("meta")}
		if args[3] == "tty" {
			s.TTY = &wire.WindowSize{Rows: 24, Cols: 80}
		}
		if args[3] == "fds" {
			for _, n := range extraStreams {
				s.Descriptors = append(s.Descriptors, wire.Descriptor{Number: int(n), Output: true})
			}
		}
		if p, err = c.Spawn(ctx, s); err != nil {
			return err
		}
	}
	sink, err := openFileSink(out, p)
	if err != nil {
		return err
	}
	// Some chunks again, to compare them with what they were.
	if err := p.Pump(ctx, sink, max(0, sink.count-100)); err != nil {
		return err
	}
	for p.Exited() == nil {
		<-news
	}
	x := p.Exited()
	if err := os.WriteFile(filepath.Join(out, "exit"), fmt.Appendf(nil, "%d %s gone=%v", x.Code, x.Cause, x.Gone), 0o600); err != nil {
		return err
	}
	_ = p.Release(ctx)
	return c.Close()
}

// fileSink writes chunks to a data file, at their offset, and then a line of fixed
// length about each to an index file.
type fileSink struct {
	process     *Process
	data, index *os.File
	count       int64 // whole lines in index
	asked       bool
}

// extraStreams are what a producer of kind fds writes to beside stdout and stderr.
var extraStreams = []wire.Stream{3, 40, wire.LastStream}

const lineBytes = 4 * 8

var crcTable = crc64.MakeTable(crc64.ECMA)

func openFileSink(dir string, p *Process) (*fileSink, error) {
	data, err := os.OpenFile(filepath.Join(dir, "data"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	index, err := os.OpenFile(filepath.Join(dir, "index"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	st, err := index.Stat()
	if err != nil {
		return nil, err
	}
	return &fileSink{process: p, data: data, index: index, count: st.Size() / lineBytes}, nil
}

func (s *fileSink) line(c Chunk) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(c.Offset))
	b = binary.BigEndian.AppendUint64(b, uint64(len(c.Data))|uint64(c.Stream)<<32)
	b = binary.BigEndian.AppendUint64(b, uint64(c.At.UnixNano()))
	return binary.BigEndian.AppendUint64(b, crc64.Checksum(c.Data, crcTable))
}

// before checks what the first chunk says of the descriptors against the index.
func (s *fileSink) before(c Chunk) error {
	s.asked = true
	b := make([]byte, c.Number*lineBytes)
	if _, err := s.index.ReadAt(b, 0); err != nil {
		return err
	}
	var sum [wire.LastStream + 1]int64
	for ; len(b) > 0; b = b[lineBytes:] {
		about := binary.BigEndian.Uint64(b[8:])
		sum[about>>32] += int64(uint32(about))
	}
	for _, d := range c.Descriptors {
		if sum[d.Number] != d.Bytes || d.Bytes == 0 {
			return fmt.Errorf("chunk %d says %d bytes of fd%d before it, there were %d", c.Number, d.Bytes, d.Number, sum[d.Number])
		}
		sum[d.Number] = 0
	}
	for _, n := range extraStreams {
		if sum[n] != 0 {
			return fmt.Errorf("chunk %d says nothing of the %d bytes of %v before it", c.Number, sum[n], n)
		}
	}
	return nil
}

func (s *fileSink) Append(c Chunk) error {
	switch {
	case s.asked && c.Descriptors != nil:
		return fmt.Errorf("chunk %d is not the first and says %v", c.Number, c.Descriptors)
	case !s.asked && c.Number <= s.count:
		if err := s.before(c); err != nil {
			return err
		}
	}
	line := s.line(c)
	if c.Number < s.count {
		was := make([]byte, lineBytes)
		if _, err := s.index.ReadAt(was, c.Number*lineBytes); err != nil {
			return err
		}
		if !bytes.Equal(was, line) {
			return fmt.Errorf("chunk %d has changed: %x, was %x", c.Number, line, was)
		}
		return nil
	}
	if c.Number > s.count {
		return fmt.Errorf("chunk %d comes after %d chunks", c.Number, s.count)
	}
	if c.OrderUnknown {
		return fmt.Errorf("chunk %d: order unknown", c.Number)
	}
	if _, err := s.data.WriteAt(c.Data, c.Offset); err != nil {
		return err
	}
	if _, err := s.index.WriteAt(line, c.Number*lineBytes); err != nil {
		return err
	}
	s.count++
	if c.Number%64 == 0 {
		s.process.Trim(max(0, c.Offset-1<<20))
	}
	return nil
}

// produce writes n bytes, alternating between its streams in runs of random length, each
// stream a count of its own; on a terminal, lines of text.
func produce(kind string, n int64) error {
	if kind == "tty" {
		w := bufio.NewWriterSize(os.Stdout, 4096)
		for i := int64(0); i < n; i += 16 {
			fmt.Fprintf(w, "%014d\n", i/16)
		}
		return w.Flush()
	}
	streams := []wire.Stream{wire.Stdout, wire.Stderr}
	if kind == "fds" {
		streams = append(streams, extraStreams...)
	}
	files := make([]*os.File, len(streams))
	for i, s := range streams {
		files[i] = os.NewFile(uintptr(s), s.String())
	}
	count := make([]uint64, len(streams))
	buf := make([]byte, 0, 64<<10)
	for n > 0 {
		which := rand.IntN(len(streams))
		size := min(n, 8*(1+rand.Int64N(8000)))
		buf = buf[:0]
		for i := int64(0); i < size; i += 8 {
			buf = binary.BigEndian.AppendUint64(buf, count[which])
			count[which]++
		}
		if _, err := files[which].Write(buf); err != nil {
			return err
		}
		n -= size
	}
	return nil
}
