package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// What a tenant sends may be anything. Here each field of each message is sent wrong in
// each way its type allows, over the bus and past the client's own checks. The fields
// come from the messages by reflection, so that a new one is tried without a word here.

// field is one field of a message, or an element of one: command.env[0].name.
type field struct {
	path string
	typ  reflect.Type
}

// fieldsOf lists the fields of a message with all inside them.
func fieldsOf(prefix string, t reflect.Type) (all []field) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			all = append(all, fieldsOf(prefix, f.Type)...)
			continue
		}
		all = append(all, fieldAt(prefix+name, f.Type)...)
	}
	return all
}

func fieldAt(path string, t reflect.Type) []field {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	all := []field{{path, t}}
	switch {
	case t.Kind() == reflect.Struct:
		all = append(all, fieldsOf(path+".", t)...)
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		all = append(all, fieldAt(path+"[0]", t.Elem())...)
	}
	return all
}

// wrong is a value that a field must refuse, and the codes it may refuse it with.
type wrong struct {
	name  string
	value any
	codes []wire.Code
}

// wrongs gives the values that no field of a type may take: another type, too long,
// too large, negative, NUL, not UTF-8, unknown fields.
func wrongs(f field) (all []wrong) {
	bad := []wire.Code{wire.CodeInvalidArguments}
	odd := []wire.Code{wire.CodeInvalidArguments, wire.CodeNotBuilt}
	others := map[string]any{
		"a string": "7x", "a number": 7, "a fraction": 1.5, "a boolean": true,
		"a list": []any{}, "an object": map[string]any{}, "a list of null": []any{nil},
	}
	add := func(codes []wire.Code, name string, v any) { all = append(all, wrong{name, v, codes}) }
	switch f.typ.Kind() {
	case reflect.String:
		delete(others, "a string")
		add(odd, "200,001 bytes", strings.Repeat("x", 200_001))
		add(odd, "a NUL", "a\x00b")
		add(bad, "not UTF-8", "a\xffb")
	case reflect.Int, reflect.Int64:
		delete(others, "a number")
		if f.path == "version" || strings.HasSuffix(f.path, ".version") {
			odd = []wire.Code{wire.CodeUnsupportedVersion}
		}
		add(odd, "negative", -2)
		add(odd, "2^53", int64(1)<<53)
		add(odd, "the largest", int64(math.MaxInt64))
		add(odd, "the smallest", int64(math.MinInt64))
		add(bad, "2^64-1", uint64(math.MaxUint64))
	case reflect.Bool:
		delete(others, "a boolean")
	case reflect.Map:
		delete(others, "an object")
		many := map[string]any{}
		for i := range wire.MaxLabels + 1 {
			many[fmt.Sprint(i)] = "x"
		}
		add(bad, "too many entries", many)
		add(bad, "an empty key", map[string]any{"": "x"})
		add(bad, "a long key", map[string]any{strings.Repeat("k", wire.MaxLabelKey+1): "x"})
		add(bad, "a long value", map[string]any{"k": strings.Repeat("v", wire.MaxLabelValue+1)})
		add(bad, "a NUL in a value", map[string]any{"k": "\x00"})
		add(bad, "a NUL in a key", map[string]any{"\x00": "x"})
		add(bad, "a number as a value", map[string]any{"k": 7})
	case reflect.Struct:
		delete(others, "an object")
		add([]wire.Code{wire.CodeUnknownField}, "an unknown field", map[string]any{"no_such_field": 1})
	case reflect.Slice:
		if f.typ.Elem().Kind() == reflect.Uint8 {
			add(odd, "too long", make([]byte, wire.MaxInputBytes+1))
			break
		}
		delete(others, "a list")
		many := make([]any, wire.MaxArguments+1)
		for i := range many {
			many[i] = zero(f.typ.Elem())
		}
		add(odd, "100,001 elements", many)
	}
	for name, v := range others {
		add(bad, name, v)
	}
	return all
}

// zero is a value of a type as a generic encoder knows it.
func zero(t reflect.Type) any {
	switch t.Kind() {
	case reflect.Struct:
		return map[string]any{}
	case reflect.String:
		return "x"
	}
	return 0
}

// legal are the few values of wrongs that a field takes, and why.
var legal = map[string]string{
	"write text a NUL": "a NUL may be typed",
}

// exclusive: to set the one, the other must go.
var exclusive = map[string]string{"command.argv": "text", "data": "text", "session_name": "session"}

// companions must be there for the field to be looked at.
var companions = map[string]map[string]any{
	"command.env[0].value":  {"name": "A"},
	"command.env[0].secret": {"name": "A"},
	"env[0].value":          {"name": "A"},
	"env[0].secret":         {"name": "A"},

	"command.descriptors[0].input":  {"number": 3},
	"command.descriptors[0].output": {"number": 3},
}

// with gives message m with v at a path, by way of new maps and lists.
func with(m map[string]any, path string, v any) map[string]any {
	out := map[string]any{}
	maps.Copy(out, m)
	head, rest, nested := strings.Cut(path, ".")
	name, isElem := strings.CutSuffix(head, "[0]")
	if nested {
		inner, _ := out[name].(map[string]any)
		v = with(inner, rest, v)
	}
	if isElem {
		v = []any{v}
	}
	out[name] = v
	return out
}

func without(m map[string]any, path string) map[string]any {
	out := map[string]any{}
	head, rest, nested := strings.Cut(path, ".")
	for k, x := range m {
		if k != head {
			out[k] = x
		} else if nested {
			out[k] = without(x.(map[string]any), rest)
		}
	}
	return out
}

// badLab is a host with a session and a process that bad messages may name, and that
// must be unharmed afterwards.
type badLab struct {
	agent
	l       *Lab
	session string
	process string // cat, which must answer in the end
	marker  string // made by any command that runs after all
	worker  int
	before  *wire.Processes
}

func newBadLab(t *testing.T) *badLab {
	t.Helper()
	b := &badLab{l: start(t)}
	b.agent = newAgent(t, b.l, wire.Open{Cwd: t.TempDir(), DefaultTimeoutMS: -1})
	b.session, b.process = b.s.Info().ID, b.start(t, wire.Command{Text: "cat", Stdin: wire.StdinPipe})
	b.marker, b.worker = filepath.Join(t.TempDir(), "ran"), b.l.PID("worker")
	b.before = b.all(t)
	t.Cleanup(func() { b.unharmed(t) })
	return b
}

func (b *badLab) all(t *testing.T) *wire.Processes {
	t.Helper()
	p, err := b.c.ListAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// unharmed: nothing was started, nothing lost, the worker is the same one.
func (b *badLab) unharmed(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), long)
	defer cancel()
	if _, err := os.Stat(b.marker); err == nil {
		t.Error("a refused command ran")
	}
	now, err := b.c.ListAll(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(now.Processes) != len(b.before.Processes) || len(now.Sessions) != len(b.before.Sessions) {
		t.Errorf("%d processes in %d sessions; %d in %d before", len(now.Processes), len(now.Sessions), len(b.before.Processes), len(b.before.Sessions))
	}
	r, err := b.c.Write(ctx, wire.Write{ProcessRef: wire.ProcessRef{Process: b.process}, Text: "still here\n", Read: &wire.Read{WaitMS: 20_000}})
	if err != nil || r.StdinBytes != 11 || r.Page == nil || len(r.Page.Chunks) != 1 || r.Page.Chunks[0].Text != "still here\n" {
		t.Errorf("the process that was there: %+v, %v", r, err)
	}
	if pid := b.l.PID("worker"); pid != b.worker {
		t.Errorf("the worker is %d, was %d", pid, b.worker)
	}
}

// least is the smallest good message of a verb: no field of it may be missing.
func (b *badLab) least(verb string) map[string]any {
	p := map[string]any{"process": b.process}
	s := map[string]any{"session": b.session}
	run := with(s, "command.text", "touch "+b.marker)
	switch verb {
	case wire.VerbOpen:
		return map[string]any{}
	case wire.VerbClose, wire.VerbList:
		return s
	case wire.VerbPrepare, wire.VerbRun, wire.VerbStart:
		return run
	case wire.VerbCancel:
		return with(s, "execution_id", "no-such-execution")
	case wire.VerbWrite:
		return with(p, "text", "lost\n")
	case wire.VerbResize:
		return with(with(p, "rows", 24), "cols", 80)
	case wire.VerbSignal:
		return with(p, "signal", "KILL")
	case wire.VerbSearch:
		return with(p, "pattern", "x")
	}
	return p
}

// ask sends bytes as the tenant and gives the error of the answer.
func (b *badLab) ask(t *testing.T, verb, contentType string, data []byte, header bus.Header) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	h := bus.Header{}
	maps.Copy(h, header)
	if contentType != "" {
		h[subjects.HeaderContentType] = []string{contentType}
	}
	m, err := b.c.Conn().Request(ctx, b.c.Conn().Root().API(b.c.Tenant(), verb), h, data)
	if err != nil {
		t.Fatalf("%s: no answer to %.200q: %v", verb, data, err)
	}
	_, err = wire.DecodeReply[struct{}](m.Header.Get(subjects.HeaderContentType), m.Data)
	return err
}

// encode is JSON with the bytes that Go would mend put back, or msgpack.
func encode(t *testing.T, contentType string, m map[string]any) []byte {
	t.Helper()
	if contentType != subjects.TypeJSON {
		data, err := wire.Marshal(contentType, m)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.ReplaceAll(data, []byte(`\ufffd`), []byte{0xff})
}

// named reports whether an error names a field: itself, what it is in, or the entry of
// it at fault.
func named(path, got string) bool {
	return got != "" && (path == got || inside(path, got) || inside(got, path))
}

func inside(inner, outer string) bool {
	return strings.HasPrefix(inner, outer+".") || strings.HasPrefix(inner, outer+"[")
}

func TestBadInputFields(t *testing.T) {
	notShort(t)
	b := newBadLab(t)
	for _, verb := range wire.Verbs() {
		t.Run(verb, func(t *testing.T) {
			fields := fieldsOf("", reflect.TypeOf(wire.NewRequest(verb)).Elem())
			if len(fields) < 2 {
				t.Fatalf("only %d fields", len(fields))
			}
			for _, contentType := range []string{subjects.TypeMsgpack, subjects.TypeJSON} {
				tried := 0
				for _, f := range fields {
					for _, w := range wrongs(f) {
						if _, ok := legal[verb+" "+f.path+" "+w.name]; ok {
							continue
						}
						if m, ok := b.wrongly(verb, f, w); ok {
							tried++
							b.mustRefuse(t, verb, contentType, f.path, w, m)
						}
					}
				}
				t.Logf("%s: %d fields, %d bad values", contentType, len(fields), tried)
			}
		})
	}
}

// wrongly is the least message of a verb with one field wrong; false where that has no
// meaning.
func (b *badLab) wrongly(verb string, f field, w wrong) (map[string]any, bool) {
	m := b.least(verb)
	for have, gone := range exclusive {
		if f.path == have || inside(f.path, have) {
			m = without(m, strings.TrimSuffix(have, have[strings.LastIndexByte(have, '.')+1:])+gone)
		}
	}
	if parent, name := f.path[:strings.LastIndexByte(f.path, '.')+1], f.path[strings.LastIndexByte(f.path, '.')+1:]; companions[f.path] != nil {
		inner := map[string]any{name: w.value}
		maps.Copy(inner, companions[f.path])
		return with(m, strings.TrimSuffix(parent, "."), inner), true
	}
	if x, ok := w.value.(map[string]any); ok && f.path == "command" && len(x) == 1 { // keep it complete
		return with(m, "command.no_such_field", 1), true
	}
	return with(m, f.path, w.value), true
}

func (b *badLab) mustRefuse(t *testing.T, verb, contentType, path string, w wrong, m map[string]any) {
	t.Helper()
	err := b.ask(t, verb, contentType, encode(t, contentType, m), nil)
	if err == nil {
		t.Errorf("%s: %s: %s was accepted", contentType, path, w.name)
		return
	}
	e, ok := errors.AsType[*wire.Error](err)
	if !ok || !slices.Contains(w.codes, e.Code) || !named(path, e.Field) || len(e.Message) > 1000 {
		t.Errorf("%s: %s: %s: got %s of %q, want %v: %.300v", contentType, path, w.name, e.Code, e.Field, w.codes, err)
	}
}
