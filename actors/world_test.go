package actors

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-sh/limpet/actors/output"
	"github.com/limpet-sh/limpet/actors/runtime"
	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// world is a session on fakes, in a bubble whose time the test drives.
type world struct {
	t       *testing.T
	store   *fakeStore
	keeper  *fakeKeeper
	feed    *fakeFeed
	worker  *Worker
	session *session
	began   time.Time
	calls   []*pendingCall
}

// inBubble runs f with a world of its own, ends it, and holds that every call had
// exactly one answer and that no goroutine is left (else the bubble does not end).
func inBubble(t *testing.T, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f(w)
		w.end()
	})
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, store: newFakeStore(), feed: &fakeFeed{}, began: time.Now()}
	log := slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelError}))
	w.worker = &Worker{cfg: Config{Name: "w1", Logger: log}}
	w.keeper = &fakeKeeper{w: w, children: map[string]*fakeChild{}}
	d := &deps{
		store: w.store, sessions: w.store, spawner: w.keeper, dir: newDirectory(), budget: output.NewBudget(0),
		environ: []string{"PATH=" + os.Getenv("PATH")}, shells: &runtime.Shells{}, files: newFiles(), log: log,
		lostRace:  func(err error) bool { return errors.Is(err, registry.ErrConflict) },
		addresses: w.store.process,
		feed:      func(*wire.Receipt, string, bool) feed { return w.feed.get() },
		aside: func(_ request, f func(context.Context)) {
			go func() { // ends with the store's answer
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				f(ctx)
			}()
		},
	}
	w.worker.deps = d
	d.answerFrom, d.cancelFrom = w.worker.answerFrom, w.worker.cancelFrom
	w.session = w.open("s1")
	return w
}

// open starts a session's actor.
func (w *world) open(id string) *session {
	s := newSession(w.worker.deps, &wire.SessionRecord{
		Version: wire.Version, ID: id, Name: id, Tenant: tenant, Worker: "w1", Incarnation: 1, Cwd: "/",
		Limits: wire.SessionLimits{LiveProcesses: 4, RetainedProcesses: 2}, IdleTTLMS: -1, DefaultTimeoutMS: -1,
	}, 1, func(s *session) { w.worker.deps.dir.removeSession(s) })
	w.worker.deps.dir.addSession(s)
	go s.run() // ends at its close
	return s
}

// end closes all sessions and checks the calls.
func (w *world) end() {
	w.t.Helper()
	w.store.set(func(s *fakeStore) { s.down, s.hang = nil, false })
	w.keeper.obedient()
	for _, s := range w.worker.deps.dir.all() {
		post(s.ending, closing{by: "test", hurry: true})
		<-s.done
	}
	synctest.Wait()
	for _, c := range w.calls {
		if n := c.count(); n != 1 {
			w.t.Errorf("%s had %d answers", c.verb, n)
		}
	}
	if n := w.store.waits(); n != 0 {
		w.t.Errorf("%d writes were sent and never waited for", n)
	}
}

// after is how much time of the bubble has passed.
func (w *world) after() time.Duration { return time.Since(w.began) }

// pendingCall is a request that was sent.
type pendingCall struct {
	t        *testing.T
	verb     string
	mu       sync.Mutex
	n        int
	answered chan []byte
}

func (c *pendingCall) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

func (w *world) request(verb string, m any) (request, *pendingCall) {
	w.t.Helper()
	data, err := wire.Marshal(subjects.TypeMsgpack, m)
	if err != nil {
		w.t.Fatal(err)
	}
	c := &pendingCall{t: w.t, verb: verb, answered: make(chan []byte, 8)}
	w.calls = append(w.calls, c)
	return request{
		Request: &bus.Request{Data: data}, target: subjects.Target{Tenant: tenant, Verb: verb},
		to: func(b []byte) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.n++
			post(c.answered, b)
			return nil
		},
	}, c
}

// send asks the session, or the process of an id.
func (w *world) send(verb string, m any) *pendingCall {
	w.t.Helper()
	r, c := w.request(verb, m)
	w.session.deliver(r)
	return c
}

func (w *world) sendTo(process, verb string, m any) *pendingCall {
	w.t.Helper()
	r, c := w.request(verb, m)
	p := w.worker.deps.dir.process(tenant, process)
	if p == nil {
		w.t.Fatalf("no process %s", process)
	}
	p.deliver(r)
	return c
}

func got[T any](c *pendingCall) (*T, error) {
	return wire.DecodeReply[T](subjects.TypeMsgpack, <-c.answered)
}

func take[T any](c *pendingCall) *T {
	c.t.Helper()
	v, err := got[T](c)
	if err != nil {
		c.t.Fatalf("%s: %v", c.verb, err)
	}
	return v
}

// refusal is the code of an answer that is an error.
func refusal(c *pendingCall) wire.Code {
	_, err := got[struct{}](c)
	return public(err).Code
}

func startOf(execution string, c wire.Command) *wire.Start {
	return &wire.Start{Version: wire.Version, SessionRef: wire.SessionRef{Session: "s1"}, ExecutionID: execution, Command: c}
}

func runOf(execution string, c wire.Command) *wire.Run {
	return &wire.Run{Version: wire.Version, SessionRef: wire.SessionRef{Session: "s1"}, ExecutionID: execution, Command: c}
}

func cancelOf(execution string) *wire.Cancel {
	return &wire.Cancel{Version: wire.Version, SessionRef: wire.SessionRef{Session: "s1"}, ExecutionID: execution}
}

func text(s string) wire.Command { return wire.Command{Text: s} }

// started starts a command and gives its receipt and its child.
func (w *world) started(c wire.Command) (*wire.Receipt, *fakeChild) {
	w.t.Helper()
	r := take[wire.Receipt](w.send("start", startOf("", c)))
	return r, w.keeper.child(r.Process)
}

func (w *world) waitFor(process string) *wire.Receipt {
	w.t.Helper()
	return take[wire.Receipt](w.sendTo(process, "wait", &wire.Wait{Version: wire.Version, ProcessRef: ref(process), WaitMS: 600_000}))
}
