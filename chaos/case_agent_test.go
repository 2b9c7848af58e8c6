package chaos

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// long bounds what must not hang. It is never waited for when all is well.
const long = 60 * time.Second

// agent is a session as the cases use it.
type agent struct {
	s *client.Session
	c *client.Client
}

func newAgent(t testing.TB, l *Lab, m wire.Open) agent {
	t.Helper()
	if m.Name == "" {
		m.Name = subjects.NewID()
	}
	s, err := l.Client.Open(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	return agent{s, l.Client}
}

func (a agent) try(t testing.TB, m wire.Run) (*wire.Result, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	return a.s.Run(ctx, m)
}

// run runs a command to its end.
func (a agent) run(t testing.TB, c wire.Command) *wire.Result {
	t.Helper()
	res, err := a.try(t, wire.Run{Command: c})
	if err != nil {
		t.Fatalf("run: %v", err)
	}
	return res
}

func (a agent) text(t testing.TB, text string) *wire.Result {
	t.Helper()
	return a.run(t, wire.Command{Text: text, TimeoutMS: long.Milliseconds()})
}

func (a agent) start(t testing.TB, c wire.Command) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	r, err := a.s.Start(ctx, wire.Start{Command: c})
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	return r.Process
}

// end waits for the end of a process.
func (a agent) end(t testing.TB, id string) *wire.Receipt {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	r, err := a.c.WaitEnd(ctx, id)
	if err != nil {
		t.Fatalf("wait for the end: %v", err)
	}
	return r
}

func (a agent) kill(t testing.TB, id string) *wire.Receipt {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	r, err := a.c.Terminate(ctx, wire.Terminate{ProcessRef: wire.ProcessRef{Process: id}, Mode: "kill"})
	if err != nil {
		t.Fatalf("kill: %v", err)
	}
	return r
}

func (a agent) status(t testing.TB, id string) *wire.Receipt {
	t.Helper()
	r, err := a.c.Status(t.Context(), id)
	if err != nil {
		t.Fatalf("status: %v", err)
	}
	return r
}

// until reads a process's output until it holds want, and gives what was read.
func (a agent) until(t testing.TB, id, want string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	var got []byte
	cursor := int64(0)
	for {
		p, err := a.c.Read(ctx, wire.Read{
			ProcessRef: wire.ProcessRef{Process: id}, Cursor: &cursor, WaitMS: 10_000,
			MaxBytes: wire.MaxPageBytes, View: wire.ViewBase64,
		})
		if err != nil {
			t.Fatalf("%q has not come: %v; there is %q", want, err, got)
		}
		for _, ch := range p.Chunks {
			b, err := client.Bytes(ch)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, b...)
		}
		if bytes.Contains(got, []byte(want)) {
			return string(got)
		}
		if p.End {
			t.Fatalf("the end, and no %q in %q", want, got)
		}
		cursor = p.NextCursor
	}
}

// output is all output of a process, which must end.
func (a agent) output(t testing.TB, id string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	var got []byte
	if _, err := a.c.Follow(ctx, id, 0, func(ch wire.Chunk) error {
		b, err := client.Bytes(ch)
		got = append(got, b...)
		return err
	}); err != nil {
		t.Fatalf("follow: %v", err)
	}
	return string(got)
}

func (a agent) write(t testing.TB, id string, m wire.Write) (*wire.Receipt, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	m.Process = id
	return a.c.Write(ctx, m)
}

// typed writes text and must succeed.
func (a agent) typed(t testing.TB, id, text string) *wire.Receipt {
	t.Helper()
	r, err := a.write(t, id, wire.Write{Text: text})
	if err != nil {
		t.Fatalf("write %.40q: %v", text, err)
	}
	return r
}

func (a agent) closeStdin(t testing.TB, id string) {
	t.Helper()
	if _, err := a.c.CloseStdin(t.Context(), id); err != nil {
		t.Fatalf("close stdin: %v", err)
	}
}

// raw sends a message as it is, without the client's own checks.
func (a agent) raw(t testing.TB, verb string, m any) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	data, err := wire.Marshal("", m)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := a.c.Conn().Request(ctx, a.c.Conn().Root().API(a.c.Tenant(), verb), nil, data)
	if err != nil {
		t.Fatalf("%s: no answer: %v", verb, err)
	}
	_, err = wire.DecodeReply[struct{}]("", answer.Data)
	return err
}

// refused checks the code of an error, and its field unless that is empty.
func refused(t testing.TB, err error, code wire.Code, field string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error; want %s of %q", code, field)
		return
	}
	if e := wire.AsError(err); e.Code != code || field != "" && e.Field != field {
		t.Errorf("%s of %q (%v); want %s of %q", e.Code, e.Field, err, code, field)
	}
}

// exited checks how a run ended and what it wrote to stdout.
func exited(t testing.TB, res *wire.Result, exit int, stdout string) {
	t.Helper()
	r := res.Receipt
	if r.ExitCode == nil || *r.ExitCode != exit || res.Stdout.Text != stdout {
		t.Errorf("exit %v, stdout %q; want %d, %q (%s %s, stderr %q)",
			value(r.ExitCode), res.Stdout.Text, exit, stdout, r.State, r.Reason, res.Stderr.Text)
	}
}

func value(n *int) any {
	if n == nil {
		return nil
	}
	return *n
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

var tty = &wire.WindowSize{}
