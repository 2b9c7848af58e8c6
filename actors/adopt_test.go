package actors

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/observer"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// victim is a bench whose worker is a process of its own, with one open session.
func victim(t *testing.T) (*bench, *wire.Session) {
	t.Helper()
	b := newBench(t, nil)
	b.stop(nil)
	b.bootVictim()
	return b, b.open(wire.Open{Name: "one"})
}

// flag is a file whose making ends a command of its name.
func flag(t *testing.T) (path, wait string) {
	path = filepath.Join(t.TempDir(), "flag")
	return path, "while [ ! -e " + path + " ]; do sleep 0.02; done; "
}

func raise(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) output(id string) string {
	b.t.Helper()
	var text strings.Builder
	var cursor int64
	for {
		page := must[wire.Page](b)(ask[wire.Page](b, b.process(id, "read"), &wire.Read{Version: wire.Version, ProcessRef: ref(id), Cursor: &cursor, WaitMS: 10_000}))
		for _, c := range page.Chunks {
			text.WriteString(c.Text)
		}
		if page.End {
			return text.String()
		}
		cursor = page.NextCursor
	}
}

func (b *bench) once(r *wire.Receipt, want ...wire.Phase) {
	b.t.Helper()
	time.Sleep(50 * time.Millisecond) // for one too many
	if got, _ := b.events(r.Process, len(want)); !slices.Equal(got, want) {
		b.t.Errorf("%s: events %v, want %v", r.Process, got, want)
	}
}

// A worker is killed (kill -9) over processes in every state of their lives. The next
// one goes on with each, and each is told as started and as finished once.
func TestAdoptionAfterAKill(t *testing.T) {
	b, s := victim(t)
	path, wait := flag(t)
	running := b.start(s, wire.Command{Text: "echo before; read x; echo after $x; exit 3", Stdin: wire.StdinPipe})
	exited := b.start(s, wire.Command{Text: "echo a; " + wait + "echo b; exit 4"})
	asked := b.start(s, wire.Command{Text: "trap '' TERM; echo on; " + wait + "sleep 30", GraceMS: 1500})
	kept := b.start(s, wire.Command{Text: "echo parent; (" + wait + "sleep 300) & :", Leftovers: wire.LeftoversKeep})
	ended := b.run(s, "seq 3").Receipt
	failed := b.run(s, "exit 9").Receipt
	yielding := &wire.Run{Version: wire.Version, SessionRef: wire.SessionRef{Session: s.ID}, YieldMS: 50, Command: wire.Command{Text: wait + "exit 5"}}
	yielded := must[wire.Result](b)(ask[wire.Result](b, b.session(s, "run"), yielding)).Receipt
	if r := b.wait(kept.Process); r.LeftoversLive == 0 {
		t.Fatalf("kept: %+v", r)
	}
	go func() { // ends with its deadline: the worker will not answer
		_, _ = ask[wire.Receipt](b, b.process(asked.Process, "terminate"), &wire.Terminate{Version: wire.Version, ProcessRef: ref(asked.Process)})
	}()
	for must[wire.Receipt](b)(ask[wire.Receipt](b, b.process(asked.Process, "status"), &wire.Status{Version: wire.Version, ProcessRef: ref(asked.Process)})).State != wire.StateCancelRequested {
		time.Sleep(10 * time.Millisecond)
	}
	// The last end is answered right before the kill: its event is not stored yet.
	last := b.run(s, "echo last").Receipt
	b.kill()
	raise(t, path)
	time.Sleep(200 * time.Millisecond) // exits without a worker
	b.boot()

	if again := b.open(wire.Open{Name: "one"}); again.ID != s.ID {
		t.Errorf("another session: %+v", again)
	}
	must[wire.Receipt](b)(ask[wire.Receipt](b, b.process(running.Process, "write"), &wire.Write{Version: wire.Version, ProcessRef: ref(running.Process), Text: "hello\n"}))
	for _, tt := range []struct {
		name   string
		r      *wire.Receipt
		state  wire.State
		reason wire.Reason
		code   int
		output string
	}{
		{"running", running, wire.StateFailed, wire.ReasonExit, 3, "before\nafter hello\n"},
		{"exited", exited, wire.StateFailed, wire.ReasonExit, 4, "a\nb\n"},
		{"asked to end", asked, wire.StateCancelled, wire.ReasonCancel, 137, "on\n"},
		{"ended", &ended, wire.StateCompleted, wire.ReasonExit, 0, "1\n2\n3\n"},
		{"failed", &failed, wire.StateFailed, wire.ReasonExit, 9, ""},
		{"last", &last, wire.StateCompleted, wire.ReasonExit, 0, "last\n"},
		{"kept", kept, wire.StateCompleted, wire.ReasonExit, 0, "parent\n"},
	} {
		r := b.wait(tt.r.Process)
		wantEnd(t, r, tt.state, tt.reason)
		if r.ExitCode == nil || *r.ExitCode != tt.code || r.CancelRequested != (tt.reason == wire.ReasonCancel) {
			t.Errorf("%s: %+v", tt.name, r)
		}
		if got := b.output(tt.r.Process); got != tt.output {
			t.Errorf("%s: output %q, want %q", tt.name, got, tt.output)
		}
		b.once(tt.r, wire.PhaseStarted, wire.PhaseFinished)
	}
	if r := b.wait(yielded.Process); r.ExitCode == nil || *r.ExitCode != 5 {
		t.Errorf("%+v", r)
	}
	again := must[wire.Result](b)(ask[wire.Result](b, b.session(s, "run"), &wire.Run{
		Version: wire.Version, SessionRef: yielding.SessionRef, YieldMS: 50, Command: yielding.Command, ExecutionID: yielded.ExecutionID,
	}))
	if again.Receipt.Process != yielded.Process || again.Yielded {
		t.Errorf("asked again: %+v", again)
	}
	b.once(&yielded, wire.PhaseStarted, wire.PhaseBackgrounded, wire.PhaseFinished)
	r := must[wire.Receipt](b)(ask[wire.Receipt](b, b.process(kept.Process, "terminate"), &wire.Terminate{Version: wire.Version, ProcessRef: ref(kept.Process)}))
	if r.State != wire.StateCompleted || r.LeftoversLive != 0 {
		t.Errorf("kept leftovers after terminate: %+v", r)
	}
	for id, rec := range b.executions() {
		if !rec.State.Terminal() {
			t.Errorf("execution %s is recorded as %s", id, rec.State)
		}
	}
}

func (b *bench) executions() map[string]wire.Receipt {
	b.t.Helper()
	all, err := b.records().Executions(b.t.Context(), tenant)
	if err != nil {
		b.t.Fatal(err)
	}
	m := map[string]wire.Receipt{}
	for _, e := range all {
		m[e.Record.ExecutionID] = e.Record.Receipt
	}
	return m
}

// What is answered as ended right before the worker is killed is told all the same.
func TestNoEndIsLostByAKill(t *testing.T) {
	b, s := victim(t)
	for range 3 {
		var last []wire.Receipt
		for range 5 {
			last = append(last, b.run(s, "true").Receipt)
		}
		b.kill()
		b.bootVictim()
		for i := range last {
			b.once(&last[i], wire.PhaseStarted, wire.PhaseFinished)
		}
	}
}

// A held process whose session was closed behind it is ended, recorded and told.
func TestAdoptionIntoAClosedSession(t *testing.T) {
	b, s := victim(t)
	r := b.start(s, wire.Command{Text: "echo on; sleep 300"})
	b.kill()
	reg := b.records()
	rec, rev, err := reg.Session(t.Context(), tenant, "one")
	if err != nil {
		t.Fatal(err)
	}
	rec.Closed, rec.ClosedAt = true, now()
	if _, err := reg.UpdateSession(t.Context(), tenant, rec, rev); err != nil {
		t.Fatal(err)
	}
	b.boot()
	b.once(r, wire.PhaseStarted, wire.PhaseFinished)
	end := b.executions()[r.ExecutionID]
	wantEnd(t, &end, wire.StateCancelled, wire.ReasonSessionClosed)
	if end.ExitCode == nil || *end.ExitCode != 143 {
		t.Errorf("%+v", end)
	}
	if again := b.open(wire.Open{Name: "one"}); again.ID == s.ID {
		t.Error("a closed session is open again")
	}
}

// A start whose worker died before the fork never was, and says so.
func TestAdoptionOfAStartWithoutAFork(t *testing.T) {
	b, s := victim(t)
	e := b.e
	b.run(s, "true")
	b.kill()
	command := wire.Command{Text: "true"}
	hash := wire.RequestHash(&command)
	mine := wire.Receipt{
		Version: wire.Version, Process: subjects.NewID(), ExecutionID: "half", Session: s.ID, Tenant: tenant, Worker: "w1",
		Incarnation: e, RequestHash: hash, State: wire.StateStarting, CreatedAt: time.Now().UTC(), Streams: wire.StreamsSeparate,
	}
	older := mine
	older.ExecutionID, older.Process, older.Incarnation = "older", subjects.NewID(), e-1
	for _, rc := range []wire.Receipt{mine, older} {
		if _, _, err := b.records().CreateExecution(t.Context(), tenant, &wire.ExecutionRecord{Version: wire.Version, ExecutionID: rc.ExecutionID, RequestHash: hash, Receipt: rc}); err != nil {
			t.Fatal(err)
		}
	}
	b.boot()
	all := b.executions()
	half, unsure := all["half"], all["older"]
	wantEnd(t, &half, wire.StateFailed, wire.ReasonNeverStarted)
	wantEnd(t, &unsure, wire.StateOutcomeUnknown, wire.ReasonWorkerLost) // its keeper may have been another
	_, err := ask[wire.Receipt](b, b.session(s, "start"), &wire.Start{Version: wire.Version, SessionRef: wire.SessionRef{Session: s.ID}, ExecutionID: "half", Command: command})
	if public(err).Code != wire.CodeSpawnFailed {
		t.Errorf("a retry is answered %v", err)
	}
	b.once(&half)
	b.once(&unsure, wire.PhaseFinished)
}

// An outcome that was recorded as unknown becomes the real one when the keeper still
// holds the process, which is ended first; it is told as resolved.
func TestAnUnknownOutcomeIsResolved(t *testing.T) {
	b, s := victim(t)
	path, wait := flag(t)
	live := b.start(s, wire.Command{Text: "echo on; sleep 300"})
	over := b.start(s, wire.Command{Text: wait + "exit 6"})
	b.once(live, wire.PhaseStarted)
	b.once(over, wire.PhaseStarted)
	b.kill()
	raise(t, path)
	reg, events := b.records(), b.connect(subjects.RoleWorker, "w1")
	pub, err := observer.New(events, "w1", b.e, observer.Config{Logger: b.log})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*wire.Receipt{live, over} {
		rec, rev, err := reg.Execution(t.Context(), tenant, r.ExecutionID)
		if err != nil {
			t.Fatal(err)
		}
		unknownEnd(&rec.Receipt)
		rec.Receipt.EndedAt = now()
		if _, err := reg.UpdateExecution(t.Context(), tenant, rec, rev); err != nil {
			t.Fatal(err)
		}
		pub.Process(observer.Meta{Tenant: tenant, Session: s.ID, Process: r.Process}).Finished(status(&rec.Receipt))
	}
	if err := pub.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second) // over sees its flag, which nobody is there to tell us of
	b.boot()
	wantEnd(t, b.wait(live.Process), wire.StateFailed, wire.ReasonWorkerLost)
	end := b.wait(over.Process)
	wantEnd(t, end, wire.StateFailed, wire.ReasonExit)
	if end.ExitCode == nil || *end.ExitCode != 6 {
		t.Errorf("%+v", end)
	}
	for _, r := range []*wire.Receipt{live, over} {
		b.once(r, wire.PhaseStarted, wire.PhaseFinished, wire.PhaseResolved)
	}
}

// Evicted outputs do not come back empty, retained ones do, and nothing else is on disk.
func TestAdoptionKeepsToTheLimit(t *testing.T) {
	b := newBench(t, nil)
	s := b.open(wire.Open{Name: "one", Limits: &wire.SessionLimits{RetainedProcesses: 2}})
	var ids []string
	for range 4 {
		ids = append(ids, b.run(s, "echo output").Receipt.Process)
	}
	spool := func() (dirs []string) {
		all, _ := filepath.Glob(filepath.Join(b.dir, "spool", s.ID, "*"))
		for _, d := range all {
			dirs = append(dirs, filepath.Base(d))
		}
		return dirs
	}
	check := func(when string) {
		t.Helper()
		for i, id := range ids {
			page, err := ask[wire.Page](b, b.process(id, "read"), &wire.Read{Version: wire.Version, ProcessRef: ref(id)})
			switch {
			case i < 2 && public(err).Code != wire.CodeExpired:
				t.Errorf("%s: evicted %d: %+v, %v", when, i, page, err)
			case i >= 2 && (err != nil || len(page.Chunks) != 1 || !page.End):
				t.Errorf("%s: retained %d: %+v, %v", when, i, page, err)
			}
		}
		for range 100 {
			if len(spool()) == 2 {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if got := spool(); len(got) != 2 {
			t.Errorf("%s: on disk %v", when, got)
		}
	}
	check("before")
	b.stop(ErrLeave)
	stray := filepath.Join(b.dir, "spool", "gone", "nobodys")
	if err := os.MkdirAll(stray, 0o700); err != nil {
		t.Fatal(err)
	}
	b.boot()
	check("after")
	if _, err := os.Stat(filepath.Dir(stray)); !os.IsNotExist(err) {
		t.Errorf("nobody's output is still there: %v", err)
	}
	b.stop(ErrLeave)
	if err := os.RemoveAll(filepath.Join(b.dir, "spool", s.ID, ids[3])); err != nil {
		t.Fatal(err)
	}
	b.boot()
	if page, err := ask[wire.Page](b, b.process(ids[3], "read"), &wire.Read{Version: wire.Version, ProcessRef: ref(ids[3])}); public(err).Code != wire.CodeExpired {
		t.Errorf("an output that is gone is read as %+v, %v", page, err)
	}
	must[wire.Session](b)(ask[wire.Session](b, b.session(s, "close"), &wire.CloseSession{Version: wire.Version, SessionRef: wire.SessionRef{Session: s.ID}}))
	if left, _ := os.ReadDir(filepath.Join(b.dir, "spool")); len(left) != 0 {
		t.Errorf("after the close: %v", left)
	}
}
