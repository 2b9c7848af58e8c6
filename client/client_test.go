package client_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects/wire"
)

var truth = wire.Command{Text: "true"}

// echo answers each verb with the least of what it gives.
func echo(r *request) {
	switch m := r.msg.(type) {
	case *wire.Open:
		reply(r, &wire.Session{Version: 1, ID: "id-" + m.Name, Name: m.Name})
	case *wire.CloseSession:
		reply(r, &wire.Session{Version: 1, Name: m.SessionName, Closed: true})
	case *wire.List:
		reply(r, &wire.Processes{Version: 1})
	case *wire.Run:
		reply(r, &wire.Result{Version: 1, Receipt: wire.Receipt{ExecutionID: m.ExecutionID, State: wire.StateCompleted}})
	case *wire.Start:
		reply(r, &wire.Receipt{Version: 1, ExecutionID: m.ExecutionID, State: wire.StateRunning})
	case *wire.Prepare:
		reply(r, &wire.Prepared{Version: 1, ExecutionID: m.ExecutionID})
	case *wire.Cancel:
		reply(r, &wire.Receipt{Version: 1, ExecutionID: m.ExecutionID, State: wire.StateCancelled})
	case *wire.Read:
		reply(r, &wire.Page{Version: 1, Process: m.Process, End: true})
	case *wire.WaitFor:
		reply(r, &wire.Waited{Version: 1, Met: true, Results: []wire.ProcessWait{{Process: m.Process, Met: true}}})
	case *wire.Search:
		reply(r, &wire.Found{Version: 1, Process: m.Process, End: true})
	default:
		p, _ := wire.ProcessOf(r.msg)
		reply(r, &wire.Receipt{Version: 1, Process: p, State: wire.StateCompleted, Description: r.verb})
	}
}

func TestVerbs(t *testing.T) {
	s := server(t)
	a := newAPI(t, s, echo)
	c := dial(t, s)
	ctx := t.Context()
	fresh, err := c.Open(ctx, wire.Open{})
	if err != nil || fresh.Info().Name == "" {
		t.Fatalf("%+v, %v", fresh, err)
	}
	sess := c.Session("one")
	if _, err := sess.Prepare(ctx, wire.Prepare{Command: truth}); err != nil {
		t.Error(err)
	}
	if r, err := sess.Run(ctx, wire.Run{Command: truth}); err != nil || r.Receipt.ExecutionID == "" {
		t.Errorf("a run without an execution id: %+v, %v", r, err)
	}
	if r, err := sess.Start(ctx, wire.Start{Command: truth}); err != nil || r.ExecutionID == "" {
		t.Errorf("a start without an execution id: %+v, %v", r, err)
	}
	if r, err := sess.Start(ctx, wire.Start{Command: truth, ExecutionID: "mine"}); err != nil || r.ExecutionID != "mine" {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := sess.List(ctx); err != nil {
		t.Error(err)
	}
	if _, err := c.ListAll(ctx); err != nil {
		t.Error(err)
	}
	if r, err := sess.Cancel(ctx, "x"); err != nil || r.State != wire.StateCancelled {
		t.Errorf("%+v, %v", r, err)
	}
	ref := wire.ProcessRef{Process: "p"}
	for verb, f := range map[string]func() (*wire.Receipt, error){
		wire.VerbWait:       func() (*wire.Receipt, error) { return c.Wait(ctx, wire.Wait{ProcessRef: ref}) },
		wire.VerbStatus:     func() (*wire.Receipt, error) { return c.Status(ctx, "p") },
		wire.VerbWrite:      func() (*wire.Receipt, error) { return c.Write(ctx, wire.Write{ProcessRef: ref, Text: "x"}) },
		wire.VerbCloseStdin: func() (*wire.Receipt, error) { return c.CloseStdin(ctx, "p") },
		wire.VerbResize:     func() (*wire.Receipt, error) { return c.Resize(ctx, "p", wire.WindowSize{Rows: 24, Cols: 80}) },
		wire.VerbSignal:     func() (*wire.Receipt, error) { return c.Signal(ctx, "p", "INT") },
		wire.VerbTerminate:  func() (*wire.Receipt, error) { return c.Terminate(ctx, wire.Terminate{ProcessRef: ref}) },
	} {
		if r, err := f(); err != nil || r.Description != verb || r.Process != "p" {
			t.Errorf("%s: %+v, %v", verb, r, err)
		}
	}
	if p, err := c.Read(ctx, wire.Read{ProcessRef: ref, WaitMS: 100}); err != nil || !p.End {
		t.Errorf("%+v, %v", p, err)
	}
	if w, err := c.WaitFor(ctx, wire.WaitFor{ProcessRef: ref, For: "exit"}); err != nil || !w.Met {
		t.Errorf("%+v, %v", w, err)
	}
	if f, err := c.Search(ctx, wire.Search{ProcessRef: ref, Pattern: "x"}); err != nil || !f.End {
		t.Errorf("%+v, %v", f, err)
	}
	if i, err := sess.Close(ctx); err != nil || !i.Closed || i.Name != "one" {
		t.Errorf("%+v, %v", i, err)
	}
	for _, verb := range wire.Verbs() {
		if a.count(verb) == 0 {
			t.Errorf("%s was not called", verb)
		}
	}
}

func TestSocket(t *testing.T) {
	dir := t.TempDir()
	dir += "/" + strings.Repeat("long", 30) // more than the kernel takes in an address
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := serverAt(t, dir+"/s")
	newAPI(t, s, echo)
	c := dial(t, s, func(cfg *client.Config) { cfg.Dial, cfg.Socket = nil, dir+"/s" })
	if _, err := c.Status(t.Context(), "p"); err != nil {
		t.Error(err)
	}
}

func TestBadInputIsNotSent(t *testing.T) {
	s := server(t)
	a := newAPI(t, s, echo)
	c := dial(t, s)
	ctx, sess := t.Context(), c.Session("one")
	huge := strings.Repeat("x", 100_000)
	for _, tt := range []struct {
		name, field string
		call        func() error
	}{
		{"no command", "command", func() error { _, err := sess.Run(ctx, wire.Run{}); return err }},
		{"execution id", "execution_id", func() error {
			_, err := sess.Start(ctx, wire.Start{ExecutionID: "a b", Command: truth})
			return err
		}},
		{"session name", "session_name", func() error {
			_, err := c.Session("a.b").Start(ctx, wire.Start{Command: truth})
			return err
		}},
		{"no process", "process", func() error { _, err := c.Status(ctx, ""); return err }},
		{"signal", "signal", func() error { _, err := c.Signal(ctx, "p", "NOSUCH"); return err }},
		{"cursor", "cursor", func() error {
			_, err := c.Read(ctx, wire.Read{ProcessRef: wire.ProcessRef{Process: "p"}, Cursor: new(int64(-1))})
			return err
		}},
		{"wait", "wait_ms", func() error {
			_, err := c.Wait(ctx, wire.Wait{ProcessRef: wire.ProcessRef{Process: "p"}, WaitMS: -1})
			return err
		}},
		{"larger than a message", "command", func() error {
			argv := make([]string, 100)
			for i := range argv {
				argv[i] = huge
			}
			_, err := sess.Run(ctx, wire.Run{Command: wire.Command{Argv: argv}})
			return err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, ok := errors.AsType[*wire.Error](tt.call())
			if !ok || e.Code != wire.CodeInvalidArguments || !strings.HasPrefix(e.Field, tt.field) {
				t.Errorf("got %+v, want field %s", e, tt.field)
			}
		})
	}
	if len(a.all()) != 0 {
		t.Errorf("%d were sent", len(a.all()))
	}
}

func TestConfigNames(t *testing.T) {
	for _, cfg := range []client.Config{{Tenant: "a.b"}, {MaxRequest: time.Minute}, {MaxRequest: -1}} {
		if _, err := client.Connect(t.Context(), cfg); code(err) != wire.CodeInvalidArguments {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// A gateway that is away, or a worker that restarts, delays a call and does not fail it.
func TestRetries(t *testing.T) {
	s := server(t)
	a := newAPI(t, s, func(r *request) {
		if r.nth < 3 {
			r.fail([]wire.Code{wire.CodeUnreachable, wire.CodeUnavailable, wire.CodeOverloaded}[r.nth])
			return
		}
		echo(r)
	})
	c := dial(t, s)
	r, err := c.Session("one").Start(t.Context(), wire.Start{Command: truth})
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, seen := range a.all() {
		ids[seen.msg.(*wire.Start).ExecutionID] = true
	}
	if len(ids) != 1 || !ids[r.ExecutionID] || len(a.all()) != 4 {
		t.Errorf("%d tries, ids %v", len(a.all()), ids)
	}

	a.stop()
	back := time.AfterFunc(300*time.Millisecond, a.start)
	defer back.Stop()
	if _, err := c.Status(t.Context(), "p"); err != nil {
		t.Error(err)
	}
	a.stop()
	quick := dial(t, s, func(cfg *client.Config) { cfg.Patience = -1 })
	if _, err := quick.Status(t.Context(), "p"); code(err) != wire.CodeUnreachable {
		t.Errorf("with nobody there: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.Status(ctx, "p"); code(err) != wire.CodeDeadlineExceeded || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a deadline: %v", err)
	}
}

func TestFinalErrorsAreNotRetried(t *testing.T) {
	s := server(t)
	a := newAPI(t, s, func(r *request) { r.fail(wire.CodeNotFound) })
	c := dial(t, s)
	if _, err := c.Status(t.Context(), "p"); code(err) != wire.CodeNotFound || a.count(wire.VerbStatus) != 1 {
		t.Errorf("%v after %d", err, a.count(wire.VerbStatus))
	}
}

// What may have been typed is not typed again.
func TestWriteOnce(t *testing.T) {
	s := server(t)
	a := newAPI(t, s, func(r *request) {
		if r.nth == 0 {
			return // the answer is lost
		}
		echo(r)
	})
	c := dial(t, s, func(cfg *client.Config) { cfg.MaxRequest = time.Second })
	ref := wire.ProcessRef{Process: "p"}
	if _, err := c.Write(t.Context(), wire.Write{ProcessRef: ref, Text: "x"}); code(err) != wire.CodeDeliveryUnknown || a.count(wire.VerbWrite) != 1 {
		t.Errorf("%v after %d", err, a.count(wire.VerbWrite))
	}
	if _, err := c.Signal(t.Context(), "p", "INT"); code(err) != wire.CodeDeliveryUnknown || a.count(wire.VerbSignal) != 1 {
		t.Errorf("%v after %d", err, a.count(wire.VerbSignal))
	}
	a.mu.Lock()
	a.seen = nil
	a.mu.Unlock()
	if _, err := c.Write(t.Context(), wire.Write{ProcessRef: ref, Text: "x", Offset: new(int64(0))}); err != nil || a.count(wire.VerbWrite) != 2 {
		t.Errorf("with an offset: %v after %d", err, a.count(wire.VerbWrite))
	}
}

// Where a gateway says that a request reached nobody, even a write is sent again.
func TestWriteThatReachedNobody(t *testing.T) {
	s := server(t)
	a := newAPI(t, s, func(r *request) {
		if r.nth == 0 {
			_ = r.RespondError(&wire.Error{Code: wire.CodeUnreachable, Message: "gone", Details: map[string]any{"reached": false}})
			return
		}
		echo(r)
	})
	c := dial(t, s)
	if _, err := c.Write(t.Context(), wire.Write{ProcessRef: wire.ProcessRef{Process: "p"}, Text: "x"}); err != nil || a.count(wire.VerbWrite) != 2 {
		t.Errorf("%v after %d", err, a.count(wire.VerbWrite))
	}
}

// A run that takes longer than a request is one run, with one id.
func TestLongRun(t *testing.T) {
	s := server(t)
	a := newAPI(t, s, func(r *request) {
		m := r.msg.(*wire.Run)
		res := &wire.Result{Version: 1, Receipt: wire.Receipt{ExecutionID: m.ExecutionID, State: wire.StateRunning}, Yielded: true}
		switch r.nth {
		case 0: // as a worker does: what there is, shortly before the deadline
			d, _ := r.Deadline()
			time.AfterFunc(time.Until(d)-50*time.Millisecond, func() { reply(r, res) })
		case 1: // or no answer at all
		default:
			res.Yielded, res.Receipt.State = false, wire.StateCompleted
			reply(r, res)
		}
	})
	c := dial(t, s, func(cfg *client.Config) { cfg.MaxRequest = time.Second })
	res, err := c.Session("one").Run(t.Context(), wire.Run{Command: truth})
	if err != nil || res.Yielded || len(a.all()) != 3 {
		t.Fatalf("%+v, %v after %d", res, err, len(a.all()))
	}
	for _, r := range a.all() {
		if id := r.msg.(*wire.Run).ExecutionID; id != res.Receipt.ExecutionID {
			t.Errorf("ids %s and %s", id, res.Receipt.ExecutionID)
		}
	}
}

// A yield that was asked for comes back as it is.
func TestRunYields(t *testing.T) {
	s := server(t)
	a := newAPI(t, s, func(r *request) {
		m := r.msg.(*wire.Run)
		reply(r, &wire.Result{Version: 1, Receipt: wire.Receipt{ExecutionID: m.ExecutionID, State: wire.StateRunning}, Yielded: true})
	})
	res, err := dial(t, s).Session("one").Run(t.Context(), wire.Run{Command: truth, YieldMS: 10})
	if err != nil || !res.Yielded || len(a.all()) != 1 {
		t.Errorf("%+v, %v after %d", res, err, len(a.all()))
	}
}

func TestLongWait(t *testing.T) {
	s := server(t)
	a := newAPI(t, s, func(r *request) {
		m := r.msg.(*wire.Wait)
		state := wire.StateRunning
		if r.nth == 2 {
			state = wire.StateFailed
		}
		time.AfterFunc(time.Duration(m.WaitMS)*time.Millisecond/10, func() { reply(r, &wire.Receipt{Version: 1, State: state}) })
	})
	c := dial(t, s, func(cfg *client.Config) { cfg.MaxRequest = time.Second })
	r, err := c.Wait(t.Context(), wire.Wait{ProcessRef: wire.ProcessRef{Process: "p"}, WaitMS: 5000})
	if err != nil || r.State != wire.StateFailed || len(a.all()) != 3 {
		t.Errorf("%+v, %v after %d", r, err, len(a.all()))
	}
	for _, r := range a.all() {
		if ms := r.msg.(*wire.Wait).WaitMS; ms > 1000 {
			t.Errorf("one request waits %d ms", ms)
		}
	}
}

// A quiet that is longer than one request is one wait: each piece says what came before.
func TestLongQuiet(t *testing.T) {
	s := server(t)
	a := newAPI(t, s, func(r *request) {
		m := r.msg.(*wire.WaitFor)
		met := r.nth >= 2
		res := wire.Waited{Version: 1, Met: met, Results: []wire.ProcessWait{{Process: "p", Met: met}}}
		time.AfterFunc(time.Duration(m.WaitMS)*time.Millisecond*6/10, func() { reply(r, &res) })
	})
	c := dial(t, s, func(cfg *client.Config) { cfg.MaxRequest = time.Second })
	ref := wire.ProcessRef{Process: "p"}
	w, err := c.WaitFor(t.Context(), wire.WaitFor{ProcessRef: ref, For: "quiet", QuietMS: 2500, WaitMS: 60_000})
	if err != nil || !w.Met || len(a.all()) < 3 {
		t.Fatalf("%+v, %v after %d", w, err, len(a.all()))
	}
	before := int64(0)
	for i, r := range a.all() { // one that was sent again says the same again
		m := r.msg.(*wire.WaitFor)
		if m.QuietMS != 2500 || m.WaitMS > 1000 || m.WaitedMS < before || i == 0 && m.WaitedMS != 0 {
			t.Errorf("request %d: %+v", i, m)
		}
		before = m.WaitedMS
	}
	if before == 0 {
		t.Error("the last piece says nothing of those before")
	}
}

// follower serves the output of one process from memory, as the actors do: by cursor,
// a few chunks a page.
func follower(data []byte, sizes []int, spoil func(r *request) bool) func(r *request) {
	type piece struct{ from, to int }
	var chunks []piece
	at := 0
	for _, n := range sizes {
		chunks = append(chunks, piece{at, at + n})
		at += n
	}
	return func(r *request) {
		if spoil(r) {
			return
		}
		m, ok := r.msg.(*wire.Read)
		if !ok {
			echo(r)
			return
		}
		p := &wire.Page{Version: 1, Process: m.Process, Cursor: *m.Cursor, NextCursor: *m.Cursor, State: wire.StateCompleted}
		for i := int(*m.Cursor); i < len(chunks) && len(p.Chunks) < 3; i++ {
			b := data[chunks[i].from:chunks[i].to]
			p.Chunks = append(p.Chunks, wire.Chunk{
				Cursor: int64(i), Offset: int64(chunks[i].from), Stream: "stdout",
				Data: base64.StdEncoding.EncodeToString(b), SourceBytes: len(b),
			})
			p.NextCursor = int64(i + 1)
		}
		p.End = p.NextCursor == int64(len(chunks))
		reply(r, p)
	}
}

func TestFollowExactBytes(t *testing.T) {
	data := make([]byte, 200_000)
	for i := range data {
		data[i] = byte(rand.IntN(256))
	}
	var sizes []int
	for left := len(data); left > 0; {
		n := min(left, 1+rand.IntN(9000))
		sizes = append(sizes, n)
		left -= n
	}
	s := server(t)
	var a *api
	a = newAPI(t, s, follower(data, sizes, func(r *request) bool {
		if r.verb != wire.VerbRead {
			return false
		}
		switch r.nth {
		case 2: // the gateway goes away and comes back
			go func() { // ends when the gateway serves again
				a.stop()
				a.start()
			}()
			return true
		case 4:
			r.fail(wire.CodeUnreachable)
			return true
		case 6:
			r.fail(wire.CodeDeadlineExceeded)
			return true
		case 8: // the server too
			go func() { _ = s.Restart(context.Background()) }() // ends when it runs again
			return true
		}
		return false
	}))
	c := dial(t, s, func(cfg *client.Config) { cfg.MaxRequest = time.Second })
	var got []byte
	next := int64(0)
	r, err := c.Follow(t.Context(), "p", 0, func(ch wire.Chunk) error {
		if ch.Cursor != next || ch.Offset != int64(len(got)) {
			return fmt.Errorf("chunk %d at %d; want %d at %d", ch.Cursor, ch.Offset, next, len(got))
		}
		next++
		b, err := client.Bytes(ch)
		got = append(got, b...)
		return err
	})
	if err != nil || r.State != wire.StateCompleted {
		t.Fatalf("%+v, %v after %d bytes", r, err, len(got))
	}
	if string(got) != string(data) {
		t.Errorf("%d bytes differ from the %d there are", len(got), len(data))
	}
	stop := errors.New("enough")
	if _, err := c.Follow(t.Context(), "p", 3, func(ch wire.Chunk) error {
		if ch.Cursor != 3 {
			t.Errorf("began at %d", ch.Cursor)
		}
		return stop
	}); !errors.Is(err, stop) {
		t.Errorf("%v", err)
	}
}

func TestFollowExpired(t *testing.T) {
	s := server(t)
	newAPI(t, s, func(r *request) {
		if r.verb == wire.VerbRead {
			r.fail(wire.CodeExpired)
			return
		}
		echo(r)
	})
	r, err := dial(t, s).Follow(t.Context(), "p", 0, func(wire.Chunk) error { return nil })
	if code(err) != wire.CodeExpired || r == nil || r.State != wire.StateCompleted {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestBytesChecksItsChunk(t *testing.T) {
	for _, c := range []wire.Chunk{{Data: "!"}, {Data: "YQ==", SourceBytes: 2}} {
		if _, err := client.Bytes(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}
