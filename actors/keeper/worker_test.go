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
//	worker DIR E OUT pipe|tty BYTES
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
}

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

func (s *fileSink) Append(c Chunk) error {
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

// produce writes n bytes, alternating between stdout and stderr in runs of random
// length, each stream a count of its own; on a terminal, lines of text.
func produce(kind string, n int64) error {
	if kind == "tty" {
		w := bufio.NewWriterSize(os.Stdout, 4096)
		for i := int64(0); i < n; i += 16 {
			fmt.Fprintf(w, "%014d\n", i/16)
		}
		return w.Flush()
	}
	count := [2]uint64{}
	buf := make([]byte, 0, 64<<10)
	for n > 0 {
		which := rand.IntN(2)
		size := min(n, 8*(1+rand.Int64N(8000)))
		buf = buf[:0]
		for i := int64(0); i < size; i += 8 {
			buf = binary.BigEndian.AppendUint64(buf, count[which])
			count[which]++
		}
		if _, err := [2]*os.File{os.Stdout, os.Stderr}[which].Write(buf); err != nil {
			return err
		}
		n -= size
	}
	return nil
}
