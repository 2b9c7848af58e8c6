package actors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// Session reads the record that these tests have not written: there is none.
func (s *fakeStore) Session(context.Context, string, string) (*wire.SessionRecord, uint64, error) {
	return nil, 0, registry.ErrNotFound
}

// oneRecord is a store of one session's record, by compare-and-set.
type oneRecord struct {
	mu    sync.Mutex
	rec   *wire.SessionRecord // guarded by mu, as all below
	rev   uint64
	tries int
	fail  error         // every call fails
	lose  int           // writes whose answer is lost
	gate  chan struct{} // writes wait for it
}

func (r *oneRecord) set(f func(*oneRecord)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r)
}

func (r *oneRecord) UpdateSession(ctx context.Context, _ string, rec *wire.SessionRecord, rev uint64) (uint64, error) {
	r.mu.Lock()
	gate := r.gate
	r.tries++
	r.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.fail != nil:
		return 0, r.fail
	case rev != r.rev:
		return 0, registry.ErrConflict
	}
	own := *rec
	r.rec, r.rev = &own, r.rev+1
	if r.lose > 0 {
		r.lose--
		return 0, bus.ErrUnknownOutcome
	}
	return r.rev, nil
}

func (r *oneRecord) Session(context.Context, string, string) (*wire.SessionRecord, uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return nil, 0, r.fail
	}
	own := *r.rec
	return &own, r.rev, nil
}

func (r *oneRecord) now() (rec wire.SessionRecord, tries int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return *r.rec, r.tries
}

// carries is inBubble with a session that captures, and the store of its record.
func carries(t *testing.T, f func(w *world, r *oneRecord)) {
	t.Helper()
	inBubble(t, func(w *world) {
		rec := *w.session.rec.Load()
		r := &oneRecord{rec: &rec, rev: 1}
		w.worker.deps.sessions = r
		f(w, r)
		r.set(func(r *oneRecord) { r.fail, r.gate = nil, nil })
	})
}

// ends lets a command that captures end in a directory, with a variable.
func (w *world) ends(dir, name, value string) *fakeChild {
	w.t.Helper()
	c := w.captured()
	w.says(c, dir, name, value)
	return c
}

func (w *world) captured() *fakeChild {
	w.t.Helper()
	_, c := w.started(wire.Command{Text: "cd x", Shell: "bash", CaptureState: true})
	if !c.spec.CaptureState || !slices.Contains(c.spec.Argv, bashWrap) {
		w.t.Fatalf("it is started as %+v", c.spec)
	}
	return c
}

func (w *world) says(c *fakeChild, dir, name, value string) {
	w.t.Helper()
	dump := fmt.Sprintf("%s\n\x00declare -x PATH=\"/bin\"\n\x00%s\n\x00declare -x PATH=\"/bin\"\ndeclare -x %s=\"%s\"\n\x00ok", c.spec.Dir, dir, name, value)
	c.exits(keeper.Exited{Gone: true, State: []byte(dump)})
	c.close()
	synctest.Wait()
}

func (w *world) receipt(c *fakeChild) *wire.Receipt {
	w.t.Helper()
	return take[wire.Receipt](w.sendTo(c.id, "status", &wire.Status{Version: wire.Version, ProcessRef: ref(c.id)}))
}

// While the store is away the session goes on from what it knows; the keeper keeps the
// command, which is the evidence, until the record has it.
func TestStateWhileTheStoreIsAway(t *testing.T) {
	carries(t, func(w *world, r *oneRecord) {
		a, b := w.captured(), w.captured()
		w.store.set(func(s *fakeStore) { s.down = bus.ErrDisconnected })
		r.set(func(r *oneRecord) { r.fail = bus.ErrDisconnected })
		w.says(a, "/usr", "A", "1")
		time.Sleep(2 * sealPatience)
		rc := w.receipt(a)
		if rc.StateCapture != stateSaved || rc.SessionCwd != "/usr" || !slices.ContainsFunc(rc.Notes, func(n string) bool { return strings.HasPrefix(n, "state: the session has it") }) {
			t.Errorf("%q in %q, %q", rc.StateCapture, rc.SessionCwd, rc.Notes)
		}
		w.store.set(func(s *fakeStore) { s.down = nil }) // the store of sessions is still away
		time.Sleep(2 * time.Second)
		next := w.captured()
		if next.spec.Dir != "/usr" || !slices.Contains(next.spec.Env, "A=1") || !slices.Contains(next.spec.Env, "PWD=/usr") {
			t.Errorf("the next command starts in %s with %q", next.spec.Dir, next.spec.Env)
		}
		if _, _, released := a.seen(); released != 0 {
			t.Error("the keeper was told to forget what is not stored")
		}
		w.says(b, "/", "B", "1")
		r.set(func(r *oneRecord) { r.fail = nil })
		time.Sleep(2 * time.Second)
		rec, _ := r.now()
		if want := []wire.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "1"}}; rec.State == nil || rec.State.Cwd != "/usr" || !slices.Equal(rec.State.Env, want) {
			t.Errorf("stored is %+v", rec.State)
		}
		for _, c := range []*fakeChild{a, b} {
			if _, _, released := c.seen(); released != 1 {
				t.Errorf("released %d times", released)
			}
		}
	})
}

// A write whose answer was lost is found again, and the session can still be closed.
func TestStateWhoseAnswerIsLost(t *testing.T) {
	carries(t, func(w *world, r *oneRecord) {
		r.set(func(r *oneRecord) { r.lose = 1 })
		w.ends("/usr", "A", "1")
		time.Sleep(time.Second)
		w.ends("/tmp", "A", "2")
		time.Sleep(time.Second)
		if rec, tries := r.now(); rec.State == nil || rec.State.Cwd != "/tmp" || tries != 4 {
			t.Errorf("%+v after %d tries", rec.State, tries)
		}
		r.set(func(r *oneRecord) { r.lose = 1 })
		w.ends("/", "A", "3")
		take[wire.Session](w.send("close", &wire.CloseSession{Version: wire.Version, SessionRef: wire.SessionRef{Session: "s1"}}))
		if rec, _ := r.now(); !rec.Closed || rec.State == nil || rec.State.Env[0].Value != "3" {
			t.Errorf("%+v, %+v", rec, rec.State)
		}
	})
}

// A record that is another's is left alone, and nobody waits for it.
func TestStateOfARecordThatIsAnothers(t *testing.T) {
	carries(t, func(w *world, r *oneRecord) {
		r.set(func(r *oneRecord) { r.rec.Incarnation, r.rev = 2, 9 })
		c := w.ends("/usr", "A", "1")
		time.Sleep(time.Minute)
		rec, tries := r.now()
		if rec.State != nil || tries != 1 {
			t.Errorf("%+v after %d tries", rec.State, tries)
		}
		if _, _, released := c.seen(); released != 1 {
			t.Errorf("released %d times", released)
		}
	})
}

// Changes that come while one is written are written together; a close waits for that.
func TestStateIsWrittenByOne(t *testing.T) {
	carries(t, func(w *world, r *oneRecord) {
		gate := make(chan struct{})
		r.set(func(r *oneRecord) { r.gate = gate })
		for i := range 4 {
			w.ends("/", "A", fmt.Sprint(i))
		}
		if _, tries := r.now(); tries != 1 {
			t.Errorf("%d writes at once", tries)
		}
		r.set(func(r *oneRecord) { r.gate = nil })
		close(gate)
		synctest.Wait()
		if rec, tries := r.now(); tries != 2 || rec.State.Env[0].Value != "3" {
			t.Errorf("%d writes, the last of %+v", tries, rec.State)
		}
		gate = make(chan struct{})
		r.set(func(r *oneRecord) { r.gate = gate })
		w.ends("/", "A", "4")
		closing := w.send("close", &wire.CloseSession{Version: wire.Version, SessionRef: wire.SessionRef{Session: "s1"}})
		synctest.Wait()
		r.set(func(r *oneRecord) { r.gate = nil })
		close(gate)
		take[wire.Session](closing)
		if rec, tries := r.now(); tries != 4 || !rec.Closed || rec.State.Env[0].Value != "4" {
			t.Errorf("%d writes, the last of %+v", tries, rec)
		}
	})
}

// Who hears of the exit finds the session moved already, whatever holds the streams.
func TestStateIsKnownAtTheExit(t *testing.T) {
	carries(t, func(w *world, _ *oneRecord) {
		c := w.captured()
		wait := w.sendTo(c.id, "wait", &wire.Wait{Version: wire.Version, ProcessRef: ref(c.id), For: "exit", WaitMS: 60_000})
		synctest.Wait()
		c.exits(keeper.Exited{State: []byte("/\n\x00declare -x A=\"1\"\n\x00/usr\n\x00declare -x A=\"1\"\n\x00ok")})
		if rc := take[wire.Receipt](wait); rc.State.Terminal() || rc.StateCapture != stateSaved || rc.SessionCwd != "/usr" {
			t.Errorf("%s, %q in %q", rc.State, rc.StateCapture, rc.SessionCwd)
		}
	})
}

// Who was ended, and who said nothing, leaves the session as it was.
func TestStateIsNotTaken(t *testing.T) {
	dump := []byte("/\n\x00declare -x A=\"1\"\n\x00/usr\n\x00declare -x A=\"1\"\n\x00ok")
	for name, tt := range map[string]struct {
		end  keeper.Exited
		note string
		want string
	}{
		"exit":           {keeper.Exited{Code: 3, State: dump}, "", stateSaved},
		"member of oom":  {keeper.Exited{Code: 3, Cause: wire.ReasonOOM, State: dump}, "ended a member", stateSaved},
		"signal":         {keeper.Exited{Code: 143, Signal: "TERM", Cause: wire.ReasonSignal, State: dump}, "by the signal TERM", stateMissed},
		"timeout":        {keeper.Exited{Code: 0, Cause: wire.ReasonTimeout, State: dump}, "timeout", stateMissed},
		"cancel":         {keeper.Exited{Code: 1, Cause: wire.ReasonCancel, State: dump}, "cancel", stateMissed},
		"nothing said":   {keeper.Exited{}, "exec", stateMissed},
		"half said":      {keeper.Exited{State: dump[:len(dump)-1]}, "exec", stateMissed},
		"something else": {keeper.Exited{State: []byte("/\x00\x00/x\x00\x00ok")}, "exec", stateMissed},
	} {
		t.Run(name, func(t *testing.T) {
			carries(t, func(w *world, _ *oneRecord) {
				c := w.captured()
				tt.end.Gone, tt.end.OOM = true, tt.end.Cause == wire.ReasonOOM
				c.exits(tt.end)
				c.close()
				rc := w.waitFor(c.id)
				cwd := map[string]string{stateSaved: "/usr", stateMissed: "/"}[tt.want]
				if rc.StateCapture != tt.want || rc.SessionCwd != cwd || !strings.Contains(strings.Join(rc.Notes, "\n"), tt.note) {
					t.Errorf("%q in %q, %q", rc.StateCapture, rc.SessionCwd, rc.Notes)
				}
			})
		})
	}
	t.Run("the keeper is lost", func(t *testing.T) {
		carries(t, func(w *world, _ *oneRecord) {
			c := w.captured()
			w.worker.lost = make(chan error, 1)
			w.worker.deliver(keeper.Event{Lost: &keeper.Lost{Err: errors.New("gone")}})
			if rc := w.waitFor(c.id); rc.State != wire.StateOutcomeUnknown || rc.StateCapture != stateMissed {
				t.Errorf("%s, %q, %q", rc.State, rc.StateCapture, rc.Notes)
			}
		})
	})
}

func TestTake(t *testing.T) {
	carries(t, func(w *world, _ *oneRecord) {
		s := w.session
		rec := *s.rec.Load()
		rec.Env = []wire.EnvVar{{Name: "GIVEN", Value: "1"}, {Name: "OTHER", Value: "1"}}
		s.rec.Store(&rec)
		at := time.Now().UTC()
		after := func(n int) time.Time { return at.Add(time.Duration(n) * time.Second) }
		for i, tt := range []struct {
			ch      changes
			at      int
			adopted bool
			outcome string
			want    wire.SessionState
		}{
			{changes{}, 0, false, stateUnchanged, wire.SessionState{}},
			{
				changes{set: map[string]string{"B": "1", "A": "1"}, unset: []string{"GIVEN", "NOSUCH"}},
				1, false, stateSaved,
				wire.SessionState{Env: []wire.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "1"}}, Unset: []string{"GIVEN"}},
			},
			{
				changes{dir: "/usr", set: map[string]string{"B": "1"}},
				2, false, stateSaved,
				wire.SessionState{Cwd: "/usr", Env: []wire.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "1"}}, Unset: []string{"GIVEN"}},
			},
			{
				changes{set: map[string]string{"B": "1"}, unset: []string{"GIVEN"}},
				3, false, stateUnchanged,
				wire.SessionState{Cwd: "/usr", Env: []wire.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "1"}}, Unset: []string{"GIVEN"}},
			},
			{changes{set: map[string]string{"A": "2"}}, 2, true, stateSaved, // taken by an earlier incarnation
				wire.SessionState{Cwd: "/usr", Env: []wire.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "1"}}, Unset: []string{"GIVEN"}}},
			{
				changes{set: map[string]string{"A": "2"}},
				4, true, stateSaved,
				wire.SessionState{Cwd: "/usr", Env: []wire.EnvVar{{Name: "A", Value: "2"}, {Name: "B", Value: "1"}}, Unset: []string{"GIVEN"}},
			},
			{changes{set: map[string]string{"GIVEN": "1", "OTHER": "2"}, unset: []string{"A"}}, 5, false, stateSaved, // back as it was opened
				wire.SessionState{Cwd: "/usr", Env: []wire.EnvVar{{Name: "B", Value: "1"}, {Name: "OTHER", Value: "2"}}}},
			{changes{dir: "/tmp", set: map[string]string{"BIG": strings.Repeat("x", maxState)}}, 6, false, stateSaved, // but for the variables
				wire.SessionState{Cwd: "/tmp", Env: []wire.EnvVar{{Name: "B", Value: "1"}, {Name: "OTHER", Value: "2"}}}},
			{
				changes{set: map[string]string{"BIG": strings.Repeat("x", maxState)}},
				7, false, stateMissed,
				wire.SessionState{Cwd: "/tmp", Env: []wire.EnvVar{{Name: "B", Value: "1"}, {Name: "OTHER", Value: "2"}}},
			},
			{changes{dir: "/", set: map[string]string{"OTHER": "1"}, unset: []string{"B"}}, 3, false, stateSaved, wire.SessionState{}},
		} {
			got := s.take(&tt.ch, after(tt.at), tt.adopted)
			if now := s.rec.Load(); got.outcome != tt.outcome || !sameState(now.State, &tt.want) || got.cwd != now.CurrentCwd() || (got.stored != nil) != (got.outcome == stateSaved && !(tt.adopted && tt.at == 2)) {
				t.Errorf("%d: %+v, and the session has %.200v", i, got, now.State)
			}
		}
		if now := s.rec.Load().State.At; !now.Equal(after(6)) {
			t.Errorf("it is of %s after the first", now.Sub(at))
		}
		closed := *s.rec.Load()
		closed.Closed = true
		s.rec.Store(&closed)
		if got := s.take(&changes{dir: "/usr"}, after(9), false); got.outcome != stateMissed || len(got.notes) != 1 {
			t.Errorf("a closed session has taken it: %+v", got)
		}
		closed.Closed = false
		s.rec.Store(&closed)
	})
}
