package actors

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/limpet-sh/limpet/actors/runtime"
)

// need skips a test on a host without a program; under LIMPET_REQUIRE=word,word the lack
// of a listed one is a failure.
func need(t testing.TB, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err == nil {
		return path
	}
	if slices.Contains(strings.Split(os.Getenv("LIMPET_REQUIRE"), ","), program) {
		t.Fatalf("this host has no %s, and LIMPET_REQUIRE asks for it", program)
	}
	t.Skipf("this host has no %s", program)
	return ""
}

// spoken is what became of a text in a shell.
type spoken struct {
	code           int
	stdout, stderr string
	state          []byte
}

// speak runs a text in a shell as a session does: wrapped, or as it is.
func speak(t testing.TB, shell, text string, login, wrapped bool, env ...string) spoken {
	t.Helper()
	fd, err := unix.MemfdCreate("state", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	state := os.NewFile(uintptr(fd), "state")
	defer state.Close()
	if err = state.Truncate(runtime.MaxState); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	}
	if err != nil {
		t.Fatal(err)
	}
	how := runtime.ShellText{Shell: shell, Login: login, Text: text}
	if wrapped {
		program, err := filepath.EvalSymlinks(shell)
		if err != nil {
			t.Fatal(err)
		}
		how.Text, how.Args = wrapper(shell, program, text, len(strings.Join(env, "\n"))), []string{shell, text}
		if how.Text == "" {
			t.Fatalf("there is no wrapper for %s", program)
		}
	}
	argv, err := runtime.ShellArgv(how)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = "/"
	cmd.Env = append([]string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8", "HOME=/nonexistent"}, env...)
	cmd.ExtraFiles = make([]*os.File, runtime.StateDescriptor-2)
	cmd.ExtraFiles[runtime.StateDescriptor-3] = state
	cmd.WaitDelay = 10 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	b := make([]byte, runtime.MaxState)
	if _, err := state.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return spoken{cmd.ProcessState.ExitCode(), out.String(), errs.String(), bytes.TrimRight(b, "\x00")}
}

// texts are run as they are and wrapped, and nobody must see which. What is after the
// first word of a name says what becomes of the state: said, or silent.
var texts = map[string]string{
	"said: nothing":                   "true",
	"said: a failure":                 "echo out; echo err >&2; false",
	"said: no end of line":            "echo a # comment",
	"said: trailing backslash":        `echo a\`,
	"said: here-document":             "cat <<X\na $HOME\nX\necho b",
	"said: here-document without end": "cat <<X\na",
	"said: functions":                 "f() {\n\techo \"$1\"\n\treturn 4\n}\nf 'x y'",
	"said: quotes":                    `echo 'it'\''s' "a\"b" $HOME` + " `echo c` ~",
	"said: UTF-8":                     "x=語; echo ${#x} ü",
	"said: first line empty":          "\n\necho $LINENO; echo a",
	"said: dash first":                "-x; echo $?",
	"said: alias":                     "alias say=echo\nsay hello",
	"said: exit":                      "cd /tmp; exit 5",
	"said: exit in a function":        "f() { exit 6; }; f; echo no",
	"said: exit with output away":     "{ echo x; exit 7; } >/dev/null",
	"said: exit in a subshell":        "(exit 3); echo $?; x=$(exit 4); echo $?",
	"said: errexit":                   "set -e; false; echo no",
	"said: errexit in a list":         "set -e; false && true; echo yes; false || false",
	"said: nounset":                   "set -u; echo a; echo $nosuch; echo no",
	"said: return":                    "return 3; echo $?",
	"said: syntax":                    "echo a\nif\necho b",
	"said: syntax at once":            "echo a; done",
	"said: unclosed quote":            "echo 'a",
	"said: own trap":                  "trap 'echo bye $? >&2; echo bye' EXIT; cd /tmp; false",
	"said: own trap and errexit list": "set -e; trap 'echo bye $?' EXIT; cd /tmp; false || true",
	"said: two traps":                 "trap 'echo int' INT; kill -INT $$; echo on",
	"said: background":                "sleep 0 & echo a",
	"said: no positional":             `echo $# "$@" "$1" $0; set -- a b; echo "$2"`,
	"said: arguments of a trap":       `set -- a b; trap 'echo "$2"' EXIT; true`,
	"said: not found":                 "nosuchcommand; echo $?",
	"said: stdin":                     "cat; read x; echo $?",
	"said: no clobber":                "set -C; cd /tmp",
	"said: traced":                    "set -x; echo a; false",
	"said: traced with own trap":      "set -x; trap 'echo bye' EXIT; echo a; false",
	"said: redirected shell":          "exec >/dev/null; echo a",
	"said: builtins shadowed":         "pwd() { echo no; }; printf() { echo no; }; echo a; cd /tmp",
	"said: odd IFS":                   "IFS=0o; echo $?; cd /tmp",
	"silent: exec":                    "cd /tmp; exec true",
	"silent: own trap and exit":       "trap 'echo bye $?' EXIT; cd /tmp; exit 4",
	"silent: own trap and errexit":    "set -e; trap 'echo bye $?' EXIT; cd /tmp; false",
	"silent: killed":                  "cd /tmp; kill -KILL $$",
	"silent: no execution":            "set -n\nnosuchcommand",
}

// bashTexts are more of them, for bash.
var bashTexts = map[string]string{
	"said: underscore":           `echo "$_"; true a b; echo "$_"`,
	"said: variables":            "declare -p | grep -v '^declare -[-a-z]* \\(PPID\\|PIPESTATUS\\)='; set | grep -v '^PPID='; declare -F; env; true",
	"said: options":              "shopt; set -o; echo $-; alias; trap -p INT",
	"said: expanded alias":       "shopt -s expand_aliases\nalias say=echo\nsay hello; alias builtin=nosuch eval=nosuch\necho b",
	"said: debug trap":           "trap 'echo debug' DEBUG; echo a; echo b",
	"said: error trap":           "trap 'echo error' ERR; false; false",
	"said: all traps inherited":  "set -ET; trap 'echo debug' DEBUG; trap 'echo return' RETURN; trap 'echo error' ERR; f() { false; }; f",
	"said: pipefail":             "set -euo pipefail; echo a | grep -q b; echo no",
	"said: functions for all":    "builtin() { echo no; }; eval() { echo no; }; exec() { echo no; }; trap() { echo no; }; exit() { echo no; }; export() { echo no; }; cd /tmp",
	"silent: and one more":       "builtin() { echo no; }; unset() { echo no; }; cd /tmp",
	"said: posix":                "set -o posix; cd /tmp; export A=b",
	"said: verbose":              "set -v\necho a",
	"said: last pipe":            "shopt -s lastpipe; echo a | read x; echo $x",
	"said: extglob":              "shopt -s extglob\necho /@(tmp|nosuch)",
	"said: process substitution": "cat <(echo a)",
	"said: arrays":               "declare -ax a=(1 '2 3'); declare -Ax m=([k]=v); echo ${a[1]} ${m[k]}",
	"said: here-string":          "cat <<< a",
	"said: execution string":     "echo \"$BASH_EXECUTION_STRING\"; unset BASH_EXECUTION_STRING; set -u",
	"said: its descriptors":      "for fd in /proc/self/fd/*; do fd=${fd##*/}; (( fd == 65 || fd == 255 )) || echo $fd; done",
	"silent: failing exec":       "exec /nosuch; echo no",
	"silent: no builtin":         "enable -n export; cd /tmp",
	"silent: closed":             "exec 65>&-; cd /tmp",
	"silent: written over":       "echo junk >&65; cd /tmp",
}

// tame takes out of stderr what says that an eval ran the text.
func tame(s string) string {
	s = regexp.MustCompile(`(?m)^\++ `).ReplaceAllString(s, "+ ")
	for _, r := range [][2]string{{"-c: line", "line"}, {"eval: line", "line"}, {": eval: ", ": "}} {
		s = strings.ReplaceAll(s, r[0], r[1])
	}
	return s
}

func sameSpoken(t *testing.T, shell, text string, said, login bool, env ...string) (before, after shellState) {
	t.Helper()
	plain := speak(t, shell, text, login, false, env...)
	wrapped := speak(t, shell, text, login, true, env...)
	if plain.code != wrapped.code {
		t.Errorf("exit %d; wrapped %d", plain.code, wrapped.code)
	}
	if plain.stdout != wrapped.stdout {
		t.Errorf("stdout\n%s\nwrapped\n%s", plain.stdout, wrapped.stdout)
	}
	if tame(plain.stderr) != tame(wrapped.stderr) {
		t.Errorf("stderr\n%s\nwrapped\n%s", plain.stderr, wrapped.stderr)
	}
	before, after, err := readDump(wrapped.state)
	if (err == nil) != said {
		t.Errorf("state: %v; want it %s, of\n%.2000q", err, map[bool]string{true: "said", false: "silent"}[said], wrapped.state)
	}
	return before, after
}

func TestATextDoesNotSeeItsWrapper(t *testing.T) {
	for _, name := range []string{"bash", "dash"} {
		t.Run(name, func(t *testing.T) {
			shell := need(t, name)
			all := []map[string]string{texts}
			if name == "bash" {
				all = append(all, bashTexts)
			}
			for _, some := range all {
				for what, text := range some {
					t.Run(what, func(t *testing.T) {
						t.Parallel()
						_, after := sameSpoken(t, shell, text, strings.HasPrefix(what, "said"), false)
						if want := "/tmp"; strings.HasPrefix(what, "said") && strings.Contains(text, "cd /tmp") && after.dir != want {
							t.Errorf("it ended in %q", after.dir)
						}
					})
				}
			}
		})
	}
}

// A shell that is called sh is bash in its POSIX mode on many hosts.
func TestWrappedBashCalledSh(t *testing.T) {
	bash := need(t, "bash")
	sh := filepath.Join(t.TempDir(), "sh")
	if err := os.Symlink(bash, sh); err != nil {
		t.Fatal(err)
	}
	for what, text := range texts {
		if what == "said: alias" {
			continue // the wrapper is read before, and so is an alias of its own line
		}
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			sameSpoken(t, sh, text, strings.HasPrefix(what, "said"), false)
		})
	}
}

// A login shell reads its profile before the state is said for the first time, and its
// ~/.bash_logout no sooner than without us.
func TestWrappedLoginShells(t *testing.T) {
	for _, name := range []string{"bash", "dash"} {
		t.Run(name, func(t *testing.T) {
			shell, home := need(t, name), t.TempDir()
			for file, text := range map[string]string{
				".profile":      "export FROM=profile PATH=$PATH:/more; cd /tmp; alias eval=nosuch",
				".bash_profile": ". ~/.profile; shopt -s expand_aliases; trap() { echo no; }; printf() { echo no; }",
				".bash_logout":  "echo logged out",
			} {
				if err := os.WriteFile(filepath.Join(home, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for what, text := range map[string]string{
				"said: its end":   "export MINE=1; echo $FROM; false",
				"said: exit":      "export MINE=1; echo $FROM; exit 3",
				"said: own trap":  "export MINE=1; command trap 'echo bye' EXIT; echo $FROM; false",
				"silent: replace": "exec echo $FROM",
			} {
				said := strings.HasPrefix(what, "said")
				before, after := sameSpoken(t, shell, text, said, true, "HOME="+home)
				if !said {
					continue
				}
				if before.dir != "/tmp" || before.env["FROM"] != "profile" || after.env["PATH"] != before.env["PATH"] {
					t.Errorf("%s: before %v, after %v", what, before, after)
				}
				if _, there := before.env["MINE"]; there || after.env["MINE"] != "1" {
					t.Errorf("%s: before %v, after %v", what, before, after)
				}
			}
		})
	}
}

// Functions that come with the environment stand before the builtins, but for ours.
func TestFunctionsOfTheEnvironmentDoNotBreakTheWrapper(t *testing.T) {
	shell := need(t, "bash")
	var env []string
	for _, name := range []string{"eval", "trap", "pwd", "printf", "export", "shift", ":", "exec", "return", "exit", "limpet", "sed", "command"} {
		env = append(env, "BASH_FUNC_"+name+"%%=() {  echo shadowed "+name+"; }")
	}
	if why := unwrappable(env); why != "" {
		t.Fatalf("not wrapped: %s", why)
	}
	_, after := sameSpoken(t, shell, "cd /tmp; sed; pwd; declare -F; builtin export A=b; builtin exit 3", true, false, env...)
	if after.dir != "/tmp" || after.env["A"] != "b" {
		t.Errorf("%v", after)
	}
	for _, name := range []string{"builtin", "unset"} {
		if unwrappable([]string{"A=b", "BASH_FUNC_" + name + "%%=() {  :; }"}) == "" {
			t.Errorf("it is wrapped although there is a function %s", name)
		}
	}
}

func TestTheStateThatIsSaid(t *testing.T) {
	for _, name := range []string{"bash", "dash"} {
		t.Run(name, func(t *testing.T) {
			shell, dir := need(t, name), t.TempDir()
			odd := filepath.Join(dir, "-a b\n语\nexport X='y'")
			for _, err := range []error{os.Mkdir(odd, 0o700), os.Symlink(odd, filepath.Join(dir, "link"))} {
				if err != nil {
					t.Fatal(err)
				}
			}
			env := []string{"DIR=" + dir, "ODD=" + odd, "OLD=1", "GONE=1", "SAME=a\nb'c\"d$e`f\\\x01\xff"}
			text := `cd "$DIR/link"; OLD='new
value'; export NEW="it's" NOT; unset GONE; PLAIN=1; PWD=/lie; export EMPTY=`
			before, after := sameSpoken(t, shell, text, true, false, env...)
			if after.dir != filepath.Join(dir, "link") {
				t.Errorf("it ended in %q", after.dir)
			}
			if before.env["SAME"] != after.env["SAME"] || "SAME="+after.env["SAME"] != env[4] {
				t.Errorf("%q", after.env["SAME"])
			}
			_, gone := after.env["GONE"]
			_, not := after.env["NOT"]
			_, plain := after.env["PLAIN"]
			empty, there := after.env["EMPTY"]
			if after.env["OLD"] != "new\nvalue" || after.env["NEW"] != "it's" || gone || not || plain || !there || empty != "" {
				t.Errorf("%q", after.env)
			}
			if _, after = sameSpoken(t, shell, `cd "$ODD"`, true, false, env...); after.dir != odd {
				t.Errorf("it ended in %q", after.dir)
			}
		})
	}
}

// A limit on the size of files is not one on what a session captures: the text runs.
func TestAWrapperUnderALimitOfFiles(t *testing.T) {
	for _, name := range []string{"bash", "dash"} {
		shell := need(t, name)
		for _, kib := range []string{"0", "1", "16", "17", "1000"} {
			how := runtime.ShellText{Shell: shell, Text: wrapper(shell, name, "echo ran; trap", 0), Args: []string{shell, "echo ran; trap"}}
			argv, err := runtime.ShellArgv(how)
			if err != nil {
				t.Fatal(err)
			}
			state, err := os.CreateTemp(t.TempDir(), "state")
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(need(t, "bash"), append([]string{"-c", "ulimit -f " + kib + `; exec "$@"`, "-"}, argv...)...)
			cmd.ExtraFiles = make([]*os.File, runtime.StateDescriptor-2)
			cmd.ExtraFiles[runtime.StateDescriptor-3] = state
			out, err := cmd.CombinedOutput()
			state.Close()
			if err != nil || !strings.HasPrefix(string(out), "ran\n") || strings.Contains(string(out), " XFSZ\n") {
				t.Errorf("%s, files of %s KiB: %v, %q", name, kib, err, out)
			}
		}
	}
}

// More than the file holds is no state, and so is more than dash has room for.
func TestTooMuchStateIsNone(t *testing.T) {
	const text = `v=xxxxxxxxxx; v=$v$v$v$v$v$v$v$v$v$v; v=$v$v$v$v$v$v$v$v$v$v; v=$v$v$v$v$v$v$v$v$v$v
i=0; while [ $i -lt $MANY ]; do i=$((i+1)); export "V$i=$v"; done`
	large := strings.Repeat("x", dashRoom/3)
	for _, tt := range []struct {
		shell, many, large string
		said               bool
	}{
		{"bash", "6", "", true},
		{"bash", "25", "", true},
		{"bash", "27", "", false},
		{"dash", "1", "", true},
		{"dash", "2", "", false},
		{"dash", "5", large, true},
		{"dash", "6", large, false},
	} {
		_, after := sameSpoken(t, need(t, tt.shell), text, tt.said, false, "MANY="+tt.many, "LARGE="+tt.large)
		if tt.said && len(after.env["V"+tt.many]) != 10_000 {
			t.Errorf("%+v: %d bytes", tt, len(after.env["V"+tt.many]))
		}
	}
}
