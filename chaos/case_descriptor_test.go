package chaos

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// stream reads one stream of an ended process whole.
func (a agent) stream(t testing.TB, id, name string) string {
	t.Helper()
	var b strings.Builder
	for cursor := int64(0); ; {
		p, err := a.c.Read(t.Context(), wire.Read{
			ProcessRef: wire.ProcessRef{Process: id}, Cursor: &cursor, Stream: name, MaxBytes: wire.MaxPageBytes, View: wire.ViewBase64,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, ch := range p.Chunks {
			data, err := client.Bytes(ch)
			if err != nil || ch.Stream != name {
				t.Fatalf("chunk %d of %s: %v", ch.Cursor, ch.Stream, err)
			}
			b.Write(data)
		}
		if cursor = p.NextCursor; !p.HasMore {
			return b.String()
		}
	}
}

func output(n int) wire.Descriptor { return wire.Descriptor{Number: n, Output: true} }

// TestCaseDescriptors is M7.
func TestCaseDescriptors(t *testing.T) {
	a := newAgent(t, start(t), wire.Open{Cwd: t.TempDir()})
	t.Run("inputs are read, outputs are streams of the one log", func(t *testing.T) {
		res := a.run(t, wire.Command{
			Text:        "echo start; cat <&3 >&5; cat /dev/fd/3 >&64; echo oops >&2",
			Descriptors: []wire.Descriptor{output(64), {Number: 3, Input: []byte("secret\n")}, output(5)},
		})
		exited(t, res, 0, "start\n")
		o := res.Receipt.Output
		want := []wire.DescriptorBytes{{Number: 5, Bytes: 7}, {Number: 64, Bytes: 7}}
		if len(o.Descriptors) != 2 || o.Descriptors[0] != want[0] || o.Descriptors[1] != want[1] || o.TotalBytes != 25 || o.StderrBytes != 5 || !o.Complete {
			t.Errorf("%+v", o)
		}
		for name, text := range map[string]string{"stdout": "start\n", "stderr": "oops\n", "fd5": "secret\n", "fd64": "secret\n", "fd6": ""} {
			if got := a.stream(t, res.Receipt.Process, name); got != text {
				t.Errorf("%s: %q", name, got)
			}
		}
	})
	t.Run("what a leftover holds delays no answer", func(t *testing.T) {
		began := time.Now()
		res := a.run(t, wire.Command{Text: "exec 2>/dev/null; sleep 600 >/dev/null & echo mine >&3; echo done", Descriptors: []wire.Descriptor{output(3)}})
		exited(t, res, 0, "done\n")
		if d := time.Since(began); d > 30*time.Second || res.Receipt.LeftoversKilled != 1 {
			t.Errorf("after %v, %d leftovers killed", d, res.Receipt.LeftoversKilled)
		}
		if got := a.stream(t, res.Receipt.Process, "fd3"); got != "mine\n" {
			t.Errorf("fd3: %q", got)
		}
	})
	t.Run("limits of the output count it", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "yes >&3", Descriptors: []wire.Descriptor{output(3)}, Output: &wire.OutputLimits{KillOverBytes: 100_000}})
		if r := a.end(t, id); r.Reason != wire.ReasonOutputLimit || r.Output.StdoutBytes != 0 || r.Output.Descriptors[0].Bytes != r.Output.TotalBytes {
			t.Errorf("%s, %+v", r.Reason, r.Output)
		}
		id = a.start(t, wire.Command{Text: "yes >&3", Descriptors: []wire.Descriptor{output(3)}, Output: &wire.OutputLimits{SpoolBytes: 1 << 20, Lossless: true}})
		for until := time.Now().Add(long); !a.status(t, id).Output.Stalled; {
			if time.Now().After(until) {
				t.Fatal("it does not wait for room")
			}
			<-time.After(10 * time.Millisecond)
		}
		if r := a.kill(t, id); r.State != wire.StateCancelled || r.Output.Descriptors[0].Bytes < 1<<19 {
			t.Errorf("%s, %+v", r.State, r.Output)
		}
	})
	t.Run("a killed worker loses nothing of it", func(t *testing.T) {
		l := start(t)
		a := newAgent(t, l, wire.Open{Cwd: t.TempDir()})
		const lines = 1_000_000
		id := a.start(t, wire.Command{
			Text: fmt.Sprintf("seq 1 %d | tee /dev/fd/9 >&3; echo end; exit 7", lines), Descriptors: []wire.Descriptor{output(3), output(9)},
			Output: &wire.OutputLimits{SpoolBytes: 64 << 20, HeadBytes: 32 << 20},
		})
		for range 3 {
			old := l.PID("worker")
			if err := l.Kill("worker"); err != nil {
				t.Fatal(err)
			}
			for until := time.Now().Add(long); l.PID("worker") == old || l.PID("worker") == 0; {
				if time.Now().After(until) {
					t.Fatal("no other worker comes")
				}
				<-time.After(time.Millisecond)
			}
		}
		r := a.end(t, id)
		var b strings.Builder
		for i := range lines {
			fmt.Fprintln(&b, i+1)
		}
		want := b.String()
		for _, name := range []string{"fd3", "fd9"} {
			if got := a.stream(t, id, name); sha256.Sum256([]byte(got)) != sha256.Sum256([]byte(want)) {
				t.Errorf("%s: %d bytes, want %d", name, len(got), len(want))
			}
		}
		if o := r.Output; *r.ExitCode != 7 || o.StdoutBytes != 4 || o.TotalBytes != int64(2*len(want)+4) || o.StderrBytes != 0 {
			t.Errorf("exit %d, %+v", *r.ExitCode, o)
		}
	})
	t.Run("bad ones are refused by name", func(t *testing.T) {
		for field, c := range map[string]wire.Command{
			"command.descriptors":           {Text: "true", TTY: &wire.WindowSize{}, Descriptors: []wire.Descriptor{output(3)}},
			"command.descriptors[0].number": {Text: "true", Descriptors: []wire.Descriptor{output(65)}},
			"command.descriptors[1].number": {Text: "true", Descriptors: []wire.Descriptor{output(3), output(3)}},
			"command.descriptors[0].input":  {Text: "true", Descriptors: []wire.Descriptor{{Number: 3}}},
		} {
			refused(t, a.raw(t, "run", wire.Run{SessionRef: wire.SessionRef{Session: a.s.Info().ID}, Command: c}), wire.CodeInvalidArguments, field)
		}
	})
}
