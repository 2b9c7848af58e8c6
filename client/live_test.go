package client_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

func TestLive(t *testing.T) {
	s := server(t)
	user, password := s.Credentials(subjects.RoleWorker, "w1")
	worker, err := bus.Connect(t.Context(), bus.Config{
		Dial: s.Dial(), User: user, Password: password, InboxPrefix: subjects.InboxPrefix(subjects.RoleWorker, "w1"), Logger: quiet(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(worker.Close)
	observe := func(process, session string, sequence uint64) {
		t.Helper()
		data, err := json.Marshal(wire.Event{OperationID: process, Session: session, Sequence: sequence, Phase: wire.PhaseOutput})
		if err != nil {
			t.Fatal(err)
		}
		if err := worker.Publish(worker.Root().LivePhase("local", "w1", process, string(wire.PhaseOutput)), nil, data); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan wire.Event, 100)
	c := dial(t, s).Within("mine")
	stop, err := c.Live("p1", func(e wire.Event) { got <- e })
	if err != nil {
		t.Fatal(err)
	}
	observe("p2", "mine", 1)  // another process
	observe("p1", "other", 2) // another session's
	if err := worker.Publish(worker.Root().LivePhase("local", "w1", "p1", "output"), nil, []byte("no JSON")); err != nil {
		t.Fatal(err)
	}
	observe("p1", "mine", 3)
	observe("p1", "mine", 4)
	for want := uint64(3); want <= 4; want++ {
		select {
		case e := <-got:
			if e.Sequence != want || e.OperationID != "p1" {
				t.Errorf("%+v; want number %d", e, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no number %d", want)
		}
	}
	stop()
	observe("p1", "mine", 5)
	if err := worker.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(got) > 0 {
		t.Errorf("%+v after the stop", <-got)
	}
	if _, err := c.Live("a.b", nil); code(err) != wire.CodeInvalidArguments {
		t.Errorf("%v", err)
	}
}
