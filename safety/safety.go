// Package safety decides whether a command may start. It is pure: it sees the command
// it is handed and nothing else; no bus, no file, no clock. It never runs anything and
// never changes the command: the bytes judged are the bytes run.
//
// One layer stands today. It denies what cannot be a command (empty, blank, a NUL
// byte, over-long), and it notes what the shell's grammar rejects. A text the parser
// cannot judge is allowed with that note until there are verdicts; it will then never
// be better than "ask".
//
// This is the only package that imports the shell parser.
//
// # Concurrency
//
// Check is a pure function; any number of goroutines may call it at once. It blocks on
// nothing, uses at most some 8 MiB of stack, and takes well under a second for the
// worst text of its size (microseconds for an ordinary one).
package safety

import (
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// Bounds of a command, in bytes but for the count of arguments.
const (
	// MaxText is the kernel's limit on one argument without its closing NUL.
	MaxText = 131_071
	// MaxArgs is the largest count of arguments.
	MaxArgs = 100_000
	// MaxParsed is the longest text handed to the parser; a longer one is noted.
	MaxParsed = 65_536
)

// Check decides on one command. The error is a *wire.Error with code
// invalid_arguments that names the field, and comes with a denying verdict; with a nil
// error the verdict is the answer. The zero Verdict does not allow.
func Check(c *wire.Command) (wire.Verdict, error) {
	if err := form(c); err != nil {
		return wire.Verdict{Decision: wire.Deny, Reasons: []string{err.Message}}, err
	}
	v := wire.Verdict{Decision: wire.Allow}
	if c.Text == "" {
		return v, nil
	}
	if note := grammar(c.Text, c.Shell); note != "" {
		v.Notes = []string{note}
	}
	return v, nil
}

// form denies what no shell and no kernel could run as it stands.
func form(c *wire.Command) *wire.Error {
	if c == nil {
		return wire.Invalid("command", "is missing")
	}
	switch {
	case c.Text != "" && len(c.Argv) > 0:
		return wire.Invalid("command.text", "exclude each other: text and argv")
	case len(c.Argv) > 0:
		return argvForm(c.Argv)
	}
	return textForm(c.Text)
}

func textForm(text string) *wire.Error {
	const field = "command.text"
	switch {
	case len(text) > MaxText:
		return wire.Invalid(field, "has %d bytes; at most %d fit into one argument", len(text), MaxText)
	case strings.TrimSpace(text) == "":
		return wire.Invalid(field, "is empty or blank")
	case strings.IndexByte(text, 0) >= 0:
		// execve ends a string at NUL: what ran would not be what was judged.
		return wire.Invalid(field, "holds a NUL byte, which no shell can be given")
	case !utf8.ValidString(text):
		return wire.Invalid(field, "is not valid UTF-8")
	}
	return nil
}

func argvForm(argv []string) *wire.Error {
	const field = "command.argv"
	if len(argv) > MaxArgs {
		return wire.Invalid(field, "has %d elements; at most %d", len(argv), MaxArgs)
	}
	if strings.TrimSpace(argv[0]) == "" {
		return wire.Invalid(field, "names no program in its first element")
	}
	for i, a := range argv {
		switch {
		case len(a) > MaxText:
			return wire.Invalid(field, "element %d has %d bytes; at most %d", i, len(a), MaxText)
		case strings.IndexByte(a, 0) >= 0:
			return wire.Invalid(field, "element %d holds a NUL byte", i)
		}
	}
	return nil
}

// grammar returns a note about a text that its shell's grammar rejects, or that could
// not be judged; empty when the text parses.
func grammar(text, shell string) string {
	if len(text) > MaxParsed {
		return "not parsed: longer than 65536 bytes"
	}
	if shell == "" {
		shell = "bash"
	}
	lang, ok := dialect(filepath.Base(shell))
	if !ok {
		return "not parsed: no grammar for shell " + filepath.Base(shell)
	}
	return parse(text, lang)
}
