package wire

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/limpet-sh/limpet/subjects"
)

// worked is the example of PROTOCOL.md.
var worked = Command{
	Text:      "printf 'a\\tb\\n' | tee \"$OUT\"",
	Cwd:       "/srv/app",
	Env:       []EnvVar{{Name: "OUT", Value: "x.txt"}, {Name: "EMPTY"}},
	TTY:       &WindowSize{},
	TimeoutMS: 30_000,
	Umask:     new(0),
	Labels:    map[string]string{"b": "2", "a": "é"},
	Input:     []byte("hi\n"),
}

const (
	workedCanonical = `{"cwd":"/srv/app","env":[{"name":"OUT","value":"x.txt"},{"name":"EMPTY"}],"input":"aGkK","labels":{"a":"é","b":"2"},` +
		`"text":"printf 'a\\tb\\n' | tee \"$OUT\"","timeout_ms":30000,"tty":{},"umask":0}`
)

func TestWorkedExampleIsTheDocumentedOne(t *testing.T) {
	if got := string(worked.Canonical()); got != workedCanonical {
		t.Errorf("got  %s\nwant %s", got, workedCanonical)
	}
	doc, err := os.ReadFile("../PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	request := RequestHash(&worked)
	digest := CallDigest(&worked, "w01", []ScriptHash{{Path: "/srv/app/run.sh", SHA256: strings.Repeat("ab", 32)}})
	for _, s := range []string{workedCanonical, request, digest} {
		if !strings.Contains(string(doc), s) {
			t.Errorf("PROTOCOL.md does not say %s", s)
		}
	}
	// The hashes are pinned here too: a change of both code and document would go
	// unnoticed, and break every stored record.
	if request != pinnedRequest || digest != pinnedCall {
		t.Errorf("request hash %s, call digest %s", request, digest)
	}
}

const (
	pinnedRequest = "v1:b10eecde61b84ea9c2d733b946a1b9caea60aff8c0852876f7dc4fbc5db27d93"
	pinnedCall    = "v1:fba0f39c37d224e8daac62c39cab2f8e633dbb5927f856930b9b9ec60aa8f43a"
)

func TestEqualCommandsHaveEqualBytes(t *testing.T) {
	want := RequestHash(&worked)
	for _, ct := range contentTypes {
		b, err := Marshal(ct, &worked)
		if err != nil {
			t.Fatal(err)
		}
		var c Command
		if err := Unmarshal(ct, b, &c, true); err != nil {
			t.Fatal(err)
		}
		if got := RequestHash(&c); got != want {
			t.Errorf("%s: %s", ct, c.Canonical())
		}
	}
	same := worked
	same.Argv, same.QuestionIDs, same.Limits, same.Output = []string{}, []string{}, &Limits{}, &OutputLimits{}
	if got := RequestHash(&same); got != want {
		t.Errorf("empty is not like nil: %s", same.Canonical())
	}
	var c Command
	reordered := `{"umask":0,"tty":{"rows":0},"labels":{"b":"2","a":"\u00e9"},"input":"aGkK","timeout_ms":30000,"login":false,
		"env":[{"value":"x.txt","name":"OUT"},{"name":"EMPTY","value":""}],"cwd":"\/srv\/app","text":"printf 'a\\tb\\n' | tee \"$OUT\""}`
	if err := Unmarshal(subjects.TypeJSON, []byte(reordered), &c, true); err != nil {
		t.Fatal(err)
	}
	if got := RequestHash(&c); got != want {
		t.Errorf("reordered: %s", c.Canonical())
	}
}

// Every field counts: a change of any makes another hash.
func TestEveryFieldOfACommandIsInItsBytes(t *testing.T) {
	full := of[Command]("").full.(*Command)
	b, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{RequestHash(full): "none"}
	for name := range m {
		less := map[string]any{}
		for k, v := range m {
			if k != name {
				less[k] = v
			}
		}
		b, err := json.Marshal(less)
		if err != nil {
			t.Fatal(err)
		}
		var c Command
		if err := Unmarshal(subjects.TypeJSON, b, &c, true); err != nil {
			t.Fatal(err)
		}
		h := RequestHash(&c)
		if other, ok := seen[h]; ok {
			t.Errorf("without %s it hashes as without %s", name, other)
		}
		seen[h] = name
	}
	if n := len(shapeOf(commandType).fields); n != len(m) {
		t.Errorf("%d fields tested of %d", len(m), n)
	}
}

func TestCommandsThatMustDiffer(t *testing.T) {
	seen := map[string]string{}
	for name, c := range map[string]Command{
		"two arguments":        {Argv: []string{"a", "b"}},
		"one argument":         {Argv: []string{"a b"}},
		"one with a comma":     {Argv: []string{`a","b`}},
		"an empty one more":    {Argv: []string{"a", "b", ""}},
		"text":                 {Text: "a b"},
		"no terminal":          {Text: "x"},
		"default terminal":     {Text: "x", TTY: &WindowSize{}},
		"sized terminal":       {Text: "x", TTY: &WindowSize{Rows: 24, Cols: 80}},
		"umask 0":              {Text: "x", Umask: new(0)},
		"env order":            {Text: "x", Env: []EnvVar{{Name: "A", Value: "1"}, {Name: "A", Value: "2"}}},
		"env order reversed":   {Text: "x", Env: []EnvVar{{Name: "A", Value: "2"}, {Name: "A", Value: "1"}}},
		"value in name":        {Text: "x", Env: []EnvVar{{Name: "A1"}}},
		"not UTF-8":            {Text: "\xff"},
		"not UTF-8, otherwise": {Text: "\xfe"},
		"replaced":             {Text: "\uFFFD"},
		"composed":             {Text: "é"},
		"decomposed":           {Text: "e\u0301"},
	} {
		h := RequestHash(&c)
		if other, ok := seen[h]; ok {
			t.Errorf("%s is like %s", name, other)
		}
		seen[h] = name
	}
}

func TestCallDigests(t *testing.T) {
	a := ScriptHash{Path: "/a.sh", SHA256: strings.Repeat("0", 64)}
	b := ScriptHash{Path: "/b.sh", SHA256: strings.Repeat("1", 64)}
	c := &Command{Text: "true"}
	scripts := []ScriptHash{b, a, b}
	want := CallDigest(c, "w", []ScriptHash{a, b})
	if CallDigest(c, "w", scripts) != want {
		t.Error("the order of scripts counts")
	}
	if scripts[0] != b {
		t.Error("the caller's list was sorted")
	}
	if CallDigest(c, "w", nil) != CallDigest(c, "w", []ScriptHash{}) {
		t.Error("nil is not like empty")
	}
	for name, other := range map[string]string{
		"another worker":  CallDigest(c, "w2", scripts),
		"fewer scripts":   CallDigest(c, "w", []ScriptHash{a}),
		"another command": CallDigest(&Command{Text: "false"}, "w", scripts),
		"the request":     RequestHash(c),
	} {
		if other == want {
			t.Errorf("%s has the same digest", name)
		}
	}
}

// The escapes of RFC 8785, section 3.2.2.2, and its order of keys, 3.2.3.
func TestCanonicalTextFollowsJCS(t *testing.T) {
	c := Command{Text: "\u20ac$\u000f\nA'B\"\\\\\"/\u007f\u2028<&>\b\f\r\t"}
	want := `{"text":"` + "\u20ac$" + `\u000f\nA'B\"\\\\\"/` + "\u007f\u2028<&>" + `\b\f\r\t"}`
	if got := string(c.Canonical()); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	c = Command{Text: "x", Labels: map[string]string{"\u20ac": "", "\r": "", "\ufb33": "", "1": "", "\U0001f600": "", "\u0080": "", "\u00f6": ""}}
	want = `{"labels":{"\r":"","1":"","` + "\u0080" + `":"","ö":"","€":"","` + "\U0001f600" + `":"","` + "\ufb33" + `":""},"text":"x"}`
	if got := string(c.Canonical()); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestKeysThatAreNotUTF8KeepOneOrder(t *testing.T) {
	c := Command{Labels: map[string]string{"\xff": "1", "\xfe": "2", "\xfd": "3"}}
	want := string(c.Canonical())
	for range 50 {
		if got := string(c.Canonical()); got != want {
			t.Fatalf("%q, then %q", want, got)
		}
	}
}

func FuzzCanonicalIsInjective(f *testing.F) {
	f.Add("a", "b", "c", "d")
	f.Add(`a","b`, "", "\x00", "\xff")
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		x := Command{Argv: []string{a, b}, Env: []EnvVar{{Name: "N", Value: a}}}
		y := Command{Argv: []string{c, d}, Env: []EnvVar{{Name: "N", Value: c}}}
		if same := string(x.Canonical()) == string(y.Canonical()); same != (a == c && b == d) {
			t.Errorf("%s and %s", x.Canonical(), y.Canonical())
		}
		if x.Validate() == nil && !json.Valid(x.Canonical()) {
			t.Errorf("not JSON: %s", x.Canonical())
		}
	})
}

func BenchmarkRequestHash(b *testing.B) {
	for b.Loop() {
		RequestHash(&worked)
	}
}

func BenchmarkDecodeRequest(b *testing.B) {
	for _, ct := range contentTypes {
		b.Run(strings.TrimPrefix(ct, "application/"), func(b *testing.B) {
			data, err := Marshal(ct, &Start{Version: 1, SessionRef: session, ExecutionID: "e", Command: worked})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := DecodeRequest(VerbStart, ct, data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkReceipt(b *testing.B) {
	r := of[Receipt]("").full.(*Receipt)
	for _, ct := range contentTypes {
		b.Run(strings.TrimPrefix(ct, "application/"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				data, err := EncodeReply(ct, r, nil)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := DecodeReply[Receipt](ct, data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
