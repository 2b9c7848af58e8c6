package safety

import (
	"path/filepath"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// KeepsState reports whether a text is sure to leave the directory and the variables of
// the shell that runs it as they are: programs by name and harmless builtins, in lists
// and pipelines, with plain words. False says nothing. It holds for a bash, sh or dash
// that no function and no startup file of the environment has changed.
func KeepsState(text, shell string) bool {
	lang, ok := dialect(filepath.Base(shell))
	if !ok || len(text) > MaxParsed || strings.ContainsFunc(text, unplain) {
		return false
	}
	r := &guarded{rest: text}
	f, err := syntax.NewParser(syntax.Variant(lang)).Parse(r, "")
	if err != nil {
		return false
	}
	keeps := true
	syntax.Walk(f, func(n syntax.Node) bool {
		keeps = keeps && keepsState(n)
		return keeps
	})
	return keeps
}

// unplain reports a character that shells and the parser may read each in its own way.
func unplain(r rune) bool { return r != '\n' && r != '\t' && (r < ' ' || r > '~') }

// keepsState judges one node; what is not known here changes something.
func keepsState(n syntax.Node) bool {
	switch n := n.(type) {
	case nil, *syntax.File, *syntax.Word, *syntax.Lit, *syntax.SglQuoted, *syntax.DblQuoted, *syntax.CmdSubst, *syntax.Comment:
		return true
	case *syntax.Stmt:
		return n.Cmd != nil && !n.Coprocess
	case *syntax.BinaryCmd:
		return true
	case *syntax.CallExpr:
		return len(n.Assigns) == 0 && len(n.Args) > 0 && harmless(n.Args)
	case *syntax.ParamExp:
		return !n.Excl && !n.Length && !n.Width && n.Index == nil && n.Slice == nil && n.Repl == nil && n.Exp == nil && n.Names == 0
	case *syntax.Redirect:
		return n.N == nil || strings.Trim(n.N.Value, "0123456789") == ""
	}
	return false
}

// harmless reports whether a simple command is a program, or a builtin that sets nothing.
func harmless(args []*syntax.Word) bool {
	name := args[0].Lit()
	if name == "" || strings.ContainsAny(name, `\~*?[]{}$=`) && name != "[" {
		return false
	}
	if name == "printf" {
		return len(args) > 1 && args[1].Lit() != "" && !strings.ContainsAny(args[1].Lit(), `\-`)
	}
	return !slices.Contains(setters, name)
}

// setters are the builtins and reserved words of bash and dash that may change the shell
// they run in, or run what does.
var setters = []string{
	".", "alias", "bg", "bind", "break", "builtin", "caller", "cd", "chdir", "command", "compgen", "complete", "compopt",
	"continue", "declare", "dirs", "disown", "enable", "eval", "exec", "exit", "export", "fc", "fg", "getopts", "hash",
	"help", "history", "jobs", "let", "local", "logout", "mapfile", "popd", "pushd", "read", "readarray", "readonly",
	"return", "set", "shift", "shopt", "source", "suspend", "time", "times", "trap", "type", "typeset", "ulimit", "umask",
	"unalias", "unset", "wait",
}
