package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/gateway"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

func ref(p string) wire.ProcessRef { return wire.ProcessRef{Process: p} }

func named(n string) wire.SessionRef { return wire.SessionRef{SessionName: n} }

func TestOpenSameNameSameSession(t *testing.T) {
	s := server(t)
	newWorker(t, s, "w1")
	newWorker(t, s, "w2")
	serve(t, s, "g1")
	serve(t, s, "g2")
	tenant := connect(t, s, subjects.RoleTenant, "local")
	var mu sync.Mutex
	ids, created := map[string]int{}, 0
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() {
			got, err := ask[wire.Session](t, tenant, "local", wire.VerbOpen, &wire.Open{Version: 1, Name: "one"})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			ids[got.ID]++
			if got.Created {
				created++
			}
		})
	}
	all.Wait()
	if len(ids) != 1 || created != 1 {
		t.Errorf("40 opens of one name gave %v, made %d times", ids, created)
	}
	a := mustAsk[wire.Session](t, tenant, "local", wire.VerbOpen, &wire.Open{Version: 1})
	b := mustAsk[wire.Session](t, tenant, "local", wire.VerbOpen, &wire.Open{Version: 1})
	if a.ID == b.ID {
		t.Error("two opens without a name gave one session")
	}
}

func TestRoutesByIDAndName(t *testing.T) {
	s := server(t)
	w := newWorker(t, s, "w1")
	serve(t, s, "g1")
	tenant := connect(t, s, subjects.RoleTenant, "local")
	o := mustAsk[wire.Session](t, tenant, "local", wire.VerbOpen, &wire.Open{Version: 1, Name: "one"})
	w.process("local", "p1", wire.StateRunning)
	for _, r := range []wire.SessionRef{{Session: o.ID}, named("one")} {
		got := mustAsk[wire.Result](t, tenant, "local", wire.VerbRun, &wire.Run{Version: 1, SessionRef: r, Command: wire.Command{Text: "true"}})
		if got.Receipt.Session != o.ID || got.Receipt.Worker != "w1" {
			t.Errorf("%+v: %+v", r, got.Receipt)
		}
	}
	for _, verb := range []string{
		wire.VerbRead, wire.VerbWait, wire.VerbStatus, wire.VerbWrite, wire.VerbCloseStdin, wire.VerbResize, wire.VerbSignal, wire.VerbTerminate,
	} {
		got := mustAsk[wire.Receipt](t, tenant, "local", verb, &wire.Status{Version: 1, ProcessRef: ref("p1")})
		if got.Process != "p1" || got.Description != verb {
			t.Errorf("%s: %+v", verb, got)
		}
	}
	for _, verb := range []string{wire.VerbStart, wire.VerbPrepare, wire.VerbCancel, wire.VerbClose} {
		got := mustAsk[wire.Receipt](t, tenant, "local", verb, &wire.CloseSession{Version: 1, SessionRef: named("one")})
		if got.Session != o.ID || got.Description != verb {
			t.Errorf("%s: %+v", verb, got)
		}
	}
}

func TestForwardsKnownHeadersOnly(t *testing.T) {
	s := server(t)
	w := newWorker(t, s, "w1")
	w.process("local", "p1", wire.StateRunning)
	serve(t, s, "g1")
	tenant := connect(t, s, subjects.RoleTenant, "local")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	deadline, _ := ctx.Deadline()
	_, err := tenant.Request(ctx, tenant.Root().API("local", wire.VerbStatus), bus.Header{
		subjects.HeaderTrace: {"00-a-b-01"}, subjects.HeaderContentType: {subjects.TypeJSON}, "X-Other": {"x"},
	}, []byte(`{"process":"p1"}`))
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last[subjects.HeaderTrace] != "00-a-b-01" || w.last["X-Other"] != "" || w.last[subjects.HeaderDeadline] == "" ||
		time.Until(deadline) < 0 {
		t.Errorf("%v", w.last)
	}
}

// A worker that starts again is found at its new incarnation, with no restart of the
// gateway and no error for the caller.
func TestNewIncarnation(t *testing.T) {
	s := server(t)
	w := newWorker(t, s, "w1")
	w.process("local", "p1", wire.StateRunning)
	serve(t, s, "g1")
	tenant := connect(t, s, subjects.RoleTenant, "local")
	mustAsk[wire.Session](t, tenant, "local", wire.VerbOpen, &wire.Open{Version: 1, Name: "one"})
	first := mustAsk[wire.Receipt](t, tenant, "local", wire.VerbStatus, &wire.Status{Version: 1, ProcessRef: ref("p1")})
	w.stop()
	w.boot()
	second := mustAsk[wire.Receipt](t, tenant, "local", wire.VerbStatus, &wire.Status{Version: 1, ProcessRef: ref("p1")})
	if first.Incarnation >= second.Incarnation || second.Incarnation != w.e {
		t.Errorf("incarnations %d, then %d; the worker's is %d", first.Incarnation, second.Incarnation, w.e)
	}
	w.stop()
	w.boot()
	run := mustAsk[wire.Result](t, tenant, "local", wire.VerbRun, &wire.Run{Version: 1, SessionRef: named("one"), Command: wire.Command{Text: "true"}})
	if run.Receipt.Incarnation != w.e {
		t.Errorf("run went to %d, not %d", run.Receipt.Incarnation, w.e)
	}
	w.stop()
	w.boot()
	again := mustAsk[wire.Session](t, tenant, "local", wire.VerbOpen, &wire.Open{Version: 1, Name: "one"})
	if again.Incarnation != w.e || again.Created {
		t.Errorf("%+v", again)
	}
}

// A name that stands for a new session is not held to the old one.
func TestReplacedSession(t *testing.T) {
	s := server(t)
	w := newWorker(t, s, "w1")
	serve(t, s, "g1")
	tenant := connect(t, s, subjects.RoleTenant, "local")
	old := mustAsk[wire.Session](t, tenant, "local", wire.VerbOpen, &wire.Open{Version: 1, Name: "one"})
	run := &wire.Run{Version: 1, SessionRef: named("one"), Command: wire.Command{Text: "true"}}
	mustAsk[wire.Result](t, tenant, "local", wire.VerbRun, run)

	rec, rev, err := w.reg.Session(t.Context(), "local", "one")
	if err != nil {
		t.Fatal(err)
	}
	rec.Closed = true
	if rev, err = w.reg.UpdateSession(t.Context(), "local", rec, rev); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	delete(w.sessions, "local"+old.ID)
	w.mu.Unlock()
	if _, err := ask[wire.Result](t, tenant, "local", wire.VerbRun, run); code(err) != wire.CodeSessionClosed {
		t.Errorf("a closed session: %v", err)
	}
	closed := mustAsk[wire.Session](t, tenant, "local", wire.VerbClose, &wire.CloseSession{Version: 1, SessionRef: named("one")})
	if !closed.Closed || closed.ID != old.ID {
		t.Errorf("close of a closed session: %+v", closed)
	}

	rec.Closed, rec.ID = false, "fresh"
	if _, err = w.reg.UpdateSession(t.Context(), "local", rec, rev); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.sessions["localfresh"] = true
	w.mu.Unlock()
	if got := mustAsk[wire.Result](t, tenant, "local", wire.VerbRun, run); got.Receipt.Session != "fresh" {
		t.Errorf("run went to %s", got.Receipt.Session)
	}
}

func TestUnreachable(t *testing.T) {
	s := server(t)
	w := newWorker(t, s, "w1")
	w.process("local", "live", wire.StateRunning)
	w.process("local", "over", wire.StateCompleted)
	serve(t, s, "g1")
	tenant := connect(t, s, subjects.RoleTenant, "local")
	o := mustAsk[wire.Session](t, tenant, "local", wire.VerbOpen, &wire.Open{Version: 1, Name: "one"})
	w.stop()

	for _, verb := range []string{wire.VerbStatus, wire.VerbWait} {
		for id, want := range map[string]wire.State{"live": wire.StateUnreachable, "over": wire.StateCompleted} {
			if got := mustAsk[wire.Receipt](t, tenant, "local", verb, &wire.Status{Version: 1, ProcessRef: ref(id)}); got.State != want {
				t.Errorf("%s %s: %s, want %s", verb, id, got.State, want)
			}
		}
	}
	if got := mustAsk[wire.Receipt](t, tenant, "local", wire.VerbTerminate, &wire.Terminate{Version: 1, ProcessRef: ref("over")}); got.State != wire.StateCompleted {
		t.Errorf("terminate of what is over: %s", got.State)
	}
	for verb, m := range map[string]any{
		wire.VerbTerminate:  &wire.Terminate{Version: 1, ProcessRef: ref("live")},
		wire.VerbCloseStdin: &wire.CloseStdin{Version: 1, ProcessRef: ref("live")},
		wire.VerbRun:        &wire.Run{Version: 1, SessionRef: named("one"), Command: wire.Command{Text: "true"}},
		wire.VerbStart:      &wire.Start{Version: 1, SessionRef: wire.SessionRef{Session: o.ID}, Command: wire.Command{Text: "true"}},
		wire.VerbOpen:       &wire.Open{Version: 1, Name: "one"},
	} {
		_, err := ask[wire.Receipt](t, tenant, "local", verb, m)
		if e, ok := errors.AsType[*wire.Error](err); !ok || e.Code != wire.CodeUnreachable || e.Details["reached"] != false {
			t.Errorf("%s: %v", verb, err)
		}
	}
	if _, err := ask[wire.Session](t, tenant, "local", wire.VerbOpen, &wire.Open{Version: 1}); code(err) != wire.CodeUnavailable {
		t.Errorf("open with no worker: %v", err)
	}
	all := mustAsk[wire.Processes](t, tenant, "local", wire.VerbList, &wire.List{Version: 1, All: true})
	if len(all.Sessions) != 1 || all.Sessions[0].ID != o.ID {
		t.Errorf("%+v", all.Sessions)
	}
}

func TestListAll(t *testing.T) {
	s := server(t)
	newWorker(t, s, "w1")
	newWorker(t, s, "w2")
	serve(t, s, "g1")
	tenant := connect(t, s, subjects.RoleTenant, "local")
	other := connect(t, s, subjects.RoleTenant, "other")
	mustAsk[wire.Session](t, other, "other", wire.VerbOpen, &wire.Open{Version: 1, Name: "theirs"})
	for _, n := range []string{"a", "b", "c", "d"} {
		mustAsk[wire.Session](t, tenant, "local", wire.VerbOpen, &wire.Open{Version: 1, Name: n})
	}
	all := mustAsk[wire.Processes](t, tenant, "local", wire.VerbList, &wire.List{Version: 1, All: true})
	if len(all.Sessions) != 4 || len(all.Processes) != 4 {
		t.Errorf("%d sessions, %d processes", len(all.Sessions), len(all.Processes))
	}
	for _, p := range all.Sessions {
		if p.Tenant != "local" {
			t.Errorf("a session of %s", p.Tenant)
		}
	}
}

// Another tenant's ids are as unknown as ids that never were: the same code and text.
func TestForeignIsMissing(t *testing.T) {
	s := server(t)
	w := newWorker(t, s, "w1")
	w.process("other", "theirs0000000000000000", wire.StateRunning)
	serve(t, s, "g1")
	other := connect(t, s, subjects.RoleTenant, "other")
	tenant := connect(t, s, subjects.RoleTenant, "local")
	o := mustAsk[wire.Session](t, other, "other", wire.VerbOpen, &wire.Open{Version: 1, Name: "theirs"})
	before := w.seen.Load()
	tell := func(verb string, m any) string {
		_, err := ask[wire.Receipt](t, tenant, "local", verb, m)
		if code(err) != wire.CodeNotFound {
			t.Errorf("%s: %v", verb, err)
		}
		b, _ := json.Marshal(wire.AsError(err))
		return string(b)
	}
	for _, verb := range []string{wire.VerbStatus, wire.VerbRead, wire.VerbWrite, wire.VerbTerminate} {
		foreign := tell(verb, &wire.Status{Version: 1, ProcessRef: ref("theirs0000000000000000")})
		missing := tell(verb, &wire.Status{Version: 1, ProcessRef: ref("nobody0000000000000000")})
		if strings.ReplaceAll(foreign, "theirs", "nobody") != missing {
			t.Errorf("%s: %s differs from %s", verb, foreign, missing)
		}
	}
	for _, pair := range [][2]wire.SessionRef{
		{{Session: o.ID}, {Session: strings.Repeat("n", len(o.ID))}},
		{named("theirs"), named("nobody")},
	} {
		foreign := tell(wire.VerbRun, &wire.Run{Version: 1, SessionRef: pair[0], Command: wire.Command{Text: "true"}})
		missing := tell(wire.VerbRun, &wire.Run{Version: 1, SessionRef: pair[1], Command: wire.Command{Text: "true"}})
		for _, id := range []string{o.ID, "theirs"} {
			foreign = strings.ReplaceAll(foreign, id, "X")
		}
		for _, id := range []string{strings.Repeat("n", len(o.ID)), "nobody"} {
			missing = strings.ReplaceAll(missing, id, "X")
		}
		if foreign != missing {
			t.Errorf("%s differs from %s", foreign, missing)
		}
	}
	if n := w.seen.Load(); n != before {
		t.Errorf("the worker saw %d requests for another tenant's things", n-before)
	}
	// The subject of another tenant is out of reach altogether.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := tenant.Request(ctx, tenant.Root().API("other", wire.VerbStatus), nil, nil); err == nil {
		t.Error("a tenant called the api of another")
	}
}

func TestJSONThroughTheBus(t *testing.T) {
	s := server(t)
	newWorker(t, s, "w1")
	serve(t, s, "g1")
	tenant := connect(t, s, subjects.RoleTenant, "local")
	call := func(verb, body string) map[string]any {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		m, err := tenant.Request(ctx, tenant.Root().API("local", verb), bus.Header{subjects.HeaderContentType: {subjects.TypeJSON}}, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		var v map[string]any
		if err := json.Unmarshal(m.Data, &v); err != nil {
			t.Fatalf("%s: %v", m.Data, err)
		}
		if ct := m.Header.Get(subjects.HeaderContentType); ct != subjects.TypeJSON {
			t.Errorf("answered as %q", ct)
		}
		return v
	}
	call(wire.VerbOpen, `{"name":"one"}`)
	got := call(wire.VerbRun, `{"session_name":"one","command":{"text":"true"}}`)
	if res, ok := got["result"].(map[string]any); !ok || res["receipt"] == nil {
		t.Errorf("%v", got)
	}
	bad := call(wire.VerbRun, `{"session_name":7}`)
	if e, ok := bad["error"].(map[string]any); !ok || e["code"] != string(wire.CodeInvalidArguments) || e["field"] != "session_name" {
		t.Errorf("%v", bad)
	}
	if all := call(wire.VerbList, `{"all":true}`); all["result"] == nil {
		t.Errorf("%v", all)
	}
}

func TestBadRequests(t *testing.T) {
	s := server(t)
	w := newWorker(t, s, "w1")
	serve(t, s, "g1")
	tenant := connect(t, s, subjects.RoleTenant, "local")
	for _, tt := range []struct {
		name, verb, contentType, body string
		code                          wire.Code
		field                         string
	}{
		{"content type", wire.VerbRun, "text/plain", "{}", wire.CodeInvalidArguments, subjects.HeaderContentType},
		{"not json", wire.VerbRun, subjects.TypeJSON, "{", wire.CodeInvalidArguments, ""},
		{"not msgpack", wire.VerbStatus, "", "\xff\xff", wire.CodeInvalidArguments, ""},
		{"empty", wire.VerbStatus, "", "", wire.CodeInvalidArguments, ""},
		{"no session", wire.VerbRun, subjects.TypeJSON, "{}", wire.CodeInvalidArguments, "session"},
		{"two sessions", wire.VerbRun, subjects.TypeJSON, `{"session":"a","session_name":"b"}`, wire.CodeInvalidArguments, "session_name"},
		{"session not a token", wire.VerbStart, subjects.TypeJSON, `{"session":"a.b"}`, wire.CodeInvalidArguments, "session"},
		{"wildcard session", wire.VerbStart, subjects.TypeJSON, `{"session":"*"}`, wire.CodeInvalidArguments, "session"},
		{"name not a token", wire.VerbRun, subjects.TypeJSON, `{"session_name":">"}`, wire.CodeInvalidArguments, "session_name"},
		{"no process", wire.VerbRead, subjects.TypeJSON, "{}", wire.CodeInvalidArguments, "process"},
		{"wildcard process", wire.VerbRead, subjects.TypeJSON, `{"process":"*"}`, wire.CodeInvalidArguments, "process"},
		{"process is a number", wire.VerbRead, subjects.TypeJSON, `{"process":1}`, wire.CodeInvalidArguments, "process"},
		{"unknown verb", "strat", subjects.TypeJSON, "{}", wire.CodeInvalidArguments, "verb"},
		{"unknown field of open", wire.VerbOpen, subjects.TypeJSON, `{"nmae":"x"}`, wire.CodeUnknownField, "nmae"},
		{"bad option of open", wire.VerbOpen, subjects.TypeJSON, `{"idle_ttl_ms":-2}`, wire.CodeInvalidArguments, "idle_ttl_ms"},
		{"list of nothing", wire.VerbList, subjects.TypeJSON, `{}`, wire.CodeInvalidArguments, "session"},
		{"missing session", wire.VerbRun, subjects.TypeJSON, `{"session":"nobody"}`, wire.CodeNotFound, "session"},
		{"missing process", wire.VerbWait, subjects.TypeJSON, `{"process":"nobody"}`, wire.CodeNotFound, "process"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			h := bus.Header{}
			if tt.contentType != "" {
				h[subjects.HeaderContentType] = []string{tt.contentType}
			}
			m, err := tenant.Request(ctx, tenant.Root().API("local", tt.verb), h, []byte(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			_, err = wire.DecodeReply[struct{}](m.Header.Get(subjects.HeaderContentType), m.Data)
			if e := wire.AsError(err); e == nil || e.Code != tt.code || e.Field != tt.field {
				t.Errorf("got %+v, want %s of %q", e, tt.code, tt.field)
			}
		})
	}
	if n := w.seen.Load(); n != 0 {
		t.Errorf("the worker saw %d of them", n)
	}
}

func TestOverload(t *testing.T) {
	s := server(t)
	w := newWorker(t, s, "w1")
	w.hold = make(chan struct{})
	w.process("local", "p1", wire.StateRunning)
	w.process("other", "p2", wire.StateRunning)
	g := serve(t, s, "g1", func(c *gateway.Config) { c.MaxInFlight, c.MaxPerTenant, c.MaxPerWorker = 12, 8, 8 })
	tenant := connect(t, s, subjects.RoleTenant, "local")
	other := connect(t, s, subjects.RoleTenant, "other")
	var waiting sync.WaitGroup
	for range 8 {
		waiting.Go(func() {
			if _, err := ask[wire.Receipt](t, tenant, "local", wire.VerbWait, &wire.Wait{Version: 1, ProcessRef: ref("p1")}); err != nil {
				t.Error(err)
			}
		})
	}
	for until := time.Now().Add(5 * time.Second); g.Stats().InFlight < 8; {
		if time.Now().After(until) {
			t.Fatalf("%+v", g.Stats())
		}
	}
	if _, err := ask[wire.Receipt](t, tenant, "local", wire.VerbStatus, &wire.Status{Version: 1, ProcessRef: ref("p1")}); code(err) != wire.CodeOverloaded {
		t.Errorf("one more: %v", err)
	}
	// Those who wait hold up nobody else.
	mustAsk[wire.Receipt](t, other, "other", wire.VerbStatus, &wire.Status{Version: 1, ProcessRef: ref("p2")})
	close(w.hold)
	waiting.Wait()
	mustAsk[wire.Receipt](t, tenant, "local", wire.VerbStatus, &wire.Status{Version: 1, ProcessRef: ref("p1")})
	if st := g.Stats(); st.Refused != 1 {
		t.Errorf("%+v", st)
	}
}

func TestDeadline(t *testing.T) {
	s := server(t)
	w := newWorker(t, s, "w1")
	w.hold = make(chan struct{})
	defer close(w.hold)
	w.process("local", "p1", wire.StateRunning)
	g := serve(t, s, "g1")
	tenant := connect(t, s, subjects.RoleTenant, "local")
	data, err := wire.Marshal("", &wire.Wait{Version: 1, ProcessRef: ref("p1")})
	if err != nil {
		t.Fatal(err)
	}
	for _, in := range []time.Duration{-time.Second, 200 * time.Millisecond} {
		at := time.Now().Add(in)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		m, err := tenant.Request(ctx, tenant.Root().API("local", wire.VerbWait), bus.Header{
			subjects.HeaderDeadline: {time2ms(at)},
		}, data)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := wire.DecodeReply[wire.Receipt]("", m.Data); code(err) != wire.CodeDeadlineExceeded {
			t.Errorf("in %v: %v", in, err)
		}
		if late := time.Since(at); in > 0 && (late < -2*time.Millisecond || late > time.Second) {
			t.Errorf("answered %v after the deadline, which has whole milliseconds", late)
		}
	}
	if st := g.Stats(); st.InFlight != 0 {
		t.Errorf("%+v", st)
	}
}

func TestShutdownAnswers(t *testing.T) {
	s := server(t)
	w := newWorker(t, s, "w1")
	w.hold = make(chan struct{})
	defer close(w.hold)
	w.process("local", "p1", wire.StateRunning)
	g, err := gateway.New(gateway.Config{Conn: connect(t, s, subjects.RoleGateway, "g1"), Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- g.Run(ctx) }() // ends with ctx; received below
	tenant := connect(t, s, subjects.RoleTenant, "local")
	if err := g.WaitWorker(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() { // ends with the answer; received below
		_, err := ask[wire.Receipt](t, tenant, "local", wire.VerbWait, &wire.Wait{Version: 1, ProcessRef: ref("p1")})
		got <- err
	}()
	for g.Stats().InFlight == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	if err := <-got; code(err) != wire.CodeSupervisorShuttingDown {
		t.Errorf("%v", err)
	}
}

func TestConfigNames(t *testing.T) {
	if _, err := gateway.New(gateway.Config{}); err == nil || !strings.Contains(err.Error(), "Conn") {
		t.Errorf("%v", err)
	}
}
