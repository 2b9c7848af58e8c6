package runtime

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// TestShellText: every shell takes the text as a text, also one that looks like an option.
func TestShellText(t *testing.T) {
	for _, shell := range []string{"", "bash", "sh", "/bin/sh", "/bin/bash", "/bin/dash"} {
		t.Run(shell, func(t *testing.T) {
			if filepath.IsAbs(shell) {
				if _, err := os.Stat(shell); err != nil {
					need(t, filepath.Base(shell), false, err.Error())
				}
			}
			for text, want := range map[string]string{
				"echo plain":         "plain\n",
				"-e 2>/dev/null":     "",
				"-c 2>/dev/null":     "",
				"--version":          "",
				"-- echo x":          "",
				"--\necho after":     "after\n",
				"echo \"$# $1\"":     "0 \n",
				"echo 'a'\\''b' \"c": "",
			} {
				argv, err := ShellArgv(ShellText{Shell: shell, Text: text})
				if err != nil {
					t.Fatal(err)
				}
				if !filepath.IsAbs(argv[0]) || argv[len(argv)-1] != text {
					t.Errorf("%q", argv)
				}
				cmd := exec.Command(argv[0], argv[1:]...)
				out, err := cmd.Output()
				if string(out) != want || want == "" && err == nil {
					t.Errorf("%q printed %q (%v), want %q", text, out, err, want)
				}
			}
		})
	}
}

// TestLoginShell: it reads the profile, and its text is a text, whatever it starts with.
func TestLoginShell(t *testing.T) {
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, ".profile"), []byte("echo profile\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, shell := range []string{"bash", "sh"} {
		for text, want := range map[string]string{
			"echo plain":     "plain\n",
			"-e 2>/dev/null": "",
			"--version":      "",
		} {
			for _, login := range []bool{false, true} {
				var shells Shells
				argv, err := shells.Argv(ShellText{Shell: shell, Login: login, Text: text})
				if err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command(argv[0], argv[1:]...)
				cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}
				out, _ := cmd.Output() // some texts are no commands
				expect := want
				if login {
					expect = "profile\n" + want
				}
				if !strings.HasSuffix(string(out), expect) || strings.Contains(string(out), "profile") != login {
					t.Errorf("%s, login %v: %q printed %q", shell, login, text, out)
				}
			}
		}
	}
}

func TestShellArguments(t *testing.T) {
	for _, shell := range []string{"bash", "sh"} {
		for _, login := range []bool{false, true} {
			argv, err := ShellArgv(ShellText{Shell: shell, Login: login, Text: `printf '<%s>' "$0" "$@"`, Args: []string{"name", "-e text", "", "$0"}})
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(argv[0], argv[1:]...)
			cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
			if out, err := cmd.Output(); !strings.HasSuffix(string(out), "<name><-e text><><$0>") || err != nil {
				t.Errorf("%q printed %q, %v", argv, out, err)
			}
		}
	}
}

func TestShellMissing(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, shell := range []string{"zsh", "bin/sh", "./sh", "/no/such/shell", "/etc", plain, "bash "} {
		argv, err := ShellArgv(ShellText{Shell: shell, Text: "true"})
		var typed *wire.Error
		if argv != nil || !errors.As(err, &typed) || typed.Field != "command.shell" {
			t.Errorf("%q: got %q, %v", shell, argv, err)
		}
	}
	t.Setenv("PATH", t.TempDir())
	_, err := ShellArgv(ShellText{Shell: "bash", Text: "true"})
	var typed *wire.Error
	if !errors.As(err, &typed) || typed.Code != wire.CodeCapabilityMissing || typed.Field != "command.shell" {
		t.Errorf("no bash in PATH: %v", err)
	}
}

func TestEnvironment(t *testing.T) {
	defaults := []string{"GIT_EDITOR=true", "PAGER=cat", "GIT_PAGER=cat"}
	for _, c := range []struct {
		name    string
		source  []string
		allow   func(string) bool
		request []wire.EnvVar
		tty     bool
		want    []string
	}{
		{"nothing to take", nil, nil, nil, false, []string{"PATH=" + DefaultPath, "LANG=C.UTF-8", "TERM=dumb"}},
		{
			"secrets of the supervisor stay",
			[]string{"PATH=/bin", "HOME=/h", "TOKEN=s", "LIMPET_STATE=x", "LC_TIME=C", "TERM=xterm", "EDITOR=vi", "=C:=x", "novalue"},
			nil, nil, false,
			[]string{"PATH=/bin", "HOME=/h", "LC_TIME=C", "LANG=C.UTF-8", "TERM=dumb"},
		},
		{"a locale is kept", []string{"LC_ALL=de_DE"}, nil, nil, false, []string{"LC_ALL=de_DE", "PATH=" + DefaultPath, "TERM=dumb"}},
		{"a locale that knows ASCII only is none", []string{"LC_ALL=", "LANG=C", "LC_CTYPE=POSIX"}, nil, nil, false, []string{"PATH=" + DefaultPath, "LANG=C.UTF-8", "TERM=dumb"}},
		{
			"the request wins, the last of a name first of all",
			[]string{"PATH=/bin", "LANG=sv_SE"},
			nil,
			[]wire.EnvVar{{Name: "PAGER", Value: "less"}, {Name: "A", Value: "1"}, {Name: "A", Value: "2"}, {Name: "PATH", Value: ""}},
			false,
			[]string{"PATH=", "LANG=sv_SE", "TERM=dumb", "PAGER=less", "A=2"},
		},
		{"the request's locale", nil, nil, []wire.EnvVar{{Name: "LC_CTYPE", Value: "C"}}, false, []string{"PATH=" + DefaultPath, "TERM=dumb", "LC_CTYPE=C"}},
		{"a terminal", []string{"LANG=sv_SE", "PATH=/bin"}, nil, nil, true, []string{"LANG=sv_SE", "PATH=/bin", "TERM=xterm-256color"}},
		{
			"no stale size, whatever is allowed",
			[]string{"COLUMNS=80", "LINES=24", "LANG=sv_SE", "PATH=/b", "X=1"},
			func(string) bool { return true }, nil, true,
			[]string{"LANG=sv_SE", "PATH=/b", "X=1", "TERM=xterm-256color"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Environment(c.source, c.allow, c.request, c.tty)
			want := slices.Clone(c.want)
			for _, d := range defaults {
				name, _, _ := strings.Cut(d, "=")
				if !slices.ContainsFunc(want, func(s string) bool { return strings.HasPrefix(s, name+"=") }) {
					want = append(want, d)
				}
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("got  %q\nwant %q", got, want)
			}
		})
	}
}
