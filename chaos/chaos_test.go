package chaos

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"hash"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// chaosKills ends TestChaosKillWorker after so many kills instead of after its time;
// the figure of the README is for 25.
var chaosKills = flag.Int("chaos.kills", 0, "kill the worker so many times during 400 MiB of output")

// TestChaosKillWorker: kill -9 of the worker, again and again, while a process prints as
// fast as it can. No byte is lost, and every chunk is at the cursor where it was before.
func TestChaosKillWorker(t *testing.T) {
	notShort(t)
	l := start(t)
	s := open(t, l)
	if *chaosKills > 0 {
		killWhilePrinting(t, l, s, *chaosKills, 400<<20, time.Now().Add(time.Hour))
		return
	}
	for until := time.Now().Add(*chaosTime); time.Now().Before(until) && !t.Failed(); {
		killWhilePrinting(t, l, s, 1000, 64<<20, until)
	}
}

// killWhilePrinting runs one process that prints size bytes, and kills the worker until
// it has ended, so many kills were made, or the time is up.
func killWhilePrinting(t *testing.T, l *Lab, s *client.Session, kills int, size int64, until time.Time) {
	t.Helper()
	ctx := t.Context()
	// Numbered lines: what is lost, doubled or out of its place shows in the hash.
	text := fmt.Sprintf("seq -f '%%015.0f' 1 %d; exit 7", size/16)
	r, err := s.Start(ctx, wire.Start{Version: wire.Version, Command: wire.Command{Text: text, Output: &wire.OutputLimits{SpoolBytes: 512 << 20}}})
	if err != nil {
		t.Fatal(err)
	}
	killed := 0
	seen := map[int64][sha256.Size]byte{} // chunks as they were read between the kills
	for ; killed < kills && time.Now().Before(until); killed++ {
		page := lastPage(t, s.Client(), r.Process)
		for _, c := range page.Chunks {
			b, err := client.Bytes(c)
			if err != nil {
				t.Fatal(err)
			}
			seen[c.Cursor] = sha256.Sum256(b)
		}
		if page.End {
			break
		}
		time.Sleep(time.Duration(1+rand.IntN(40)) * time.Millisecond)
		before := l.PID("worker")
		if err := l.Kill("worker"); err != nil {
			t.Fatal(err)
		}
		waitWorker(t, l, before)
	}
	h, want := sha256.New(), numbered(size/16)
	var total, next int64
	end, err := s.Client().Follow(ctx, r.Process, 0, func(c wire.Chunk) error {
		b, err := client.Bytes(c)
		if err != nil {
			return err
		}
		if c.Cursor != next || c.Offset != total {
			return fmt.Errorf("chunk %d at %d, want %d at %d", c.Cursor, c.Offset, next, total)
		}
		if before, ok := seen[c.Cursor]; ok && before != sha256.Sum256(b) {
			return fmt.Errorf("chunk %d is not what it was", c.Cursor)
		}
		next, total = next+1, total+int64(len(b))
		h.Write(b)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if total != size/16*16 || !bytes.Equal(h.Sum(nil), want.Sum(nil)) {
		t.Errorf("%d bytes of %d, hash %s", total, size, hex.EncodeToString(h.Sum(nil)))
	}
	if end.ExitCode == nil || *end.ExitCode != 7 || end.Output.DroppedBytes != 0 || !end.Output.Complete {
		t.Errorf("receipt %+v", end)
	}
	t.Logf("%d kills during %d bytes in %d chunks, %d of them read before and after: 0 bytes lost", killed, total, next, len(seen))
}

func numbered(n int64) hash.Hash {
	h := sha256.New()
	for i := int64(1); i <= n; i++ {
		fmt.Fprintf(h, "%015d\n", i)
	}
	return h
}

// lastPage reads the newest page there is.
func lastPage(t *testing.T, c *client.Client, id string) *wire.Page {
	t.Helper()
	st, err := c.Status(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	from := max(st.Output.LatestCursor-20, 0)
	page, err := c.Read(t.Context(), wire.Read{
		Version: wire.Version, ProcessRef: wire.ProcessRef{Process: id}, Cursor: &from,
		View: wire.ViewBase64, MaxBytes: wire.MaxPageBytes,
	})
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// waitWorker waits until another worker than the one before has taken over: a gateway
// lists without one too, but then as unreachable.
func waitWorker(t *testing.T, l *Lab, before int) {
	t.Helper()
	l.another(t, "worker", before)
	eventually(t, "a worker that answers", long, func() bool {
		all, err := l.Client.ListAll(t.Context())
		return err == nil && !slices.ContainsFunc(all.Processes, func(r wire.Receipt) bool { return r.State == wire.StateUnreachable })
	})
}

// TestLines: with the spool above it nothing of 100 MiB of lines is lost; at the default
// what was produced is what is kept and what is counted as dropped.
func TestLines(t *testing.T) {
	notShort(t)
	const size = 100 << 20
	l := start(t)
	s := open(t, l)
	ctx := t.Context()
	for _, spool := range []int64{256 << 20, 0} {
		r, err := s.Start(ctx, wire.Start{Version: wire.Version, Command: wire.Command{
			Text: fmt.Sprintf("seq -f '%%015.0f' 1 %d", size/16), Output: &wire.OutputLimits{SpoolBytes: spool},
		}})
		if err != nil {
			t.Fatal(err)
		}
		h := sha256.New()
		var got, gone, next int64
		end, err := s.Client().Follow(ctx, r.Process, 0, func(c wire.Chunk) error {
			b, err := client.Bytes(c)
			if err != nil {
				return err
			}
			gone += c.Offset - next
			next = c.Offset + int64(len(b))
			got += int64(len(b))
			h.Write(b)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		o := end.Output
		if o.TotalBytes != size || o.KeptBytes+o.DroppedBytes != o.TotalBytes || got+gone != size {
			t.Errorf("spool %d: read %d, gone %d, output %+v", spool, got, gone, o)
		}
		if spool != 0 && (o.DroppedBytes != 0 || gone != 0 || !bytes.Equal(h.Sum(nil), numbered(size/16).Sum(nil))) {
			t.Errorf("spool %d: read %d, gone %d, output %+v", spool, got, gone, o)
		}
	}
}
