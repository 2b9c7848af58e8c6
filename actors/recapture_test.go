package actors

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// Of commands that end while there is no worker each keeps what it changed, and the last
// one to end what several did, in whatever order they are adopted.
func TestStateOfCommandsThatEndWithoutAWorker(t *testing.T) {
	b := newBench(t, nil)
	s := b.open(wire.Open{CaptureState: true})
	b.stop(ErrLeave)
	b.bootVictim()
	const n = 6
	ids := make([]string, n)
	next := "" // each waits for the end of the one that was started after it
	for i := range n {
		mine := filepath.Join(b.cwd, fmt.Sprint("go", i))
		next = filepath.Join(b.cwd, fmt.Sprint("go", i-1))
		ids[i] = b.start(s, wire.Command{Text: fmt.Sprintf("until [ -s %[1]s ]; do sleep 0.02; done; while kill -0 $(<%[1]s); do sleep 0.02; done\n"+
			"export V%[2]d=1 LAST=%[2]d; echo $$ >%[3]s", mine, i, next)}).Process
	}
	b.kill()
	if err := os.WriteFile(filepath.Join(b.cwd, fmt.Sprint("go", n-1)), []byte("999999999\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(next); err == nil {
			break
		} else if time.Now().After(until) {
			t.Fatal("they do not end")
		}
	}
	b.bootVictim()
	for _, id := range ids {
		if rc := b.wait(id); rc.StateCapture != "saved" {
			t.Errorf("%q, %q", rc.StateCapture, rc.Notes)
		}
	}
	b.said(b.run(s, "echo $V0$V1$V2$V3$V4$V5 $LAST"), "111111 0\n", "unchanged", b.cwd)
}
