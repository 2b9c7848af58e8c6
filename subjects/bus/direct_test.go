package bus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/bus/embedded"
	"github.com/limpet-sh/limpet/subjects/bus/embedded/embeddedtest"
)

// A subject is read whole and in order, however many messages and bytes it has, and
// whatever lies between them.
func TestSubject(t *testing.T) {
	for _, memory := range []bool{true, false} {
		t.Run(fmt.Sprintf("memory %v", memory), func(t *testing.T) {
			cfg := embedded.Config{}
			if !memory {
				cfg.Dir = t.TempDir()
			}
			s := embeddedtest.Start(t, cfg)
			embeddedtest.Provision(t, s, bus.StreamOptions{Memory: memory})
			w := embeddedtest.Connect(t, s, subjects.RoleWorker, "w1")
			g := embeddedtest.Connect(t, s, subjects.RoleGateway, "g1")
			stream := g.Root().Stream(subjects.StreamOutput)
			one, other := w.Root().Output("local", "w1", "p1"), w.Root().Output("local", "w1", "p2")
			if got, err := g.Subject(t.Context(), stream, one, 1<<20); err != nil || len(got) != 0 {
				t.Fatalf("of nothing: %d, %v", len(got), err)
			}
			var seqs []uint64
			put := func(subject string, data []byte) {
				t.Helper()
				seq, err := w.Append(t.Context(), subject, nil, data, bus.ExpectAny())
				if err != nil {
					t.Fatal(err)
				}
				if subject == one {
					seqs = append(seqs, seq)
				}
			}
			size := 0
			for i := range 1100 {
				data := fmt.Appendf(nil, "%d", i)
				if i%100 == 0 {
					data = bytes.Repeat([]byte{byte(i / 100)}, 200<<10)
				}
				size += len(data)
				put(one, data)
				put(other, []byte("x"))
			}
			got, err := g.Subject(t.Context(), stream, one, size)
			if err != nil || len(got) != len(seqs) {
				t.Fatalf("%d messages of %d, %v", len(got), len(seqs), err)
			}
			for i, m := range got {
				if m.Seq != seqs[i] || m.Subject != one || time.Since(m.Time) > time.Minute {
					t.Fatalf("message %d: %d at %v, want %d", i, m.Seq, m.Time, seqs[i])
				}
				if i%100 == 0 && len(m.Data) != 200<<10 || i%100 != 0 && string(m.Data) != fmt.Sprint(i) {
					t.Fatalf("message %d has %d bytes", i, len(m.Data))
				}
			}
			if _, err := g.Subject(t.Context(), stream, one, size-1); !errors.Is(err, bus.ErrTooLarge) {
				t.Errorf("with less room: %v", err)
			}
		})
	}
}

func TestSubjectFails(t *testing.T) {
	s := embeddedtest.Start(t, embedded.Config{})
	embeddedtest.Provision(t, s, bus.StreamOptions{Memory: true})
	w := embeddedtest.Connect(t, s, subjects.RoleWorker, "w1")
	g := embeddedtest.Connect(t, s, subjects.RoleGateway, "g1")
	stream, subject := g.Root().Stream(subjects.StreamOutput), g.Root().Output("local", "w1", "p1")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := w.Subject(ctx, stream, subject, 1<<20); !errors.Is(err, bus.ErrDenied) {
		t.Errorf("who may not: %v", err)
	}
	if _, err := g.Subject(ctx, "NONE", subject, 1<<20); !errors.Is(err, bus.ErrDenied) && !errors.Is(err, bus.ErrNoResponders) {
		t.Errorf("another stream: %v", err)
	}
	s.Close()
	if _, err := g.Subject(ctx, stream, subject, 1<<20); !errors.Is(err, bus.ErrDisconnected) && !errors.Is(err, bus.ErrNoResponders) {
		t.Errorf("without a server: %v", err)
	}
	if ctx.Err() != nil {
		t.Error("a failure took the whole time")
	}
}
