package limpet_test

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/actors/runtime"
)

const running = "docs/running.md"

// The files of the state directory are those of app.
func TestTheStateDirectoryIsDescribed(t *testing.T) {
	text := documents(t)[running]
	named := map[string]bool{}
	for line := range strings.Lines(text) {
		if cell, ok := strings.CutPrefix(line, "| `"); ok {
			cell, _, _ = strings.Cut(cell, " |")
			for name := range strings.SplitSeq("`"+cell, ", ") {
				named[strings.Trim(name, "`/")] = true
			}
		}
	}
	b, err := os.ReadFile(filepath.Join("app", "state.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`s\.file\("([^"]+)"\)`).FindAllSubmatch(b, -1) {
		if !named[string(m[1])] {
			t.Errorf("%s lacks the file %s", running, m[1])
		}
		delete(named, string(m[1]))
	}
	for name := range named {
		t.Errorf("%s has the file %s, which is none", running, name)
	}
}

// The limits are those of the code.
func TestTheLimitsAreDescribed(t *testing.T) {
	text := documents(t)[running]
	for _, l := range []struct {
		what, dir, name string
		form            func(int64) string
	}{
		{"adoption window of the keeper", "app", "AdoptionWindow", duration},
		{"grace between TERM and KILL", "actors", "defaultGrace", duration},
		{"longest grace", "subjects/wire", "MaxGraceMS", milliseconds},
		{"longest timeout of a command", "subjects/wire", "MaxTimeoutMS", milliseconds},
		{"drain: leftovers may hold the streams after the exit", "actors", "drainLimit", duration},
		{"live processes of a session", "actors", "defaultLive", number},
		{"ended processes of a session with output", "actors", "defaultRetained", number},
		{"a session without a call ends after", "actors", "defaultIdleTTL", duration},
		{"records of what ended are kept", "registry", "Retention", duration},
		{"output of a process in memory", "actors/output", "DefaultWindow", bytes},
		{"output of a process on disk", "actors/output", "DefaultSpool", bytes},
		{"output of all processes on disk", "actors", "SpoolBytes", bytes},
		{"output of a process that is read without its worker", "subjects/wire", "DefaultShipBytes", bytes},
		{"output that is shipped for that, in a second", "actors", "shipRate", bytes},
		{"page of a read", "actors/output", "DefaultPage", bytes},
		{"longest page of a read", "subjects/wire", "MaxPageBytes", bytes},
		{"one write to stdin", "subjects/wire", "MaxInputBytes", bytes},
		{"one argument, or the text of a command", "subjects/wire", "MaxArgument", bytes},
		{"waiting calls on one process", "actors", "maxWaiters", number},
		{"state that a session keeps between commands", "actors", "maxState", bytes},
		{"clients of the socket", "subjects/bus/embedded", "MaxUnix", number},
		{"a log is begun anew when its part starts and it has more than", "app", "MaxLog", bytes},
		{"an `up` in the background goes on without use for", "app", "UntilIdle", duration},
	} {
		row := fmt.Sprintf("| %s | %s |", l.what, l.form(valueOf(t, l.dir, l.name)))
		if !slices.Contains(strings.Split(text, "\n"), row) {
			t.Errorf("%s lacks the row\n%s", running, row)
		}
	}
}

func number(n int64) string       { return strconv.FormatInt(n, 10) }
func duration(n int64) string     { return time.Duration(n).String() }
func milliseconds(n int64) string { return (time.Duration(n) * time.Millisecond).String() }

func bytes(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB"}
	f := float64(n)
	for ; f >= 1024 && len(units) > 1; units = units[1:] {
		f /= 1024
	}
	if f != float64(int64(f)) {
		return fmt.Sprintf("%.1f %s", f, units[0])
	}
	return fmt.Sprintf("%.0f %s", f, units[0])
}

// valueOf finds what a constant of a package is, or what a field of its Config is set to
// where it was zero.
func valueOf(t *testing.T, dir, name string) int64 {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var found ast.Expr
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				for i, id := range n.Names {
					if id.Name == name && i < len(n.Values) {
						found = n.Values[i]
					}
				}
			case *ast.AssignStmt:
				if sel, ok := n.Lhs[0].(*ast.SelectorExpr); ok && sel.Sel.Name == name && number64(n.Rhs[0]) > 0 {
					found = n.Rhs[0]
				}
			}
			return true
		})
	}
	if found == nil {
		t.Fatalf("there is no %s in %s", name, dir)
	}
	v := number64(found)
	if v <= 0 {
		t.Fatalf("%s in %s is no expression that this test understands", name, dir)
	}
	return v
}

// number64 evaluates numbers, units of time, and what is made of them; -1 for others.
func number64(e ast.Expr) int64 {
	v := value(e)
	if v.Kind() != constant.Int {
		return -1
	}
	n, _ := constant.Int64Val(v)
	return n
}

func value(e ast.Expr) constant.Value {
	switch e := e.(type) {
	case *ast.BasicLit:
		return constant.MakeFromLiteral(e.Value, e.Kind, 0)
	case *ast.ParenExpr:
		return value(e.X)
	case *ast.SelectorExpr:
		units := map[string]time.Duration{"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}
		if d, ok := units[e.Sel.Name]; ok {
			return constant.MakeInt64(int64(d))
		}
	case *ast.BinaryExpr:
		x, y := value(e.X), value(e.Y)
		if x.Kind() != constant.Int || y.Kind() != constant.Int {
			break
		}
		if e.Op == token.SHL {
			n, _ := constant.Uint64Val(y)
			return constant.Shift(x, token.SHL, uint(n))
		}
		return constant.BinaryOp(x, e.Op, y)
	}
	return constant.MakeUnknown()
}

// The environment of a command is what runtime makes of an empty one, and lets through.
func TestTheEnvironmentIsDescribed(t *testing.T) {
	_, section, _ := strings.Cut(documents(t)[running], "\n## The environment of a command\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, entry := range runtime.Environment(nil, nil, nil, false) {
		if !strings.Contains(section, "\n    "+entry+"\n") {
			t.Errorf("%s lacks the default %s", running, entry)
		}
	}
	for _, entry := range runtime.Environment(nil, nil, nil, true) {
		if !strings.Contains(section, entry) {
			t.Errorf("%s lacks the default at a terminal %s", running, entry)
		}
	}
	list, _, _ := strings.Cut(section, ". A locale")
	_, list, _ = strings.Cut(list, "`limpet up`:")
	var named []string
	for _, m := range regexp.MustCompile("`([A-Z_*]+)`").FindAllStringSubmatch(list, -1) {
		named = append(named, m[1])
		if !runtime.AllowDefault(strings.Replace(m[1], "*", "TIME", 1)) {
			t.Errorf("%s says that %s is let through", running, m[1])
		}
	}
	b, err := os.ReadFile(filepath.Join("actors", "runtime", "environ.go"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^	case ("PATH".*):$`).FindSubmatch(b)
	if m == nil {
		t.Fatal("AllowDefault has another form")
	}
	for name := range strings.SplitSeq(string(m[1]), ", ") {
		if !slices.Contains(named, strings.Trim(name, `"`)) {
			t.Errorf("%s lacks %s, which is let through", running, name)
		}
	}
	if !strings.Contains(section, "`"+runtime.TagVariable+"`") {
		t.Errorf("%s lacks %s", running, runtime.TagVariable)
	}
}
