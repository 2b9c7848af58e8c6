package subjects

import (
	"slices"
	"strings"
	"testing"
)

func TestTokens(t *testing.T) {
	for _, good := range []string{"a", "Z9_-", strings.Repeat("x", MaxToken), NewID()} {
		if err := CheckToken("name", good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", "a.b", "*", ">", "a b", "ü", "a\x00", "a\n", strings.Repeat("x", MaxToken+1), "a/b", "$JS"} {
		if CheckToken("name", bad) == nil {
			t.Errorf("%q passes", bad)
		}
	}
}

func TestIDsAreTokensAndNeverRepeat(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := NewID()
		if len(id) != 22 || !ValidToken(id) || id[0] == '-' || seen[id] {
			t.Fatalf("id %q", id)
		}
		seen[id] = true
	}
}

func TestRoots(t *testing.T) {
	for _, bad := range []string{"", ".", "a.", ".a", "a..b", "Limpet.v1", "limpet_v1", "a.>", "a.*", strings.Repeat("abcdefg.", 17) + "a"} {
		if r, err := NewRoot(bad); err == nil {
			t.Errorf("%q gives %v", bad, r)
		}
	}
	r, err := NewRoot("team-a.limpet.v1")
	if err != nil {
		t.Fatal(err)
	}
	if got := r.API("acme", "run"); got != "team-a.limpet.v1.t.acme.api.run" {
		t.Error(got)
	}
	if got := r.Stream(StreamEvents); got != "TEAM-A_LIMPET_V1_EVENTS" {
		t.Error(got)
	}
	if Default().Prefix() != DefaultPrefix {
		t.Error(Default())
	}
}

func TestJoinPanicsOnWhatWasNotValidated(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a subject was built from an invalid token")
		}
	}()
	Default().API("a.b", "run")
}

// built lists every subject that can be built, with wildcards for nothing.
func built(r Root) map[string]string {
	return map[string]string{
		"api":       r.API("T", "run"),
		"open":      r.WorkerOpen("T", "W", 7),
		"session":   r.Session("T", "W", 7, "S", "start"),
		"process":   r.Process("T", "W", 7, "P", "read"),
		"control":   r.Control("W", "drain"),
		"output":    r.Output("T", "W", "P"),
		"event":     r.Event("T", "W", "P", "started"),
		"record":    r.Record("W", "T", KindSession, "K"),
		"boot":      r.Boot("W"),
		"lease":     r.Lease("W"),
		"approval":  r.Approval("W", "T", "A"),
		"answer":    r.ApprovalAnswer("W", "T", "A"),
		"audit":     r.Audit("W", "T", "start"),
		"questions": r.QuestionsAdmit("T"),
	}
}

func TestSubjectsAreAsDocumented(t *testing.T) {
	want := map[string]string{
		"api":       "limpet.v1.t.T.api.run",
		"open":      "limpet.v1.t.T.w.W.7.open",
		"session":   "limpet.v1.t.T.w.W.7.s.S.start",
		"process":   "limpet.v1.t.T.w.W.7.p.P.read",
		"control":   "limpet.v1.ctl.W.drain",
		"output":    "limpet.v1.out.0.T.W.P",
		"event":     "limpet.v1.event.0.T.W.P.started",
		"record":    "limpet.v1.reg.0.W.T.session.K",
		"boot":      "limpet.v1.boot.W",
		"lease":     "limpet.v1.lease.W",
		"approval":  "limpet.v1.approval.0.W.T.A",
		"answer":    "limpet.v1.approval.0.W.T.A.answer",
		"audit":     "limpet.v1.audit.0.W.T.start",
		"questions": "limpet.v1.t.T.questions.admit",
	}
	for name, got := range built(Default()) {
		if got != want[name] {
			t.Errorf("%s: %s, want %s", name, got, want[name])
		}
	}
	r := Default()
	for filter, subject := range map[string]string{
		r.APIAll(): want["api"], r.WorkerAll("W", 7): want["process"], r.BootAll(): want["boot"],
		r.LeasesAll(): want["lease"], r.RecordFilter("T", KindSession, "K"): want["record"],
		r.Live("T"): r.Prefix() + ".live.T.W.P.started", r.LiveProcess("T", "P"): r.Prefix() + ".live.T.W.P.started",
		r.LiveAll(): r.Prefix() + ".live.T.W.P.started",
	} {
		if !covers(filter, subject) {
			t.Errorf("%s does not match %s", filter, subject)
		}
	}
}

// A subject in two streams would be stored twice, or by the wrong one.
func TestStreamsAreDisjoint(t *testing.T) {
	r := Default()
	other, err := NewRoot("limpet.v2")
	if err != nil {
		t.Fatal(err)
	}
	type filter struct{ stream, subject string }
	var all []filter
	for _, root := range []Root{r, other} {
		for _, s := range Streams() {
			fs := root.StreamSubjects(s)
			if len(fs) == 0 {
				t.Errorf("%s stores nothing", s)
			}
			for _, f := range fs {
				all = append(all, filter{root.Stream(s), f})
			}
		}
	}
	for i, a := range all {
		for _, b := range all[i+1:] {
			if overlap(a.subject, b.subject) {
				t.Errorf("%s and %s both store %s", a.stream, b.stream, a.subject)
			}
		}
		for _, plain := range []string{"api", "open", "session", "process", "control", "questions"} {
			if s := built(r)[plain]; covers(a.subject, s) {
				t.Errorf("%s stores the request %s", a.stream, s)
			}
		}
		if overlap(a.subject, r.LiveAll()) {
			t.Errorf("%s stores what is republished", a.stream)
		}
	}
	if r.StreamSubjects("NONE") != nil {
		t.Error("an unknown stream stores something")
	}
	stored := []string{"output", "event", "record", "boot", "lease", "approval", "answer", "audit"}
	for _, name := range stored {
		n := 0
		for _, f := range all {
			if covers(f.subject, built(r)[name]) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s is stored by %d streams", name, n)
		}
	}
}

func TestRepublishMapsEventsToLive(t *testing.T) {
	r := Default()
	source, target := r.Republish()
	event := r.Event("T", "W", "P", "finished")
	tail, ok := strings.CutPrefix(event, strings.TrimSuffix(source, ">"))
	if !ok {
		t.Fatalf("%s is not within %s", event, source)
	}
	live := strings.TrimSuffix(target, ">") + tail
	if !covers(r.LiveProcess("T", "P"), live) {
		t.Errorf("%s is not followed by %s", live, r.LiveProcess("T", "P"))
	}
	o, err := r.ParseLive(live)
	if err != nil || o != (Observed{"T", "W", "P", "finished"}) {
		t.Errorf("%+v, %v", o, err)
	}
}

// covers reports whether every subject of b is one of a.
func covers(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i, tok := range as {
		if tok == ">" {
			return len(bs) > i
		}
		if i >= len(bs) || tok != "*" && tok != bs[i] || tok == "*" && bs[i] == ">" {
			return false
		}
	}
	return len(as) == len(bs)
}

// overlap reports whether a subject exists that both match.
func overlap(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := 0; ; i++ {
		switch {
		case i == len(as) || i == len(bs):
			return len(as) == len(bs)
		case as[i] == ">" || bs[i] == ">":
			return true
		case as[i] != "*" && bs[i] != "*" && as[i] != bs[i]:
			return false
		}
	}
}

func TestMatchersOfThisTest(t *testing.T) {
	if !overlap("a.*.c", "a.b.>") || overlap("a.b", "a.b.>") || overlap("a.*", "b.*") || !overlap("a.>", "*.b") {
		t.Error("overlap")
	}
	if !covers("a.*.>", "a.b.c.d") || covers("a.>", "a") || covers("a.*", "a.>") || covers("a.b", "a.*") {
		t.Error("covers")
	}
	if !slices.Contains(Streams(), StreamAudit) {
		t.Error("streams")
	}
}
