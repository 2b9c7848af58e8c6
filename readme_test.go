package limpet_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documents are the pages whose words are held to what is there.
func documents(t *testing.T) map[string]string {
	t.Helper()
	pages := []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "subjects/PROTOCOL.md"}
	err := filepath.WalkDir("docs", func(p string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(p) == ".md" {
			pages = append(pages, p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, p := range pages {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		texts[p] = string(b)
	}
	return texts
}

var (
	linkRE = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	// A path as prose names it: with a folder, or the name of a file of ours.
	pathRE = regexp.MustCompile(`(?:[A-Za-z0-9_.-]+/)+[A-Za-z0-9_.-]*|[A-Za-z0-9_-]+\.(?:go|md|yml|txtar)\b`)
)

// A page names only what exists: its links, and the paths in its text.
func TestNamedPathsExist(t *testing.T) {
	count, files := 0, fileNames(t)
	for page, text := range documents(t) {
		for _, m := range linkRE.FindAllStringSubmatch(text, -1) {
			target, _, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || target == "" {
				continue
			}
			count++
			if !exists(path.Join(path.Dir(page), target)) {
				t.Errorf("%s links to %s, which is not there", page, m[1])
			}
		}
		for _, name := range pathRE.FindAllString(text, -1) {
			if !ours(name) {
				continue
			}
			count++
			name = strings.Trim(strings.TrimSuffix(name, "/..."), "/.")
			if !exists(name) && !exists("."+name) && !exists(path.Join(path.Dir(page), name)) && !files[name] {
				t.Errorf("%s names %s, which is not there", page, name)
			}
		}
	}
	if count < 50 {
		t.Errorf("only %d names were found: the test looks past them", count)
	}
}

// fileNames are the names of all files, without their folders.
func fileNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == ".git" {
			return filepath.SkipDir
		}
		names[path.Base(p)] = true
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// ours tells a path of this repository from stdout/stderr and /dev/null.
func ours(name string) bool {
	first, rest, folder := strings.Cut(strings.TrimPrefix(name, "./"), "/")
	if !folder {
		return true
	}
	info, err := os.Stat(first)
	return err == nil && info.IsDir() && rest != ""
}

func exists(name string) bool {
	_, err := os.Stat(filepath.FromSlash(name))
	return err == nil
}

// A page names only test flags that a test package has.
func TestNamedTestFlagsExist(t *testing.T) {
	re := regexp.MustCompile(`go test (?:-run \S+ )?\./([a-z/]+?)(?:/\.\.\.)? [^` + "`" + `\n]*?-([a-z.]+)=`)
	found := 0
	for page, text := range documents(t) {
		for _, m := range re.FindAllStringSubmatch(text, -1) {
			found++
			files, err := filepath.Glob(filepath.Join(m[1], "*_test.go"))
			if err != nil || len(files) == 0 {
				t.Errorf("%s: no tests in %s (%v)", page, m[1], err)
			}
			if !slices.ContainsFunc(files, func(f string) bool { return contains(t, f, `"`+m[2]+`"`) }) {
				t.Errorf("%s: no test in %s has the flag -%s", page, m[1], m[2])
			}
		}
	}
	if found == 0 {
		t.Error("no flag was found: the test looks past them")
	}
}

// A page names only variables that something reads.
func TestNamedVariablesExist(t *testing.T) {
	var sources []string
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err == nil && (filepath.Ext(p) == ".go" || p == filepath.Join(".ci", "run")) {
			sources = append(sources, p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for page, text := range documents(t) {
		for _, name := range regexp.MustCompile(`LIMPET_[A-Z_]+`).FindAllString(text, -1) {
			if strings.HasPrefix(name, "LIMPET_V") { // streams are named like LIMPET_V1_EVENTS
				continue
			}
			read := func(f string) bool { return contains(t, f, `"`+name+`"`) || contains(t, f, name+"=") }
			if !slices.ContainsFunc(sources, read) && !setting(t, name) {
				t.Errorf("%s names %s, which nothing reads", page, name)
			}
		}
	}
}

// setting tells whether a variable is that of a flag of one of our programs.
func setting(t *testing.T, variable string) bool {
	t.Helper()
	table, flag, _ := strings.Cut(strings.ToLower(strings.TrimPrefix(variable, "LIMPET_")), "_")
	flag = "--" + strings.ReplaceAll(flag, "_", "-")
	switch table {
	case "worker", "gateway":
		out, err := exec.CommandContext(t.Context(), "go", "run", "./cmd/"+table, "--help").CombinedOutput()
		if err != nil {
			t.Fatalf("%s --help: %v", table, err)
		}
		return strings.Contains(string(out), flag+" ")
	}
	return slices.Contains(commands(t), table) && strings.Contains(help(t, table), flag+" ")
}

func contains(t *testing.T, file, text string) bool {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(b), text)
}

// help is what limpet says of itself, or of one of its commands.
func help(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"run", "./cmd/limpet"}, append(args, "--help")...)...).Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		t.Fatalf("limpet %s --help: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

// commands are those that limpet --help lists, but for cobra's own.
func commands(t *testing.T) []string {
	t.Helper()
	_, list, _ := strings.Cut(help(t), "Available Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	var names []string
	for line := range strings.Lines(list) {
		if name := strings.Fields(line)[0]; name != "help" && name != "completion" {
			names = append(names, name)
		}
	}
	if len(names) < 5 {
		t.Fatalf("limpet --help lists only %q", names)
	}
	return names
}

// README names every command of limpet, none that is not, and flags that are.
func TestNamedCommandsExist(t *testing.T) {
	text := documents(t)["README.md"]
	real := commands(t)
	_, section, _ := strings.Cut(text, "\n## Use it\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var named []string
	for line := range strings.Lines(section) {
		cell, ok := strings.CutPrefix(line, "| `")
		if !ok {
			continue
		}
		cell, _, _ = strings.Cut("`"+cell, " | ")
		for _, m := range regexp.MustCompile("`(?:limpet )?([a-z]+)").FindAllStringSubmatch(cell, -1) {
			named = append(named, m[1])
		}
	}
	for page, text := range documents(t) {
		for _, m := range regexp.MustCompile("`limpet ([a-z]+)").FindAllStringSubmatch(text, -1) {
			if !slices.Contains(real, m[1]) && page != "subjects/PROTOCOL.md" { // which names hashed words
				t.Errorf("%s names limpet %s; there are %q", page, m[1], real)
			}
		}
	}
	for _, name := range named {
		if !slices.Contains(real, name) {
			t.Errorf("README names the command %q; there are %q", name, real)
		}
	}
	for _, name := range real {
		if !slices.Contains(named, name) {
			t.Errorf("README's table lacks the command %q", name)
		}
	}
	flags := help(t, "run")
	for _, m := range regexp.MustCompile("`(--[a-z-]+)").FindAllStringSubmatch(section, -1) {
		if !strings.Contains(flags, m[1]) {
			t.Errorf("README names the flag %s, which limpet run --help does not", m[1])
		}
	}
}

// The map lists every package, or its folder's row does.
func TestTheMapIsWhole(t *testing.T) {
	_, section, _ := strings.Cut(documents(t)["README.md"], "\n## The map\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\| \[([a-z/]+?)/?\]\([^)]*\) \| (.*) \|$`).FindAllStringSubmatch(section, -1) {
		rows[m[1]] = m[2]
		if info, err := os.Stat(m[1]); err != nil || !info.IsDir() {
			t.Errorf("the map has %s, which is no folder", m[1])
		}
	}
	for _, p := range list(t) {
		name, ok := strings.CutPrefix(p.ImportPath, module)
		if !ok {
			continue // the tests of the root
		}
		if _, ok := rows[name]; ok {
			delete(rows, name)
			continue
		}
		parent, base := path.Split(name)
		for parent = strings.Trim(parent, "/"); parent != ""; parent, _ = path.Split(parent) {
			parent = strings.Trim(parent, "/")
			if b, err := os.ReadFile("README.md"); err != nil || strings.Contains(rowOf(string(b), parent), "`"+base+"/`") {
				break
			}
		}
		if parent == "" {
			t.Errorf("the map lacks the package %s", name)
		}
	}
	for name := range rows {
		if name != "cmd" && !strings.HasPrefix(name, "docs") {
			t.Errorf("the map has %s, where no package is", name)
		}
	}
}

func rowOf(readme, folder string) string {
	_, row, _ := strings.Cut(readme, "| ["+folder+"/](")
	row, _, _ = strings.Cut(row, "\n")
	return row
}

// The arrows of the map are those of the table in imports_test.go.
func TestTheArrowsOfTheMap(t *testing.T) {
	m := regexp.MustCompile(`(?m)^    (subjects ← .*)$`).FindStringSubmatch(documents(t)["README.md"])
	if m == nil {
		t.Fatal("README has no line of arrows")
	}
	level := map[string]int{}
	for i, group := range strings.Split(m[1], " ← ") {
		for name := range strings.SplitSeq(strings.Trim(group, "{}"), ", ") {
			level[name] = i
		}
	}
	place := func(pkg string) (int, bool) {
		if strings.HasPrefix(pkg, "cmd/") {
			pkg = "cmd"
		}
		if strings.HasPrefix(pkg, "subjects/bus/") {
			pkg = "subjects/bus"
		}
		if strings.HasPrefix(pkg, "gateway/") { // a front end is at the level of its gateway
			pkg = "gateway"
		}
		l, ok := level[path.Base(pkg)]
		return l, ok
	}
	for pkg, imports := range layers {
		at, ok := place(pkg)
		if !ok {
			t.Errorf("the arrows lack %s", pkg)
		}
		for _, dep := range imports {
			below, _ := place(dep)
			inside := strings.HasPrefix(pkg, dep+"/") // an embedded server lives in bus
			beside := pkg == "gateway" && dep == "observer" || at > below
			if !inside && !beside {
				t.Errorf("%s imports %s, which the arrows do not show below it", pkg, dep)
			}
		}
	}
}

// README's two commands are what the gate calls.
func TestTheGateRunsTheCommandsOfREADME(t *testing.T) {
	readme := documents(t)["README.md"]
	m := regexp.MustCompile(`(?m)^    (go run \./cmd/limpet run -- '[^']*') +#.*\n    (go test \./\.\.\.) +#`).FindStringSubmatch(readme)
	if m == nil {
		t.Fatal("README does not begin with its two commands")
	}
	b, err := os.ReadFile(".ci/run")
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range m[1:] {
		if !slices.Contains(strings.Split(string(b), "\n"), command) {
			t.Errorf(".ci/run does not call %q", command)
		}
	}
}

// The gate lets no test skip: it requires every word that a test may lack.
func TestTheGateRequiresEveryWord(t *testing.T) {
	agreed := []string{"few-pids"} // a host of few process ids; a container's are too many
	b, err := os.ReadFile(".ci/run")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^export LIMPET_REQUIRE=(\S+)$`).FindSubmatch(b)
	if m == nil {
		t.Fatal(".ci/run does not export LIMPET_REQUIRE")
	}
	words := strings.Split(string(m[1]), ",")
	used := 0
	err = filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(p, "_test.go") {
			return err
		}
		b, err := os.ReadFile(p)
		for _, m := range regexp.MustCompile(`\b(?:need|require|required)\((?:t, )?"([a-z0-9-]+)"`).FindAllSubmatch(b, -1) {
			used++
			if word := string(m[1]); !slices.Contains(words, word) && !slices.Contains(agreed, word) {
				t.Errorf("%s needs %q, which .ci/run does not require", p, word)
			}
		}
		return err
	})
	if err != nil || used < 10 {
		t.Errorf("only %d words were found: the test looks past them (%v)", used, err)
	}
}
