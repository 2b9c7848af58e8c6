package runtime

import (
	"slices"
	"strings"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// DefaultPath is the PATH of a child whose source environment has none.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// AllowDefault lets through what a command needs to know of its user and host, and
// nothing that is about the supervisor: PATH, HOME, USER, LOGNAME, SHELL, LANG, LC_*,
// TZ and TMPDIR.
func AllowDefault(name string) bool {
	switch name {
	case "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR":
		return true
	}
	return strings.HasPrefix(name, "LC_")
}

// Environment builds a child's environment: the variables of source (os.Environ) that
// allow lets through, defaults for what is not there, and over both the request's own
// variables in their order, the last of a name winning. A nil allow is [AllowDefault].
//
// The defaults: PATH as [DefaultPath]; LANG=C.UTF-8 unless a locale is set (that of
// source counts only if it is not C or POSIX, which service managers set and which
// miscount text beyond ASCII; C.UTF-8 sorts the same); TERM=dumb,
// or xterm-256color for a terminal; GIT_EDITOR=true, PAGER=cat and GIT_PAGER=cat,
// because nobody may be there to leave an editor or a pager. COLUMNS and LINES are
// never set: they would go stale with the first resize.
//
// Requested variables must have been validated; a secret reference is not resolved
// here, its value is used.
func Environment(source []string, allow func(name string) bool, request []wire.EnvVar, tty bool) []string {
	if allow == nil {
		allow = AllowDefault
	}
	env := environment{at: make(map[string]int, 16)}
	for _, entry := range source {
		name, value, ok := strings.Cut(entry, "=")
		if ok && name != "" && allow(name) && !(isLocale(name) && plain(value)) {
			env.set(name, value)
		}
	}
	env.drop("COLUMNS")
	env.drop("LINES")
	env.drop("TERM") // of the supervisor's terminal, not the child's
	env.fill("PATH", DefaultPath)
	if !slices.ContainsFunc(request, func(v wire.EnvVar) bool { return isLocale(v.Name) }) && !env.hasLocale() {
		env.set("LANG", "C.UTF-8")
	}
	term := "dumb"
	if tty {
		term = "xterm-256color"
	}
	env.fill("TERM", term)
	env.fill("GIT_EDITOR", "true")
	env.fill("PAGER", "cat")
	env.fill("GIT_PAGER", "cat")
	for _, v := range request {
		env.set(v.Name, v.Value)
	}
	return slices.DeleteFunc(env.list, func(s string) bool { return s == "" })
}

func isLocale(name string) bool {
	return name == "LANG" || name == "LC_ALL" || name == "LC_CTYPE"
}

// plain reports whether a locale knows ASCII only.
func plain(locale string) bool { return locale == "" || locale == "C" || locale == "POSIX" }

// environment is a list of NAME=value with the place of each name.
type environment struct {
	list []string
	at   map[string]int
}

func (e *environment) set(name, value string) {
	if i, ok := e.at[name]; ok {
		e.list[i] = name + "=" + value
		return
	}
	e.at[name] = len(e.list)
	e.list = append(e.list, name+"="+value)
}

func (e *environment) fill(name, value string) {
	if _, ok := e.at[name]; !ok {
		e.set(name, value)
	}
}

func (e *environment) drop(name string) {
	if i, ok := e.at[name]; ok {
		e.list[i] = ""
		delete(e.at, name)
	}
}

func (e *environment) hasLocale() bool {
	for name := range e.at {
		if isLocale(name) {
			return true
		}
	}
	return false
}
