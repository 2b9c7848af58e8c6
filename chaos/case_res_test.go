package chaos

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// counted checks that no byte of an output went uncounted.
func counted(t testing.TB, o wire.OutputStats) {
	t.Helper()
	if o.TotalBytes != o.KeptBytes+o.DroppedBytes || o.TotalBytes != o.StdoutBytes+o.StderrBytes || o.KeptBytes < 0 || o.DroppedBytes < 0 {
		t.Errorf("not counted exactly: %+v", o)
	}
}

// onDisk is what the files below a directory take.
func onDisk(t testing.TB, dir string) (total int64) {
	t.Helper()
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				total += info.Size()
			}
		}
		return nil // files come and go while we look
	})
	return total
}

// page reads a page at a cursor that is retained.
func (a agent) page(t testing.TB, id string, m wire.Read) *wire.Page {
	t.Helper()
	m.Process = id
	p, err := a.c.Read(t.Context(), m)
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	return p
}

// retained reads all that is kept: the bytes, and how many the gaps are short of.
func (a agent) retained(t testing.TB, id string) (kept []byte, gone int64) {
	t.Helper()
	cursor, offset := int64(0), int64(0)
	for {
		p := a.page(t, id, wire.Read{Cursor: &cursor, View: wire.ViewBase64, MaxBytes: wire.MaxPageBytes})
		for _, ch := range p.Chunks {
			if ch.Offset < offset {
				t.Fatalf("chunk %d at %d, after %d", ch.Cursor, ch.Offset, offset)
			}
			gone += ch.Offset - offset
			b, err := client.Bytes(ch)
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, b...)
			offset = ch.Offset + int64(ch.SourceBytes)
		}
		if !p.HasMore {
			return kept, gone + p.Output.TotalBytes - offset
		}
		cursor = p.NextCursor
	}
}

func TestCaseResourcesOutput(t *testing.T) {
	l := start(t)
	a := newAgent(t, l, wire.Open{Cwd: t.TempDir()})
	spool := filepath.Join(l.State.Worker(), "spool")

	// RES 115
	t.Run("endless output stays under its cap and can be read all the while", func(t *testing.T) {
		const most = 1 << 20
		id := a.start(t, wire.Command{Text: "yes", Output: &wire.OutputLimits{SpoolBytes: most, WindowBytes: 64 << 10}})
		for until := time.Now().Add(3 * time.Second); time.Now().Before(until); {
			r := a.status(t, id)
			if counted(t, r.Output); r.State != wire.StateRunning || r.Output.KeptBytes > most+64<<10+8<<10 {
				t.Fatalf("%s, %+v", r.State, r.Output)
			}
			if n := onDisk(t, spool); n > most+256<<10 {
				t.Fatalf("%d bytes on disk", n)
			}
			p := a.page(t, id, wire.Read{})
			if len(p.Chunks) > 0 && !strings.HasPrefix(p.Chunks[0].Text, "y\ny\n") {
				t.Fatalf("%.20q", p.Chunks[0].Text)
			}
		}
		r := a.terminate(t, wire.Terminate{ProcessRef: wire.ProcessRef{Process: id}})
		if counted(t, r.Output); !r.Output.Complete || r.Output.DroppedBytes == 0 {
			t.Errorf("%+v", r.Output)
		}
		kept, gone := a.retained(t, id)
		if int64(len(kept)) != r.Output.KeptBytes || gone != r.Output.DroppedBytes {
			t.Errorf("read %d and missed %d of %+v", len(kept), gone, r.Output)
		}
		if strings.Trim(string(kept), "y\n") != "" {
			t.Error("other bytes than were written")
		}
	})
	t.Run("the caps of the defaults hold exactly", func(t *testing.T) { // RES 115
		id := a.start(t, wire.Command{Text: "head -c 100M /dev/zero; echo done >&2"})
		r := a.end(t, id)
		if counted(t, r.Output); r.Output.TotalBytes != 100<<20+5 || r.Output.KeptBytes < 60<<20 || r.Output.KeptBytes > 65<<20 || r.State != wire.StateCompleted {
			t.Errorf("%s, %+v", r.State, r.Output)
		}
		p := a.page(t, id, wire.Read{Cursor: new(max(0, r.Output.LatestCursor-1))})
		if len(p.Chunks) != 1 || p.Chunks[0].Text != "done\n" || p.Chunks[0].Stream != "stderr" {
			t.Errorf("the tail is %+v", p.Chunks)
		}
	})
	t.Run("a limit that was asked for ends it and says so", func(t *testing.T) { // RES 115
		res := a.run(t, wire.Command{Text: "yes", Output: &wire.OutputLimits{KillOverBytes: 100_000}})
		if ended(t, &res.Receipt, wire.StateFailed, wire.ReasonOutputLimit); res.Receipt.Output.TotalBytes < 100_000 {
			t.Errorf("%+v", res.Receipt.Output)
		}
		if !res.Stdout.Truncated || int64(len(res.Stdout.Text)) > 40_000 {
			t.Errorf("%d bytes of text, truncated %v", len(res.Stdout.Text), res.Stdout.Truncated)
		}
		counted(t, res.Receipt.Output)
	})
	t.Run("without a spool the window is all", func(t *testing.T) { // RES 115
		before := onDisk(t, spool)
		id := a.start(t, wire.Command{Text: "seq 1 200000", Output: &wire.OutputLimits{SpoolBytes: -1}})
		r := a.end(t, id)
		if counted(t, r.Output); r.Output.KeptBytes > 300<<10 || r.Output.KeptBytes < 100<<10 {
			t.Errorf("%+v", r.Output)
		}
		if now := onDisk(t, spool); now > before {
			t.Errorf("%d bytes on disk, %d before", now, before)
		}
	})
	t.Run("lossless makes the process wait and loses nothing", func(t *testing.T) { // RES 115
		id := a.start(t, wire.Command{Text: "seq 1 1000000", Output: &wire.OutputLimits{SpoolBytes: 64 << 10, WindowBytes: 4 << 10, Lossless: true}})
		eventually(t, "stall", 20*time.Second, func() bool { return a.status(t, id).Output.Stalled })
		r := a.status(t, id)
		if counted(t, r.Output); r.Output.DroppedBytes != 0 || r.State != wire.StateRunning {
			t.Errorf("%s, %+v", r.State, r.Output)
		}
		if r = a.terminate(t, wire.Terminate{ProcessRef: wire.ProcessRef{Process: id}}); r.Output.DroppedBytes != 0 {
			t.Errorf("%+v", r.Output)
		}
	})
	// RES 117
	t.Run("a command cannot find its own capture", func(t *testing.T) {
		res := a.text(t, `env; pwd; ls -l /proc/self/fd /proc/$PPID/cwd; cat /proc/self/environ | tr '\0' '\n'; grep -l limpet /proc/$$/maps`)
		for _, bad := range []string{string(l.State), "LIMPET_STATE", "memfd", "spool", "journal"} {
			if strings.Contains(res.Stdout.Text, bad) {
				t.Errorf("%q in what a command sees:\n%s", bad, res.Stdout.Text)
			}
		}
		// Without a pipe or a directory of the shell's own, which would be descriptor 3.
		exited(t, a.text(t, "for ((n = 3; n < 255; n++)); do [[ -e /proc/$$/fd/$n ]] && echo $n; done; echo over"), 0, "over\n")
		err := filepath.WalkDir(string(l.State), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if path == string(l.State) { // made by who chose it
				return nil
			}
			if info, err := d.Info(); err == nil && info.Mode()&fs.ModeSymlink == 0 && info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s may be used by others: %v", path, info.Mode())
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	t.Run("a command that feeds on its capture is capped like any other", func(t *testing.T) { // RES 117
		id := a.start(t, wire.Command{
			Text:   `while :; do find "$LOGDIR" -type f -exec tail -c 2000 {} +; echo grow; done`,
			Env:    []wire.EnvVar{{Name: "LOGDIR", Value: spool}},
			Output: &wire.OutputLimits{SpoolBytes: 64 << 10, WindowBytes: 4 << 10},
		})
		a.until(t, id, "grow")
		eventually(t, "output beyond the cap", 30*time.Second, func() bool { return a.status(t, id).Output.DroppedBytes > 0 })
		r := a.kill(t, id)
		if counted(t, r.Output); r.Output.KeptBytes > 96<<10 {
			t.Errorf("%+v", r.Output)
		}
	})
}

func TestCaseResourcesSlots(t *testing.T) {
	notShort(t)
	l := start(t)
	const limit = 5
	a := newAgent(t, l, wire.Open{Cwd: t.TempDir(), Limits: &wire.SessionLimits{LiveProcesses: limit, RetainedProcesses: 10}})

	// RES 119
	t.Run("slots come back whatever becomes of a start", func(t *testing.T) {
		for i := range 200 {
			id := a.start(t, wire.Command{Text: "true"})
			if r := a.end(t, id); r.State != wire.StateCompleted {
				t.Fatalf("start %d: %s", i, r.State)
			}
		}
		for i := range 30 {
			_, err := a.try(t, wire.Run{Command: wire.Command{Argv: []string{"/nonexistent/x"}}})
			refused(t, err, wire.CodeSpawnFailed, "")
			_, err = a.try(t, wire.Run{Command: wire.Command{Text: "true", Cwd: "/nonexistent"}})
			refused(t, err, wire.CodeWorkdirNotFound, "")
			id := a.start(t, wire.Command{Text: "sleep 300"})
			a.kill(t, id)
			if r := a.run(t, wire.Command{Text: "sleep 300", TimeoutMS: 5}).Receipt; r.Reason != wire.ReasonTimeout {
				t.Fatalf("round %d: %s", i, r.Reason)
			}
		}
		for range limit {
			a.start(t, wire.Command{Text: "sleep 300"})
		}
	})
	t.Run("one too many is refused with the limit and nothing is evicted for it", func(t *testing.T) {
		before, err := a.s.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = a.try(t, wire.Run{Command: wire.Command{Text: "echo x > started"}})
		refused(t, err, wire.CodeProcessQuotaExceeded, "")
		if e := wire.AsError(err); fmt.Sprint(e.Details["limit"]) != fmt.Sprint(limit) {
			t.Errorf("details %v", e.Details)
		}
		after, err := a.s.List(t.Context())
		if err != nil || len(after.Processes) != len(before.Processes) || after.Sessions[0].Live != limit {
			t.Errorf("%d processes, %d before; %d live; %v", len(after.Processes), len(before.Processes), after.Sessions[0].Live, err)
		}
		for _, r := range after.Processes {
			if !r.State.Terminal() {
				a.kill(t, r.Process)
			}
		}
		exited(t, a.text(t, "ls"), 0, "")
	})
	t.Run("starts at once do not pass the limit", func(t *testing.T) { // A56
		var mu sync.Mutex
		var started []string
		denied := 0
		var all sync.WaitGroup
		for range 40 {
			all.Go(func() {
				r, err := a.s.Start(t.Context(), wire.Start{Command: wire.Command{Text: "sleep 300"}})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					started = append(started, r.Process)
				case wire.AsError(err).Code == wire.CodeProcessQuotaExceeded:
					denied++
				default:
					t.Error(err)
				}
			})
		}
		all.Wait()
		if len(started) != limit || denied != 40-limit {
			t.Errorf("%d started, %d refused", len(started), denied)
		}
		for _, id := range started {
			a.kill(t, id)
		}
	})
	t.Run("more waiters than there is room for are told so", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "sleep 300"})
		const many = 100
		var mu sync.Mutex
		codes := map[wire.Code]int{}
		var all sync.WaitGroup
		for range many {
			all.Go(func() {
				err := a.raw(t, wire.VerbWait, wire.Wait{Version: 1, ProcessRef: wire.ProcessRef{Process: id}, WaitMS: 3000})
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					codes["answered"]++
				} else {
					codes[wire.AsError(err).Code]++
				}
			})
		}
		all.Wait()
		if codes["answered"] == 0 || codes[wire.CodeOverloaded] == 0 || codes["answered"]+codes[wire.CodeOverloaded] != many {
			t.Errorf("%v", codes)
		}
		if r := a.status(t, id); r.State != wire.StateRunning {
			t.Errorf("%s", r.State)
		}
		if err := a.raw(t, wire.VerbWait, wire.Wait{Version: 1, ProcessRef: wire.ProcessRef{Process: id}, WaitMS: 10}); err != nil {
			t.Errorf("the places of the waiters did not come back: %v", err)
		}
		a.kill(t, id)
	})
	t.Run("a memory limit that cannot be held is refused by name", func(t *testing.T) {
		_, err := a.try(t, wire.Run{Command: wire.Command{Text: "echo ran", Limits: &wire.Limits{MemoryBytes: 64 << 20}}})
		if err != nil {
			refused(t, err, wire.CodeCapabilityMissing, "command.limits.memory_bytes")
		}
	})
	t.Run("limits of the kernel reach the command", func(t *testing.T) {
		exited(t, a.run(t, wire.Command{Text: "ulimit -n; ulimit -c; ulimit -f", Limits: &wire.Limits{OpenFiles: 77, FileBytes: 1 << 20}}), 0, "77\n0\n1024\n")
		res := a.run(t, wire.Command{Text: "while :; do :; done", Limits: &wire.Limits{CPUSeconds: 1}})
		if ended(t, &res.Receipt, wire.StateFailed, wire.ReasonSignal); res.Receipt.Signal != "KILL" && res.Receipt.Signal != "XCPU" {
			t.Errorf("%q", res.Receipt.Signal)
		}
		res = a.run(t, wire.Command{Text: "head -c 10M /dev/zero > big; echo $?", Limits: &wire.Limits{FileBytes: 1 << 20}})
		if info, err := os.Stat(filepath.Join(a.s.Info().Cwd, "big")); err != nil || info.Size() != 1<<20 {
			t.Errorf("%v, %v, %q", info, err, res.Stdout.Text)
		}
	})
}
