package actors

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/actors/runtime"
	"github.com/limpet-sh/limpet/safety"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// resolved is a command after all defaults: what runs, and what identifies it.
type resolved struct {
	spawn     keeper.Spawn
	shell     string
	login     bool
	streams   wire.StreamsMode
	timeoutMS int64
	grace     time.Duration
	verdict   wire.Verdict
	digest    string
	capture   bool   // its shell is asked for its state
	keeps     bool   // it is sure to leave the state as it is, which need not be captured
	missed    string // why the state of its shell, asked for by the session, is not captured
	strays    bool   // it runs where an earlier command left the session
}

func (s *session) timeout(c *wire.Command) int64 {
	return cmp.Or(c.TimeoutMS, s.rec.Load().DefaultTimeoutMS)
}

func (s *session) resolve(c *wire.Command) (*resolved, error) {
	rec := s.rec.Load()
	full := s.defaults(rec, c)
	verdict, err := safety.Check(&full)
	if err != nil {
		return nil, err
	}
	if verdict.Decision != wire.Allow {
		return nil, &wire.Error{Code: wire.CodeDenied, Message: "the policy does not allow this command", Details: map[string]any{"reasons": verdict.Reasons}}
	}
	res := &resolved{
		verdict: verdict, timeoutMS: full.TimeoutMS, streams: full.Streams, login: full.Login,
		grace:  cmp.Or(time.Duration(c.GraceMS)*time.Millisecond, defaultGrace),
		strays: c.Cwd == "" && full.Cwd != rec.Cwd,
	}
	env := s.environment(rec, c, &full)
	argv := c.Argv
	if c.Text != "" {
		if argv, err = s.shell(res, c, &full, env); err != nil {
			return nil, err
		}
	}
	res.digest = wire.CallDigest(&full, rec.Worker, nil)
	res.spawn = keeper.Spawn{
		Argv: argv, Env: env, Dir: full.Cwd,
		Stdin: c.Stdin == wire.StdinPipe, TTY: full.TTY, Merged: res.streams == wire.StreamsMerged,
		Umask: 0o022, Grace: res.grace, Timeout: max(0, time.Duration(res.timeoutMS)*time.Millisecond),
		Limits: c.Limits, Descriptors: c.Descriptors, CaptureState: res.capture,
	}
	if c.Umask != nil {
		res.spawn.Umask = *c.Umask
	}
	return res, nil
}

// defaults gives a command with what the session says, where it says nothing itself.
func (s *session) defaults(rec *wire.SessionRecord, c *wire.Command) wire.Command {
	full := *c
	full.Cwd, full.TimeoutMS, full.Streams = cmp.Or(c.Cwd, rec.CurrentCwd()), s.timeout(c), cmp.Or(c.Streams, wire.StreamsSeparate)
	if c.Text != "" {
		full.Shell = cmp.Or(c.Shell, rec.Shell)
		full.Login, full.CaptureState = c.Login || rec.Login, c.CaptureState || rec.CaptureState
	}
	if c.TTY != nil {
		full.TTY = &wire.WindowSize{Rows: cmp.Or(c.TTY.Rows, 24), Cols: cmp.Or(c.TTY.Cols, 80)}
		full.Streams = wire.StreamsMerged
	}
	return full
}

// environment gives what a command is started with, and sets in full what of it the
// session and the command ask for. Over the allowed variables of the worker's come the
// session's, then its state, then the command's own.
func (s *session) environment(rec *wire.SessionRecord, c, full *wire.Command) []string {
	full.Env = slices.Concat(rec.Env, c.Env)
	env := runtime.Environment(s.deps.environ, runtime.AllowDefault, full.Env, full.TTY != nil)
	st := rec.State
	if st == nil {
		return env
	}
	own := map[string]bool{}
	for _, v := range c.Env {
		own[v.Name] = true
	}
	state := map[string]string{}
	unset := map[string]bool{}
	for _, v := range st.Env {
		if !own[v.Name] {
			state[v.Name] = v.Value
		}
	}
	for _, name := range st.Unset {
		unset[name] = !own[name]
	}
	if st.Cwd != "" && full.Cwd == st.Cwd && !own["PWD"] {
		state["PWD"] = st.Cwd // the shell keeps the name by which it got there, if it leads there
	}
	env = slices.DeleteFunc(env, func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		_, other := state[name]
		return other || unset[name]
	})
	before := slices.DeleteFunc(slices.Clone(rec.Env), func(v wire.EnvVar) bool { return unset[v.Name] })
	full.Env = slices.Concat(before, st.Env, c.Env)
	for _, name := range slices.Sorted(maps.Keys(state)) {
		env = append(env, name+"="+state[name])
	}
	return env
}

// shell gives the argument vector that runs a text, and sets in full the shell that does
// and whether its state is captured. A session that captures lets a shell that cannot say
// its state run all the same; a command that asks for it is refused.
func (s *session) shell(res *resolved, c, full *wire.Command, env []string) ([]string, error) {
	how := runtime.ShellText{Shell: full.Shell, Login: full.Login, Text: c.Text}
	path, program, err := s.deps.shells.Find(full.Shell)
	if err != nil {
		return nil, err
	}
	if full.CaptureState {
		wrap := wrapper(path, program, c.Text, len(strings.Join(env, "\n")))
		switch res.missed = unwrappable(env); {
		case wrap == "" && c.CaptureState:
			return nil, errNoWrapper("command.capture_state", program)
		case wrap == "":
			res.missed = errNoWrapper("capture_state", program).Message
		}
		res.capture = res.missed == ""
		if full.CaptureState = res.capture; res.capture && !full.Login && unprepared(env) && safety.KeepsState(c.Text, program) {
			res.capture, res.keeps = false, true // it runs as it is: there is nothing to hear
		}
		if res.capture {
			how.Text, how.Args = wrap, []string{path, c.Text}
		}
	}
	res.shell, full.Shell = path, path
	return s.deps.shells.Argv(how)
}

// unprepared reports whether nothing in an environment changes what a shell's words mean.
func unprepared(env []string) bool {
	return !slices.ContainsFunc(env, func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return strings.HasPrefix(name, "BASH_") || name == "ENV" || name == "SHELLOPTS" || name == "BASHOPTS" || name == "POSIXLY_CORRECT"
	})
}
