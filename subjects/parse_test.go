package subjects

import (
	"testing"
)

var workerSubjects = []struct {
	subject string
	want    Target
	fails   bool
}{
	{subject: "limpet.v1.t.T.w.W.1.open", want: Target{Tenant: "T", Worker: "W", Incarnation: 1, Verb: "open"}},
	{subject: "limpet.v1.t.T.w.W.18446744073709551615.s.S.start", want: Target{Tenant: "T", Worker: "W", Incarnation: 1<<64 - 1, Session: "S", Verb: "start"}},
	{subject: "limpet.v1.t.T.w.W.2.p.P.read", want: Target{Tenant: "T", Worker: "W", Incarnation: 2, Process: "P", Verb: "read"}},
	{subject: "", fails: true},
	{subject: "limpet.v1.t", fails: true},
	{subject: "limpet.v1.t.", fails: true},
	{subject: "limpet.v2.t.T.w.W.1.open", fails: true},
	{subject: "limpet.v1.t.T.api.run", fails: true},
	{subject: "limpet.v1.t.T.w.W.1", fails: true},
	{subject: "limpet.v1.t.T.w.W.1.close", fails: true},
	{subject: "limpet.v1.t.T.w.W.1.s.S", fails: true},
	{subject: "limpet.v1.t.T.w.W.1.x.S.start", fails: true},
	{subject: "limpet.v1.t.T.w.W.1.s.S.start.more", fails: true},
	{subject: "limpet.v1.t.T.w.W.01.open", fails: true},
	{subject: "limpet.v1.t.T.w.W.+1.open", fails: true},
	{subject: "limpet.v1.t.T.w.W.-1.open", fails: true},
	{subject: "limpet.v1.t.T.w.W.18446744073709551616.open", fails: true},
	{subject: "limpet.v1.t.*.w.W.1.open", fails: true},
	{subject: "limpet.v1.t.T.w.W.1.s..start", fails: true},
	{subject: "limpet.v1.t.T.w.W.1.s.a b.start", fails: true},
	{subject: "limpet.v1.t.T.w.W.1.s.ü.start", fails: true},
	{subject: "limpet.v1.t.T.w.W.1.>", fails: true},
}

func TestParseWorker(t *testing.T) {
	for _, c := range workerSubjects {
		got, err := Default().ParseWorker(c.subject)
		if (err != nil) != c.fails || got != c.want {
			t.Errorf("%q: %+v, %v", c.subject, got, err)
		}
	}
}

func FuzzParseWorker(f *testing.F) {
	for _, c := range workerSubjects {
		f.Add(c.subject)
	}
	r := Default()
	f.Fuzz(func(t *testing.T, subject string) {
		g, err := r.ParseWorker(subject)
		if err != nil {
			return
		}
		var again string
		switch {
		case g.Session != "":
			again = r.Session(g.Tenant, g.Worker, g.Incarnation, g.Session, g.Verb)
		case g.Process != "":
			again = r.Process(g.Tenant, g.Worker, g.Incarnation, g.Process, g.Verb)
		default:
			again = r.WorkerOpen(g.Tenant, g.Worker, g.Incarnation)
		}
		if again != subject {
			t.Errorf("%q parses as %+v, which is %q", subject, g, again)
		}
		if !covers(r.WorkerAll(g.Worker, g.Incarnation), subject) {
			t.Errorf("%q would not reach its worker", subject)
		}
	})
}

func FuzzParseAPI(f *testing.F) {
	for _, s := range []string{
		"limpet.v1.t.T.api.run", "limpet.v1.t.T.api.", "limpet.v1.t..api.run", "limpet.v1.t.*.api.run",
		"limpet.v1.t.T.w.W", "limpet.v1.t.T.api.run.x", "limpet.v1.t.T.api.>", "", "limpet.v1.t.T.api.a b",
	} {
		f.Add(s)
	}
	r := Default()
	f.Fuzz(func(t *testing.T, subject string) {
		tenant, verb, err := r.ParseAPI(subject)
		if err == nil && r.API(tenant, verb) != subject {
			t.Errorf("%q parses as %q, %q", subject, tenant, verb)
		}
	})
}

// FuzzBuild goes the other way: valid names give a subject that parses to the same
// names, invalid ones are refused before they get into one.
func FuzzBuild(f *testing.F) {
	f.Add("T", "W", uint64(1), "S", "start")
	f.Add("a.b", "*", uint64(0), ">", "")
	r := Default()
	f.Fuzz(func(t *testing.T, tenant, worker string, e uint64, id, verb string) {
		valid := ValidToken(tenant) && ValidToken(worker) && ValidToken(id) && ValidToken(verb)
		if !valid {
			for _, tok := range []string{tenant, worker, id, verb} {
				if tok == "*" || tok == ">" {
					return // a filter, built on purpose
				}
			}
			defer func() {
				if recover() == nil {
					t.Errorf("built from %q %q %q %q", tenant, worker, id, verb)
				}
			}()
		}
		got, err := r.ParseWorker(r.Session(tenant, worker, e, id, verb))
		if want := (Target{tenant, worker, e, id, "", verb}); err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
		got, err = r.ParseWorker(r.Process(tenant, worker, e, id, verb))
		if want := (Target{tenant, worker, e, "", id, verb}); err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
		gt, gv, err := r.ParseAPI(r.API(tenant, verb))
		if err != nil || gt != tenant || gv != verb {
			t.Errorf("%q %q %v", gt, gv, err)
		}
		rec, err := r.ParseRecord(r.Record(worker, tenant, verb, id))
		if err != nil || rec != (Record{worker, tenant, verb, id}) {
			t.Errorf("%+v, %v", rec, err)
		}
		ev, err := r.ParseEvent(r.Event(tenant, worker, id, verb))
		if err != nil || ev != (Observed{tenant, worker, id, verb}) {
			t.Errorf("%+v, %v", ev, err)
		}
		out, err := r.ParseOutput(r.Output(tenant, worker, id))
		if err != nil || out != (Observed{tenant, worker, id, ""}) {
			t.Errorf("%+v, %v", out, err)
		}
	})
}

func TestParsersRefuseEachOthersSubjects(t *testing.T) {
	r := Default()
	for name, s := range built(r) {
		_, err := r.ParseRecord(s)
		_, err2 := r.ParseEvent(s)
		_, err3 := r.ParseOutput(s)
		_, err4 := r.ParseLive(s)
		if (err == nil) != (name == "record") || (err2 == nil) != (name == "event") || (err3 == nil) != (name == "output") || err4 == nil {
			t.Errorf("%s: %v, %v, %v, %v", s, err, err2, err3, err4)
		}
	}
}

func BenchmarkParseWorker(b *testing.B) {
	r := Default()
	s := r.Process("acme", "w01", 42, NewID(), "read")
	for b.Loop() {
		if _, err := r.ParseWorker(s); err != nil {
			b.Fatal(err)
		}
	}
}
