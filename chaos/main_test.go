package chaos

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/client"
)

// chaosTime is how long the tests named TestChaos… go on, each.
var chaosTime = flag.Duration("chaos.time", 5*time.Second, "how long each chaos test breaks things")

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "mcp" {
		if err := playMCP(os.Args[2]); err != nil {
			fmt.Fprintf(os.Stderr, "mcp: %v\n", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if code, played := Role(os.Args); played {
		os.Exit(code)
	}
	flag.Parse()
	os.Exit(m.Run())
}

func start(t testing.TB, env ...string) *Lab {
	t.Helper()
	l, err := Start(t.Context(), t.TempDir(), env...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return l
}

func open(t testing.TB, l *Lab) *client.Session {
	t.Helper()
	s, err := l.Open(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	return s
}
