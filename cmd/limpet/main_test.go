package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain lets this binary play every part: the tests, the commands of the scripts,
// and the keeper and the worker that limpet re-executes itself as.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "keeper" || os.Args[1] == "worker") {
		main()
	}
	testscript.Main(m, map[string]func(){
		"limpet": main,
		"exits":  exits,
		"json":   checkJSON,
	})
}

// need skips a test for want of something, loudly, and fails it where LIMPET_REQUIRE
// names that.
func need(t *testing.T, word string, have bool, why string) {
	t.Helper()
	if have {
		return
	}
	if required(word) {
		t.Fatalf("LIMPET_REQUIRE demands %s: %s", word, why)
	}
	t.Skipf("SKIPPED for want of %s: %s", word, why)
}
