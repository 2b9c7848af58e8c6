package keeper

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/limpet-sh/limpet/subjects/wire"
)

func isCode(err error, code wire.Code) bool { return errors.Is(err, &wire.Error{Code: code}) }

func TestInputHasOffsets(t *testing.T) {
	c, ev, _ := attach(t, startKeeper(t, time.Minute), 1)
	s := bash("p", "cat")
	s.Stdin = true
	p := spawn(t, c, s)
	var sink record
	done := pumped(t.Context(), p, &sink, 0)
	ctx := t.Context()
	for _, x := range []struct {
		offset int64
		text   string
		n      int
		code   wire.Code
	}{
		{0, "hello ", 6, ""},
		{0, "hello ", 6, ""}, // again: acknowledged, not typed
		{6, "world", 5, ""},
		{3, "lo", 2, ""},
		{12, "x", 0, wire.CodeOffsetConflict},
		{10, "dXX", 0, wire.CodeOffsetConflict},
		{-1, "!", 1, ""},
		{12, "", 0, ""},
	} {
		n, err := p.WriteInput(ctx, x.offset, []byte(x.text))
		if n != x.n || (x.code == "") != (err == nil) || (err != nil && !isCode(err, x.code)) {
			t.Errorf("write %q at %d: %d, %v", x.text, x.offset, n, err)
		}
	}
	if p.InputOffset() != 12 {
		t.Errorf("offset %d", p.InputOffset())
	}
	for range 2 {
		if err := p.CloseInput(ctx); err != nil {
			t.Error(err)
		}
	}
	if err := done(); err != nil {
		t.Error(err)
	}
	if got := sink.text(wire.Stdout); got != "hello world!" {
		t.Errorf("typed %q", got)
	}
	if _, err := p.WriteInput(ctx, 12, []byte("x")); !isCode(err, wire.CodeStdinClosed) {
		t.Errorf("write after close: %v", err)
	}
	if e := ev.exited(t, p); e.Code != 0 {
		t.Errorf("%+v", e)
	}
	q := spawn(t, c, bash("q", "sleep 60"))
	if _, err := q.WriteInput(ctx, 0, []byte("x")); !isCode(err, wire.CodeStdinClosed) {
		t.Errorf("write without a stdin: %v", err)
	}
	if err := q.Resize(ctx, wire.WindowSize{Rows: 1, Cols: 1}); !isCode(err, wire.CodePTYUnavailable) {
		t.Errorf("resize without a terminal: %v", err)
	}
}

func TestInputSurvivesTheWorker(t *testing.T) {
	dir := startKeeper(t, time.Minute)
	c, _, _ := attach(t, dir, 1)
	s := bash("p", "cat")
	s.Stdin = true
	p := spawn(t, c, s)
	if _, err := p.WriteInput(t.Context(), 0, []byte("one ")); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	c, _, adopted := attach(t, dir, 2)
	p = adopted[0]
	if n, err := p.WriteInput(t.Context(), 0, []byte("one ")); n != 4 || err != nil {
		t.Errorf("retry: %d %v", n, err)
	}
	if _, err := p.WriteInput(t.Context(), 4, []byte("two")); err != nil {
		t.Error(err)
	}
	// A worker that dies inside a write leaves a mark.
	p.slot.word(wordWriting).Store(5)
	_ = c.Close()
	_, _, adopted = attach(t, dir, 3)
	p = adopted[0]
	if _, err := p.WriteInput(t.Context(), 7, []byte("three")); !isCode(err, wire.CodeDeliveryUnknown) {
		t.Errorf("write after a write of unknown outcome: %v", err)
	}
	if _, err := p.WriteInput(t.Context(), 7, []byte("three")); !isCode(err, wire.CodeStdinClosed) {
		t.Errorf("write after that: %v", err)
	}
	var sink record
	if err := p.Pump(t.Context(), &sink, 0); err != nil || sink.text(wire.Stdout) != "one two" {
		t.Errorf("typed %q, %v", sink.text(wire.Stdout), err)
	}
}

func TestInputThatNobodyReads(t *testing.T) {
	c, _, _ := attach(t, startKeeper(t, time.Minute), 1)
	s := bash("p", "trap 'cat >/dev/null' USR1; echo ready; while :; do sleep 0.05; done")
	s.Stdin = true
	p := spawn(t, c, s)
	var out record
	go p.Pump(t.Context(), &out, 0) // ends with the process
	eventually(t, "ready", func() bool { return out.size() > 0 })
	full := []byte(strings.Repeat("x", 64<<10))
	if n, err := p.WriteInput(t.Context(), 0, full); n != len(full) || err != nil {
		t.Fatal(n, err)
	}
	// Not one byte went: the caller may try again.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if n, err := p.WriteInput(ctx, int64(len(full)), full); n != 0 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("write to a full pipe: %d %v", n, err)
	}
	start := time.Now()
	if n, err := p.WriteInput(t.Context(), int64(len(full)), full); n != 0 || !isCode(err, wire.CodeInputBackpressure) {
		t.Errorf("write to a full pipe: %d %v", n, err)
	}
	if d := time.Since(start); d < inputLimit || d > inputLimit+10*time.Second {
		t.Errorf("after %v", d)
	}
	// The input is open as before, for a process that reads again.
	if err := p.Signal(t.Context(), unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if n, err := p.WriteInput(t.Context(), int64(len(full)), full); n != len(full) || err != nil {
		t.Errorf("write to a process that reads again: %d %v", n, err)
	}
	// Of a part nobody knows what became of the rest.
	w := s
	w.Process, w.Argv = "w", []string{"bash", "-c", "sleep 60"}
	p = spawn(t, c, w)
	if n, err := p.WriteInput(t.Context(), 0, full[:60_000]); n != 60_000 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := p.WriteInput(t.Context(), 60_000, full); n <= 0 || n >= len(full) || !isCode(err, wire.CodeDeliveryUnknown) {
		t.Errorf("write of more than there is room for: %d %v", n, err)
	}
	if _, err := p.WriteInput(t.Context(), -1, full); !isCode(err, wire.CodeStdinClosed) {
		t.Errorf("write after that: %v", err)
	}
	q := s
	q.Process, q.Argv = "q", []string{"bash", "-c", "exec 0<&-; echo closed; sleep 60"}
	p = spawn(t, c, q)
	var sink record
	go p.Pump(t.Context(), &sink, 0)
	eventually(t, "closed", func() bool { return sink.size() > 0 })
	if _, err := p.WriteInput(t.Context(), 0, full); !isCode(err, wire.CodeStdinClosed) {
		t.Errorf("write to a closed stdin: %v", err)
	}
}

func TestTerminal(t *testing.T) {
	c, ev, _ := attach(t, startKeeper(t, time.Minute), 1)
	s := bash("p", `trap 'stty size' WINCH; test -t 0 && test -t 1 && stty size; cat; echo "got end"; sleep 0.1; stty raw; echo raw; read -n 1`)
	s.TTY = &wire.WindowSize{Rows: 11, Cols: 22}
	p := spawn(t, c, s)
	var sink record
	done := pumped(t.Context(), p, &sink, 0)
	has := func(text string) func() bool {
		return func() bool { return strings.Contains(sink.text(wire.Stdout), text) }
	}
	eventually(t, "the size", has("11 22\r\n"))
	if err := p.Resize(t.Context(), wire.WindowSize{Rows: 33, Cols: 44}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.WriteInput(t.Context(), 0, []byte(strings.Repeat("y", 4000))); err != nil {
		t.Fatal(err)
	}
	if _, err := p.WriteInput(t.Context(), 4000, []byte(strings.Repeat("y", 96))); !isCode(err, wire.CodeInvalidArguments) {
		t.Errorf("a line of 4,096 bytes: %v", err)
	}
	if _, err := p.WriteInput(t.Context(), 4000, []byte("\nlast\n")); err != nil {
		t.Error(err)
	}
	eventually(t, "echo and line", func() bool { return strings.Count(sink.text(wire.Stdout), "last\r\n") == 2 })
	if err := p.Resize(t.Context(), wire.WindowSize{}); !isCode(err, wire.CodeInvalidArguments) {
		t.Errorf("resize to nothing: %v", err)
	}
	if err := p.CloseInput(t.Context()); err != nil {
		t.Error(err)
	}
	eventually(t, "the end of input", has("got end"))
	eventually(t, "the new size", has("33 44\r\n"))
	if _, err := p.WriteInput(t.Context(), -1, []byte("x")); !isCode(err, wire.CodeStdinClosed) {
		t.Errorf("write after the end: %v", err)
	}
	_ = p.Stop(t.Context(), wire.ReasonCancel, Kill, 0)
	if err := done(); err != nil {
		t.Error(err)
	}
	ev.exited(t, p)

	s = bash("q", "stty raw; echo raw; sleep 60")
	s.TTY = &wire.WindowSize{}
	p = spawn(t, c, s)
	sink = record{}
	done = pumped(t.Context(), p, &sink, 0)
	eventually(t, "raw", has("raw"))
	if err := p.CloseInput(t.Context()); !isCode(err, wire.CodeInvalidArguments) || !strings.Contains(err.Error(), "raw") {
		t.Errorf("end of input in raw mode: %v", err)
	}
	if _, err := p.WriteInput(t.Context(), -1, []byte(strings.Repeat("z", 5000))); err != nil {
		t.Errorf("a long write in raw mode: %v", err)
	}
	_ = p.Release(t.Context())
	_ = done()
}
