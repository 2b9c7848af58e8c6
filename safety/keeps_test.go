package safety

import "testing"

func TestKeepsState(t *testing.T) {
	for _, text := range []string{
		"true", "make -j4 test 2>&1 | tail -20", "git status && git diff --stat || echo no", "ls -l $HOME/src; pwd",
		"grep -rn 'cd /' . # cd", `echo "$(date) ${USER}" >out.txt`, "cat <<'X'\ncd /\nX", "[ -e a ] && test -f b", "! false",
		"sleep 9 &", "/usr/bin/env", "printf done", "env cd /",
	} {
		for _, shell := range []string{"bash", "/bin/sh"} {
			if !KeepsState(text, shell) {
				t.Errorf("%s: %q changes nothing", shell, text)
			}
		}
	}
	for _, text := range []string{
		"cd /", "true; cd /", "echo $(true) && export A=1", "A=1", "A=1 make", "(cd /)", "{ cd /; }", "if true; then cd /; fi",
		"for A in 1 2; do true; done", "f() { cd /; }; f", "\\cd /", "'cd' /", `"c"d /`, "c\\d /", "$X /", "${X}", "command cd /",
		"builtin cd /", "eval 'cd /'", ". ./x", "source x", "read A <x", "mapfile A <x", "printf -v A x", "printf $X x", `printf "-v" A x`,
		"echo ${A:=1}", "echo ${A=1}", "echo $((A=1))", "((A=1))", "[[ a =~ b ]]", "let A=1", "unset A", "declare -x A=1", "exec 3>x",
		"exec {A}>x", "echo {A}>x", "true {A}>x", "wait -p A", "getopts a A", "trap 'cd /' EXIT", "set -a", "shopt -s lastpipe",
		"coproc X { cd /; }", "pushd /", "exit 3", "echo a\rcd /", "écho", "time cd /", "select A in b; do true; done", "{cd,/}", "~/x",
		"alias x=cd", "echo \"${A:=1}\"", "cat <<X\n${A:=1}\nX", "cat <(cd /)", "if",
		"case a in a) cd /;; esac", "while cd /; do true; done", "hash -r", "enable -n pwd", "ulimit -f 0",
	} {
		if KeepsState(text, "bash") {
			t.Errorf("%q may change something", text)
		}
	}
	if KeepsState("true", "/bin/fish") {
		t.Error("of a shell that nobody knows")
	}
}
