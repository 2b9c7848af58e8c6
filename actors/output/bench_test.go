package output

import (
	"bytes"
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// BenchmarkAppend appends chunks of 4 KiB of text: to a window alone, to a spool that
// takes all, and to one that rolls for most of the run.
func BenchmarkAppend(b *testing.B) {
	line := []byte("the quick brown fox jumps over the lazy dog 0123456789 abcdefg\n")
	data := bytes.Repeat(line, MaxChunk/len(line)+1)[:MaxChunk]
	for _, c := range []struct {
		name string
		lim  wire.OutputLimits
		disk bool
	}{
		{"window", wire.OutputLimits{SpoolBytes: -1}, false},
		{"within", wire.OutputLimits{SpoolBytes: maxSpool, HeadBytes: maxSpool}, true},
		{"ring", wire.OutputLimits{}, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			cfg := Config{Process: "bench", Limits: c.lim}
			if c.disk {
				cfg.Dir = b.TempDir()
			}
			l := open(b, cfg)
			b.SetBytes(MaxChunk)
			b.ReportAllocs()
			var n int64
			for b.Loop() {
				if err := l.Append(Chunk{Number: n, Offset: n * MaxChunk, Stream: wire.Stdout, Data: data, At: epoch}); err != nil {
					b.Fatal(err)
				}
				n++
			}
			if err := l.Remove(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkAppendTiny appends single bytes into a rolling spool.
func BenchmarkAppendTiny(b *testing.B) {
	l := open(b, Config{Process: "bench", Dir: b.TempDir()})
	b.SetBytes(1)
	b.ReportAllocs()
	var n int64
	for b.Loop() {
		if err := l.Append(Chunk{Number: n, Offset: n, Stream: wire.Stdout, Data: lineFeed, At: epoch}); err != nil {
			b.Fatal(err)
		}
		n++
	}
	if err := l.Remove(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkRead reads a page of 16 KiB from memory and from disk, in each view.
func BenchmarkRead(b *testing.B) {
	line := []byte("the quick brown fox jumps over the lazy dog 0123456789 abcdefg\n")
	data := bytes.Repeat(line, MaxChunk/len(line)+1)[:MaxChunk]
	l, w := newLog(b, Config{Dir: b.TempDir()})
	for range 4096 {
		w.chunk(wire.Stdout, string(data))
	}
	for _, c := range []struct {
		name   string
		cursor int64
	}{{"disk", 100}, {"memory", 4090}} {
		for _, v := range []wire.View{wire.ViewText, wire.ViewSafe, wire.ViewBase64} {
			b.Run(c.name+"/"+string(v), func(b *testing.B) {
				b.SetBytes(4 * MaxChunk)
				b.ReportAllocs()
				for b.Loop() {
					if p, err := l.Read(wire.Read{Cursor: &c.cursor, View: v}, State{}); err != nil || len(p.Chunks) != 4 {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkRender makes the text of a run from 64 MiB.
func BenchmarkRender(b *testing.B) {
	line := []byte("the quick brown fox jumps over the lazy dog 0123456789 abcdefg\n")
	data := bytes.Repeat(line, MaxChunk/len(line)+1)[:MaxChunk]
	l, w := newLog(b, Config{Dir: b.TempDir()})
	for range 64 << 8 {
		w.chunk(wire.Stdout, string(data))
	}
	w.chunk(wire.Stderr, "FATAL\n")
	b.ReportAllocs()
	for b.Loop() {
		if out, _ := l.Render(wire.Render{}, false); !out.Truncated {
			b.Fatal("not truncated")
		}
	}
}

// BenchmarkSearch looks through a spool of 64 MiB for what is not there: short lines, as
// of a log, and bytes that are no text.
func BenchmarkSearch(b *testing.B) {
	line := []byte("2026-01-02T03:04:05Z INFO  the quick brown fox jumps over the lazy dog: 0123456789\n")
	data := bytes.Repeat(line, MaxChunk/len(line)+1)[:MaxChunk]
	colour := bytes.Repeat([]byte("\x1b[32mINFO\x1b[0m the quick brown f\u00fcchs jumps over the lazy dog\n"), MaxChunk/60+1)[:MaxChunk]
	for _, text := range []struct {
		name string
		data []byte
	}{{"log", data}, {"colour", colour}} {
		l, w := newLog(b, Config{Dir: b.TempDir(), Limits: wire.OutputLimits{SpoolBytes: 128 << 20, HeadBytes: 128 << 20}})
		for range 64 << 8 {
			w.chunk(wire.Stdout, string(text.data))
		}
		for _, c := range []struct {
			name string
			m    wire.Search
		}{
			{"literal", wire.Search{Pattern: "needle", Literal: true}},
			{"literal-any-case", wire.Search{Pattern: "needle", Literal: true, IgnoreCase: true}},
			{"expression", wire.Search{Pattern: "panic: .* needle"}},
			{"around", wire.Search{Pattern: "needle", Literal: true, BeforeLines: 3, AfterLines: 3}},
		} {
			b.Run(text.name+"/"+c.name, func(b *testing.B) {
				b.SetBytes(64 << 20)
				b.ReportAllocs()
				for b.Loop() {
					if f, err := l.Search(b.Context(), c.m, State{}); err != nil || len(f.Matches) > 0 || f.Scanned != 64<<20 {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
