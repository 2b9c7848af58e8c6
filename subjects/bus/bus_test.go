package bus_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/bus/embedded"
	"github.com/limpet-sh/limpet/subjects/bus/embedded/embeddedtest"
	"github.com/limpet-sh/limpet/subjects/wire"
)

func TestRequest(t *testing.T) {
	s := embeddedtest.Start(t, embedded.Config{MaxPayload: 64 << 10})
	gw := embeddedtest.Connect(t, s, subjects.RoleGateway, "g", func(c *bus.Config) { c.MaxWaiting = 4 })
	w := embeddedtest.Connect(t, s, subjects.RoleWorker, "W1")
	silent := make(chan *bus.Request, 16)
	if _, err := w.Serve(root.WorkerAll("W1", 1), "", 16, func(r *bus.Request) {
		switch {
		case strings.HasSuffix(r.Subject, ".silent"):
			silent <- r
		case strings.HasSuffix(r.Subject, ".fail"):
			_ = r.RespondError(fmt.Errorf("%w: details", bus.ErrOverloaded))
		default:
			d, ok := r.Deadline()
			_ = r.Respond(fmt.Appendf(nil, "%s %s %v %v", r.Data, r.ContentType(), ok, time.Until(d) > 0))
		}
	}); err != nil {
		t.Fatal(err)
	}
	verb := func(v string) string { return root.Process("local", "W1", 1, "p", v) }

	m, err := gw.Request(within(t, 5*time.Second), verb("echo"), nil, []byte("x"))
	if err != nil || string(m.Data) != "x application/msgpack true true" {
		t.Fatal(m, err)
	}
	m, err = gw.Request(t.Context(), verb("echo"), bus.Header{subjects.HeaderContentType: {subjects.TypeJSON}}, []byte("x"))
	if err != nil || string(m.Data) != "x application/json false false" || m.Header.Get(subjects.HeaderContentType) != subjects.TypeJSON {
		t.Fatal(m, err)
	}
	for _, ct := range []string{"", subjects.TypeJSON, "text/plain"} {
		m, err = gw.Request(t.Context(), verb("fail"), bus.Header{subjects.HeaderContentType: {ct}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = wire.DecodeReply[wire.Receipt](m.Header.Get(subjects.HeaderContentType), m.Data)
		if we, ok := errors.AsType[*wire.Error](err); !ok || we.Code != wire.CodeOverloaded {
			t.Errorf("%q: %v", ct, err)
		}
	}
	if _, err = gw.Request(within(t, 5*time.Second), root.Process("local", "W1", 2, "p", "echo"), nil, nil); !errors.Is(err, bus.ErrNoResponders) {
		t.Error(err)
	}
	if we, ok := errors.AsType[*wire.Error](err); !ok || we.Code != wire.CodeUnreachable {
		t.Error(err)
	}
	if _, err = gw.Request(t.Context(), verb("echo"), nil, make([]byte, 64<<10+1)); !errors.Is(err, bus.ErrTooLarge) {
		t.Error(err)
	}
	if _, err = gw.Request(within(t, 20*time.Millisecond), verb("silent"), nil, nil); !errors.Is(err, bus.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	// The late answer of that one must not be taken for the next one's.
	late := <-silent
	if err := late.Respond([]byte("late")); err != nil {
		t.Fatal(err)
	}
	if m, err = gw.Request(t.Context(), verb("echo"), nil, []byte("y")); err != nil || !strings.HasPrefix(string(m.Data), "y ") {
		t.Error(m, err)
	}

	// Requests in flight: the fifth is refused, and all end when the owner closes.
	why := errors.New("the caller went away")
	ctx, cancel := context.WithCancelCause(t.Context())
	errs := make(chan error, 4)
	for i := range 4 {
		ctx := ctx
		if i > 0 {
			ctx = t.Context()
		}
		go func() { _, err := gw.Request(ctx, verb("silent"), nil, nil); errs <- err }()
	}
	for range 4 {
		<-silent
	}
	if gw.Stats().Waiting != 4 {
		t.Error(gw.Stats())
	}
	if _, err := gw.Request(t.Context(), verb("echo"), nil, nil); !errors.Is(err, bus.ErrOverloaded) {
		t.Error(err)
	}
	cancel(why)
	if err := <-errs; !errors.Is(err, why) {
		t.Error(err)
	}
	began := time.Now()
	gw.Close()
	if d := time.Since(began); d > time.Second {
		t.Errorf("close took %v", d)
	}
	for range 3 {
		if err := <-errs; !errors.Is(err, bus.ErrClosed) {
			t.Error(err)
		}
	}
	if _, err := gw.Request(t.Context(), verb("echo"), nil, nil); !errors.Is(err, bus.ErrClosed) {
		t.Error(err)
	}
	gw.Close()
}

func TestConnectTriesUntilTheEnd(t *testing.T) {
	_, err := bus.Connect(within(t, 50*time.Millisecond), bus.Config{URL: "nats://127.0.0.1:1", Logger: embeddedtest.Quiet()})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Fatal(err)
	}
	var dials atomic.Int64
	s := embeddedtest.Start(t, embedded.Config{})
	c := embeddedtest.Connect(t, s, subjects.RoleWorker, "W1", func(c *bus.Config) {
		dial := c.Dial
		c.Dial = func() (net.Conn, error) {
			if dials.Add(1) < 3 {
				return nil, errors.New("not yet")
			}
			return dial()
		}
	})
	if !c.Connected() || dials.Load() != 3 {
		t.Fatal(dials.Load())
	}
	for _, bad := range []bus.Config{{InboxPrefix: "a.*"}, {MaxWaiting: -1}} {
		if _, err := bus.Connect(t.Context(), bad); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

// TestSlowConsumerIsTold: what a handler that does not hand over loses is counted.
func TestSlowConsumerIsTold(t *testing.T) {
	s := embeddedtest.Start(t, embedded.Config{})
	told := make(chan bus.Loss, 16)
	w := embeddedtest.Connect(t, s, subjects.RoleWorker, "W1", func(c *bus.Config) { c.OnLoss = func(l bus.Loss) { told <- l } })
	gw := embeddedtest.Connect(t, s, subjects.RoleGateway, "g")
	release, entered := make(chan struct{}), make(chan struct{}, 100)
	sub, err := w.Serve(root.WorkerAll("W1", 1), "", 4, func(*bus.Request) { entered <- struct{}{}; <-release })
	if err != nil {
		t.Fatal(err)
	}
	send := func(n int) {
		t.Helper()
		for range n {
			if err := gw.Publish(root.Process("local", "W1", 1, "p", "x"), nil, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(gw.Flush(t.Context()), w.Flush(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	send(1)
	<-entered // the handler holds it; from here on only 4 fit
	send(30)
	l := <-told
	if l.Kind != bus.LossSlowConsumer || l.Subject != root.WorkerAll("W1", 1) || l.Messages < 1 {
		t.Errorf("%+v", l)
	}
	dropped := w.Losses().SlowConsumerMessages
	if dropped < 25 || dropped != sub.Dropped() {
		t.Errorf("%d in Losses, %d at the subscription", dropped, sub.Dropped())
	}
	close(release)
	if err := sub.Stop(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if got := int64(len(entered)) + 1 + dropped; got != 31 {
		t.Errorf("%d of 31 accounted for", got)
	}
}

// TestQueueAndStop: one of a queue gets each request; after Stop the rest goes to the other.
func TestQueueAndStop(t *testing.T) {
	s := embeddedtest.Start(t, embedded.Config{})
	tenant := embeddedtest.Connect(t, s, subjects.RoleTenant, "local")
	subs := map[string]*bus.Subscription{}
	for _, g := range []string{"g1", "g2"} {
		c := embeddedtest.Connect(t, s, subjects.RoleGateway, g)
		sub, err := c.Serve(root.APIAll(), "gw", 16, func(r *bus.Request) { _ = r.Respond([]byte(g)) })
		if err != nil {
			t.Fatal(err)
		}
		subs[g] = sub
	}
	count := func() map[string]int {
		n := map[string]int{}
		for range 200 {
			m, err := tenant.Request(t.Context(), root.API("local", "x"), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			n[string(m.Data)]++
		}
		return n
	}
	if n := count(); n["g1"] == 0 || n["g2"] == 0 || n["g1"]+n["g2"] != 200 {
		t.Error(n)
	}
	if err := subs["g1"].Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(); n["g2"] != 200 {
		t.Error(n)
	}
}

func TestAppend(t *testing.T) {
	s := embeddedtest.Start(t, embedded.Config{})
	embeddedtest.Provision(t, s, bus.StreamOptions{Memory: true})
	w := embeddedtest.Connect(t, s, subjects.RoleWorker, "W1", func(c *bus.Config) { c.MaxAsync = 2 })
	ctx := within(t, 20*time.Second)
	a, filter := root.Record("W1", "local", "execution", "a"), root.RecordFilter("local", "execution", "*")
	var last uint64
	for i, tt := range []struct {
		subject string
		expect  bus.Expect
		want    error
	}{
		{a, bus.ExpectLast(3), bus.ErrWrongSequence},
		{a, bus.ExpectLast(0), nil},
		{a, bus.ExpectLast(0), bus.ErrWrongSequence},
		{a, bus.ExpectLastOn(filter, 0), bus.ErrWrongSequence},
		{a, bus.ExpectLastOn(filter, 1), nil},
		{root.Record("W1", "local", "execution", "b"), bus.ExpectLastOn(filter, 2), nil},
		{a, bus.ExpectLast(2), nil},
		{a, bus.ExpectAny(), nil},
	} {
		seq, err := w.Append(ctx, tt.subject, bus.Header{"X": {"y"}}, fmt.Append(nil, i), tt.expect)
		if !errors.Is(err, tt.want) {
			t.Fatalf("%d: %v, want %v", i, err, tt.want)
		}
		if err == nil && seq != last+1 {
			t.Fatalf("%d: sequence %d after %d", i, seq, last)
		}
		last = max(last, seq)
	}
	stream := root.Stream(subjects.StreamRecords)
	m, err := w.Last(ctx, stream, a)
	if err != nil || m.Seq != last || m.Subject != a || string(m.Data) != "7" || m.Header.Get("X") != "y" || time.Since(m.Time) > time.Minute {
		t.Fatal(m, err)
	}
	if m, err = w.Get(ctx, stream, 3); err != nil || string(m.Data) != "5" {
		t.Fatal(m, err)
	}
	if _, err := w.Last(ctx, stream, root.Record("W1", "local", "execution", "c")); !errors.Is(err, bus.ErrNotFound) {
		t.Fatal(err)
	}
	// No stream owns the subject: nobody confirms.
	if _, err := w.Append(ctx, root.Lease("W1"), nil, nil, bus.ExpectAny()); !errors.Is(err, bus.ErrUnknownOutcome) || !errors.Is(err, bus.ErrNoResponders) {
		t.Fatal(err)
	}
	if _, err := w.Append(ctx, a, bus.Header{bus.HeaderTTL: {"rubbish"}}, nil, bus.ExpectAny()); !isAPI(err) {
		t.Fatal(err)
	}

	// The window: a third waits for one of two.
	event := func(i int) string { return root.Event("local", "W1", fmt.Sprint("p", i), "started") }
	p1, err1 := w.AppendAsync(ctx, event(1), nil, nil, bus.ExpectLast(0))
	p2, err2 := w.AppendAsync(ctx, event(1), nil, nil, bus.ExpectLast(0))
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if _, err := w.AppendAsync(within(t, 20*time.Millisecond), event(2), nil, nil, bus.ExpectLast(0)); !errors.Is(err, bus.ErrTimeout) {
		t.Fatal(err)
	}
	if seq, err := p1.Wait(ctx); err != nil || seq != 1 {
		t.Fatal(seq, err)
	}
	if _, err := p2.Wait(ctx); !errors.Is(err, bus.ErrWrongSequence) {
		t.Fatal(err)
	}
	if _, err := w.AppendAsync(ctx, "limpet.v1.event.0.local.W2.p.started", nil, nil, bus.ExpectAny()); err != nil {
		t.Fatal(err)
	}
}

func isAPI(err error) bool { _, ok := errors.AsType[*bus.APIError](err); return ok }

func TestLastPerSubjectPages(t *testing.T) {
	s := embeddedtest.Start(t, embedded.Config{})
	embeddedtest.Provision(t, s, bus.StreamOptions{Memory: true})
	w := embeddedtest.Connect(t, s, subjects.RoleWorker, "W1")
	ctx := within(t, 20*time.Second)
	stream := root.Stream(subjects.StreamRecords)
	if got, err := w.LastPerSubject(ctx, stream, "limpet.v1.reg.0.W1.>"); err != nil || len(got) != 0 {
		t.Fatal(got, err)
	}
	const n = 1000
	for i := range n {
		if _, err := w.Append(ctx, root.Record("W1", "local", "process", fmt.Sprint(i)), nil, fmt.Append(nil, i), bus.ExpectAny()); err != nil {
			t.Fatal(err)
		}
	}
	// Writers at work meanwhile: every subject is listed all the same.
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_, _ = w.Append(ctx, root.Record("W1", "local", "process", fmt.Sprint(i%n)), nil, fmt.Append(nil, i%n), bus.ExpectAny())
			}
		}
	})
	for range 5 {
		got, err := w.LastPerSubject(ctx, stream, "limpet.v1.reg.0.W1.>")
		seen := map[string]bool{}
		for i, m := range got {
			seen[m.Subject] = true
			if !strings.HasSuffix(m.Subject, "."+string(m.Data)) || i > 0 && got[i-1].Seq >= m.Seq {
				t.Fatalf("%d: %+v", i, m)
			}
		}
		if err != nil || len(got) != n || len(seen) != n {
			t.Fatalf("%d messages, %d subjects: %v", len(got), len(seen), err)
		}
	}
	close(stop)
	wg.Wait()
}
