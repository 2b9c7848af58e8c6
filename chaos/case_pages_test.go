package chaos

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// numbers are n lines of 8 bytes, so that every byte says where it belongs.
func numbers(n int) []byte {
	var b bytes.Buffer
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&b, "%07d\n", i)
	}
	return b.Bytes()
}

// TestOutPages: OUT 47 and 41, systematically.
func TestOutPages(t *testing.T) {
	notShort(t)
	l := start(t)
	want := numbers(8000)

	t.Run("every cursor and every offset give the same bytes, twice", func(t *testing.T) {
		c := call(t, l)
		id := c.run("seq -f %07.0f 1 8000").Receipt.Process
		n := c.end(id, soon).Output.LatestCursor
		for range 2 {
			for cursor := range n {
				p := c.read(wire.Read{ProcessRef: ref(id), Cursor: &cursor, View: wire.ViewBase64, MaxBytes: wire.MinPageBytes})
				exact(t, p, want)
				if p.Cursor != cursor || len(p.Chunks) == 0 || p.Chunks[0].Cursor != cursor {
					t.Fatalf("cursor %d gave %d", cursor, p.Cursor)
				}
			}
		}
		random := rand.New(rand.NewPCG(1, 2))
		for range 600 {
			offset := random.Int64N(int64(len(want)))
			size := wire.MinPageBytes + random.IntN(wire.MaxPageBytes-wire.MinPageBytes)
			p := c.read(wire.Read{ProcessRef: ref(id), Offset: &offset, View: wire.ViewBase64, MaxBytes: size})
			exact(t, p, want)
			if p.Offset != offset || p.NextOffset <= offset || p.NextOffset > offset+int64(size) {
				t.Fatalf("offset %d, %d bytes: %d to %d", offset, size, p.Offset, p.NextOffset)
			}
		}
		end, latest := int64(len(want)), n
		for _, m := range []wire.Read{{Offset: &end}, {Cursor: &latest}} {
			m.ProcessRef, m.WaitMS = ref(id), 60_000
			within(t, soon, func() {
				if p := c.read(m); !p.End || len(p.Chunks) > 0 {
					t.Errorf("at the end: %+v", p)
				}
			})
		}
		end, latest = end+1, latest+1
		for field, m := range map[string]wire.Read{"offset": {Offset: &end}, "cursor": {Cursor: &latest}} {
			m.ProcessRef = ref(id)
			_, err := c.c.Read(t.Context(), m)
			if e := wire.AsError(err); e == nil || e.Code != wire.CodeCursorAhead || e.Field != field {
				t.Errorf("past the end: %v", err)
			}
		}
		for _, size := range []int{-1, 1, wire.MinPageBytes - 1, wire.MaxPageBytes + 1, 1 << 40} {
			_, err := c.c.Read(t.Context(), wire.Read{ProcessRef: ref(id), MaxBytes: size})
			if e := wire.AsError(err); e == nil || e.Code != wire.CodeInvalidArguments || e.Field != "max_bytes" {
				t.Errorf("a page of %d: %v", size, err)
			}
		}
	})

	t.Run("one huge line", func(t *testing.T) {
		c := call(t, l)
		res := c.run("head -c 5000000 /dev/zero | tr '\\0' x")
		if o := res.Stdout; o.TotalBytes != 5_000_000 || !o.Truncated || len(o.Text) > 31_000 || o.OmittedBytes < 4_900_000 {
			t.Errorf("%d of %d omitted, %d shown", o.OmittedBytes, o.TotalBytes, len(o.Text))
		}
		if all, _, _ := c.output(res.Receipt.Process); all != strings.Repeat("x", 5_000_000) {
			t.Errorf("%d bytes read", len(all))
		}
	})

	t.Run("two streams keep their order and their bytes", func(t *testing.T) {
		c := call(t, l)
		res := c.run("for i in $(seq 500); do echo out$i; echo err$i >&2; done")
		var out, errs strings.Builder
		for i := 1; i <= 500; i++ {
			out.WriteString("out" + strconv.Itoa(i) + "\n")
			errs.WriteString("err" + strconv.Itoa(i) + "\n")
		}
		all, o, e := c.output(res.Receipt.Process)
		if o != out.String() || e != errs.String() || len(all) != len(o)+len(e) {
			t.Errorf("%d, %d, %d bytes", len(all), len(o), len(e))
		}
		if got := res.Receipt.Output; got.StdoutBytes != int64(len(o)) || got.StderrBytes != int64(len(e)) {
			t.Errorf("%+v", got)
		}
		for stream, want := range map[string]string{"stdout": o, "stderr": e} {
			m, got := wire.Read{ProcessRef: ref(res.Receipt.Process), Stream: stream, MaxBytes: wire.MinPageBytes}, ""
			for more := true; more; {
				p := c.read(m)
				got, more, m.Cursor = got+texts(p), p.HasMore, &p.NextCursor
			}
			if got != want {
				t.Errorf("%s alone: %d bytes of %d", stream, len(got), len(want))
			}
		}
		merged := c.runs(wire.Command{Text: "for i in $(seq 200); do echo o$i; echo e$i >&2; done", Streams: wire.StreamsMerged})
		for i := 1; i <= 200; i++ {
			if !strings.Contains(merged.Stdout.Text, fmt.Sprintf("o%d\ne%d\n", i, i)) {
				t.Fatalf("merged, and line %d is elsewhere", i)
			}
		}
	})

	t.Run("what a budget drops is counted, and the rest is in its place", func(t *testing.T) {
		c := call(t, l)
		const lines = 200_000
		want := numbers(lines)
		for _, limits := range []wire.OutputLimits{
			{WindowBytes: 4096, SpoolBytes: 256 << 10},
			{WindowBytes: 64 << 10, SpoolBytes: -1},
			{WindowBytes: 64 << 10, SpoolBytes: 512 << 10, HeadBytes: -1},
		} {
			res := c.runs(wire.Command{Text: fmt.Sprint("seq -f %07.0f 1 ", lines), Output: &limits})
			o := res.Receipt.Output
			if o.TotalBytes != int64(len(want)) || o.KeptBytes+o.DroppedBytes != o.TotalBytes || o.DroppedBytes == 0 {
				t.Errorf("%+v: %+v", limits, o)
			}
			m := wire.Read{ProcessRef: ref(res.Receipt.Process), Cursor: new(int64), View: wire.ViewBase64, MaxBytes: wire.MaxPageBytes}
			var read, gone int64
			for more := true; more; {
				p := c.read(m)
				exact(t, p, want)
				for _, ch := range p.Chunks {
					read += int64(ch.SourceBytes)
				}
				for _, g := range p.Gaps {
					gone += g.Bytes
				}
				more, m.Cursor = p.HasMore, &p.NextCursor
			}
			if read != o.KeptBytes || gone != o.DroppedBytes {
				t.Errorf("%+v: %d read, %d in gaps, %+v", limits, read, gone, o)
			}
			if !strings.HasSuffix(res.Stdout.Text, "0200000\n") || res.Stdout.OmittedBytes == 0 {
				t.Errorf("%+v: the text ends with %q", limits, res.Stdout.Text[max(0, len(res.Stdout.Text)-40):])
			}
		}
	})

	t.Run("readers beside each other get the same, all of it", func(t *testing.T) {
		c := call(t, l)
		const lines = 500_000
		want := numbers(lines)
		id := c.start(fmt.Sprint("seq -f %07.0f 1 ", lines))
		var readers sync.WaitGroup
		for range 6 {
			readers.Go(func() { // ends with the process
				var got bytes.Buffer
				_, err := c.c.Follow(t.Context(), id, 0, func(ch wire.Chunk) error {
					b, err := client.Bytes(ch)
					got.Write(b)
					return err
				})
				if err != nil || !bytes.Equal(got.Bytes(), want) {
					t.Errorf("%d bytes of %d, %v", got.Len(), len(want), err)
				}
			})
		}
		readers.Wait()
	})

	t.Run("a waiting read wakes at once", func(t *testing.T) {
		c := call(t, l)
		id := c.starts(wire.Command{Text: "while read -r x; do echo $x; done", Stdin: wire.StdinPipe})
		var cursor int64
		var late []time.Duration
		for i := range 40 {
			pages := make(chan *wire.Page, 1)
			go func() { // ends with its answer, for which we wait
				p, _ := c.c.Read(t.Context(), wire.Read{ProcessRef: ref(id), Cursor: &cursor, WaitMS: 60_000})
				pages <- p
			}()
			sent := time.Now()
			if _, err := c.c.Write(t.Context(), wire.Write{ProcessRef: ref(id), Text: fmt.Sprintln(i)}); err != nil {
				t.Fatal(err)
			}
			p := <-pages
			late = append(late, time.Since(sent))
			if p == nil || texts(p) != fmt.Sprintln(i) {
				t.Fatalf("%d: %+v", i, p)
			}
			cursor = p.NextCursor
		}
		if d := percentile(late, 0.9); d > 500*time.Millisecond {
			t.Errorf("woken after %v", d)
		}
		if _, err := c.c.CloseStdin(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		within(t, soon, func() {
			if p := c.read(wire.Read{ProcessRef: ref(id), Cursor: &cursor, WaitMS: 60_000}); !p.End {
				t.Errorf("no end: %+v", p)
			}
		})
	})
}

// exact checks that each chunk of a page holds the bytes that belong at its offset.
func exact(t *testing.T, p *wire.Page, want []byte) {
	t.Helper()
	at := p.Offset
	for _, ch := range p.Chunks {
		b, err := client.Bytes(ch)
		if err != nil {
			t.Fatal(err)
		}
		if ch.Offset < at || !bytes.Equal(b, want[ch.Offset:ch.Offset+int64(len(b))]) {
			t.Fatalf("chunk %d at offset %d is not what was written there", ch.Cursor, ch.Offset)
		}
		at = ch.Offset + int64(len(b))
	}
	if len(p.Chunks) > 0 && p.NextOffset != at {
		t.Fatalf("the page ends at %d, its chunks at %d", p.NextOffset, at)
	}
}
