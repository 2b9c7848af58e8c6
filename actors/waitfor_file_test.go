package actors

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/subjects/wire"
)

func TestWaitForFile(t *testing.T) {
	dir := t.TempDir()
	inBubble(t, func(w *world) {
		r, child := w.started(wire.Command{Text: "x", Cwd: dir})
		rel := w.asks(r.Process, wire.WaitFor{For: "file", Path: "made"})
		abs := w.asks(r.Process, wire.WaitFor{For: "file", Path: filepath.Join(dir, "linked")})
		never := w.asks(r.Process, wire.WaitFor{For: "file", Path: "never", WaitMS: 300})
		dangling := w.asks(r.Process, wire.WaitFor{For: "file", Path: "dangling"})
		if err := os.Symlink(filepath.Join(dir, "nowhere"), filepath.Join(dir, "dangling")); err != nil {
			t.Fatal(err)
		}
		wantWait(t, one(never), false, false)
		wantTime(t, "expired", w.after(), 300*time.Millisecond)
		time.Sleep(10 * time.Second)
		before := w.after()
		if err := os.WriteFile(filepath.Join(dir, "tmp"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "tmp"), filepath.Join(dir, "made")); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("made", filepath.Join(dir, "linked")); err != nil {
			t.Fatal(err)
		}
		wantWait(t, one(rel), true, false)
		wantWait(t, one(abs), true, false)
		if late := w.after() - before; late > lastLook {
			t.Errorf("seen after %v", late)
		}
		child.leaves(0)
		wantWait(t, one(dangling), false, true)
		wantWait(t, one(w.asks(r.Process, wire.WaitFor{For: "file", Path: "made", WaitMS: 1})), true, true)
	})
}

// Leftovers that are kept may do what is waited for.
func TestWaitForFileOfKeptLeftovers(t *testing.T) {
	dir := t.TempDir()
	inBubble(t, func(w *world) {
		r, child := w.started(wire.Command{Text: "x", Cwd: dir, Leftovers: wire.LeftoversKeep})
		call := w.asks(r.Process, wire.WaitFor{For: "file", Path: "made"})
		child.exits(keeper.Exited{Left: 1})
		child.close()
		w.waitFor(r.Process)
		time.Sleep(5 * time.Second)
		if err := os.WriteFile(filepath.Join(dir, "made"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		wantWait(t, one(call), true, false)
		if at := w.after(); at < 5*time.Second || at > 6*time.Second {
			t.Errorf("seen at %v", at)
		}
	})
}

// Looks at files that hang are bounded, and hold up no call.
func TestLooksThatHang(t *testing.T) {
	inBubble(t, func(w *world) {
		r, _ := w.started(text("x"))
		hung := &fileLook{files: w.worker.deps.files, path: "/", there: make(chan bool)} // whose answer never comes
		if there, err := hung.exists(w.t.Context()); there || err != nil {
			t.Errorf("%v, %v", there, err)
		}
		wantTime(t, "given up", w.after(), lookPatience)
		for range maxLooks {
			w.worker.deps.files.looks <- struct{}{}
		}
		if code := refusal(w.asks(r.Process, wire.WaitFor{For: "file", Path: "/"})); code != wire.CodeOverloaded {
			t.Errorf("answered %s", code)
		}
		<-w.worker.deps.files.looks
		wantWait(t, one(w.asks(r.Process, wire.WaitFor{For: "file", Path: "/"})), true, false)
	})
}
