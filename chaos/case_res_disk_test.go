package chaos

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// RES 121
func TestCaseResourcesFullDisk(t *testing.T) {
	need(t, "root")
	dir := t.TempDir()
	spool := filepath.Join(dir, "worker", "spool")
	if err := os.MkdirAll(spool, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("limpet-test", spool, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		t.Skipf("NOT RUN: no tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(spool, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	l, err := Start(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Stop(); err != nil {
			t.Error(err)
		}
	})
	a := newAgent(t, l, wire.Open{Cwd: t.TempDir()})
	worker, keeper := l.PID("worker"), l.PID("keeper")
	filler := filepath.Join(spool, "filler")
	fill := func() {
		f, err := os.Create(filler)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for b := make([]byte, 4096); ; {
			if _, err := f.Write(b); err != nil {
				return
			}
		}
	}
	const lines = "seq 1 500000" // 3.4 MB

	t.Run("a process goes on when the disk is full and the gap is marked", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: lines + "; echo over >&2"})
		r := a.end(t, id)
		if ended(t, r, wire.StateCompleted, wire.ReasonExit); r.Output.TotalBytes != 3_388_895+5 || r.Output.DroppedBytes == 0 {
			t.Errorf("%+v", r.Output)
		}
		counted(t, r.Output)
		kept, gone := a.retained(t, id)
		if int64(len(kept)) != r.Output.KeptBytes || gone != r.Output.DroppedBytes {
			t.Errorf("read %d and missed %d of %+v", len(kept), gone, r.Output)
		}
		reasons := map[string]bool{}
		for cursor := int64(0); ; {
			p := a.page(t, id, wire.Read{Cursor: &cursor, MaxBytes: wire.MaxPageBytes})
			for _, g := range p.Gaps {
				reasons[g.Reason] = true
			}
			if !p.HasMore {
				break
			}
			cursor = p.NextCursor
		}
		if !reasons["spool_error"] {
			t.Errorf("gaps by %v; want spool_error", reasons)
		}
	})
	t.Run("a start on a full disk runs", func(t *testing.T) {
		fill()
		exited(t, a.text(t, "echo small"), 0, "small\n")
		id := a.start(t, wire.Command{Text: lines})
		r := a.end(t, id)
		ended(t, r, wire.StateCompleted, wire.ReasonExit)
		counted(t, r.Output)
	})
	t.Run("with space again everything is logged again", func(t *testing.T) {
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		b := newAgent(t, l, wire.Open{Cwd: t.TempDir()})
		if _, err := a.s.Close(t.Context()); err != nil { // its outputs go
			t.Fatal(err)
		}
		exited(t, b.text(t, "echo again"), 0, "again\n")
		id := b.start(t, wire.Command{Text: "seq 1 100000"}) // 588,895 bytes: over the window, under the disk
		r := b.end(t, id)
		if counted(t, r.Output); r.Output.DroppedBytes != 0 || r.Output.KeptBytes != 588_895 {
			t.Errorf("%+v", r.Output)
		}
		if kept, _ := b.retained(t, id); len(kept) != 588_895 || !strings.HasSuffix(string(kept), "\n100000\n") {
			t.Errorf("%d bytes", len(kept))
		}
	})
	t.Run("a spool that cannot even be made stops nothing", func(t *testing.T) {
		if err := syscall.Mount("limpet-test", spool, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
			t.Skipf("NOT RUN: %v", err)
		}
		defer func() { _ = syscall.Mount("limpet-test", spool, "tmpfs", syscall.MS_REMOUNT, "size=1m") }()
		b := newAgent(t, l, wire.Open{Cwd: t.TempDir()})
		ctx, cancel := context.WithTimeout(t.Context(), long)
		defer cancel()
		res, err := b.s.Run(ctx, wire.Run{Command: wire.Command{Text: lines}})
		if err != nil {
			t.Fatalf("%v", err)
		}
		ended(t, &res.Receipt, wire.StateCompleted, wire.ReasonExit)
		counted(t, res.Receipt.Output)
	})
	if l.PID("worker") != worker || l.PID("keeper") != keeper {
		t.Error("worker or keeper were restarted")
	}
}
