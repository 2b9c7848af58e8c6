package chaos

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// need skips a test where the host lacks what it needs: a program, or a word of the
// list below. Under LIMPET_REQUIRE=word,word the lack of a listed word is a failure,
// so that a skip in CI is one that was agreed to.
func need(t testing.TB, word string) {
	t.Helper()
	have := false
	switch word {
	case "root":
		have = os.Geteuid() == 0
	case "pty":
		_, err := os.Stat("/dev/ptmx")
		have = err == nil
	default:
		_, err := exec.LookPath(word)
		have = err == nil
	}
	if have {
		return
	}
	if slices.Contains(strings.Split(os.Getenv("LIMPET_REQUIRE"), ","), word) {
		t.Fatalf("this host has no %s, and LIMPET_REQUIRE asks for it", word)
	}
	t.Skipf("this host has no %s", word)
}

// notShort leaves a test out of a run with -short, which the race detector's is: it takes
// minutes there, and finds nothing that the shorter ones beside it do not.
func notShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("NOT RUN with -short: one of the longest; it runs without -short and without -race")
	}
}
