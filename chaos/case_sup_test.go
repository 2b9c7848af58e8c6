package chaos

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/app"
	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// counting writes a number a line, for long.
const counting = "for i in $(seq 100000); do echo $i; sleep 0.02; done"

// another waits until a part runs as another process than before.
func (l *Lab) another(t testing.TB, part string, before int) int {
	t.Helper()
	pid := 0
	eventually(t, "new "+part, long, func() bool {
		pid = l.PID(part)
		return pid != 0 && pid != before
	})
	return pid
}

// follow gives the numbers of a counting process from a cursor on until one is reached.
func (a agent) follow(t testing.TB, id string, cursor int64, reach int) (numbers []int, next int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	text := ""
	for {
		p, err := a.c.Read(ctx, wire.Read{ProcessRef: wire.ProcessRef{Process: id}, Cursor: &cursor, WaitMS: 5000, MaxBytes: wire.MaxPageBytes})
		if err != nil {
			t.Fatalf("read from %d: %v", cursor, err)
		}
		if p.CursorExpired || len(p.Gaps) > 0 {
			t.Fatalf("gaps %v", p.Gaps)
		}
		for _, ch := range p.Chunks {
			text += ch.Text
		}
		cursor = p.NextCursor
		if strings.HasSuffix(text, "\n") {
			numbers = numbers[:0]
			for line := range strings.Lines(text) {
				n, err := strconv.Atoi(strings.TrimSpace(line))
				if err != nil {
					t.Fatalf("line %q", line)
				}
				numbers = append(numbers, n)
			}
			if n := len(numbers); n > 0 && numbers[n-1] >= reach {
				return numbers, cursor
			}
		}
		if p.End {
			t.Fatalf("it ended before %d", reach)
		}
	}
}

// gapless: each number is one more than the one before.
func gapless(t testing.TB, numbers []int, first int) {
	t.Helper()
	for i, n := range numbers {
		if n != first+i {
			t.Fatalf("number %d is %d, want %d", i, n, first+i)
		}
	}
}

func TestCaseSupervisorWorkerKilled(t *testing.T) {
	need(t, "pty")
	l := start(t)
	dir := t.TempDir()
	a := newAgent(t, l, wire.Open{Cwd: dir, DefaultTimeoutMS: -1})
	kill := func(t *testing.T) {
		t.Helper()
		before := l.PID("worker")
		if err := l.Kill("worker"); err != nil {
			t.Fatal(err)
		}
		l.another(t, "worker", before)
	}

	// SUP 123
	t.Run("a streaming process runs on and no line is lost or twice", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: counting})
		numbers, cursor := a.follow(t, id, 0, 5)
		for range 3 {
			kill(t)
			eventually(t, "running process", long, func() bool {
				r := a.status(t, id)
				if r.State != wire.StateUnreachable && r.State != wire.StateRunning || r.ExitCode != nil || r.EndedAt != nil {
					t.Fatalf("%s, code %v", r.State, value(r.ExitCode))
				}
				return r.State == wire.StateRunning
			})
			more, next := a.follow(t, id, cursor, numbers[len(numbers)-1]+20)
			gapless(t, more, numbers[len(numbers)-1]+1)
			numbers, cursor = more, next
		}
		all, _ := a.follow(t, id, 0, numbers[len(numbers)-1])
		gapless(t, all, 1)
		ended(t, a.terminate(t, wire.Terminate{ProcessRef: wire.ProcessRef{Process: id}}), wire.StateCancelled, wire.ReasonCancel)
	})
	t.Run("so does one at a terminal, with its size and its input", func(t *testing.T) { // SUP 123
		id := a.start(t, wire.Command{
			Text: `stty -echo; echo ready; while read x; do echo "got $x $(stty size)"; done; echo over`, TTY: &wire.WindowSize{Rows: 33, Cols: 111},
		})
		a.until(t, id, "ready")
		a.typed(t, id, "one\n")
		a.until(t, id, "got one 33 111")
		kill(t)
		r := a.typed(t, id, "two\n")
		if r.StdinBytes != 8 {
			t.Errorf("%d bytes of input", r.StdinBytes)
		}
		a.until(t, id, "got two 33 111")
		if _, err := a.c.Resize(t.Context(), id, wire.WindowSize{Rows: 10, Cols: 20}); err != nil {
			t.Error(err)
		}
		kill(t)
		a.typed(t, id, "three\n")
		a.until(t, id, "got three 10 20")
		a.closeStdin(t, id)
		if out := a.output(t, id); out != "ready\r\ngot one 33 111\r\ngot two 33 111\r\ngot three 10 20\r\nover\r\n" {
			t.Errorf("%q", out)
		}
	})
	t.Run("so does one that is idle", func(t *testing.T) { // SUP 123
		id := a.start(t, wire.Command{Text: "cat; echo over; exit 5", Stdin: wire.StdinPipe})
		a.typed(t, id, "one\n")
		kill(t)
		if _, err := a.write(t, id, wire.Write{Text: "one\n", Offset: new(int64(0))}); err != nil { // typed already
			t.Error(err)
		}
		if _, err := a.write(t, id, wire.Write{Text: "two\n", Offset: new(int64(4))}); err != nil {
			t.Error(err)
		}
		a.closeStdin(t, id)
		if r, out := a.end(t, id), a.output(t, id); value(r.ExitCode) != 5 || out != "one\ntwo\nover\n" {
			t.Errorf("code %v, %q", value(r.ExitCode), out)
		}
	})
	t.Run("an end while no worker lived is the real one", func(t *testing.T) { // SUP 123
		id := a.start(t, wire.Command{Text: "read x; echo last words; exit 42", Stdin: wire.StdinPipe})
		quick := a.start(t, wire.Command{Text: "echo one; sleep 60", TimeoutMS: 1000})
		a.until(t, quick, "one")
		a.typed(t, id, "go\n")
		kill(t) // a moment after the last line of input: the exit may fall in the gap
		r := a.end(t, id)
		if ended(t, r, wire.StateFailed, wire.ReasonExit); value(r.ExitCode) != 42 || a.output(t, id) != "last words\n" {
			t.Errorf("code %v, %q", value(r.ExitCode), a.output(t, id))
		}
		ended(t, a.end(t, quick), wire.StateFailed, wire.ReasonTimeout)
	})
	t.Run("what had ended is still told the same", func(t *testing.T) {
		id := a.run(t, wire.Command{Text: "echo out; echo err >&2; exit 3"}).Receipt.Process
		before, out := a.status(t, id), a.output(t, id)
		kill(t)
		after := a.status(t, id)
		if after.State != before.State || value(after.ExitCode) != 3 || !after.EndedAt.Equal(*before.EndedAt) || !reflect.DeepEqual(after.Output, before.Output) || a.output(t, id) != out {
			t.Errorf("%+v\n%+v, %q", before, after, a.output(t, id))
		}
	})
	t.Run("a start that is cut off happened once or not at all", func(t *testing.T) {
		l := start(t) // one whose worker has not died lately is soon restarted
		a := newAgent(t, l, wire.Open{Cwd: dir})
		for i := range 6 {
			m := wire.Start{ExecutionID: subjects.NewID(), Command: wire.Command{Text: fmt.Sprintf("echo x >> once%d; sleep 0.2", i)}}
			type result struct {
				r   *wire.Receipt
				err error
			}
			first := make(chan result, 1)
			before := l.PID("worker")
			go func() { // ends with the client's patience
				r, err := a.s.Start(t.Context(), m)
				first <- result{r, err}
			}()
			time.Sleep(time.Duration(i) * 600 * time.Microsecond) // from before the record to after the answer
			killed := time.Now()
			if err := l.Kill("worker"); err != nil {
				t.Fatal(err)
			}
			l.another(t, "worker", before)
			one := <-first
			if d := time.Since(killed); d > 30*time.Second {
				t.Errorf("round %d: the caller waited %v for a dead worker", i, d)
			}
			two, err := a.s.Start(t.Context(), m)
			if one.err == nil && err == nil && one.r.Process != two.Process {
				t.Errorf("round %d: %s, then %s", i, one.r.Process, two.Process)
			}
			if err != nil {
				t.Logf("round %d: %v", i, err)
				if c := wire.AsError(err).Code; c == wire.CodeInternal || c == wire.CodeDeadlineExceeded {
					t.Errorf("round %d: no clear answer: %v", i, err)
				}
			} else {
				r := a.end(t, two.Process)
				t.Logf("round %d: %s by %s", i, r.State, r.Reason)
				two = r
			}
			b, _ := os.ReadFile(filepath.Join(dir, fmt.Sprintf("once%d", i)))
			ran := strings.Count(string(b), "\n")
			if ran > 1 {
				t.Errorf("round %d: it ran %d times", i, ran)
			}
			if err == nil && (two.State == wire.StateCompleted) != (ran == 1) {
				t.Errorf("round %d: it ran %d times and ended as %s by %s", i, ran, two.State, two.Reason)
			}
		}
	})
}

// SUP 127
func TestCaseSupervisorReconnect(t *testing.T) {
	l := start(t)
	a := newAgent(t, l, wire.Open{Cwd: t.TempDir(), Name: "kept"})
	id := a.start(t, wire.Command{Text: counting})
	numbers, cursor := a.follow(t, id, 0, 10)
	last := numbers[len(numbers)-1]
	again := func() agent {
		t.Helper()
		d, err := app.Discover(l.State)
		if err != nil {
			t.Fatal(err)
		}
		b := d.Bus("again")
		c, err := client.Connect(t.Context(), client.Config{
			Dial: b.Dial, User: b.User, Password: b.Password, InboxPrefix: b.InboxPrefix, Tenant: d.Tenant, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return agent{c.Session("kept"), c}
	}
	l.Client.Close()
	b := again()
	more, next := b.follow(t, id, cursor, last+20)
	gapless(t, more, last+1)
	same, _ := b.follow(t, id, cursor, last+20)
	gapless(t, same, last+1)

	t.Run("also after a kill -9 of everything but the keeper", func(t *testing.T) {
		last := more[len(more)-1]
		worker := l.PID("worker")
		if err := l.Kill("worker"); err != nil {
			t.Fatal(err)
		}
		if err := l.Kill("up"); err != nil {
			t.Fatal(err)
		}
		if err := l.Up(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.another(t, "worker", worker)
		c := again()
		eventually(t, "running process", long, func() bool { return c.status(t, id).State == wire.StateRunning })
		rest, _ := c.follow(t, id, next, last+20)
		gapless(t, rest, last+1)
		all, _ := c.follow(t, id, 0, last+20)
		gapless(t, all, 1)
		ended(t, c.terminate(t, wire.Terminate{ProcessRef: wire.ProcessRef{Process: id}}), wire.StateCancelled, wire.ReasonCancel)
		exited(t, c.text(t, "echo on"), 0, "on\n")
	})
}

func TestCaseSupervisorUpKilled(t *testing.T) {
	l := start(t)
	a := newAgent(t, l, wire.Open{Cwd: t.TempDir()})
	id := a.start(t, wire.Command{Text: counting})
	short := a.start(t, wire.Command{Text: "echo out; sleep 0.5; echo more; exit 9"})
	numbers, cursor := a.follow(t, id, 0, 5)
	worker, keeper := l.PID("worker"), l.PID("keeper")
	if err := l.Kill("up"); err != nil {
		t.Fatal(err)
	}
	if err := l.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l.PID("worker") != worker || l.PID("keeper") != keeper {
		t.Errorf("worker %d, keeper %d; they were %d and %d", l.PID("worker"), l.PID("keeper"), worker, keeper)
	}
	// The client of before finds its way by itself: the socket has the same name.
	last := numbers[len(numbers)-1]
	more, _ := a.follow(t, id, cursor, last+30)
	gapless(t, more, last+1)
	if r := a.end(t, short); value(r.ExitCode) != 9 || a.output(t, short) != "out\nmore\n" {
		t.Errorf("code %v, %q", value(r.ExitCode), a.output(t, short))
	}
	exited(t, a.text(t, "echo on"), 0, "on\n")
	ended(t, a.terminate(t, wire.Terminate{ProcessRef: wire.ProcessRef{Process: id}}), wire.StateCancelled, wire.ReasonCancel)
}
