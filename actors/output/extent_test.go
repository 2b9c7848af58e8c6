package output

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
)

var fiveStreams = []wire.Stream{wire.Stdout, wire.Stderr, 3, 5, wire.LastStream}

// scatter writes text over streams, cut anywhere, and gives what each got.
func scatter(w *writer, seed uint64, n int, streams []wire.Stream) map[wire.Stream]string {
	random := rand.New(rand.NewPCG(seed, 2))
	text := strings.Repeat("plain é 世 \x1b[31mred\x1b[0m\r\nprogress 1\rprogress 2\n\x1b]0;title\a\xff", 1+n/50)[:n]
	all := map[wire.Stream]string{}
	for len(text) > 0 {
		k := min(1+random.IntN(60), len(text))
		s := streams[random.IntN(len(streams))]
		w.chunk(s, text[:k])
		all[s] += text[:k]
		text = text[k:]
	}
	return all
}

// streamOf reads one stream whole, as it was written.
func streamOf(t testing.TB, l *Log, stream wire.Stream) string {
	t.Helper()
	var b strings.Builder
	for cursor := int64(0); ; {
		p, err := l.Read(wire.Read{Cursor: &cursor, View: wire.ViewBase64, Stream: stream.String(), MaxBytes: MinPage}, State{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range p.Chunks {
			data, err := base64.StdEncoding.DecodeString(c.Data)
			if err != nil || c.Stream != stream.String() {
				t.Fatalf("%v: %+v", err, c)
			}
			b.Write(data)
		}
		if cursor = p.NextCursor; !p.HasMore {
			return b.String()
		}
	}
}

// countsOf are the bytes of every stream, by the statistics.
func countsOf(o wire.OutputStats) map[wire.Stream]int64 {
	m := map[wire.Stream]int64{wire.Stdout: o.StdoutBytes, wire.Stderr: o.StderrBytes}
	for _, d := range o.Descriptors {
		m[wire.Stream(d.Number)] = d.Bytes
	}
	return m
}

func checkStreams(t testing.TB, l *Log, want map[wire.Stream]string) {
	t.Helper()
	sum, counts := int64(0), countsOf(l.Stats())
	for stream, n := range counts {
		if n != int64(len(want[stream])) {
			t.Errorf("%v: counted %d, wrote %d", stream, n, len(want[stream]))
		}
		sum += n
	}
	if o := l.Stats(); sum != o.TotalBytes || len(counts) < len(want) || o.TotalBytes != o.KeptBytes+o.DroppedBytes {
		t.Errorf("%+v: the streams have %d", o, sum)
	}
}

func TestDescriptorsInOneLog(t *testing.T) {
	for name, cfg := range map[string]Config{
		"in memory": {Limits: wire.OutputLimits{WindowBytes: 1 << 20}},
		"spooled":   {Dir: t.TempDir(), Limits: wire.OutputLimits{WindowBytes: minWindow}},
	} {
		l, w := newLog(t, cfg)
		w.keep = true
		all := scatter(w, 1, 40_000, fiveStreams)
		checkCount(t, l)
		checkStreams(t, l, all)
		compare(t, l, w.chunks)
		for _, s := range fiveStreams {
			if got := streamOf(t, l, s); got != all[s] {
				t.Errorf("%s, %v: %d bytes, want %d", name, s, len(got), len(all[s]))
			}
		}
		if got := streamOf(t, l, 4); got != "" {
			t.Errorf("fd4: %q", got)
		}
		out, errOut := l.Render(wire.Render{View: wire.ViewBase64, MaxBytes: MaxRender}, false)
		for s, r := range map[wire.Stream]wire.Rendered{wire.Stdout: out, wire.Stderr: errOut} {
			if raw, _ := base64.StdEncoding.DecodeString(r.Text); string(raw) != all[s] || r.TotalBytes != int64(len(raw)) || r.Truncated {
				t.Errorf("%s: %v rendered as %d bytes of %d", name, s, len(raw), r.TotalBytes)
			}
		}
		both, _ := l.Render(wire.Render{View: wire.ViewBase64, MaxBytes: MaxRender}, true)
		if raw, _ := base64.StdEncoding.DecodeString(both.Text); both.TotalBytes != out.TotalBytes+errOut.TotalBytes || len(raw) != int(both.TotalBytes) {
			t.Errorf("%s: a text of both has %d bytes of %d", name, len(raw), both.TotalBytes)
		}
	}
}

// A text of the run is not cut, and says of nothing that it is missing, for what
// descriptors wrote.
func TestDescriptorsAreInNoText(t *testing.T) {
	l, w := newLog(t, Config{})
	for i := range 200 {
		w.chunk(wire.Stdout, fmt.Sprintf("line %d\n", i))
		w.chunk(3, strings.Repeat("\x00", 500)+"\n")
	}
	w.chunk(wire.Stderr, "end\n")
	want := ""
	for i := range 200 {
		want += fmt.Sprintf("line %d\n", i)
	}
	for _, shape := range []wire.Shape{wire.ShapeHeadTail, wire.ShapeTail, wire.ShapeHead} {
		both, none := l.Render(wire.Render{Shape: shape}, true)
		if both.Text != want+"end\n" || both.Truncated || both.TotalBytes != int64(len(want)+4) || none.Text != "" {
			t.Errorf("%s: %+v", shape, both)
		}
		out, errOut := l.Render(wire.Render{Shape: shape}, false)
		if out.Text != want || errOut.Text != "end\n" || out.Truncated || errOut.Truncated {
			t.Errorf("%s: %+v %+v", shape, out, errOut)
		}
	}
	tail, _ := l.Render(wire.Render{Shape: wire.ShapeTail, MaxLines: 2, MaxBytes: MinRender}, true)
	if !strings.HasSuffix(tail.Text, "line 199\nend\n") || tail.OmittedLines != 199 {
		t.Errorf("%+v", tail)
	}
}

// A character that is cut, and one that never ends, in the midst of other streams.
func TestDescriptorsDecodeByThemselves(t *testing.T) {
	l, w := newLog(t, Config{})
	w.chunk(3, "a\xe4")
	w.chunk(5, "\x1b[3")
	w.chunk(wire.Stdout, "out")
	w.chunk(3, "\xb8\x96b")
	w.chunk(5, "1mred\xc3")
	l.Close(true, "")
	for stream, want := range map[string]struct {
		text string
		loss int
	}{"fd3": {"a世b", 0}, "fd5": {"red\uFFFD", 1}, "stdout": {"out", 0}, "": {"aout世bred\uFFFD", 1}} {
		p, err := l.Read(wire.Read{View: wire.ViewSafe, Stream: stream}, State{State: wire.StateCompleted})
		if err != nil {
			t.Fatal(err)
		}
		text, loss := "", 0
		for _, c := range p.Chunks {
			text, loss = text+c.Text, loss+c.EncodingLoss
		}
		if text != want.text || loss != want.loss || !p.End {
			t.Errorf("%q: %q with %d lost", stream, text, loss)
		}
	}
	if _, err := l.Read(wire.Read{Stream: "fd65"}, State{}); err == nil {
		t.Error("fd65 is taken for a stream")
	}
}

// After a crash the counts and what is open are as before, also of streams of which
// nothing is kept.
func TestDescriptorsRecover(t *testing.T) {
	for name, limits := range map[string]wire.OutputLimits{
		"all kept": {WindowBytes: minWindow},
		"a ring":   {WindowBytes: minWindow, SpoolBytes: 256 << 10, HeadBytes: -1},
	} {
		cfg := Config{Dir: t.TempDir(), Limits: limits}
		var trimmed int64
		cfg.OnTrim = func(raw int64) { trimmed = raw }
		l, w := newLog(t, cfg)
		w.keep = true
		all := scatter(w, 3, 20_000, fiveStreams)
		w.chunk(5, "\x1b[3")
		w.chunk(5, "1mhalf \xe4")
		all[5] += "\x1b[31mhalf \xe4"
		for s, text := range scatter(w, 4, 400_000, fiveStreams[:2]) {
			all[s] += text
		}
		reopen(t, l, cfg, w.chunks, &trimmed)
		l.closeFileForTest()
		again := open(t, Config{Dir: cfg.Dir, Limits: limits})
		for _, c := range w.chunks[again.Next():] {
			if err := again.Append(c); err != nil {
				t.Fatal(err)
			}
		}
		checkStreams(t, again, all)
		if !reflect.DeepEqual(again.extra, l.extra) {
			t.Errorf("%s: before %+v, after %+v", name, l.extra, again.extra)
		}
		if name == "a ring" && streamOf(t, again, 5) != "" {
			t.Error("fd5 is still kept: the test shows nothing")
		}
	}
}

// Where the log lacks the chunks before, the counts are the journal's.
func TestDescriptorsOfLostChunks(t *testing.T) {
	first := Chunk{
		Number: 10, Offset: 100, StdoutOffset: 60, Stream: 3, Data: []byte("x"),
		Descriptors: []wire.DescriptorBytes{{Number: 3, Bytes: 10}, {Number: 64, Bytes: 20}},
	}
	l := open(t, Config{})
	if err := l.Append(first); err != nil {
		t.Fatal(err)
	}
	want := map[wire.Stream]int64{1: 60, 2: 10, 3: 11, 64: 20}
	if got := countsOf(l.Stats()); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for _, bad := range [][]wire.DescriptorBytes{
		{{Number: 3, Bytes: 41}}, {{Number: 3, Bytes: -1}}, {{Number: 2, Bytes: 1}}, {{Number: 65, Bytes: 1}},
	} {
		c := first
		c.Descriptors = bad
		if err := open(t, Config{}).Append(c); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
	for _, stream := range []wire.Stream{0, wire.LastStream + 1} {
		if err := open(t, Config{}).Append(Chunk{Stream: stream, Data: []byte("x")}); err == nil {
			t.Errorf("stream %d was taken", stream)
		}
	}
}

// An ordinary log pays nothing: the records are what they were.
func TestOrdinaryRecordsHaveNoTable(t *testing.T) {
	dir := t.TempDir()
	l, w := newLog(t, Config{Dir: dir})
	w.write(wire.Stdout, "one\n")
	w.write(wire.Stderr, "two\n")
	l.Close(true, "")
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(onlyFile(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	if want := 2 * (headerLen + 4); len(b) != want || b[3] != 0 || string(b[headerLen:headerLen+4]) != "one\n" {
		t.Errorf("%d bytes, want %d: %q", len(b), want, b)
	}
}

// The window is bounded in memory, however long the tables make its records.
func TestWindowOfManyDescriptors(t *testing.T) {
	l, w := newLog(t, Config{})
	for i := range 20_000 {
		w.chunk(wire.Stream(1+i%int(wire.LastStream)), "x")
	}
	memory := 0
	for _, b := range l.blocks {
		memory += cap(b.buf)
	}
	if limit := WindowChunks*headerLen + 6*maxBlock; memory > limit {
		t.Errorf("the window takes %d bytes, at most %d", memory, limit)
	}
	checkCount(t, l)
	if o := l.Stats(); len(o.Descriptors) != 62 || o.KeptBytes < 100 {
		t.Errorf("%+v", o)
	}
}

// What is shipped says the same of every stream.
func TestDescriptorsAreShipped(t *testing.T) {
	l, w := newLog(t, Config{Limits: wire.OutputLimits{WindowBytes: 256 << 10}})
	all := scatter(w, 5, 6000, fiveStreams)
	w.chunk(3, "half \xe4\xb8")
	all[3] += "half \xe4\xb8"
	for _, from := range []int64{0, l.Next() / 2} {
		messages, _ := shipped(t, l, from, 3000)
		r, err := Restore("p1", false, false, messages)
		if err != nil {
			t.Fatal(err)
		}
		checkStreams(t, r, all)
		r.Finish(l.Stats())
		ended, _ := Restore("p1", false, false, messages[:len(messages)-1])
		ended.Finish(l.Stats())
		checkStreams(t, ended, all)
		l.Close(false, "")
		samePages(t, l, r, from, l.Next())
	}
}

// FuzzDescriptors: one bad byte anywhere loses no count and no other chunk.
func FuzzDescriptors(f *testing.F) {
	dir := f.TempDir()
	l, w := newLog(f, Config{Dir: dir})
	w.keep = true
	scatter(w, 6, 10_000, fiveStreams)
	l.Close(true, "")
	if err := l.Flush(); err != nil {
		f.Fatal(err)
	}
	whole, err := os.ReadFile(onlyFile(f, dir))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint32(100), byte(1))
	f.Add(uint32(67), byte(0xff))
	f.Add(uint32(20_003), byte(0x80))
	f.Add(uint32(len(whole)-1), byte(4))
	f.Fuzz(func(t *testing.T, at uint32, flip byte) {
		b := slices.Clone(whole)
		b[int(at)%len(b)] ^= flip
		dir := t.TempDir()
		path := segmentPath(filepath.Join(dir, "p1"), 0, true)
		if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		l := open(t, Config{Dir: dir})
		if next := l.Next(); next < int64(len(w.chunks)) {
			if err := l.Append(w.chunks[next]); err != nil {
				t.Fatal(err)
			}
		}
		checkCount(t, l)
		compare(t, l, w.chunks)
		sum := int64(0)
		for _, n := range countsOf(l.Stats()) {
			sum += n
		}
		if sum != l.Stats().TotalBytes {
			t.Errorf("%+v", l.Stats())
		}
	})
}
