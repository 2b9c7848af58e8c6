package safety

import (
	"errors"
	"io"
	"runtime"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// The parser recurses with the nesting of its text, and 150,000 open parentheses
// overflow the stack: a fatal error that no recover catches. Brackets are not the only
// way down ("if if if" and "{ { {" nest as well), and quotes hide closing ones
// from any scan done beforehand. So the text is handed over in small pieces, and before
// each piece the depth of the stack itself is measured.
const (
	// piece is how much text the parser gets between two measurements, in bytes; it
	// cannot nest deeper within one than its bytes.
	piece = 256
	// maxFrames is how many call frames of the parser may stand open: some 400 nested
	// parentheses, at 28 frames and about 7 KiB each.
	maxFrames = 12_000
	// maxNote bounds the parser's message in a note, in bytes.
	maxNote = 200
)

// errDeep ends a parse whose text nests too deeply.
var errDeep = errors.New("nests too deeply")

func dialect(shell string) (syntax.LangVariant, bool) {
	switch shell {
	case "bash":
		return syntax.LangBash, true
	case "sh", "dash":
		return syntax.LangPOSIX, true
	}
	return 0, false
}

// parse returns why lang's grammar rejects text, or the empty string.
func parse(text string, lang syntax.LangVariant) string {
	r := &guarded{rest: text}
	_, err := syntax.NewParser(syntax.Variant(lang)).Parse(r, "")
	switch {
	case r.deep:
		return "not parsed: " + errDeep.Error()
	case err != nil:
		return "the parser rejects the text: " + clip(err.Error())
	}
	return ""
}

// clip bounds a parser's message, which may quote the text, to maxNote bytes.
func clip(s string) string {
	if len(s) <= maxNote {
		return s
	}
	return strings.ToValidUTF8(s[:maxNote], "") + "…"
}

// guarded hands out a text in pieces while the parser's stack is shallow enough.
type guarded struct {
	rest    string
	started bool
	deep    bool
}

// Read implements io.Reader. Once it has failed it fails for ever.
func (g *guarded) Read(b []byte) (int, error) {
	if g.deep {
		return 0, errDeep
	}
	if g.rest == "" {
		return 0, io.EOF
	}
	// Nothing has been parsed before the first piece, and short texts are one piece.
	if g.started && deeperThan(maxFrames) {
		g.deep = true
		return 0, errDeep
	}
	g.started = true
	n := copy(b, g.rest[:min(len(g.rest), piece)])
	g.rest = g.rest[n:]
	return n, nil
}

// deeperThan reports whether more than n frames stand on this goroutine's stack. Its
// cost grows with the depth found, at most n.
func deeperThan(n int) bool {
	var pc [1]uintptr
	return runtime.Callers(n, pc[:]) > 0
}
