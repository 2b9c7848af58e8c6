package actors

import (
	"context"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/observer"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// idle is a worker whose steps the test makes: booted and wired, not attached.
func (b *bench) idle() (*Worker, context.Context, *keeper.Client) {
	b.t.Helper()
	w, err := New(Config{
		Name: "w1", Dir: b.dir, Control: b.connect(subjects.RoleWorker, "w1"), Events: b.connect(subjects.RoleWorker, "w1"), Cwd: b.cwd, Logger: b.log,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	client, err := keeper.Dial(b.t.Context(), b.dir)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = client.Close() })
	if w.e, err = w.reg.Boot(b.t.Context(), wire.BootRecord{Version: wire.Version, Worker: "w1", MinIncarnation: client.LastIncarnation() + 1}); err != nil {
		b.t.Fatal(err)
	}
	pub, err := observer.New(w.cfg.Events, "w1", w.e, observer.Config{Logger: b.log})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = pub.Close(context.Background()) })
	own, cancel := context.WithCancel(context.Background())
	b.t.Cleanup(func() { w.shutdown(false); cancel(); w.own.Wait() })
	w.wire(own, client, pub, b.log)
	return w, own, client
}

// A session that is closed between the reading of its record and the answer is not
// brought back to life: the open gives a new one.
func TestAnOpenThatReadTheRecordBeforeTheClose(t *testing.T) {
	b := newBench(t, nil)
	b.stop(nil)
	w, own, client := b.idle()
	if _, err := client.Attach(t.Context(), w.e, w.deliver); err != nil {
		t.Fatal(err)
	}
	answers := make(chan []byte, 2)
	open := func() {
		data, err := wire.Marshal(subjects.TypeMsgpack, &wire.Open{Version: wire.Version, Name: "one"})
		if err != nil {
			t.Fatal(err)
		}
		w.open(own, request{
			Request: &bus.Request{Data: data}, target: subjects.Target{Tenant: tenant, Verb: "open"},
			to: func(p []byte) error { answers <- p; return nil },
		})
	}
	answer := func() *wire.Session {
		return must[wire.Session](b)(wire.DecodeReply[wire.Session](subjects.TypeMsgpack, <-answers))
	}
	open()
	w.finishOpen(own, <-w.opened)
	first := answer()
	open()
	o := <-w.opened // it has read the record of an open session
	s := w.deps.dir.session(tenant, first.ID)
	s.ending <- closing{by: "test"}
	<-s.done
	w.finishOpen(own, o)
	w.finishOpen(own, <-w.opened)
	if second := answer(); second.ID == first.ID || !second.Created {
		t.Errorf("%+v after %+v", second, first)
	}
	if rec, _, err := b.records().Session(t.Context(), tenant, "one"); err != nil || rec.Closed {
		t.Errorf("%+v, %v", rec, err)
	}
}

// An exit that comes between the adoption of a process and the start of its actor is
// not missed.
func TestAnExitDuringTheAdoption(t *testing.T) {
	b := newBench(t, nil)
	s := b.open(wire.Open{Name: "one"})
	path, wait := flag(t)
	r := b.start(s, wire.Command{Text: wait + "exit 4"})
	b.stop(ErrLeave)

	w, _, client := b.idle()
	held, err := client.Attach(t.Context(), w.e, w.deliver)
	if err != nil || len(held) != 1 {
		t.Fatalf("%d held, %v", len(held), err)
	}
	a := newAdoption(w)
	if err := a.adoptSessions(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.adoptProcess(t.Context(), held[0]); err != nil {
		t.Fatal(err)
	}
	raise(t, path)
	for held[0].Exited() == nil {
		time.Sleep(5 * time.Millisecond)
	}
	a.start()
	p := w.deps.dir.process(tenant, r.Process)
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		t.Error("the exit was missed")
	}
	if got := p.seen(); got.ExitCode == nil || *got.ExitCode != 4 {
		t.Errorf("%+v", got)
	}
}
