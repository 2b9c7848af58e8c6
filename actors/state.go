package actors

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/actors/runtime"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// maxState bounds what a session carries from one command to the next, in bytes of names,
// values and the directory.
const maxState = 64 << 10

// Outcomes of a capture, as a receipt has them.
const (
	stateSaved     = "saved"
	stateUnchanged = "unchanged"
	stateMissed    = "missed"
)

// changes are what a text did to the state of its shell: the directory where it left it,
// unless that is where it began, and exported variables.
type changes struct {
	dir   string
	set   map[string]string
	unset []string
	notes []string // what is not captured, and why
}

// changesOf reads what a wrapper wrote. tty says that the command had a terminal, which
// has variables of its own.
func changesOf(dump []byte, tty bool) (*changes, error) {
	before, after, err := readDump(dump)
	if err != nil {
		return nil, err
	}
	ch := &changes{set: map[string]string{}}
	switch d := after.dir; {
	case d == before.dir:
	case d == "" || len(d) > wire.MaxPath || !utf8.ValidString(d):
		ch.note("the directory is not captured: it is unknown, too long, or not UTF-8")
	default:
		ch.dir = d
	}
	var odd []string
	for _, name := range slices.Sorted(maps.Keys(after.env)) {
		v := after.env[name]
		switch was, there := before.env[name]; {
		case there && was == v, shellsOwn(name, tty):
		case !utf8.ValidString(v) || len(name) > wire.MaxEnvName:
			odd = append(odd, name)
		default:
			ch.set[name] = v
		}
	}
	for name := range before.env {
		if _, there := after.env[name]; !there && !shellsOwn(name, tty) {
			ch.unset = append(ch.unset, name)
		}
	}
	if len(odd) > 0 {
		ch.note("not captured, because it is not UTF-8: " + listed(odd))
	}
	return ch, nil
}

func (ch *changes) note(text string) { ch.notes = append(ch.notes, text) }

func (ch *changes) none() bool { return ch.dir == "" && len(ch.set) == 0 && len(ch.unset) == 0 }

// listed names some variables.
func listed(names []string) string {
	const most = 5
	text := make([]string, 0, most)
	for _, n := range names[:min(most, len(names))] {
		text = append(text, fmt.Sprintf("%.64s", n))
	}
	if rest := len(names) - most; rest > 0 {
		text = append(text, fmt.Sprintf("and %d more", rest))
	}
	return strings.Join(text, ", ")
}

// shellsOwn are the variables that every shell has its own of, and our tag. OLDPWD is none
// of them: `cd -` goes back to where the command before came from.
func shellsOwn(name string, tty bool) bool {
	switch name {
	case "_", "SHLVL", "PWD", "SHELLOPTS", "BASHOPTS", "BASH", "BASHPID", "PPID", "UID", "EUID", runtime.TagVariable:
		return true
	case "TERM", "COLUMNS", "LINES":
		return tty
	}
	return strings.HasPrefix(name, "BASH_")
}

// taken is what a session made of the state of a command.
type taken struct {
	outcome string
	cwd     string // where its next command runs
	notes   []string
	stored  <-chan struct{} // closed when it is in the record; nil when there is nothing to store
}

// take makes the changes of a command that ended at a time those of the session. The last
// command to end wins, variable by variable: what another one changed meanwhile, and this
// one did not, stays. adopted says that an earlier incarnation may have taken them.
// It may be called from any goroutine; when it returns, the next start sees them.
func (s *session) take(ch *changes, at time.Time, adopted bool) taken {
	for {
		rec := s.rec.Load()
		t := taken{outcome: stateUnchanged, cwd: rec.CurrentCwd(), notes: ch.notes}
		switch {
		case rec.Closed:
			t.outcome, t.notes = stateMissed, append(t.notes, "the session has ended")
			return t
		case ch.none():
			if len(ch.notes) > 0 {
				t.outcome = stateMissed
			}
			return t
		case adopted && rec.State != nil && rec.State.At != nil && !at.After(*rec.State.At):
			t.outcome = stateSaved // by the incarnation that saw the command end
			return t
		}
		next := *rec
		var full string
		if next.State, full = s.merge(rec, ch); full != "" {
			t.notes, t.outcome = append(slices.Clip(t.notes), full), stateMissed
		}
		if sameState(rec.State, next.State) {
			return t
		}
		if next.State.At == nil || at.After(*next.State.At) {
			next.State.At = &at
		}
		if s.rec.CompareAndSwap(rec, &next) {
			t.outcome, t.cwd, t.stored = stateSaved, next.CurrentCwd(), s.carry.write(s)
			return t
		}
	}
}

// merge gives the state of a session after changes, and says what did not fit. The
// directory alone always does.
func (s *session) merge(rec *wire.SessionRecord, ch *changes) (st *wire.SessionState, full string) {
	old := cmp.Or(rec.State, &wire.SessionState{})
	st = &wire.SessionState{Cwd: old.Cwd, Env: old.Env, Unset: old.Unset, At: old.At}
	if ch.dir != "" {
		if st.Cwd = ch.dir; ch.dir == rec.Cwd {
			st.Cwd = ""
		}
	}
	env, unset := map[string]string{}, map[string]bool{}
	for _, v := range old.Env {
		env[v.Name] = v.Value
	}
	for _, name := range old.Unset {
		unset[name] = true
	}
	base := s.base(rec)
	for name, v := range ch.set {
		delete(unset, name)
		if env[name] = v; has(base, name, v) {
			delete(env, name)
		}
	}
	for _, name := range ch.unset {
		delete(env, name)
		if _, there := base[name]; there {
			unset[name] = true
		}
	}
	size := len(st.Cwd)
	list := make([]wire.EnvVar, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, wire.EnvVar{Name: name, Value: env[name]})
		size += len(name) + len(env[name])
	}
	names := slices.Sorted(maps.Keys(unset))
	for _, name := range names {
		size += len(name)
	}
	if size > maxState {
		return st, fmt.Sprintf("the exported variables are not captured: the session's state would have %d bytes, and may have %d", size, maxState)
	}
	st.Env, st.Unset = list, names
	return st, ""
}

func has(env map[string]string, name, value string) bool {
	v, there := env[name]
	return there && v == value
}

// base is the environment of the session's commands without any state.
func (s *session) base(rec *wire.SessionRecord) map[string]string {
	env := map[string]string{}
	for _, v := range runtime.Environment(s.deps.environ, runtime.AllowDefault, rec.Env, false) {
		name, value, _ := strings.Cut(v, "=")
		env[name] = value
	}
	return env
}

func sameState(a, b *wire.SessionState) bool {
	a, b = cmp.Or(a, &wire.SessionState{}), cmp.Or(b, &wire.SessionState{})
	return a.Cwd == b.Cwd && slices.Equal(a.Env, b.Env) && slices.Equal(a.Unset, b.Unset)
}

// goHome lets a session whose directory is gone run its next command where it was opened.
func (s *session) goHome(gone string) (home string) {
	for {
		rec := s.rec.Load()
		if rec.State == nil || rec.State.Cwd != gone {
			return rec.CurrentCwd() // another command has moved it
		}
		next, st := *rec, *rec.State
		st.Cwd, next.State = "", &st
		if s.rec.CompareAndSwap(rec, &next) {
			s.carry.write(s)
			return rec.Cwd
		}
	}
}

// strayed is the error of a start whose directory is not there. Where an earlier command
// had left the session in it, the session goes home, and so the next start finds a
// directory.
func (p *process) strayed(dir string, err error) error {
	e := public(err)
	s := p.deps.dir.session(p.tenant, p.session)
	if !p.strays || s == nil || e.Code != wire.CodeWorkdirNotFound {
		return err
	}
	home := s.goHome(dir)
	own := *e
	own.Message += "; an earlier command had left the session there. It is back in " + home + ", where its next command runs"
	own.Details = map[string]any{"cwd": dir, "session_cwd": home}
	return &own
}

// capture takes over the state that a command has left, unless recapture has.
func (p *process) capture(e *keeper.Exited) {
	if !p.plan.Capture || p.receipt.StateCapture != "" {
		return
	}
	if why := notTakenFrom(e); why != "" {
		p.missed(why)
		return
	}
	ch, err := changesOf(e.State, p.receipt.TTY != nil)
	s := p.deps.dir.session(p.tenant, p.session)
	switch {
	case err != nil:
		p.log.Info("the state of a shell is not captured", "bytes", len(e.State), "err", err)
		p.missed("its shell was replaced by exec, ended by `exit` with a trap of its own on EXIT, or has more state than can be read")
		return
	case s == nil:
		p.missed("its session has ended")
		return
	}
	p.took(s.take(ch, e.At.UTC(), false))
}

func (p *process) took(t taken) {
	p.receipt.StateCapture, p.receipt.SessionCwd, p.stored = t.outcome, t.cwd, t.stored
	for _, n := range t.notes {
		p.note("state: " + n)
	}
}

// notTakenFrom says why the state of a command that ended so is not taken: who was ended
// was in the middle of something.
func notTakenFrom(e *keeper.Exited) string {
	switch {
	case e.Signal != "":
		return "it was ended by the signal " + e.Signal
	case e.Cause != wire.ReasonExit && e.Cause != wire.ReasonOOM:
		return "it was ended: " + string(e.Cause)
	}
	return ""
}

// missed says that the session is as it was before the command.
func (p *process) missed(why string) {
	p.receipt.StateCapture = stateMissed
	if s := p.deps.dir.session(p.tenant, p.session); s != nil {
		p.receipt.SessionCwd = s.rec.Load().CurrentCwd()
	}
	p.note("state: not captured: " + why)
}

// recapture takes over what a command left that had ended before it was adopted: the
// worker that saw the end may have died before the session's record had it. It is called
// for one command after another, in the order of their ends, because what is older than
// the session's state counts as taken. What is not taken here is left to capture.
func (p *process) recapture(s *session, e *keeper.Exited) {
	recorded := p.receipt.State.Terminal()
	if !p.plan.Capture || recorded && p.receipt.StateCapture != stateSaved || notTakenFrom(e) != "" {
		return
	}
	ch, err := changesOf(e.State, p.receipt.TTY != nil)
	if err != nil {
		return
	}
	if t := s.take(ch, e.At.UTC(), true); recorded {
		p.stored = t.stored
	} else {
		p.took(t)
	}
}

// awaitStored waits until the session's record has what this command changed: before that
// the keeper is not to forget it. It is false when the actor goes.
func (p *process) awaitStored() bool {
	if p.stored == nil {
		return true
	}
	select {
	case <-p.stored:
		return true
	case <-p.ctx.Done():
		return false
	}
}
