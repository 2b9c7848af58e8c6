package actors

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/actors/output"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// shipped reads the messages of a process as a gateway does, when the last says that
// nothing follows.
func (b *bench) shipped(process string) []*wire.OutputMessage {
	b.t.Helper()
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		stored, err := b.caller.Subject(b.t.Context(), b.root().Stream(subjects.StreamOutput), b.root().Output(tenant, "w1", process), 4<<20)
		if err != nil {
			b.t.Fatal(err)
		}
		var all []*wire.OutputMessage
		for _, m := range stored {
			o, err := wire.DecodeOutput(m.Data)
			if err != nil {
				b.t.Fatal(err)
			}
			if n := len(all); n > 0 && (o.First < all[n-1].Next() || all[n-1].End || o.Incarnation < all[n-1].Incarnation) {
				b.t.Fatalf("%+v is behind %+v", o.OutputHeader, all[n-1].OutputHeader)
			}
			all = append(all, o)
		}
		if n := len(all); n > 0 && all[n-1].End {
			return all
		}
		if time.Now().After(until) {
			b.t.Fatalf("%d messages, and no end", len(all))
		}
	}
}

// pages are all that a reader gets, in a view.
func pages(t *testing.T, read func(wire.Read) (*wire.Page, error), view wire.View) (chunks []wire.Chunk, gaps []wire.Gap) {
	t.Helper()
	cursor := int64(0)
	for {
		p, err := read(wire.Read{Version: wire.Version, Cursor: &cursor, View: view, MaxBytes: wire.MaxPageBytes})
		if err != nil {
			t.Fatal(err)
		}
		chunks, gaps, cursor = append(chunks, p.Chunks...), append(gaps, p.Gaps...), p.NextCursor
		if p.End {
			return chunks, gaps
		}
	}
}

// What a gateway makes of the OUTPUT stream reads as the worker's own.
func TestShippedOutputReadsAsTheWorkers(t *testing.T) {
	b := newBench(t, nil)
	s := b.open(wire.Open{Name: "one"})
	id := b.run(s, `for i in $(seq 400); do echo "out $i é"; echo "err $i" >&2; done; printf '\033[1mbold\033[0m\r\nhalf \xe4\xb8'`).Receipt.Process
	messages := b.shipped(id)
	log, err := output.Restore(id, false, false, messages)
	if err != nil {
		t.Fatal(err)
	}
	rec := b.wait(id)
	log.Finish(rec.Output)
	for _, view := range []wire.View{wire.ViewText, wire.ViewSafe, wire.ViewBase64} {
		want, _ := pages(t, func(r wire.Read) (*wire.Page, error) {
			r.ProcessRef = ref(id)
			return ask[wire.Page](b, b.process(id, "read"), &r)
		}, view)
		got, gaps := pages(t, func(r wire.Read) (*wire.Page, error) {
			return log.Read(r, output.State{State: rec.State, ExitCode: rec.ExitCode})
		}, view)
		if !reflect.DeepEqual(got, want) || len(gaps) > 0 || len(got) < 3 {
			t.Errorf("%s: %d chunks, want %d; gaps %v", view, len(got), len(want), gaps)
		}
	}
	if last := messages[len(messages)-1]; !last.Complete || last.Raw != rec.Output.TotalBytes {
		t.Errorf("%+v of %+v", last.OutputHeader, rec.Output)
	}
	if st := must[wire.Receipt](b)(ask[wire.Receipt](b, b.process(id, "status"), &wire.Status{Version: wire.Version, ProcessRef: ref(id)})); st.ShippedBytes != rec.Output.TotalBytes {
		t.Errorf("%d of %d bytes are shipped", st.ShippedBytes, rec.Output.TotalBytes)
	}
}

// A worker that is killed while it ships leaves neither a hole nor a chunk twice: the next
// one goes on behind what is stored.
func TestShippingGoesOnInTheNextIncarnation(t *testing.T) {
	b := newBench(t, nil)
	b.stop(ErrLeave)
	b.bootVictim()
	s := b.open(wire.Open{Name: "one", DefaultTimeoutMS: -1})
	r := b.start(s, wire.Command{Text: "for i in $(seq 1500); do echo $i; sleep 0.002; done"})
	for range 3 {
		for before := int64(0); ; time.Sleep(10 * time.Millisecond) {
			st, err := ask[wire.Receipt](b, b.process(r.Process, "status"), &wire.Status{Version: wire.Version, ProcessRef: ref(r.Process)})
			if err != nil {
				t.Fatal(err)
			}
			if before == 0 {
				before = st.ShippedBytes + 1
			}
			if st.ShippedBytes >= before || st.State.Terminal() {
				break
			}
		}
		b.kill()
		b.bootVictim()
	}
	rec := b.wait(r.Process)
	messages := b.shipped(r.Process)
	var got strings.Builder
	next, writers := int64(0), map[uint64]bool{}
	for _, m := range messages {
		if m.First != next {
			t.Errorf("a message begins at %d, behind %d", m.First, next)
		}
		for _, c := range m.Chunks {
			got.Write(c.Data)
		}
		next, writers[m.Incarnation] = m.Next(), true
	}
	var want strings.Builder
	for i := 1; i <= 1500; i++ {
		fmt.Fprintln(&want, i)
	}
	if got.String() != want.String() || len(writers) < 2 {
		t.Errorf("%d bytes of %d, of %d writers; %s", got.Len(), want.Len(), len(writers), rec.State)
	}
}

// What a worker could not ship before it ended, the next one does.
func TestAnEndedOutputIsShippedByTheNextIncarnation(t *testing.T) {
	none := true
	b := newBench(t, func(c *Config) {
		if none {
			c.ShipBytes = -1
		}
	})
	s := b.open(wire.Open{Name: "one"})
	id := b.run(s, "echo out; echo err >&2").Receipt.Process
	private := must[wire.Result](b)(ask[wire.Result](b, b.session(s, "run"), &wire.Run{
		Version: wire.Version, SessionRef: wire.SessionRef{Session: s.ID},
		Command: wire.Command{Text: "echo secret", Output: &wire.OutputLimits{ShipBytes: -1}},
	})).Receipt.Process
	b.stop(ErrLeave)
	none = false
	b.boot()
	messages := b.shipped(id)
	if n := len(messages); n != 1 || messages[0].Raw != 8 || messages[0].Incarnation != b.e {
		t.Errorf("%d messages, %+v", n, messages[0].OutputHeader)
	}
	b.wait(private)
	stored, err := b.caller.Subject(t.Context(), b.root().Stream(subjects.StreamOutput), b.root().Output(tenant, "w1", private), 4<<20)
	if err != nil || len(stored) != 0 {
		t.Errorf("%d messages of what is not to be shipped, %v", len(stored), err)
	}
}
