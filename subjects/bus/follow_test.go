package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/bus/embedded"
	"github.com/limpet-sh/limpet/subjects/bus/embedded/embeddedtest"
)

// TestFollowOverRestarts: no message is missed or seen twice while the server restarts.
func TestFollowOverRestarts(t *testing.T) {
	s := embeddedtest.Start(t, embedded.Config{Dir: t.TempDir()})
	embeddedtest.Provision(t, s, bus.StreamOptions{})
	w := embeddedtest.Connect(t, s, subjects.RoleWorker, "W1")
	o := embeddedtest.Connect(t, s, subjects.RoleObserver, "o")
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	const n = 600
	var seen []string
	done := make(chan error, 1)
	go func() {
		done <- o.Follow(ctx, root.Stream(subjects.StreamEvents), []string{"limpet.v1.event.0.local.>"}, bus.FromStart(), func(m bus.Stored) error {
			if seen = append(seen, string(m.Data)); len(seen) == n {
				return errEnough
			}
			return nil
		})
	}()
	var last uint64
	var restarts sync.WaitGroup
	for i := range n {
		for { // compare and set: a lost acknowledgement is not stored twice
			seq, err := w.Append(ctx, root.Event("local", "W1", "p", "output"), nil, fmt.Append(nil, i), bus.ExpectLast(last))
			if errors.Is(err, bus.ErrWrongSequence) {
				m, lerr := w.Last(ctx, root.Stream(subjects.StreamEvents), root.Event("local", "W1", "p", "output"))
				if lerr == nil && string(m.Data) == fmt.Sprint(i) {
					seq, err = m.Seq, nil
				}
			}
			if err == nil {
				last = seq
				break
			}
			if ctx.Err() != nil {
				t.Fatal(err)
			}
			runtime.Gosched()
		}
		if i == 200 || i == 400 {
			restarts.Go(func() {
				if err := s.Restart(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		if i == 300 || i == 500 {
			restarts.Wait()
		}
	}
	if err := <-done; !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
	if n := w.Stats().Reconnects; n != 2 {
		t.Errorf("%d reconnects, want 2", n)
	}
	for i, m := range seen {
		if m != fmt.Sprint(i) {
			t.Fatalf("at %d: %s", i, m)
		}
	}
	// Nothing is there to follow, or it is forbidden: an error, not a wait.
	if err := o.Follow(ctx, root.Stream("NONE"), nil, bus.FromStart(), nil); !errors.Is(err, bus.ErrDenied) {
		t.Error(err)
	}
	cancel()
	if err := o.Follow(ctx, root.Stream(subjects.StreamEvents), nil, bus.FromNew(), nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestFollowFrom: where a follow starts, and that it sees what comes later.
func TestFollowFrom(t *testing.T) {
	s := embeddedtest.Start(t, embedded.Config{Dir: t.TempDir()})
	embeddedtest.Provision(t, s, bus.StreamOptions{})
	w := embeddedtest.Connect(t, s, subjects.RoleWorker, "W1")
	o := embeddedtest.Connect(t, s, subjects.RoleObserver, "o")
	add := func(p, data string) {
		t.Helper()
		for {
			_, err := w.Append(t.Context(), root.Event("local", "W1", p, "output"), nil, []byte(data), bus.ExpectAny())
			if err == nil {
				return
			}
			if !errors.Is(err, bus.ErrDisconnected) {
				t.Fatal(err)
			}
			runtime.Gosched()
		}
	}
	add("a", "1")
	add("b", "2")
	add("a", "3")
	m, err := o.Get(t.Context(), root.Stream(subjects.StreamEvents), 2)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	froms := map[string]bus.FollowFrom{
		"1234": bus.FromStart(), "34": bus.FromSeq(3), "234": bus.FromTime(m.Time), "4": bus.FromNew(), "+234": bus.FromLastPerSubject(),
	}
	var wg sync.WaitGroup
	for want, from := range froms {
		want = strings.TrimPrefix(want, "+")
		wg.Go(func() {
			got := ""
			err := o.Follow(ctx, root.Stream(subjects.StreamEvents), nil, from, func(m bus.Stored) error {
				if got += string(m.Data); strings.HasSuffix(got, "4") {
					return errEnough
				}
				return nil
			})
			if !errors.Is(err, errEnough) || got != want {
				t.Errorf("%q, want %q: %v", got, want, err)
			}
		})
	}
	// All five consumers are there; one has seen nothing yet when the server restarts,
	// and the message that is stored meanwhile must reach it.
	for consumers(t, s) < len(froms) {
		runtime.Gosched()
	}
	if err := s.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	add("c", "4")
	wg.Wait()
}

// consumers of EVENTS.
func consumers(t *testing.T, s *embedded.Server) int {
	t.Helper()
	c := embeddedtest.Connect(t, s, subjects.RoleObserver, "count")
	defer c.Close()
	m, err := c.Request(within(t, 5*time.Second), "$JS.API.STREAM.INFO."+root.Stream(subjects.StreamEvents), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		State struct {
			Consumers int `json:"consumer_count"`
		} `json:"state"`
	}
	if err := json.Unmarshal(m.Data, &info); err != nil {
		t.Fatal(err)
	}
	return info.State.Consumers
}

var errEnough = errors.New("enough")
