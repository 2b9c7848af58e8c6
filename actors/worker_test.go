package actors

import (
	"strings"
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
)

func TestRun(t *testing.T) {
	b := newBench(t, nil)
	s := b.open(wire.Open{Name: "one"})
	res := b.run(s, "echo out; echo err >&2; exit 7")
	if res.Stdout.Text != "out\n" || res.Stderr.Text != "err\n" {
		t.Errorf("texts %q %q", res.Stdout.Text, res.Stderr.Text)
	}
	r := res.Receipt
	if r.State != wire.StateFailed || r.ExitCode == nil || *r.ExitCode != 7 || r.Reason != wire.ReasonExit {
		t.Errorf("receipt %+v", r)
	}
	if !r.Output.Complete || r.Output.TotalBytes != 8 || r.Proof == "" {
		t.Errorf("output %+v, proof %q", r.Output, r.Proof)
	}
}

func TestSameNameSameSession(t *testing.T) {
	b := newBench(t, nil)
	first, second := b.open(wire.Open{Name: "one"}), b.open(wire.Open{Name: "one"})
	if first.ID != second.ID || !first.Created || second.Created {
		t.Errorf("%+v, %+v", first, second)
	}
	must[wire.Session](b)(ask[wire.Session](b, b.session(first, "close"), &wire.CloseSession{Version: wire.Version, SessionRef: wire.SessionRef{Session: first.ID}}))
	if third := b.open(wire.Open{Name: "one"}); third.ID == first.ID {
		t.Error("a closed session was opened again")
	}
}

// The processes, bytes and exit codes of one incarnation are the next one's.
func TestNextIncarnationAdopts(t *testing.T) {
	b := newBench(t, nil)
	s := b.open(wire.Open{Name: "one"})
	live := b.start(s, wire.Command{Text: "echo before; read x; echo after $x; exit 3", Stdin: wire.StdinPipe})
	ended := b.run(s, "seq 5")
	must[wire.Page](b)(ask[wire.Page](b, b.process(live.Process, "read"), &wire.Read{Version: wire.Version, ProcessRef: ref(live.Process), WaitMS: 5000}))
	e := b.e
	b.stop(ErrLeave)
	b.boot()
	if b.e <= e {
		t.Errorf("incarnation %d after %d", b.e, e)
	}
	again := b.open(wire.Open{Name: "one"})
	if again.ID != s.ID || again.Live != 1 || again.Retained != 1 {
		t.Errorf("session after the restart: %+v", again)
	}
	must[wire.Receipt](b)(ask[wire.Receipt](b, b.process(live.Process, "write"), &wire.Write{Version: wire.Version, ProcessRef: ref(live.Process), Text: "hello\n"}))
	r := b.wait(live.Process)
	if r.State != wire.StateFailed || r.ExitCode == nil || *r.ExitCode != 3 {
		t.Errorf("receipt %+v", r)
	}
	for id, want := range map[string]string{live.Process: "before\nafter hello\n", ended.Receipt.Process: "1\n2\n3\n4\n5\n"} {
		page := must[wire.Page](b)(ask[wire.Page](b, b.process(id, "read"), &wire.Read{Version: wire.Version, ProcessRef: ref(id)}))
		var text strings.Builder
		for _, c := range page.Chunks {
			text.WriteString(c.Text)
		}
		if text.String() != want || !page.End {
			t.Errorf("%s: %q, end %v; want %q", id, text.String(), page.End, want)
		}
	}
}
