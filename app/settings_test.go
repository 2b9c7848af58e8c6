package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// knobs are flags of every kind that our programs have.
type knobs struct {
	state string
	keep  bool
	idle  time.Duration
	count int
	names []string
}

func tablesOf(k *knobs) (tables []Table, all *pflag.FlagSet) {
	root, up := pflag.NewFlagSet("root", pflag.ContinueOnError), pflag.NewFlagSet("up", pflag.ContinueOnError)
	root.StringVar(&k.state, "state", "default", "")
	root.String(ConfigFlag, "", "")
	up.BoolVar(&k.keep, "keep-all", false, "")
	up.DurationVar(&k.idle, "until-idle", time.Second, "")
	up.IntVar(&k.count, "count", 1, "")
	up.StringSliceVar(&k.names, "names", []string{"PATH"}, "")
	all = pflag.NewFlagSet("all", pflag.ContinueOnError)
	all.AddFlagSet(root)
	all.AddFlagSet(up)
	return []Table{{Name: "", Flags: root, Active: true}, {Name: "up", Flags: up, Active: true}}, all
}

// load reads settings as a program does.
func load(t *testing.T, file string, env map[string]string, args ...string) (knobs, error) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	for _, name := range []string{"LIMPET_STATE", "LIMPET_CONFIG"} {
		t.Setenv(name, "")
	}
	if file != "" {
		if err := os.MkdirAll(filepath.Join(dir, "limpet"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "limpet", "config.toml"), []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, value := range env {
		t.Setenv(name, value)
	}
	var k knobs
	tables, all := tablesOf(&k)
	if err := all.Parse(args); err != nil {
		t.Fatal(err)
	}
	return k, Settings(tables, all.Lookup(ConfigFlag).Value.String())
}

// A flag goes before the environment, that before the file, that before the default.
func TestSettingsPrecedence(t *testing.T) {
	const file = "state = \"file\"\n[up]\nkeep-all = true\nuntil-idle = \"2m\"\ncount = 7\nnames = [\"A\", \"B\"]\n[worker]\nurl = \"x\"\n"
	env := map[string]string{
		"LIMPET_STATE": "env", "LIMPET_UP_UNTIL_IDLE": "3m", "LIMPET_UP_COUNT": "8", "LIMPET_UP_NAMES": "C,D",
		"LIMPET_UP_KEEP_ALL": "false",
	}
	flags := []string{"--state=flag", "--keep-all", "--until-idle=4m", "--count=9", "--names=E"}
	for _, c := range []struct {
		name string
		file string
		env  map[string]string
		args []string
		want knobs
	}{
		{"defaults", "", nil, nil, knobs{"default", false, time.Second, 1, []string{"PATH"}}},
		{"file", file, nil, nil, knobs{"file", true, 2 * time.Minute, 7, []string{"A", "B"}}},
		{"environment", "", env, nil, knobs{"env", false, 3 * time.Minute, 8, []string{"C", "D"}}},
		{"environment over file", file, env, nil, knobs{"env", false, 3 * time.Minute, 8, []string{"C", "D"}}},
		{"flags over all", file, env, flags, knobs{"flag", true, 4 * time.Minute, 9, []string{"E"}}},
		{"some of each", file, map[string]string{"LIMPET_UP_COUNT": "8"}, flags[:1], knobs{"flag", true, 2 * time.Minute, 8, []string{"A", "B"}}},
		{"an empty variable is none", file, map[string]string{"LIMPET_STATE": ""}, nil, knobs{"file", true, 2 * time.Minute, 7, []string{"A", "B"}}},
		{"an empty list", "[up]\nnames = []\n", nil, nil, knobs{"default", false, time.Second, 1, nil}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := load(t, c.file, c.env, c.args...)
			if err != nil {
				t.Fatal(err)
			}
			if got.state != c.want.state || got.keep != c.want.keep || got.idle != c.want.idle || got.count != c.want.count ||
				strings.Join(got.names, " ") != strings.Join(c.want.names, " ") {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// What makes no sense is refused with its place and what would.
func TestSettingsRefused(t *testing.T) {
	for _, c := range []struct {
		name, file string
		env        map[string]string
		want       []string
	}{
		{"a key with a slip", "# why\n[up]\nuntil_idel = \"1m\"\n", nil, []string{"config.toml:3: up.until_idel: there is no such setting; the nearest is until-idle"}},
		{"underscores", "[up]\n\nkeep_all = true\n", nil, []string{"config.toml:3: up.keep_all: there is no such setting; the nearest is keep-all"}},
		{"a key at the top", "stat = \"x\"\n", nil, []string{"config.toml:1: stat: there is no such setting; the nearest is state"}},
		{"a table", "\n[upp]\ncount = 1\n", nil, []string{"config.toml:2: upp: there is no such table; the nearest is up"}},
		{"two slips, both told", "[up]\ncuont = 1\nnamse = []\n", nil, []string{"config.toml:2: up.cuont", "config.toml:3: up.namse"}},
		{"nothing near", "[up]\nzzzzzzzzzz = 1\n", nil, []string{"config.toml:2: up.zzzzzzzzzz: there is no such setting"}},
		{"the file itself", "config = \"x\"\n", nil, []string{"config.toml:1: config: there is no such setting"}},
		{"a table's name as a key", "up = 1\n", nil, []string{"config.toml:1: up is a table: write [up]"}},
		{"a wrong value", "[up]\ncount = \"many\"\n", nil, []string{`config.toml:2: up.count: "many" does not do`}},
		{"a time without a unit", "[up]\nuntil-idle = 60\n", nil, []string{`config.toml:2: up.until-idle: "60" does not do`, "missing unit"}},
		{"a list where one is wanted", "state = [\"a\"]\n", nil, []string{"config.toml:1: state: one value is wanted, not a list"}},
		{"no TOML", "[up\n", nil, []string{"config.toml:1:4: "}},
		{"a key twice", "[up]\ncount = 1\ncount = 2\n", nil, []string{"config.toml", "count"}},
		{"a wrong variable", "", map[string]string{"LIMPET_UP_COUNT": "many"}, []string{`LIMPET_UP_COUNT: "many" does not do for --count`}},
		{"a file that is named and missing", "", map[string]string{"LIMPET_CONFIG": "/nonexistent/limpet.toml"}, []string{"/nonexistent/limpet.toml", "no such file"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := load(t, c.file, c.env)
			if err == nil {
				t.Fatal("it was taken")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v\nlacks %s", err, want)
				}
			}
		})
	}
}

// A table of a command that is not run is checked, and its environment is not looked at.
func TestSettingsOfOtherCommands(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("LIMPET_UP_COUNT", "many")
	path := filepath.Join(t.TempDir(), "c.toml")
	var k knobs
	tables, _ := tablesOf(&k)
	tables[1].Active = false
	if err := os.WriteFile(path, []byte("[up]\ncount = 5\n[gateway]\nanything = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Settings(tables, path); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(path, []byte("[up]\ncount = \"x\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Settings(tables, path); err == nil || !strings.Contains(err.Error(), "c.toml:2: up.count") {
		t.Errorf("%v", err)
	}
}

// Whatever a file holds, reading it ends with settings or with an error.
func FuzzSettings(f *testing.F) {
	for _, seed := range []string{"", "state = 1", "[up]\ncount = 2", "up.count = 3", "[up]\nnames = [[1]]", "[[up]]\n", "\"\" = 1", "[\"\"]\nx = 1", "up = {count = 1}"} {
		f.Add(seed)
	}
	f.Fuzz(func(_ *testing.T, text string) {
		var k knobs
		tables, _ := tablesOf(&k)
		file, err := parseSettings("f", []byte(text), tables)
		if err != nil {
			return
		}
		for _, table := range tables {
			_ = table.fill(file)
		}
	})
}
