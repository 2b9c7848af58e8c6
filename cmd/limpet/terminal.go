package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// windowSize is the size of our terminal, or 80 by 24.
func windowSize(f *os.File) wire.WindowSize {
	ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || ws.Row == 0 || ws.Col == 0 {
		return wire.WindowSize{Rows: 24, Cols: 80}
	}
	return wire.WindowSize{Rows: int(ws.Row), Cols: int(ws.Col)}
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// raw puts our terminal into raw mode and returns how to undo it.
func raw(f *os.File) (restore func(), err error) {
	fd := int(f.Fd())
	old, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	t := *old
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	t.Cflag = t.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &t); err != nil {
		return nil, err
	}
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, old) }, nil
}

// forward sends our input to the process, and our terminal's size when it has one. The
// returned function ends it; a read of ours that still waits ends with this program.
func forward(c *client.Client, process string, tty bool) (restore func()) {
	ctx, cancel := context.WithCancel(context.Background())
	undo := func() {}
	var own sync.WaitGroup
	if tty && isTerminal(os.Stdin) {
		if u, err := raw(os.Stdin); err == nil {
			undo = u
		}
		own.Go(func() { resize(ctx, c, process) })
	}
	go input(ctx, c, process) // ends at the end of our stdin, or with this program
	return func() {
		cancel()
		own.Wait()
		undo()
	}
}

// resize follows the size of our terminal.
func resize(ctx context.Context, c *client.Client, process string) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, unix.SIGWINCH)
	defer signal.Stop(changed)
	for {
		select {
		case <-changed:
			_, _ = c.Resize(ctx, process, windowSize(os.Stdout))
		case <-ctx.Done():
			return
		}
	}
}

// input copies stdin in writes with offsets, so that a repeated one is not typed twice.
func input(ctx context.Context, c *client.Client, process string) {
	buf := make([]byte, wire.MaxInputBytes)
	offset := int64(0)
	for {
		n, err := os.Stdin.Read(buf)
		for n > 0 {
			at := offset
			_, werr := c.Write(ctx, wire.Write{Version: wire.Version, ProcessRef: wire.ProcessRef{Process: process}, Data: buf[:n], Offset: &at})
			if werr == nil {
				offset += int64(n)
				break
			}
			if wire.AsError(werr).Code != wire.CodeInputBackpressure || ctx.Err() != nil {
				if ctx.Err() == nil {
					fmt.Fprintf(os.Stderr, "limpet: the command did not take its input beyond byte %d: %s\r\n", offset, message(werr))
				}
				return
			}
			t := time.NewTimer(50 * time.Millisecond)
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
		}
		if errors.Is(err, io.EOF) {
			_, _ = c.CloseStdin(ctx, process)
			return
		}
		if err != nil {
			return
		}
	}
}

func jsonIndent(v any) ([]byte, error) { return json.MarshalIndent(v, "", "  ") }
