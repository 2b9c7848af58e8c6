package actors

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestReadExports(t *testing.T) {
	for _, c := range []struct {
		in   string
		want map[string]string
	}{
		{"", map[string]string{}},
		{"declare -x A=\"b\"\ndeclare -x C\n", map[string]string{"A": "b"}},
		{"declare -x A=\"a\nb \\\"\\$\\`\\\\'\"\n", map[string]string{"A": "a\nb \"$`\\'"}},
		{"declare -x A=$'a\\n\\t\\E\\'\\001\\377\\\\ü'\n", map[string]string{"A": "a\n\t\x1b'\x01\xff\\ü"}},
		{"declare -x A=$'\\x41\\u00e9\\U0001F600\\7'\n", map[string]string{"A": "Aé😀\a"}},
		{"declare -rx A=\"b\"\ndeclare -ix B=\"1\"\n", map[string]string{"A": "b", "B": "1"}},
		{"declare -ax A=([0]=\"x\" [1]=$'\\n)' [2]=\"]\\\"\")\ndeclare -x B=\"\"\n", map[string]string{"B": ""}},
		{"declare -Ax A=([\"a b\"]=\"x\" [c]=\"y\" )\ndeclare -ax C\ndeclare -ax D=()\n", map[string]string{}},
		{"export A='b'\nexport C\nexport D='a'\"'\"'b\nc'\n", map[string]string{"A": "b", "D": "a'b\nc"}},
		{"export A=\"b\"\nexport B=''\n", map[string]string{"A": "b", "B": ""}},
	} {
		got, err := readExports([]byte(c.in))
		if err != nil || !maps.Equal(got, c.want) {
			t.Errorf("%q: %q, %v; want %q", c.in, got, err, c.want)
		}
	}
	for _, in := range []string{
		"junk", "declare -x A=\"b\"", "declare -x A=\"b", "declare -x A=$'b\n", "declare -x A='b\n", "declare -x =\"b\"\n",
		"declare -x A=\"$(b)\"\n", "declare -x A=\"`b`\"\n", "declare -x A=$(b)\n", "declare -x A=b;c\n", "declare x A=\"b\"\n",
		"declare - A=\"b\"\n", "declare -x A=\"\\n\"\n", "declare -x A=$'\\q'\n", "declare -x A=$'\\xg'\n", "declare -x A=$'\\ud800'\n",
		"declare -ax A=([0]=\"x\"\n", "declare -ax A=\"x\"\n", "declare -ax A=(;)\n", "declare -x A=$'\\0'\n", "declare -x A=$'\\777'\n", "declare -x 0=\"b\"\n", "export A='b'\nx\n", "export A-B='c'\n",
	} {
		if got, err := readExports([]byte(in)); err == nil {
			t.Errorf("%q was taken for %q", in, got)
		}
	}
}

func TestReadDumpTakesAllOrNothing(t *testing.T) {
	bash := "/a\n\x00declare -x A=\"1\"\n\x00/b c\n\n\x00declare -x A=\"2\"\n\x00ok"
	last := "/b c\n\n\x00export A='2'\n\x00ok"
	said := func(room int) string {
		return last + strings.Repeat(" ", room-len(last)) + "\x00/a\n\x00export A='1'"
	}
	dash := said(dashRoom)
	for _, dump := range []string{bash, dash + "\n", said(dashWide) + "\n"} {
		before, after, err := readDump([]byte(dump))
		if err != nil || before.dir != "/a" || after.dir != "/b c\n" || before.env["A"] != "1" || after.env["A"] != "2" {
			t.Errorf("%.40q: %v, %v, %v", dump, before, after, err)
		}
		for n := range min(80, len(dump)) { // from its end
			if _, _, err := readDump([]byte(dump[:len(dump)-1-n])); err == nil {
				t.Errorf("%d bytes less are taken too", n+1)
			}
		}
	}
	for _, dump := range []string{"", "ok", "\x00\x00\x00\x00ok", bash + "x", "x" + bash, "\x00" + bash, strings.Replace(bash, "/b c\n\n", "/b c", 1), "x" + dash, dash + "\nx", bash + bash, said(dashRoom+1) + "\n", strings.Repeat(" ", dashRoom) + "\x00/a\n\x00export A='1'\n"} {
		if before, after, err := readDump([]byte(dump)); err == nil && (before.dir != "" || after.dir != "") {
			t.Errorf("%.60q: %v, %v", dump, before, after)
		}
	}
}

// Whatever an environment holds, in whatever locale and mode, is read as it is.
func TestEveryEnvironmentIsReadBack(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	for _, name := range []string{"bash", "dash"} {
		shell := need(t, name)
		for i := range 60 {
			env := randomEnvironment(rnd)
			text := "export -p"
			if i%4 == 3 && name == "bash" {
				text = "set -o posix; export -p"
			}
			cmd := exec.Command(shell, "-c", text)
			cmd.Dir, cmd.Env = "/", []string{} // nil would be ours
			for k, v := range env {
				cmd.Env = append(cmd.Env, k+"="+v)
			}
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			got, err := readExports(out)
			if err != nil {
				t.Fatalf("%s: %v\n%q", name, err, out)
			}
			for _, own := range []string{"PWD", "SHLVL", "OLDPWD", "_"} {
				delete(got, own)
			}
			if !maps.Equal(got, env) {
				t.Fatalf("%s: %q\nwant %q\nof %q", name, got, env, out)
			}
		}
	}
}

// randomEnvironment has bytes of all kinds but NUL, the more of those that shells quote.
func randomEnvironment(rnd *rand.Rand) map[string]string {
	env := map[string]string{}
	if locale := []string{"", "C", "C.UTF-8", "en_US.ISO-8859-1"}[rnd.IntN(4)]; locale != "" {
		env["LC_ALL"] = locale
	}
	for i := range rnd.IntN(30) {
		var v strings.Builder
		for range rnd.IntN(40) {
			switch rnd.IntN(4) {
			case 0:
				v.WriteByte(byte(1 + rnd.IntN(255)))
			case 1:
				v.WriteRune(rune(1 + rnd.IntN(utf8.MaxRune)))
			default:
				const odd = "'\"$`\\!\n\t \r\x1b\x7f()[]=;&|<>*?~#{}%^,:-+./aZ0_"
				v.WriteByte(odd[rnd.IntN(len(odd))])
			}
		}
		env[fmt.Sprintf("V_%d", i)] = v.String()
	}
	return env
}

func FuzzReadDump(f *testing.F) {
	f.Add([]byte("/a\n\x00declare -x A=\"1\"\ndeclare -ax B=([0]=\"x\")\n\x00/b\n\x00declare -x A=$'2\\n\\001'\n\x00ok"))
	f.Add([]byte("/a\n\x00export A='1'\n\x00/b\n\x00export A='a'\"'\"'b'\n\x00ok"))
	f.Fuzz(func(t *testing.T, b []byte) {
		before, after, err := readDump(b)
		if err != nil {
			return
		}
		for _, s := range []shellState{before, after} {
			for name, value := range s.env {
				if strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789") != "" || strings.Contains(value, "\x00") {
					t.Errorf("%q=%q", name, value)
				}
			}
		}
	})
}
