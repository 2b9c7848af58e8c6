package safety

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// tooLong bounds the parse of any text of at most MaxParsed bytes; the worst found
// takes some 30 ms.
const tooLong = 2 * time.Second

func TestCheckForm(t *testing.T) {
	tests := []struct {
		name  string
		c     *wire.Command
		field string
		part  string // of the message
	}{
		{"nil", nil, "command", "missing"},
		{"nothing", &wire.Command{}, "command.text", "blank"},
		{"spaces", &wire.Command{Text: " \t\r\n "}, "command.text", "blank"},
		{"no-break space", &wire.Command{Text: "\u00a0"}, "command.text", "blank"},
		{"nul", &wire.Command{Text: "true\x00; false"}, "command.text", "NUL"},
		{"invalid utf-8", &wire.Command{Text: "echo \xff"}, "command.text", "UTF-8"},
		{"too long", &wire.Command{Text: strings.Repeat("a", MaxText+1)}, "command.text", "131072"},
		{"ten megabytes", &wire.Command{Text: strings.Repeat("a", 10<<20)}, "command.text", "at most"},
		{"both", &wire.Command{Text: "true", Argv: []string{"true"}}, "command.text", "exclude"},
		{"empty program", &wire.Command{Argv: []string{"", "x"}}, "command.argv", "no program"},
		{"blank program", &wire.Command{Argv: []string{" "}}, "command.argv", "no program"},
		{"argv nul", &wire.Command{Argv: []string{"echo", "a", "b\x00c"}}, "command.argv", "element 2"},
		{"argv element too long", &wire.Command{Argv: []string{"echo", strings.Repeat("a", MaxText+1)}}, "command.argv", "element 1"},
		{"too many arguments", &wire.Command{Argv: make([]string, MaxArgs+1)}, "command.argv", "100001"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v, err := Check(tt.c)
			we, ok := errors.AsType[*wire.Error](err)
			if !ok {
				t.Fatalf("error %v is not a *wire.Error", err)
			}
			if we.Code != wire.CodeInvalidArguments || we.Field != tt.field || !strings.Contains(we.Message, tt.part) {
				t.Errorf("got %s %q %q, want field %q and %q", we.Code, we.Field, we.Message, tt.field, tt.part)
			}
			if v.Decision != wire.Deny || len(v.Reasons) == 0 {
				t.Errorf("verdict %+v does not deny with a reason", v)
			}
		})
	}
}

func TestCheckAllows(t *testing.T) {
	tests := []struct {
		name string
		c    wire.Command
		note string // empty: no notes
	}{
		{"simple", wire.Command{Text: "true"}, ""},
		{"argv is not parsed", wire.Command{Argv: []string{"echo", "if ((", "'"}}, ""},
		{"an argument may be empty", wire.Command{Argv: []string{"echo", ""}}, ""},
		{"longest text", wire.Command{Text: strings.Repeat("a", MaxText)}, "longer than 65536"},
		{"longest parsed text", wire.Command{Text: strings.Repeat("a", MaxParsed)}, ""},
		{"open quote", wire.Command{Text: "echo 'a"}, "rejects"},
		{"heredoc without end", wire.Command{Text: "cat <<EOF\na"}, "rejects"},
		{"bash array", wire.Command{Text: "a=(1 2); echo ${a[1]}"}, ""},
		{"bash array in sh", wire.Command{Text: "a=(1 2)", Shell: "sh"}, "rejects"},
		{"bash by path", wire.Command{Text: "a=(1 2)", Shell: "/usr/bin/bash"}, ""},
		{"another shell", wire.Command{Text: "echo", Shell: "/usr/bin/fish"}, "no grammar for shell fish"},
		{"nested 200 deep", wire.Command{Text: nest("(", "true", ")", 200)}, ""},
		{"nested 20,000 deep", wire.Command{Text: nest("(", "true", ")", 20_000)}, "nests too deeply"},
		{"closing brackets in quotes", wire.Command{Text: strings.Repeat(`(")"`+"\n", 10_000)}, "nests too deeply"},
		{"nesting without brackets", wire.Command{Text: strings.Repeat("if ", 20_000)}, "nests too deeply"},
		{"long but flat", wire.Command{Text: strings.Repeat("(a); $(b); { c; }\n", 3_000)}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v, err := Check(&tt.c)
			if err != nil || v.Decision != wire.Allow {
				t.Fatalf("got %+v, %v; want allow", v, err)
			}
			notes := strings.Join(v.Notes, "\n")
			if (tt.note == "") != (notes == "") || !strings.Contains(notes, tt.note) {
				t.Errorf("notes %q, want %q", notes, tt.note)
			}
		})
	}
}

func TestZeroVerdictDoesNotAllow(t *testing.T) {
	if (wire.Verdict{}).Decision == wire.Allow {
		t.Fatal("the zero verdict allows")
	}
}

func TestNoteIsBounded(t *testing.T) {
	v, err := Check(&wire.Command{Text: "${a" + strings.Repeat("é", 10_000) + "("})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range v.Notes {
		if len(n) > maxNote+100 {
			t.Errorf("a note of %d bytes", len(n))
		}
	}
}

// Every way down that the grammar has, repeated to the bound, ends soon and leaves the
// test binary alive: an overflow of the stack would end it.
func TestDeepTextsEnd(t *testing.T) {
	openers := []string{
		"(", "{ ", "${a[", "${a:-", "$(", "`", "\\`", "\"$(", "$((", "((", "! ", "if ", "while ", "until ",
		"for x in a;do ", "select x in a; do ", "case x in a) ", "[[ ( ", "[[ ! ", "a() ", "function a { ",
		"time ", "coproc ", "a|", "a&&", "<<a ", "<<a\n", "<<a\n`\n", "<<a\n$(<<b\n", "$((-", "$((a?", "$((a=",
		"$((~", "((a**", "x=(", "a=([", "[[ a && ", "@(", "<(", "let -", "let a?", "$[", "${a/$(", "'", "a #\n", "{a,",
	}
	for _, o := range openers {
		for _, shell := range []string{"bash", "sh"} {
			start := time.Now()
			if _, err := Check(&wire.Command{Text: strings.Repeat(o, MaxParsed/len(o)), Shell: shell}); err != nil {
				t.Errorf("%q: %v", o, err)
			}
			if d := time.Since(start); d > tooLong {
				t.Errorf("%s: %q repeated took %v", shell, o, d)
			}
		}
	}
}

func FuzzCheck(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s, false)
		f.Add(s, true)
	}
	f.Add(nest("$(", "a", ")", 300), false)
	f.Fuzz(func(t *testing.T, text string, sh bool) {
		c := wire.Command{Text: text}
		if sh {
			c.Shell = "sh"
		}
		start := time.Now()
		v, err := Check(&c)
		if d := time.Since(start); d > tooLong {
			t.Errorf("took %v", d)
		}
		if (err == nil) != (v.Decision == wire.Allow) {
			t.Errorf("verdict %+v with error %v", v, err)
		}
		if c.Text != text {
			t.Error("the text was changed")
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	for _, text := range []string{
		"true",
		`cd src && go test ./... 2>&1 | grep -v "^ok" | head -n 50`,
		strings.Repeat("(a); $(b); { c; }\n", 3_000),
		strings.Repeat("(", MaxParsed),
	} {
		b.Run(fmt.Sprintf("bytes=%d", len(text)), func(b *testing.B) {
			c := wire.Command{Text: text}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Check(&c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func nest(open, in, end string, n int) string {
	return strings.Repeat(open, n) + in + strings.Repeat(end, n)
}

// seeds reads texts, one a line, escaped as in a Go string. They are data: nothing in
// this package runs a command.
func seeds(tb testing.TB) []string {
	tb.Helper()
	data, err := os.ReadFile("testdata/seeds.txt")
	if err != nil {
		tb.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(data)) {
		s, err := strconv.Unquote(`"` + strings.ReplaceAll(strings.TrimSuffix(line, "\n"), `"`, `\"`) + `"`)
		if err != nil {
			tb.Fatalf("seed %q: %v", line, err)
		}
		out = append(out, s)
	}
	return out
}
