package wire

import (
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/limpet-sh/limpet/subjects"
)

// section gives the text between a heading of PROTOCOL.md and the next.
func section(t *testing.T, heading string) string {
	t.Helper()
	b, err := os.ReadFile("../PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(b), "\n## "+heading)
	if !ok {
		t.Fatalf("PROTOCOL.md has no section %q", heading)
	}
	text, _, _ := strings.Cut(rest, "\n## ")
	return text
}

var firstCell = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|")

// rows lists the words that stand first in the rows of tables.
func rows(text string) map[string]bool {
	out := map[string]bool{}
	for _, m := range firstCell.FindAllStringSubmatch(text, -1) {
		out[m[1]] = true
	}
	return out
}

// constants lists the string constants of a type in this package.
func constants(t *testing.T, typ string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(gotoken.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok || len(v.Values) != 1 {
				return true
			}
			id, ok := v.Type.(*ast.Ident)
			if lit, isLit := v.Values[0].(*ast.BasicLit); ok && isLit && id.Name == typ {
				out[strings.Trim(lit.Value, `"`)] = true
			}
			return true
		})
	}
	delete(out, "")
	return out
}

func TestProtocolListsEveryConstant(t *testing.T) {
	verbs := map[string]bool{}
	for _, v := range Verbs() {
		verbs[v] = true
	}
	verbTable, _, _ := strings.Cut(section(t, "8. Verbs"), "\n**Open**")
	states, reasons, _ := strings.Cut(section(t, "11. States"), "\nThe reason")
	for what, c := range map[string]struct{ code, doc map[string]bool }{
		"codes":   {constants(t, "Code"), rows(section(t, "12. Error codes"))},
		"states":  {constants(t, "State"), rows(states)},
		"reasons": {constants(t, "Reason"), rows(reasons)},
		"verbs":   {verbs, rows(verbTable)},
	} {
		if len(c.code) == 0 {
			t.Errorf("no %s found", what)
		}
		for name := range c.code {
			if !c.doc[name] {
				t.Errorf("%s: PROTOCOL.md does not explain %s", what, name)
			}
		}
		for name := range c.doc {
			if !c.code[name] {
				t.Errorf("%s: PROTOCOL.md explains %s, which does not exist", what, name)
			}
		}
	}
	events := section(t, "14. Events")
	for name := range constants(t, "Phase") {
		if !rows(events)[name] {
			t.Errorf("PROTOCOL.md does not explain the phase %s", name)
		}
	}
	for _, h := range []string{subjects.HeaderContentType, subjects.HeaderDeadline, subjects.HeaderTrace, subjects.HeaderVersion} {
		if !rowsOf(section(t, "7. Envelope"), h) {
			t.Errorf("PROTOCOL.md does not explain the header %s", h)
		}
	}
	for _, s := range subjects.Streams() {
		if !rowsOf(section(t, "4. Streams"), s) {
			t.Errorf("PROTOCOL.md does not explain the stream %s", s)
		}
	}
	for _, typ := range []string{"StdinMode", "StreamsMode", "Leftovers", "OnTimeout", "Shape", "View", "Proof", "Decision"} {
		for value := range constants(t, typ) {
			if !strings.Contains(section(t, "8. Verbs")+section(t, "9. The command")+section(t, "10. Answers"), "`"+value+"`") {
				t.Errorf("PROTOCOL.md does not mention %s %s", typ, value)
			}
		}
	}
}

func rowsOf(text, word string) bool { return strings.Contains(text, "\n| `"+word+"` |") }

// Every field of every message stands in the sections that describe messages.
func TestProtocolNamesEveryField(t *testing.T) {
	var text strings.Builder
	for _, h := range []string{"7. Envelope", "8. Verbs", "9. The command", "10. Answers", "14. Events", "15. Records"} {
		text.WriteString(section(t, h))
	}
	doc := text.String()
	for _, s := range samples() {
		missingFields(shapeOf(reflect.TypeOf(s.full).Elem()), s.name, func(path, name string) {
			if !strings.Contains(doc, "`"+name+"`") {
				t.Errorf("PROTOCOL.md does not name %s.%s", path, name)
			}
		})
	}
}

func missingFields(s *shape, path string, visit func(path, name string)) {
	for s.elem != nil {
		s = s.elem
	}
	for _, f := range s.fields {
		visit(path, f.name)
		missingFields(f.shape, path+"."+f.name, visit)
	}
}

// The subjects of the page are those that the code builds.
func TestProtocolShowsTheSubjects(t *testing.T) {
	r := subjects.Default()
	subjectTable, streamTable := section(t, "3. Subjects"), section(t, "4. Streams")
	for _, s := range []string{
		r.WorkerOpen("T", "W", 7), r.Boot("W"), r.Lease("W"), r.QuestionsAdmit("T"),
	} {
		if s = strings.Replace(s, ".7.", ".E.", 1); !strings.Contains(subjectTable, "`"+s+"`") {
			t.Errorf("PROTOCOL.md does not show %s", s)
		}
	}
	for _, kind := range subjects.Streams() {
		for _, s := range r.StreamSubjects(kind) {
			if !strings.Contains(streamTable, "| `"+kind+"` | `"+s+"` |") {
				t.Errorf("PROTOCOL.md does not show that %s stores %s", kind, s)
			}
		}
	}
}

// The examples of the page must work as they stand.
func TestProtocolExamplesAreValid(t *testing.T) {
	lines := regexp.MustCompile(`(?m)^nats req .*\.api\.([a-z_]+) +'([^']*)'`).FindAllStringSubmatch(section(t, "1. In one minute"), -1)
	if len(lines) < 7 {
		t.Fatalf("%d examples found", len(lines))
	}
	for _, l := range lines {
		if _, err := DecodeRequest(l[1], subjects.TypeJSON, []byte(l[2])); err != nil {
			t.Errorf("%s: %v", l[0], err)
		}
	}
	_, err := DecodeRequest(VerbRun, subjects.TypeJSON, []byte(`{"session_name":"work","command":{"text":"x","timeoutMs":5}}`))
	b, err := EncodeReply[Result](subjects.TypeJSON, nil, err)
	if err != nil || !strings.Contains(section(t, "1. In one minute"), "\n"+string(b)+"\n") {
		t.Errorf("the refusal is %s, %v", b, err)
	}
	example := regexp.MustCompile("(?s)This command:\n\n```json\n(.*?)```").FindStringSubmatch(section(t, "13. Digests"))
	if example == nil {
		t.Fatal("no example of a digest")
	}
	var c Command
	if err := Unmarshal(subjects.TypeJSON, []byte(example[1]), &c, true); err != nil {
		t.Fatal(err)
	}
	if got := string(c.Canonical()); got != workedCanonical {
		t.Errorf("%s", got)
	}
}
