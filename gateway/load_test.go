package gateway_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/gateway"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// Every verb of the protocol reaches whom it is for.
func TestEveryVerbIsServed(t *testing.T) {
	s := server(t)
	w := newWorker(t, s, "w1")
	w.process("local", "p1", wire.StateRunning)
	serve(t, s, "g1")
	tenant := connect(t, s, subjects.RoleTenant, "local")
	o := mustAsk[wire.Session](t, tenant, "local", wire.VerbOpen, &wire.Open{Version: 1, Name: "one"})
	var mu sync.Mutex
	reached := map[string]string{}
	w.answers(func(r *bus.Request, target subjects.Target) bool {
		mu.Lock()
		defer mu.Unlock()
		reached[target.Verb] = target.Session + target.Process
		if _, err := wire.DecodeRequest(target.Verb, r.ContentType(), r.Data); err != nil {
			t.Errorf("%s: %v", target.Verb, err)
		}
		respond(w, r, &struct{}{})
		return true
	})
	for _, verb := range wire.Verbs() {
		body, want := `{"session_name":"one"}`, o.ID
		switch m := wire.NewRequest(verb).(type) {
		case *wire.Open:
			body, want = `{"name":"one"}`, ""
		case *wire.Start, *wire.Run, *wire.Prepare:
			body = `{"session_name":"one","command":{"text":"true"}}`
		case *wire.Cancel:
			body = `{"session_name":"one","execution_id":"x"}`
		default:
			if _, ofSession := wire.SessionOf(m); ofSession {
				break
			}
			want = "p1"
			body = map[string]string{
				wire.VerbWrite:  `{"process":"p1","text":"x"}`,
				wire.VerbSignal: `{"process":"p1","signal":"INT"}`,
				wire.VerbResize: `{"process":"p1","rows":1,"cols":1}`,
				wire.VerbSearch: `{"process":"p1","pattern":"x"}`,
			}[verb]
			if body == "" {
				body = `{"process":"p1"}`
			}
		}
		if _, err := raw(t, tenant, verb, subjects.TypeJSON, []byte(body)); err != nil {
			t.Errorf("%s: %v", verb, err)
		}
		mu.Lock()
		if at, ok := reached[verb]; !ok || at != want {
			t.Errorf("%s reached %q, %v; want %q", verb, at, ok, want)
		}
		mu.Unlock()
	}
	// What is no verb is told the nearest.
	for verb, near := range map[string]string{"raed": wire.VerbRead, "waitfor": wire.VerbWaitFor, "terminat": wire.VerbTerminate} {
		_, err := raw(t, tenant, verb, subjects.TypeJSON, []byte("{}"))
		if e := wire.AsError(err); e == nil || e.Code != wire.CodeInvalidArguments || e.Details["nearest"] != near {
			t.Errorf("%s: %+v", verb, e)
		}
	}
}

func raw(tb testing.TB, conn *bus.Conn, verb, contentType string, body []byte) ([]byte, error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	m, err := conn.Request(ctx, conn.Root().API("local", verb), bus.Header{subjects.HeaderContentType: {contentType}}, body)
	if err != nil {
		return nil, err
	}
	_, err = wire.DecodeReply[struct{}](m.Header.Get(subjects.HeaderContentType), m.Data)
	return m.Data, err
}

// What is malformed, deep or as large as a message may be is refused by name, for every
// verb, and reaches nobody.
func TestMalformedAndOversize(t *testing.T) {
	s := server(t)
	w := newWorker(t, s, "w1")
	serve(t, s, "g1")
	tenant := connect(t, s, subjects.RoleTenant, "local")
	big := strings.Repeat("x", int(tenant.MaxPayload())-8<<10)
	for i, verb := range wire.Verbs() {
		if i > 0 { // the largest once; it is no different for the others, and takes time
			big = big[:64<<10]
		}
		for name, body := range map[string]string{
			"empty": "", "a list": "[]", "half": `{"a":`, "twice": `{"version":1,"version":1}`, "deep": strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100),
			"large": `{"process":"` + big + `"}`, "large name": `{"session_name":"` + big + `","name":"` + big[:1000] + `"}`, "NUL": "\x00", "another version": `{"version":2,"all":true,"process":"p","session":"s"}`,
		} {
			_, err := raw(t, tenant, verb, subjects.TypeJSON, []byte(body))
			e := wire.AsError(err)
			if err == nil {
				t.Errorf("%s, %s: accepted", verb, name)
				continue
			}
			switch e.Code {
			case wire.CodeInvalidArguments, wire.CodeUnknownField, wire.CodeUnsupportedVersion, wire.CodeNotFound:
			default:
				t.Errorf("%s, %s: %v", verb, name, err)
			}
			if len(e.Message) > 2000 {
				t.Errorf("%s, %s: a message of %d bytes", verb, name, len(e.Message))
			}
		}
	}
	if n := w.seen.Load(); n != 0 {
		t.Errorf("the worker saw %d of them", n)
	}
	if _, err := tenant.Request(t.Context(), tenant.Root().API("local", wire.VerbStatus), nil, make([]byte, tenant.MaxPayload()+1)); err == nil {
		t.Error("a message larger than the server takes was sent")
	}
}

// Five hundred calls at once: each is answered, by the worker or with overloaded, and
// none with the answer of another.
func TestFiveHundredAtOnce(t *testing.T) {
	s := server(t)
	w := newWorker(t, s, "w1")
	g := serve(t, s, "g1", func(c *gateway.Config) { c.MaxInFlight, c.MaxPerTenant, c.MaxPerWorker = 300, 250, 250 })
	tenant := connect(t, s, subjects.RoleTenant, "local")
	w.hold = make(chan struct{})
	ids := make([]string, 500)
	for i := range ids {
		ids[i] = subjects.NewID()
		w.process("local", ids[i], wire.StateRunning)
	}
	var all sync.WaitGroup
	var answered, refused atomic.Int64
	for _, id := range ids {
		all.Go(func() {
			r, err := ask[wire.Receipt](t, tenant, "local", wire.VerbWait, &wire.Wait{Version: 1, ProcessRef: ref(id)})
			switch {
			case code(err) == wire.CodeOverloaded:
				refused.Add(1)
			case err != nil || r.Process != id:
				t.Errorf("%s: %+v, %v", id, r, err)
			default:
				answered.Add(1)
			}
		})
	}
	for until := time.Now().Add(patience); refused.Load() < 250; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%d refused, %+v", refused.Load(), g.Stats())
		}
	}
	close(w.hold)
	all.Wait()
	if answered.Load() != 250 || refused.Load() != 250 {
		t.Errorf("%d answered, %d refused", answered.Load(), refused.Load())
	}
	if st := g.Stats(); st.InFlight != 0 || st.Refused != 250 {
		t.Errorf("%+v", st)
	}
}
