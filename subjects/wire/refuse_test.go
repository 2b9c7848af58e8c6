package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/limpet-sh/limpet/subjects"
)

// refusals are requests of wrong form, in JSON; the test sends them in msgpack too.
var refusals = []struct {
	name  string
	verb  string
	body  string
	field string
	code  Code
}{
	{"unknown field", VerbStart, `{"session":"s","comand":{}}`, "comand", CodeUnknownField},
	{"unknown field inside", VerbStart, `{"session":"s","command":{"txt":"true"}}`, "command.txt", CodeUnknownField},
	{"unknown field in a list", VerbStart, `{"command":{"env":[{"name":"A"},{"nmae":"B"}]}}`, "command.env[1].nmae", CodeUnknownField},
	{"a field in another case", VerbStatus, `{"Process":"p"}`, "Process", CodeUnknownField},
	{"an empty key", VerbStatus, `{"":"p"}`, `""`, CodeUnknownField},
	{"a command in a follow-up", VerbWrite, `{"process":"p","text":"x","command":{"text":"rm"}}`, "command", CodeUnknownField},
	{"string for integer", VerbStart, `{"command":{"timeout_ms":"1000"}}`, "command.timeout_ms", CodeInvalidArguments},
	{"boolean for integer", VerbStart, `{"command":{"timeout_ms":true}}`, "command.timeout_ms", CodeInvalidArguments},
	{"fraction for integer", VerbStart, `{"command":{"timeout_ms":1.5}}`, "command.timeout_ms", CodeInvalidArguments},
	{"list for integer", VerbStart, `{"command":{"timeout_ms":[1]}}`, "command.timeout_ms", CodeInvalidArguments},
	{"object for integer", VerbStart, `{"command":{"timeout_ms":{}}}`, "command.timeout_ms", CodeInvalidArguments},
	{"integer for string", VerbStart, `{"command":{"text":7}}`, "command.text", CodeInvalidArguments},
	{"list for string", VerbStart, `{"command":{"text":["ls"]}}`, "command.text", CodeInvalidArguments},
	{"string for list", VerbStart, `{"command":{"argv":"ls -l"}}`, "command.argv", CodeInvalidArguments},
	{"integer in a list of strings", VerbStart, `{"command":{"argv":["sleep",5]}}`, "command.argv[1]", CodeInvalidArguments},
	{"null in a list", VerbStart, `{"command":{"argv":["sleep",null]}}`, "command.argv[1]", CodeInvalidArguments},
	{"null in labels", VerbStart, `{"command":{"labels":{"a":null}}}`, "command.labels.a", CodeInvalidArguments},
	{"object for list", VerbStart, `{"command":{"env":{"A":"b"}}}`, "command.env", CodeInvalidArguments},
	{"string for boolean", VerbList, `{"all":"true"}`, "all", CodeInvalidArguments},
	{"integer for boolean", VerbList, `{"all":1}`, "all", CodeInvalidArguments},
	{"string for object", VerbStart, `{"command":"ls"}`, "command", CodeInvalidArguments},
	{"integer out of range", VerbRead, `{"process":"p","cursor":18446744073709551615}`, "cursor", CodeInvalidArguments},
	{"integer in a label", VerbStart, `{"command":{"labels":{"a":1}}}`, "command.labels.a", CodeInvalidArguments},
	{"a list as the message", VerbStatus, `[]`, "", CodeInvalidArguments},
	{"null as the message", VerbStatus, `null`, "", CodeInvalidArguments},
	{"a string as the message", VerbStatus, `"p"`, "", CodeInvalidArguments},
}

func TestRequestsOfWrongFormAreRefused(t *testing.T) {
	for _, c := range refusals {
		t.Run(c.name, func(t *testing.T) {
			d := json.NewDecoder(strings.NewReader(c.body))
			d.UseNumber()
			var v any
			if err := d.Decode(&v); err != nil {
				t.Fatal(err)
			}
			packed, err := msgpack.Marshal(numbers(v))
			if err != nil {
				t.Fatal(err)
			}
			for ct, data := range map[string][]byte{subjects.TypeJSON: []byte(c.body), subjects.TypeMsgpack: packed} {
				_, err := DecodeRequest(c.verb, ct, data)
				e, ok := errors.AsType[*Error](err)
				if !ok || e.Code != c.code || e.Field != c.field || e.Message == "" {
					t.Errorf("%s: %#v", ct, err)
				}
			}
		})
	}
}

// numbers turns what a JSON decoder keeps as text into the integer or float it is.
func numbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i
		}
		if v == "18446744073709551615" {
			return uint64(1<<64 - 1)
		}
		f, _ := v.Float64()
		return f
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = numbers(v[k])
		}
	}
	return v
}

func pack(t testing.TB, v any) []byte {
	t.Helper()
	b, err := msgpack.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// malformed are bytes of wrong form, one table for the unit test and the fuzzer.
var malformed = []struct {
	name   string
	ct     string
	data   string
	field  string
	strict bool // refused in strict mode only
}{
	{"nothing", subjects.TypeJSON, "", "", false},
	{"text", subjects.TypeJSON, "hello", "", false},
	{"cut short", subjects.TypeJSON, `{"session":"s"`, "", false},
	{"bytes after", subjects.TypeJSON, `{"session":"s"}{}`, "", false},
	{"given twice", subjects.TypeJSON, `{"session":"s","session":"t"}`, "session", true},
	{"label twice", subjects.TypeJSON, `{"command":{"labels":{"a":"1","\u0061":"2"}}}`, "command.labels.a", true},
	{"not UTF-8", subjects.TypeJSON, "{\"session\":\"\xff\"}", "session", true},
	{"key not UTF-8", subjects.TypeJSON, "{\"\xff\":1}", "", true},
	{"half a pair", subjects.TypeJSON, `{"session":"\ud800x"}`, "session", true},
	{"other half", subjects.TypeJSON, `{"session":"\udc00"}`, "session", true},
	{"not base64", subjects.TypeJSON, `{"command":{"input":"*"}}`, "command.input", false},
	{"bytes as a list", subjects.TypeJSON, `{"command":{"input":[1,2]}}`, "command.input", false},
	{"exponent", subjects.TypeJSON, `{"command":{"timeout_ms":1e3}}`, "command.timeout_ms", false},
	{"too deep", subjects.TypeJSON, `{"x":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}`, "x" + strings.Repeat("[0]", 32), false},
	{"very deep", subjects.TypeJSON, strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000), "", false},

	{"nothing", subjects.TypeMsgpack, "", "", false},
	{"reserved byte", subjects.TypeMsgpack, "\xc1", "", false},
	{"cut short", subjects.TypeMsgpack, "\x81\xa7session\xa5ab", "session", false},
	{"no value", subjects.TypeMsgpack, "\x81\xa7session", "session", false},
	{"bytes after", subjects.TypeMsgpack, "\x81\xa7session\xa1s\xc0", "", false},
	{"given twice", subjects.TypeMsgpack, "\x82\xa7session\xa1s\xa7session\xa1t", "session", true},
	{"label twice", subjects.TypeMsgpack, "\x81\xa7command\x81\xa6labels\x82\xa1a\xa11\xa1a\xa12", "command.labels.a", true},
	{"not UTF-8", subjects.TypeMsgpack, "\x81\xa7session\xa1\xff", "session", true},
	{"bytes for text", subjects.TypeMsgpack, "\x81\xa7session\xc4\x01s", "session", false},
	{"text for bytes", subjects.TypeMsgpack, "\x81\xa7command\x81\xa5input\xa1s", "command.input", false},
	{"whole float", subjects.TypeMsgpack, "\x81\xa7command\x81\xaatimeout_ms\xcb\x40\x8f\x40\x00\x00\x00\x00\x00", "command.timeout_ms", false},
	{"a struct as a list", subjects.TypeMsgpack, "\x93\x01\xa1s\xa0", "", false},
	{"a key that is a number", subjects.TypeMsgpack, "\x81\x01\xa1s", "", false},
	{"a null key", subjects.TypeMsgpack, "\x81\xc0\xa1s", "", false},
	{"4 GiB string", subjects.TypeMsgpack, "\x81\xa7session\xdb\xff\xff\xff\xff", "session", false},
	{"4 GiB bytes", subjects.TypeMsgpack, "\x81\xa7command\x81\xa5input\xc6\xff\xff\xff\xff", "command.input", false},
	{"4 G elements", subjects.TypeMsgpack, "\x81\xa7command\x81\xa4argv\xdd\xff\xff\xff\xff", "command.argv", false},
	{"4 G entries", subjects.TypeMsgpack, "\xdf\xff\xff\xff\xff", "", false},
	{"4 G labels", subjects.TypeMsgpack, "\x81\xa7command\x81\xa6labels\xdf\xff\xff\xff\xff", "command.labels", false},
	{"4 GiB extension", subjects.TypeMsgpack, "\x81\xa1x\xc9\xff\xff\xff\xff\xff", "x", false},
	{"too deep", subjects.TypeMsgpack, "\x81\xa1x" + strings.Repeat("\x91", 40) + "\xc0", "x" + strings.Repeat("[0]", 32), false},
	{"very deep", subjects.TypeMsgpack, "\x81\xa1x" + strings.Repeat("\x91", 1<<20) + "\xc0", "x" + strings.Repeat("[0]", 32), false},
}

func TestMalformedBytesAreRefused(t *testing.T) {
	for _, c := range malformed {
		t.Run(c.ct+" "+c.name, func(t *testing.T) {
			for _, strict := range []bool{true, false} {
				m := Start{ExecutionID: "before"}
				err := Unmarshal(c.ct, []byte(c.data), &m, strict)
				if c.strict && !strict {
					if err != nil {
						t.Errorf("lenient: %v", err)
					}
					continue
				}
				e, ok := errors.AsType[*Error](err)
				unknown := ok && strict && e.Code == CodeUnknownField // the strict reader stops earlier
				if !ok || e.Field != c.field && !unknown {
					t.Errorf("strict %v: %#v", strict, err)
				}
				if m.ExecutionID != "before" {
					t.Errorf("strict %v: the message was touched", strict)
				}
			}
		})
	}
}

func TestTimesOutOfRangeAreRefused(t *testing.T) {
	long := make([]byte, 12)
	binary.BigEndian.PutUint64(long[4:], 1<<62)
	nanos := make([]byte, 12)
	binary.BigEndian.PutUint32(nanos, 1_000_000_000)
	for name, ext := range map[string]string{
		"year 146 billion":  "\xc7\x0c\xff" + string(long),
		"a billion nanos":   "\xc7\x0c\xff" + string(nanos),
		"short nanos":       "\xd7\xff\xff\xff\xff\xff\xff\xff\xff\xff",
		"another extension": "\xd6\x05abcd",
		"another length":    "\xc7\x03\xffabc",
		"text":              "\xb42026-01-02T03:04:05Z",
		"a list":            "\x92\x01\x02",
	} {
		var m SessionRecord
		err := Unmarshal(subjects.TypeMsgpack, []byte("\x81\xaacreated_at"+ext), &m, false)
		if e, ok := errors.AsType[*Error](err); !ok || e.Field != "created_at" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, text := range []string{"", "now", "2026-01-02", "0000-00-00T00:00:00Z", "2026-01-02 03:04:05Z"} {
		var m SessionRecord
		err := Unmarshal(subjects.TypeJSON, []byte(`{"created_at":"`+text+`"}`), &m, false)
		if e, ok := errors.AsType[*Error](err); !ok || e.Field != "created_at" {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A small message must not cost much memory, whatever it claims.
func TestMemoryStaysInProportion(t *testing.T) {
	const n = 300_000
	packed := "\x81\xa9processes\xdd\x00\x04\x93\xe0" // 300,000 elements
	for name, c := range map[string]struct{ ct, data string }{
		"empty receipts":           {subjects.TypeMsgpack, packed + strings.Repeat("\x80", n)},
		"null receipts":            {subjects.TypeMsgpack, packed + strings.Repeat("\xc0", n)},
		"empty receipts, JSON":     {subjects.TypeJSON, `{"processes":[{}` + strings.Repeat(",{}", n) + `]}`},
		"in another case, JSON":    {subjects.TypeJSON, `{"PROCESSES":[{}` + strings.Repeat(",{}", n) + `]}`},
		"by a folded letter":       {subjects.TypeJSON, `{"proceſſes":[{}` + strings.Repeat(",{}", n) + `]}`},
		"claimed and not there":    {subjects.TypeMsgpack, "\x81\xa9processes\xdd\x7f\xff\xff\xff"},
		"claimed labels":           {subjects.TypeMsgpack, "\x81\xa9processes\x91\x81\xa6labels\xdf\x00\xff\xff\xff"},
		"an unknown field skipped": {subjects.TypeMsgpack, "\x81\xa1x\xdd\x00\x04\x93\xe0" + strings.Repeat("\x80", n)},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			var m Processes
			err := Unmarshal(c.ct, []byte(c.data), &m, false)
			runtime.ReadMemStats(&after)
			if _, ok := errors.AsType[*Error](err); !ok && name != "an unknown field skipped" {
				t.Errorf("decoded: %v", err)
			}
			if got, most := after.TotalAlloc-before.TotalAlloc, uint64(8*len(c.data)+1<<20); got > most {
				t.Errorf("%d bytes allocated for %d", got, len(c.data))
			}
		})
	}
}

func TestLenientReadersPassOverWhatIsNew(t *testing.T) {
	body := map[string]any{"version": 1, "session": "s", "name": "n", "novel": map[string]any{"a": []any{1, "x", nil, 1.5}}, "live": 3}
	j, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	packed := pack(t, body)
	// A time in a field of tomorrow.
	packed = append(bytes.Clone(packed), "\xa3new\xd6\xff\x00\x00\x00\x01"...)
	packed[0]++
	for ct, data := range map[string][]byte{subjects.TypeJSON: j, subjects.TypeMsgpack: packed} {
		var m Session
		if err := Unmarshal(ct, data, &m, false); err != nil || m.ID != "s" || m.Live != 3 {
			t.Errorf("%s: %+v, %v", ct, m, err)
		}
		if err := Unmarshal(ct, data, &m, true); !errors.Is(err, &Error{Code: CodeUnknownField}) {
			t.Errorf("%s, strict: %v", ct, err)
		}
	}
}

func TestNullMeansAbsent(t *testing.T) {
	body := `{"version":null,"session":"s","execution_id":null,"command":{"text":"true","argv":null,"tty":null,"timeout_ms":null,"labels":null,"input":null,"login":null}}`
	var v any
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatal(err)
	}
	want := Start{SessionRef: SessionRef{Session: "s"}, Command: Command{Text: "true"}}
	for ct, data := range map[string][]byte{subjects.TypeJSON: []byte(body), subjects.TypeMsgpack: pack(t, v)} {
		r, err := DecodeRequest(VerbStart, ct, data)
		if err != nil {
			t.Fatalf("%s: %v", ct, err)
		}
		if got := r.(*Start); RequestHash(&got.Command) != RequestHash(&want.Command) || got.Session != "s" {
			t.Errorf("%s: %+v", ct, got)
		}
	}
}

func TestOtherContentTypesAreRefused(t *testing.T) {
	for _, ct := range []string{"text/plain", "application/json; charset=utf-8", "APPLICATION/JSON", "application/xml"} {
		_, err := Marshal(ct, &Status{})
		err2 := Unmarshal(ct, []byte("{}"), &Status{}, true)
		for _, err := range []error{err, err2} {
			if e, ok := errors.AsType[*Error](err); !ok || e.Field != subjects.HeaderContentType {
				t.Errorf("%s: %v", ct, err)
			}
		}
	}
	if err := Unmarshal("", []byte("\x80"), &Status{}, true); err != nil {
		t.Errorf("empty is msgpack: %v", err)
	}
	for _, v := range []any{nil, Status{}, (*Status)(nil)} {
		if Unmarshal("", []byte("\x80"), v, true) == nil {
			t.Errorf("decoded into %T", v)
		}
	}
}

func TestUnknownFieldsNameTheNearest(t *testing.T) {
	names := []string{"timeout_ms", "text", "argv", "idle_timeout_ms", "env", "cwd"}
	for s, want := range map[string]string{
		"timeoutMs": "timeout_ms", "timeout": "timeout_ms", "TEXT": "text", "txt": "text", "arg": "argv", "args": "argv",
		"environment": "env", "idleTimeoutMs": "idle_timeout_ms", "qqqqqq": "", "": "", strings.Repeat("x", 1000): "",
	} {
		if got := Nearest(s, names); got != want {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
	}
	_, err := DecodeRequest(VerbStart, subjects.TypeJSON, []byte(`{"session":"s","command":{"text":"true","timeoutMs":5}}`))
	e, ok := errors.AsType[*Error](err)
	if !ok || !strings.Contains(e.Message, "the nearest is timeout_ms") || e.Details["nearest"] != "timeout_ms" {
		t.Errorf("%v", err)
	}
	_, err = DecodeRequest("stat", subjects.TypeJSON, []byte(`{}`))
	if e, ok := errors.AsType[*Error](err); !ok || e.Field != "verb" || e.Details["nearest"] != "status" {
		t.Errorf("%v", err)
	}
}
