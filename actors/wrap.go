package actors

import (
	"path/filepath"
	"strings"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// What captures the state of a shell. The text is run by a shell of its own, as always,
// but by a fixed wrapper, whose $1 it is. The wrapper says directory and exported
// variables twice, before the text and after it, to the file at descriptor
// [runtime.StateDescriptor]: what differs is what the text has changed, and not a profile.
//
// Only builtins speak, in a way that neither functions nor aliases of the text reach:
// nothing is forked, nothing is looked up in PATH. The text finds no positional
// parameters, no variable and no function that it would not find under `bash -c`; its
// errors name eval, `set -x` marks its lines with more than one plus, a quote that is not
// closed is always exit code 2, and the shell stays where it would have become the last
// program of the text. By a trap on EXIT, which `trap` lists, we hear of `exit`. A text may
// set its own, and then we hear of its end as long as it runs to it.
//
// A limit on the size of files holds for the file of the state too: XFSZ, which would end
// the shell, is ignored as long as we speak.
//
// The last byte is never NUL: see keeper.Exited.

// bashLast says the state in bash, once, to whatever stdout and stderr are. Traps of the
// text are put away first, so that they do not run for us. A mark in a variable that bash
// has anyway keeps our own trap from saying it again.
const bashLast = `! { [[ ${BASH_EXECUTION_STRING-} = - ]] || { \unset -f builtin;\builtin trap - DEBUG ERR RETURN;\builtin trap "" XFSZ;` +
	`{ \builtin pwd;\builtin printf \\0;\builtin export -p && \builtin printf \\0ok; } >&65;\builtin trap - XFSZ;BASH_EXECUTION_STRING=-; }; }`

// A wrapper is one line, and so parsed before the text can change how. The inner eval has
// the text as a quoted word, so that its first line is its own also in an error. What
// brings the status of the text through our last words is a function, because `exit` in a
// login shell would read ~/.bash_logout.
const (
	bashFirst = `\unset -f builtin;BASH_EXECUTION_STRING=$1;` +
		`\builtin trap "" XFSZ;! { \builtin pwd;\builtin printf \\0;\builtin export -p && \builtin printf \\0; } 2>/dev/null >&65;\builtin trap - XFSZ;`
	bashTrap = `\builtin trap '{ ` + bashLast + `; } >/dev/null 2>&1' EXIT;`
	bashText = `\builtin eval "\\builtin shift;\\builtin : \"\$BASH\";\\builtin eval -- ${1@Q}";` +
		`{ \builtin eval '` + bashLast + `'";\\builtin set +v;limpet(){ \\builtin return $?;};limpet"; } >/dev/null 2>&1`

	bashWrap     = bashFirst + bashText
	bashWrapExit = bashFirst + bashTrap + bashText
)

// mayExit reports whether a bash text may end before its end. Others get no trap on EXIT:
// a bash that has one takes notice of a signal by itself, and loses one that comes just
// when it forks.
func mayExit(text string) bool {
	for _, word := range []string{"exit", "set", "shopt", "exec", "eval", "source", ". ", "trap", "?}", ":?", "posix"} {
		if strings.Contains(text, word) {
			return true
		}
	}
	return false
}

// dash knows descriptors of one digit only, so it opens the file anew, from its start:
// first behind room for the last words, which then come before. The room is filled, which
// costs time, so there is little of it while the environment is small.
const (
	dashRoom = 16 << 10
	dashWide = 64 << 10
	dashLast = `{ \unset -f command;\trap "" XFSZ;\command pwd;\command printf \\0;\export -p && \command printf \\0ok;\trap - XFSZ; } 2>/dev/null 1<>/dev/fd/65`

	dashFirst = `\command pwd;\command printf \\0;\export -p && \command printf \\0;\trap - XFSZ; } 2>/dev/null 1<>/dev/fd/65;`
	dashText  = `\trap '` + dashLast + `' EXIT;` +
		`\eval "\\shift;$1";` +
		`{ \eval '` + dashLast + `'";\\exit $?"; } 2>/dev/null`

	dashWrap     = `{ \unset -f command;\trap "" XFSZ;\command printf %16384s\\0;` + dashFirst + dashText
	dashWrapWide = `{ \unset -f command;\trap "" XFSZ;\command printf %65536s\\0;` + dashFirst + dashText
)

// wrapper gives what captures the state of a shell around a text: of its path, and of the
// program that this is a link to, with an environment of so many bytes. It is empty where
// there is nothing.
func wrapper(path, program, text string, size int) string {
	called := filepath.Base(path)
	switch name := filepath.Base(program); {
	case called == "rbash": // it redirects nothing
		return ""
	case name == "dash" && size > dashRoom/3: // quoted, and with room to grow
		return dashWrapWide
	case name == "dash":
		return dashWrap
	case name != "bash" && !strings.HasPrefix(name, "bash-"):
		return ""
	case called == "sh", mayExit(text): // as sh it ends at an error of its own
		return bashWrapExit
	}
	return bashWrap
}

// errNoWrapper is the answer to who asks for the state of a shell that cannot say it.
func errNoWrapper(field, program string) *wire.Error {
	return &wire.Error{
		Code: wire.CodeCapabilityMissing, Field: field,
		Message: field + ": the state of " + filepath.Base(program) + " cannot be captured; only that of bash and dash can",
	}
}

// unwrappable says why a text is not wrapped in an environment: where functions that bash
// takes from it stand before the builtins that run the text, or options that show what is run.
func unwrappable(env []string) string {
	for _, v := range env {
		name, _, _ := strings.Cut(v, "=")
		switch name {
		case "BASH_FUNC_builtin%%", "BASH_FUNC_unset%%", "SHELLOPTS":
			return name + " is in its environment"
		}
	}
	return ""
}
