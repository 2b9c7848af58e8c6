package output

import (
	"fmt"
	"regexp"
	"testing"
)

func TestPatternWords(t *testing.T) {
	for expr, want := range map[string]string{
		"ready":                    "[]", // regexp looks for it itself
		`\bready\b`:                "[ready]",
		"(?i)error|fail(ed|ure)":   "[error fail]",
		"(?i)ΔΕΛΤΑ":                "[]",
		"[0-9]+ tests? (ok|done)":  "[ test]",
		"x*":                       "[]",
		".*(a|b|)":                 "[]",
		"(?:one){2,3}.*(three)+":   "[]",
		".(?:one){2,3}.*(threes)+": "[threes]",
		`(a|b|c|d|e|f|g|h|i|jj)x`:  "[x]",
	} {
		p, err := NewPattern(expr)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%s", p.words); got != want {
			t.Errorf("%s: words %s, want %s", expr, got, want)
		}
	}
	if _, err := NewPattern("("); err == nil {
		t.Error("( is a pattern")
	}
}

// FuzzPattern holds that looking for words first changes no answer.
func FuzzPattern(f *testing.F) {
	for _, expr := range []string{
		`\bready\b`, "(?i)error|fail(ed|ure)", "(?i)k|s+x", "(?i:K)elvin|ſ", "[0-9]+ tests? (ok|done)", "(a|b*)+c", "^done$", "(?s).x{2,4}y", "(?i)straße", "",
	} {
		for _, line := range []string{"", "all tests ok", "12 tests done", "ERROR", "\u212Aelvin", "\u017F", "STRASSE strasse STRAßE", "sx", "done", "not ready."} {
			f.Add(expr, line)
		}
	}
	f.Fuzz(func(t *testing.T, expr, line string) {
		p, err := NewPattern(expr)
		if err != nil {
			return
		}
		want := regexp.MustCompile(expr).FindStringIndex(line)
		start, end, ok := p.Find([]byte(line))
		if ok != (want != nil) || ok && (start != want[0] || end != want[1]) {
			t.Fatalf("%q in %q: %d..%d %v, want %v", expr, line, start, end, ok, want)
		}
	})
}
