package actors

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

func (b *bench) code(subject string, m any) wire.Code {
	b.t.Helper()
	_, err := ask[struct{}](b, subject, m)
	if err == nil {
		return ""
	}
	return public(err).Code
}

func (b *bench) close(s *wire.Session) *wire.Session {
	b.t.Helper()
	return must[wire.Session](b)(ask[wire.Session](b, b.session(s, "close"), &wire.CloseSession{Version: wire.Version, SessionRef: wire.SessionRef{Session: s.ID}}))
}

func startIn(s *wire.Session, execution string, c wire.Command) *wire.Start {
	return &wire.Start{Version: wire.Version, SessionRef: wire.SessionRef{Session: s.ID}, ExecutionID: execution, Command: c}
}

func TestExecutionIDsAreOneInATenant(t *testing.T) {
	b := newBench(t, nil)
	one, two := b.open(wire.Open{Name: "one"}), b.open(wire.Open{Name: "two"})
	first := must[wire.Receipt](b)(ask[wire.Receipt](b, b.session(one, "start"), startIn(one, "e1", wire.Command{Text: "sleep 300"})))
	for _, s := range []*wire.Session{one, two} {
		again := must[wire.Receipt](b)(ask[wire.Receipt](b, b.session(s, "start"), startIn(s, "e1", wire.Command{Text: "sleep 300"})))
		if again.Process != first.Process || again.Session != one.ID {
			t.Errorf("%+v", again)
		}
		if code := b.code(b.session(s, "start"), startIn(s, "e1", wire.Command{Text: "sleep 301"})); code != wire.CodeExecutionConflict {
			t.Errorf("another command is answered %s", code)
		}
	}
	// A claim that lost to the holder of the id leaves a moment after its answer.
	l := b.list(two)
	for until := time.Now().Add(10 * time.Second); len(l.Processes) != 0 && time.Now().Before(until); l = b.list(two) {
		time.Sleep(10 * time.Millisecond)
	}
	if len(l.Processes) != 0 || l.Sessions[0].Live != 0 {
		t.Errorf("in the other session: %+v", l)
	}
	b.close(one)
	if code := b.code(b.session(two, "start"), startIn(two, "e1", wire.Command{Text: "sleep 301"})); code != wire.CodeExecutionConflict {
		t.Errorf("after the close another command is answered %s", code)
	}
	over := must[wire.Receipt](b)(ask[wire.Receipt](b, b.session(two, "start"), startIn(two, "e1", wire.Command{Text: "sleep 300"})))
	wantEnd(t, over, wire.StateCancelled, wire.ReasonSessionClosed) // and is not run again
}

func (b *bench) list(s *wire.Session) *wire.Processes {
	b.t.Helper()
	return must[wire.Processes](b)(ask[wire.Processes](b, b.session(s, "list"), &wire.List{Version: wire.Version, SessionRef: wire.SessionRef{Session: s.ID}}))
}

func TestCancelByExecutionID(t *testing.T) {
	b := newBench(t, nil)
	s, other := b.open(wire.Open{Name: "one"}), b.open(wire.Open{Name: "two"})
	cancel := func(s *wire.Session, id string) *wire.Receipt {
		t.Helper()
		return must[wire.Receipt](b)(ask[wire.Receipt](b, b.session(s, "cancel"), &wire.Cancel{Version: wire.Version, SessionRef: wire.SessionRef{Session: s.ID}, ExecutionID: id}))
	}
	wantEnd(t, cancel(s, "early"), wire.StateCancelled, wire.ReasonNeverStarted)
	for _, s := range []*wire.Session{s, other} {
		if code := b.code(b.session(s, "start"), startIn(s, "early", wire.Command{Text: "true"})); code != wire.CodeExecutionCancelled {
			t.Errorf("a late start is answered %s", code)
		}
	}
	must[wire.Receipt](b)(ask[wire.Receipt](b, b.session(s, "start"), startIn(s, "live", wire.Command{Text: "sleep 300"})))
	r := cancel(other, "live") // by its id, from wherever
	if wantEnd(t, r, wire.StateCancelled, wire.ReasonCancel); !r.CancelRequested {
		t.Errorf("%+v", r)
	}
	wantEnd(t, cancel(s, "live"), wire.StateCancelled, wire.ReasonCancel)
	done := b.run(s, "true").Receipt
	wantEnd(t, cancel(s, done.ExecutionID), wire.StateCompleted, wire.ReasonExit)
}

func TestLimitsAndEviction(t *testing.T) {
	b := newBench(t, func(c *Config) { c.MaxLive, c.MaxRetained = 3, 3 })
	if code := b.code(b.root().WorkerOpen(tenant, "w1", b.e), &wire.Open{Version: wire.Version, Name: "big", Limits: &wire.SessionLimits{LiveProcesses: 4}}); code != wire.CodeInvalidArguments {
		t.Errorf("more than the worker gives is answered %s", code)
	}
	s := b.open(wire.Open{Name: "one", Limits: &wire.SessionLimits{LiveProcesses: 2, RetainedProcesses: 2}})
	first := b.run(s, "echo first").Receipt
	second := b.run(s, "echo second").Receipt
	live := b.start(s, wire.Command{Text: "sleep 300"})
	b.start(s, wire.Command{Text: "sleep 300"})
	err := func() error {
		_, err := ask[wire.Receipt](b, b.session(s, "start"), startIn(s, "", wire.Command{Text: "true"}))
		return err
	}()
	if e := public(err); e.Code != wire.CodeProcessQuotaExceeded || e.Details["limit"] == nil {
		t.Errorf("a third is answered %v", err)
	}
	if got := b.output(first.Process); got != "first\n" { // a refused start evicts nothing
		t.Errorf("output %q", got)
	}
	must[wire.Receipt](b)(ask[wire.Receipt](b, b.process(live.Process, "terminate"), &wire.Terminate{Version: wire.Version, ProcessRef: ref(live.Process)}))
	for range 100 {
		if b.list(s).Sessions[0].Retained == 2 && b.code(b.process(first.Process, "read"), &wire.Read{Version: wire.Version, ProcessRef: ref(first.Process)}) == wire.CodeExpired {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if code := b.code(b.process(first.Process, "read"), &wire.Read{Version: wire.Version, ProcessRef: ref(first.Process)}); code != wire.CodeExpired {
		t.Errorf("the evicted is answered %q", code)
	}
	for _, verb := range []string{"status", "wait", "terminate"} {
		m := map[string]any{
			"status": &wire.Status{Version: wire.Version, ProcessRef: ref(first.Process)}, "wait": &wire.Wait{Version: wire.Version, ProcessRef: ref(first.Process)},
			"terminate": &wire.Terminate{Version: wire.Version, ProcessRef: ref(first.Process)},
		}[verb]
		r := must[wire.Receipt](b)(ask[wire.Receipt](b, b.process(first.Process, verb), m))
		wantEnd(t, r, wire.StateCompleted, wire.ReasonExit)
	}
	if got := b.output(second.Process); got != "second\n" {
		t.Errorf("output of the second %q", got)
	}
	if code := b.code(b.process("nobody", "read"), &wire.Read{Version: wire.Version, ProcessRef: ref("nobody")}); code != wire.CodeNotFound {
		t.Errorf("nobody's output is answered %s", code)
	}
}

func TestListAndClose(t *testing.T) {
	b := newBench(t, nil)
	s := b.open(wire.Open{Name: "one", Labels: map[string]string{"a": "b"}})
	var want []string
	for i := range 3 {
		want = append(want, b.start(s, wire.Command{Text: "sleep 300", Description: fmt.Sprint(i)}).Process)
	}
	want = append(want, b.run(s, "true").Receipt.Process)
	l := b.list(s)
	for i, r := range l.Processes {
		if r.Process != want[i] {
			t.Errorf("%d is %s, want %s", i, r.Process, want[i])
		}
	}
	if len(l.Processes) != 4 || l.Sessions[0].Live != 3 || l.Sessions[0].Retained != 1 || l.Sessions[0].Labels["a"] != "b" {
		t.Errorf("%+v", l.Sessions)
	}
	// Two closes and starts race: every one is answered, and nothing lives after it.
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { b.close(s) })
		wg.Go(func() {
			switch code := b.code(b.session(s, "start"), startIn(s, "", wire.Command{Text: "sleep 300"})); code {
			case "", wire.CodeSessionClosed, wire.CodeNotFound:
			default:
				t.Errorf("a start in a close is answered %s", code)
			}
		})
	}
	wg.Wait()
	for id, rec := range b.executions() {
		if !rec.State.Terminal() {
			t.Errorf("%s is %s after the close", id, rec.State)
		}
	}
	if code := b.code(b.session(s, "start"), startIn(s, "", wire.Command{Text: "true"})); code != wire.CodeNotFound {
		t.Errorf("a start after the close is answered %s", code)
	}
}

// Opens and closes of one name race: every open gives a session that takes a start, or
// says that it has ended meanwhile; never one that is closed in the records and lives.
func TestOpensRaceCloses(t *testing.T) {
	b := newBench(t, nil)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 15 {
				s, err := ask[wire.Session](b, b.root().WorkerOpen(tenant, "w1", b.e), &wire.Open{Version: wire.Version, Name: "one"})
				if err != nil {
					t.Errorf("open: %v", err)
					return
				}
				if code := b.code(b.session(s, "run"), runIn(s, "true")); code != "" && code != wire.CodeSessionClosed && code != wire.CodeNotFound {
					t.Errorf("run: %s", code)
				}
				if code := b.code(b.session(s, "close"), &wire.CloseSession{Version: wire.Version, SessionRef: wire.SessionRef{Session: s.ID}}); code != "" && code != wire.CodeNotFound {
					t.Errorf("close: %s", code)
				}
			}
		})
	}
	wg.Wait()
	for range 100 {
		if len(b.worker.deps.dir.all()) == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if left := b.worker.deps.dir.all(); len(left) != 0 {
		t.Errorf("%d sessions live after their closes", len(left))
	}
	if rec, _, err := b.records().Session(t.Context(), tenant, "one"); err != nil || !rec.Closed {
		t.Errorf("%+v, %v", rec, err)
	}
}

func runIn(s *wire.Session, text string) *wire.Run {
	return &wire.Run{Version: wire.Version, SessionRef: wire.SessionRef{Session: s.ID}, Command: wire.Command{Text: text}}
}

// Anybody with a NATS client can talk to a worker: the bytes are JSON, both ways.
func TestJSON(t *testing.T) {
	b := newBench(t, nil)
	s := b.open(wire.Open{Name: "one"})
	ask := func(subject, body string) map[string]any {
		t.Helper()
		m, err := b.caller.Request(t.Context(), subject, bus.Header{subjects.HeaderContentType: {subjects.TypeJSON}}, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Header.Get(subjects.HeaderContentType); got != subjects.TypeJSON {
			t.Errorf("content type %q", got)
		}
		var reply map[string]any
		if err := json.Unmarshal(m.Data, &reply); err != nil {
			t.Fatalf("%v in %s", err, m.Data)
		}
		return reply
	}
	reply := ask(b.session(s, "run"), `{"version":1,"session":"`+s.ID+`","command":{"text":"printf héllo; exit 3"}}`)
	result, _ := reply["result"].(map[string]any)
	receipt, _ := result["receipt"].(map[string]any)
	stdout, _ := result["stdout"].(map[string]any)
	if receipt["exit_code"] != 3.0 || receipt["state"] != "failed" || stdout["text"] != "héllo" {
		t.Errorf("%v", reply)
	}
	for body, field := range map[string]string{
		`{"version":1,"session":"` + s.ID + `","comand":{}}`:                            "comand",
		`{"version":1,"session":"` + s.ID + `","command":{"text":""}}`:                  "command",
		`{"version":7,"session":"` + s.ID + `","command":{"text":"true"}}`:              "version",
		`{"version":1,"session":"` + s.ID + `","command":{"text":"x","stdin":"bogus"}}`: "command.stdin",
	} {
		reply := ask(b.session(s, "start"), body)
		e, _ := reply["error"].(map[string]any)
		if got, _ := e["field"].(string); !strings.HasPrefix(got, field) {
			t.Errorf("%s is answered %v", body, reply)
		}
	}
	if l := b.list(s); len(l.Processes) != 1 {
		t.Errorf("%d processes", len(l.Processes))
	}
}

func TestPrepareAndReceiptAgree(t *testing.T) {
	b := newBench(t, nil)
	s := b.open(wire.Open{Name: "one", Env: []wire.EnvVar{{Name: "A", Value: "1"}}})
	for _, c := range []wire.Command{
		{Text: "true"},
		{Argv: []string{"true"}},
		{Text: "true", Cwd: "/", TimeoutMS: 5000, Shell: "sh"},
		{Text: "true", TTY: &wire.WindowSize{}},
		{Text: "true", Env: []wire.EnvVar{{Name: "B", Value: "2"}}, Streams: wire.StreamsMerged},
	} {
		p := must[wire.Prepared](b)(ask[wire.Prepared](b, b.session(s, "prepare"), &wire.Prepare{Version: wire.Version, SessionRef: wire.SessionRef{Session: s.ID}, Command: c}))
		r := b.start(s, c)
		if p.CallDigest == "" || p.CallDigest != r.CallDigest || p.RequestHash != r.RequestHash || p.Cwd != r.Cwd {
			t.Errorf("prepared %+v, started %+v", p, r)
		}
	}
	if code := b.code(b.session(s, "prepare"), &wire.Prepare{Version: wire.Version, SessionRef: wire.SessionRef{Session: s.ID}, Command: wire.Command{Text: "true", Cwd: "/nowhere"}}); code != wire.CodeWorkdirNotFound {
		t.Errorf("a directory that is not there is answered %s", code)
	}
	if n := len(b.list(s).Processes); n != 5 {
		t.Errorf("%d processes", n)
	}
}

// The caller's trace is in every event, also in those of the next incarnation.
func TestTraceInEvents(t *testing.T) {
	b := newBench(t, nil)
	s := b.open(wire.Open{Name: "one"})
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	start := func(trace string) *wire.Receipt {
		data, err := wire.Marshal(subjects.TypeMsgpack, startIn(s, "", wire.Command{Text: "read x", Stdin: wire.StdinPipe}))
		if err != nil {
			t.Fatal(err)
		}
		m, err := b.caller.Request(t.Context(), b.session(s, "start"), bus.Header{subjects.HeaderTrace: {trace}}, data)
		if err != nil {
			t.Fatal(err)
		}
		return must[wire.Receipt](b)(wire.DecodeReply[wire.Receipt](subjects.TypeMsgpack, m.Data))
	}
	traced, forged := start(trace), start(strings.Repeat("x", 55))
	if got, _ := b.events(traced.Process, 1); len(got) != 1 {
		t.Fatalf("events %v", got)
	}
	b.stop(ErrLeave)
	b.boot()
	for r, want := range map[*wire.Receipt]string{traced: trace, forged: ""} {
		must[wire.Receipt](b)(ask[wire.Receipt](b, b.process(r.Process, "close_stdin"), &wire.CloseStdin{Version: wire.Version, ProcessRef: ref(r.Process)}))
		b.wait(r.Process)
		b.once(r, wire.PhaseStarted, wire.PhaseFinished)
		_, events := b.events(r.Process, 2)
		for _, e := range events {
			if e.Trace != want {
				t.Errorf("%s has trace %q, want %q", e.Phase, e.Trace, want)
			}
		}
		if events[0].Incarnation >= events[1].Incarnation || events[0].Sequence >= events[1].Sequence {
			t.Errorf("numbers %d and %d, incarnations %d and %d", events[0].Sequence, events[1].Sequence, events[0].Incarnation, events[1].Incarnation)
		}
	}
}

// A spawn that fails costs nothing that is not given back: more of them than writes may
// be in flight, and the next start is like the first.
func TestManyFailedSpawns(t *testing.T) {
	b := newBench(t, nil)
	s := b.open(wire.Open{Name: "one"})
	for i := range 300 {
		_, err := ask[wire.Receipt](b, b.session(s, "start"), startIn(s, "", wire.Command{Argv: []string{"/does/not/exist"}, TimeoutMS: -1}))
		if !errors.Is(err, &wire.Error{Code: wire.CodeSpawnFailed}) {
			t.Fatalf("start %d: %v", i, err)
		}
	}
	if res := b.run(s, "echo on"); res.Stdout.Text != "on\n" {
		t.Errorf("%+v", res)
	}
}

// A worker that is told to leave at any moment of its boot ends, and leaves everything
// to the next.
func TestABootThatIsCutOff(t *testing.T) {
	b := newBench(t, nil)
	s := b.open(wire.Open{Name: "one"})
	r := b.start(s, wire.Command{Text: "echo on; sleep 300"})
	b.stop(ErrLeave)
	up := 0
	for d := time.Duration(0); up < 5 && d < 200*time.Millisecond; d += 2 * time.Millisecond {
		w, err := New(Config{
			Name: "w1", Dir: b.dir, Control: b.connect(subjects.RoleWorker, "w1"), Events: b.connect(subjects.RoleWorker, "w1"),
			Cwd: b.cwd, Logger: slog.New(slog.DiscardHandler), OnUp: func() { up++ },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), d, ErrLeave)
		ran := make(chan struct{})
		go func() { _ = w.Run(ctx); close(ran) }()
		select {
		case <-ran:
		case <-time.After(20 * time.Second):
			t.Fatalf("cut off after %v, it hangs", d)
		}
		cancel()
	}
	if up == 0 {
		t.Error("none came up")
	}
	b.boot()
	if st := must[wire.Receipt](b)(ask[wire.Receipt](b, b.process(r.Process, "status"), &wire.Status{Version: wire.Version, ProcessRef: ref(r.Process)})); st.State != wire.StateRunning {
		t.Errorf("%+v", st)
	}
}
