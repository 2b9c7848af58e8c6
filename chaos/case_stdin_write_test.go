package chaos

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

func TestCaseStdinWrites(t *testing.T) {
	a := newAgent(t, start(t), wire.Open{Cwd: t.TempDir()})
	pipe := func(text string) wire.Command { return wire.Command{Text: text, Stdin: wire.StdinPipe} }

	t.Run("closing twice is harmless and a write after it is refused", func(t *testing.T) {
		id := a.start(t, pipe("cat; sleep 60"))
		a.typed(t, id, "x")
		a.closeStdin(t, id)
		a.closeStdin(t, id)
		if _, err := a.write(t, id, wire.Write{Close: true}); err != nil {
			t.Errorf("a third close: %v", err)
		}
		_, err := a.write(t, id, wire.Write{Text: "y"})
		refused(t, err, wire.CodeStdinClosed, "")
		if r := a.status(t, id); r.StdinOpen || r.StdinBytes != 1 || r.State != wire.StateRunning {
			t.Errorf("%+v", r)
		}
		a.kill(t, id)
		_, err = a.write(t, id, wire.Write{Text: "y"})
		refused(t, err, wire.CodeStdinClosed, "")
		a.closeStdin(t, id)
	})
	t.Run("a process without an input takes none", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "sleep 60"})
		_, err := a.write(t, id, wire.Write{Text: "y"})
		refused(t, err, wire.CodeStdinClosed, "")
		a.closeStdin(t, id)
		a.kill(t, id)
	})
	t.Run("a process that closed its input says so", func(t *testing.T) {
		id := a.start(t, pipe("exec <&-; echo closed; sleep 60"))
		a.until(t, id, "closed")
		_, err := a.write(t, id, wire.Write{Text: "y"})
		refused(t, err, wire.CodeStdinClosed, "")
		a.kill(t, id)
	})
	t.Run("a write that nobody reads ends in five seconds and can be tried again", func(t *testing.T) {
		id := a.start(t, pipe("while [ ! -e read ]; do sleep 0.05; done; wc -c"))
		full := strings.Repeat("x", wire.MaxInputBytes)
		a.typed(t, id, full) // a pipe holds this much
		began := time.Now()
		again := wire.Write{Text: full, Offset: new(int64(len(full))), Close: true}
		_, err := a.write(t, id, again)
		refused(t, err, wire.CodeInputBackpressure, "")
		if d := time.Since(began); d > 30*time.Second {
			t.Errorf("the write took %v", d)
		}
		if r := a.status(t, id); !r.StdinOpen || r.StdinBytes != int64(len(full)) || r.State != wire.StateRunning {
			t.Errorf("open %v, %d bytes, %s", r.StdinOpen, r.StdinBytes, r.State)
		}
		a.text(t, "touch read")
		if _, err = a.write(t, id, again); err != nil {
			t.Error(err)
		}
		if out := a.output(t, id); out != "131072\n" {
			t.Errorf("%q", out)
		}
	})
	t.Run("a write of which a part is read is not repeated", func(t *testing.T) {
		id := a.start(t, pipe("sleep 300"))
		a.typed(t, id, strings.Repeat("x", 60_000))
		_, err := a.write(t, id, wire.Write{Text: strings.Repeat("y", 60_000)})
		refused(t, err, wire.CodeDeliveryUnknown, "")
		_, err = a.write(t, id, wire.Write{Text: "y"})
		refused(t, err, wire.CodeStdinClosed, "")
		if r := a.status(t, id); r.StdinOpen || r.State != wire.StateRunning {
			t.Errorf("open %v, %s", r.StdinOpen, r.State)
		}
		a.kill(t, id)
	})
	t.Run("other processes are not held up by one that does not read", func(t *testing.T) {
		id := a.start(t, pipe("sleep 300"))
		full := strings.Repeat("x", wire.MaxInputBytes)
		a.typed(t, id, full)
		done := make(chan error, 1)
		go func() { _, err := a.write(t, id, wire.Write{Text: full}); done <- err }() // ends within the write's limit
		exited(t, a.text(t, "echo free"), 0, "free\n")
		a.status(t, id)
		a.kill(t, id)
		if err := <-done; err == nil {
			t.Error("a write to a killed process succeeded")
		}
	})
	t.Run("a retried write is not typed twice", func(t *testing.T) {
		id := a.start(t, pipe("cat"))
		for range 3 {
			if r, err := a.write(t, id, wire.Write{Text: "once\n", Offset: new(int64(0))}); err != nil || r.StdinBytes != 5 {
				t.Errorf("%+v, %v", r, err)
			}
		}
		_, err := a.write(t, id, wire.Write{Text: "ahead\n", Offset: new(int64(6))})
		refused(t, err, wire.CodeOffsetConflict, "offset")
		_, err = a.write(t, id, wire.Write{Text: "overlap\n", Offset: new(int64(4))})
		refused(t, err, wire.CodeOffsetConflict, "offset")
		if _, err := a.write(t, id, wire.Write{Text: "twice\n", Offset: new(int64(5)), Close: true}); err != nil {
			t.Error(err)
		}
		if out := a.output(t, id); out != "once\ntwice\n" {
			t.Errorf("%q", out)
		}
	})
	t.Run("the largest write passes whole and one more byte is refused", func(t *testing.T) {
		id := a.start(t, pipe("sha256sum | cut -c1-64"))
		full := []byte(strings.Repeat("0123456789abcdef", wire.MaxInputBytes/16))
		if r, err := a.write(t, id, wire.Write{Data: full}); err != nil || r.StdinBytes != int64(len(full)) {
			t.Errorf("%+v, %v", r, err)
		}
		refused(t, a.raw(t, wire.VerbWrite, wire.Write{Version: 1, ProcessRef: wire.ProcessRef{Process: id}, Data: append(full, 'x')}),
			wire.CodeInvalidArguments, "data")
		refused(t, a.raw(t, wire.VerbWrite, wire.Write{Version: 1, ProcessRef: wire.ProcessRef{Process: id}, Text: string(full) + "x"}),
			wire.CodeInvalidArguments, "text")
		a.closeStdin(t, id)
		if out := a.output(t, id); out != sum(full)+"\n" {
			t.Errorf("%q", out)
		}
	})
	t.Run("every byte value arrives", func(t *testing.T) {
		all := make([]byte, 256)
		for i := range all {
			all[i] = byte(i)
		}
		id := a.start(t, pipe("cat"))
		if _, err := a.write(t, id, wire.Write{Data: all, Close: true}); err != nil {
			t.Fatal(err)
		}
		if out := a.output(t, id); out != string(all) {
			t.Errorf("%q", out)
		}
	})
	t.Run("a bad read writes nothing", func(t *testing.T) { // A36
		id := a.start(t, pipe("cat"))
		_, err := a.write(t, id, wire.Write{Text: "x", Read: &wire.Read{Cursor: new(int64(1000))}})
		refused(t, err, wire.CodeCursorAhead, "")
		if r := a.status(t, id); r.StdinBytes != 0 {
			t.Errorf("%d bytes were written", r.StdinBytes)
		}
		r, err := a.write(t, id, wire.Write{Text: "pong\n", Read: &wire.Read{WaitMS: 20_000}})
		if err != nil || r.Page == nil || len(r.Page.Chunks) != 1 || r.Page.Chunks[0].Text != "pong\n" {
			t.Errorf("%+v, %v", r, err)
		}
		a.kill(t, id)
	})
	t.Run("writes at once keep their lines whole", func(t *testing.T) {
		id := a.start(t, pipe("cat"))
		line := func(i int) string { return strings.Repeat(string(rune('a'+i)), 3000) + "\n" }
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() {
				if _, err := a.write(t, id, wire.Write{Text: line(i)}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		a.closeStdin(t, id)
		out := a.output(t, id)
		for i := range 12 {
			if !strings.Contains(out, line(i)) {
				t.Errorf("line %d is torn", i)
			}
		}
		if len(out) != 12*3001 {
			t.Errorf("%d bytes", len(out))
		}
	})
	t.Run("more writes than may wait are refused and not kept waiting", func(t *testing.T) {
		id := a.start(t, pipe("sleep 300"))
		full := strings.Repeat("x", wire.MaxInputBytes)
		a.typed(t, id, full)
		var mu sync.Mutex
		codes := map[wire.Code]int{}
		began := time.Now()
		var all sync.WaitGroup
		for range 40 {
			all.Go(func() {
				_, err := a.write(t, id, wire.Write{Text: full})
				mu.Lock()
				defer mu.Unlock()
				codes[wire.AsError(err).Code]++
			})
		}
		all.Wait()
		if codes[wire.CodeInputBackpressure] != 40 {
			t.Errorf("%v", codes)
		}
		if d := time.Since(began); d > 30*time.Second { // those that waited have waited together
			t.Errorf("the writes took %v", d)
		}
		a.kill(t, id)
	})
}

func TestCaseStdinTerminal(t *testing.T) {
	need(t, "pty")
	a := newAgent(t, start(t), wire.Open{Cwd: t.TempDir()})
	const bare = "stty -echo; echo ready; "

	t.Run("a terminal has an end of input", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: bare + "cat; echo rc=$?", TTY: tty})
		a.until(t, id, "ready")
		a.typed(t, id, "abc\n")
		a.closeStdin(t, id)
		a.closeStdin(t, id)
		if out := a.output(t, id); out != "ready\r\nabc\r\nrc=0\r\n" {
			t.Errorf("%q", out)
		}
		_, err := a.write(t, id, wire.Write{Text: "x"})
		refused(t, err, wire.CodeStdinClosed, "")
	})
	t.Run("an unfinished line is delivered before the end", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: bare + "cat; echo; echo rc=$?", TTY: tty})
		a.until(t, id, "ready")
		if r, err := a.write(t, id, wire.Write{Text: "abc", Close: true}); err != nil || r.StdinOpen {
			t.Errorf("%+v, %v", r, err)
		}
		if out := a.output(t, id); out != "ready\r\nabc\r\nrc=0\r\n" {
			t.Errorf("%q", out)
		}
	})
	t.Run("a raw terminal has no end of input", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "stty raw -echo; echo ready; head -c 3; echo; echo over", TTY: tty})
		a.until(t, id, "ready")
		_, err := a.c.CloseStdin(t.Context(), id)
		refused(t, err, wire.CodeInvalidArguments, "close")
		a.typed(t, id, "ab\x04") // the byte is data now, and input still open
		if out := a.output(t, id); !strings.Contains(out, "ab\x04") || !strings.Contains(out, "over") {
			t.Errorf("%q", out)
		}
	})
	t.Run("the longest line of a terminal passes and a longer one is refused whole", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: bare + "head -n 1 | wc -c; head -n 1", TTY: tty})
		a.until(t, id, "ready")
		a.typed(t, id, strings.Repeat("x", 4095)+"\n")
		a.until(t, id, "4096")
		_, err := a.write(t, id, wire.Write{Text: strings.Repeat("y", 4096) + "\n"})
		refused(t, err, wire.CodeInvalidArguments, "data")
		a.typed(t, id, "next\n")
		if out := a.output(t, id); out != "ready\r\n4096\r\nnext\r\n" {
			t.Errorf("%q", out)
		}
	})
	t.Run("a line may come in pieces but not grow too long", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: bare + "head -n 1 | wc -c", TTY: tty})
		a.until(t, id, "ready")
		a.typed(t, id, strings.Repeat("x", 4000))
		_, err := a.write(t, id, wire.Write{Text: strings.Repeat("x", 96)})
		refused(t, err, wire.CodeInvalidArguments, "data")
		a.typed(t, id, strings.Repeat("x", 95)+"\n")
		if out := a.output(t, id); out != "ready\r\n4096\r\n" {
			t.Errorf("%q", out)
		}
	})
	t.Run("many lines pass though each has a limit", func(t *testing.T) {
		lines := strings.Repeat(strings.Repeat("x", 99)+"\n", 600)
		id := a.start(t, wire.Command{Text: bare + "head -n 600 | wc", TTY: tty})
		a.until(t, id, "ready")
		a.typed(t, id, lines)
		if out := strings.Fields(a.output(t, id)); len(out) != 4 || out[1] != "600" || out[3] != fmt.Sprint(len(lines)) {
			t.Errorf("%q", out)
		}
	})
	t.Run("control characters are the terminal's", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.05; done", TTY: tty})
		a.until(t, id, "ready")
		a.typed(t, id, "\x03")
		if r := a.end(t, id); *r.ExitCode != 3 || r.State != wire.StateFailed || r.Reason != wire.ReasonExit {
			t.Errorf("%s %s %v", r.State, r.Reason, value(r.ExitCode))
		}
	})
	t.Run("input of a terminal is typed and the terminal stays open", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: `read a; echo "got $a"; read b; echo "got $b"`, Input: []byte("one\n"), TTY: tty})
		a.until(t, id, "got one")
		a.typed(t, id, "two\n")
		if out := a.output(t, id); !strings.HasSuffix(out, "got two\r\n") {
			t.Errorf("%q", out)
		}
	})
	t.Run("a terminal that nobody reads ends in five seconds", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "stty raw -echo; echo ready; sleep 300", TTY: tty})
		a.until(t, id, "ready")
		var err error
		for range 4 {
			if _, err = a.write(t, id, wire.Write{Text: strings.Repeat("x", 60_000)}); err != nil {
				break
			}
		}
		refused(t, err, wire.CodeDeliveryUnknown, "")
		_, err = a.write(t, id, wire.Write{Text: "y"})
		refused(t, err, wire.CodeStdinClosed, "")
		a.kill(t, id)
	})
}
