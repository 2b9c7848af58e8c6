package keeper

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/limpet-sh/limpet/subjects/wire"
)

const (
	// inputLimit is how long one write may wait for the process to read (A51).
	inputLimit = 5 * time.Second
	// canonicalLine is what the line editor of a terminal holds of one line; it drops
	// the rest without a word.
	canonicalLine = 4095
)

// input is the way into a process. It writes the input words of the slot.
type input struct {
	process *Process
	stdin   *os.File // a pipe; nil for a terminal, whose master is the output's

	written atomic.Int64 // the slot's word, for readers that must not touch the slot

	leaving atomic.Bool // the write under way shall end, and no other begin

	mu       sync.Mutex // one write at a time
	closed   bool       // guarded by mu; also in the slot
	shutdown bool       // guarded by mu; released
}

// InputOffset is the count of bytes that have been written to stdin.
func (p *Process) InputOffset() int64 { return p.input.written.Load() }

// WriteInput writes to stdin, or types at the terminal. offset is the count of bytes
// written before, or negative for what it is now. A write that starts below it and
// does not reach beyond was made already and is acknowledged, not made again;
// any other offset is offset_conflict.
//
// It waits at most 5 seconds for the process to read. If not one byte went until then,
// nothing has happened and the error is input_backpressure. If a part went, or ctx ended
// after a part, or a worker died over an earlier write, the input is closed and the error
// is delivery_unknown: the caller must not try again. If ctx ends before the first byte,
// nothing has happened and its cause is returned. Other errors are stdin_closed, and
// invalid_arguments for a line that a terminal in canonical mode would cut off. n is the
// count of bytes that are with the process.
func (p *Process) WriteInput(ctx context.Context, offset int64, b []byte) (n int, err error) {
	i := &p.input
	i.mu.Lock()
	defer i.mu.Unlock()
	f, err := i.open()
	if err != nil {
		return 0, err
	}
	s := p.slot
	if s.word(wordWriting).Load() != 0 {
		return 0, i.giveUp(ctx, "an earlier write was cut off by the death of its worker")
	}
	at := p.InputOffset()
	switch {
	case offset < 0 || offset == at:
	case offset < at && offset+int64(len(b)) <= at:
		return len(b), nil
	default:
		return 0, &wire.Error{
			Code: wire.CodeOffsetConflict, Field: "offset",
			Message: fmt.Sprintf("offset %d: the next byte of stdin has offset %d", offset, at),
			Details: map[string]any{"offset": at},
		}
	}
	if len(b) == 0 {
		return 0, nil
	}
	line, err := i.checkLines(f, b)
	if err != nil {
		return 0, err
	}
	s.word(wordWriting).Store(uint64(len(b)))
	n, err = i.write(ctx, f, b)
	i.written.Store(int64(s.word(wordInput).Add(uint64(n))))
	if err == nil {
		s.word(wordLine).Store(uint64(line))
		s.word(wordWriting).Store(0)
		return n, nil
	}
	if n == 0 && (ctx.Err() != nil || i.leaving.Load()) {
		s.word(wordWriting).Store(0) // nothing was delivered: the caller may try again
		return 0, cmp.Or(context.Cause(ctx), errReleased)
	}
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		s.word(wordWriting).Store(0)
		return 0, wire.Errorf(wire.CodeInputBackpressure, "the process has not read its input for %v; nothing was written, the input stays open", inputLimit)
	}
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.EIO) {
		s.word(wordWriting).Store(0)
		_ = i.end(ctx)
		return n, wire.Errorf(wire.CodeStdinClosed, "the process has closed its input; %d of %d bytes were delivered", n, len(b))
	}
	return n, i.giveUp(ctx, fmt.Sprintf("%d of %d bytes were delivered: %v", n, len(b), err))
}

// CloseInput ends the input. A pipe is closed; a terminal in canonical mode gets its
// end-of-file character twice (the first may only end a line), and no input is taken
// any more. A terminal in another mode has no end of input: it is refused with
// invalid_arguments. Closing twice is harmless.
func (p *Process) CloseInput(ctx context.Context) error {
	i := &p.input
	i.mu.Lock()
	defer i.mu.Unlock()
	f, err := i.open()
	if errors.Is(err, &wire.Error{Code: wire.CodeStdinClosed}) {
		return nil
	}
	if err != nil {
		return err
	}
	if !p.info.TTY {
		return i.end(ctx)
	}
	t, err := termios(f)
	if err != nil {
		return err
	}
	if t.Lflag&unix.ICANON == 0 {
		return wire.Invalid("close", "the terminal is in raw mode and has no end of input; canonical input mode is required: write the byte that the program takes for it")
	}
	eof := t.Cc[unix.VEOF]
	if _, err := i.write(ctx, f, []byte{eof, eof}); err != nil && !errors.Is(err, unix.EIO) {
		return i.giveUp(ctx, fmt.Sprintf("end of input: %v", err))
	}
	return i.end(ctx)
}

// Resize sets the size of the terminal; its foreground group gets WINCH. Without a
// terminal it is pty_unavailable.
func (p *Process) Resize(_ context.Context, size wire.WindowSize) error {
	if size.Rows < 1 || size.Rows > 65535 || size.Cols < 1 || size.Cols > 65535 {
		return wire.Invalid("rows", "rows and cols are 1 to 65535")
	}
	f := p.output.master
	if f == nil {
		return wire.Errorf(wire.CodePTYUnavailable, "the process has no terminal")
	}
	err := control(f, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(size.Rows), Col: uint16(size.Cols)})
	})
	if err != nil {
		return fmt.Errorf("resize: %w", err)
	}
	return nil
}

// open gives the file to write to, while there is one.
func (i *input) open() (*os.File, error) {
	f := i.stdin
	if i.process.info.TTY {
		f = i.process.output.master
	}
	switch {
	case i.shutdown:
		return nil, errReleased
	case f == nil && !i.process.info.Stdin:
		return nil, wire.Errorf(wire.CodeStdinClosed, "the process was started without an input")
	case i.closed || f == nil || i.process.slot.word(wordClosed).Load() != 0:
		return nil, wire.Errorf(wire.CodeStdinClosed, "the input is closed")
	}
	return f, nil
}

// write is bounded by ctx and by inputLimit.
func (i *input) write(ctx context.Context, f *os.File, b []byte) (int, error) {
	if err := f.SetWriteDeadline(time.Now().Add(inputLimit)); err != nil {
		return 0, err
	}
	if i.leaving.Load() { // after the deadline: shut sets them the other way round
		return 0, errReleased
	}
	fired := make(chan struct{})
	// Not by the deadline of ctx: the write could then end before ctx says that it has.
	stop := context.AfterFunc(ctx, func() { _ = f.SetWriteDeadline(time.Unix(1, 0)); close(fired) })
	n, err := f.Write(b)
	if !stop() {
		<-fired
	}
	return n, err
}

// giveUp closes an input whose state nobody knows.
func (i *input) giveUp(ctx context.Context, why string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), inputLimit)
	defer cancel()
	_ = i.end(ctx)
	return wire.Errorf(wire.CodeDeliveryUnknown, "delivery outcome unknown: %s; the input is closed, do not retry", why)
}

// end closes the input on both sides.
func (i *input) end(ctx context.Context) error {
	i.closed = true
	i.process.slot.word(wordClosed).Store(1)
	if i.stdin == nil {
		return nil
	}
	_ = i.stdin.Close()
	_, err := i.process.client.call(ctx, kindCloseInput, processRequest{Process: i.process.info.Process}, nil)
	return err
}

// shut ends the write under way and closes this side for good.
func (i *input) shut() {
	i.leaving.Store(true)
	for _, f := range []*os.File{i.stdin, i.process.output.master} {
		_ = f.SetWriteDeadline(time.Unix(1, 0)) // nil or closed: an error that says so
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.shutdown = true
	if i.stdin != nil {
		_ = i.stdin.Close()
	}
}

// checkLines refuses what a terminal in canonical mode would cut off without a word,
// and gives the length of the unfinished line after b.
func (i *input) checkLines(f *os.File, b []byte) (int, error) {
	if !i.process.info.TTY {
		return 0, nil
	}
	t, err := termios(f)
	if err != nil {
		return 0, err
	}
	if t.Lflag&unix.ICANON == 0 {
		return 0, nil
	}
	ends := []byte{'\n', t.Cc[unix.VEOF], t.Cc[unix.VEOL], t.Cc[unix.VEOL2]}
	if t.Iflag&unix.ICRNL != 0 {
		ends = append(ends, '\r')
	}
	line := int(i.process.slot.word(wordLine).Load())
	for _, c := range b {
		if c != 0 && bytes.IndexByte(ends, c) >= 0 { // 0 marks a character that is switched off
			line = 0
			continue
		}
		if line++; line > canonicalLine {
			return 0, wire.Invalid("data", "a terminal in canonical mode takes lines of at most %d bytes and would drop the rest; send shorter lines", canonicalLine)
		}
	}
	return line, nil
}

func termios(f *os.File) (t *unix.Termios, err error) {
	err = control(f, func(fd int) error {
		t, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ask the terminal for its mode: %w", err)
	}
	return t, nil
}

// control runs f on the descriptor. Fd would take it from the netpoller.
func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}
