package actors

import (
	"slices"
	"strings"
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// Over the worker's variables come the session's, then its state, then the command's own.
func TestTheEnvironmentOfACommandWithState(t *testing.T) {
	carries(t, func(w *world, _ *oneRecord) {
		w.worker.deps.environ = []string{"PATH=/bin", "HOME=/root", "TZ=UTC", "SECRET=1"}
		rec := *w.session.rec.Load()
		rec.Env = []wire.EnvVar{{Name: "GIVEN", Value: "1"}, {Name: "TWICE", Value: "1"}, {Name: "BASH_FUNC_f%%", Value: "() { :; }"}}
		rec.State = &wire.SessionState{Cwd: "/usr", Env: []wire.EnvVar{{Name: "PATH", Value: "/mine"}, {Name: "TWICE", Value: "2"}}, Unset: []string{"HOME", "GIVEN"}}
		w.session.rec.Store(&rec)
		for _, tt := range []struct {
			c          wire.Command
			dir        string
			has, lacks []string
		}{
			{wire.Command{Text: "cd x"}, "/usr", []string{"PATH=/mine", "TWICE=2", "TZ=UTC", "PWD=/usr", "BASH_FUNC_f%%=() { :; }"}, []string{"HOME=", "GIVEN=", "SECRET=", "PATH=/bin", "TWICE=1"}},
			{wire.Command{Argv: []string{"x"}}, "/usr", []string{"PATH=/mine", "PWD=/usr"}, []string{"HOME=", "GIVEN="}},
			{
				wire.Command{Text: "cd x", Cwd: "/", Env: []wire.EnvVar{{Name: "GIVEN", Value: "3"}, {Name: "PATH", Value: "/its"}}},
				"/",
				[]string{"GIVEN=3", "PATH=/its", "TWICE=2"},
				[]string{"PWD=", "PATH=/mine", "HOME="},
			},
			{wire.Command{Text: "cd x", Env: []wire.EnvVar{{Name: "PWD", Value: "/its"}}}, "/usr", []string{"PWD=/its"}, []string{"PWD=/usr"}},
		} {
			res, err := w.session.resolve(&tt.c)
			if err != nil || res.spawn.Dir != tt.dir {
				t.Fatalf("%+v: %v", res, err)
			}
			seen := map[string]bool{}
			for _, v := range res.spawn.Env {
				name, _, _ := strings.Cut(v, "=")
				if seen[name] {
					t.Errorf("%s is there twice: %q", name, res.spawn.Env)
				}
				seen[name] = true
				if slices.ContainsFunc(tt.lacks, func(l string) bool { return strings.HasPrefix(v, l) }) {
					t.Errorf("%s is there", v)
				}
			}
			for _, v := range tt.has {
				if !slices.Contains(res.spawn.Env, v) {
					t.Errorf("%s is not there: %q", v, res.spawn.Env)
				}
			}
		}
		a, _ := w.session.resolve(&wire.Command{Text: "cd x"})
		rec2 := rec
		rec2.State = &wire.SessionState{Cwd: "/usr", Env: []wire.EnvVar{{Name: "PATH", Value: "/other"}}}
		w.session.rec.Store(&rec2)
		if b, _ := w.session.resolve(&wire.Command{Text: "cd x"}); a.digest == b.digest {
			t.Error("another state, and the same digest")
		}
		rec2.State = nil
		w.session.rec.Store(&rec2)
	})
}
