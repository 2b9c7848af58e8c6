package output

import (
	"bytes"
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// BenchmarkLines looks through 64 MiB of short lines on disk for what is in none of them.
func BenchmarkLines(b *testing.B) {
	line := []byte("the quick brown fox jumps over the lazy dog 0123456789 abcdefg\n")
	data := bytes.Repeat(line, MaxChunk/len(line)+1)[:MaxChunk]
	l, w := newLog(b, Config{Dir: b.TempDir(), Limits: wire.OutputLimits{SpoolBytes: 128 << 20, HeadBytes: 128 << 20}})
	for range 64 << 8 {
		w.chunk(wire.Stdout, string(data))
	}
	for _, c := range []struct{ name, expr string }{
		{"prefix", "ready"},
		{"words", `\b(ready|listening)\b`},
		{"any_case", "(?i)error|fail(ed|ure)"},
		{"whole_line", "^done$"},
		{"nothing_to_go_by", `[A-Z]+[0-9]`},
	} {
		b.Run(c.name, func(b *testing.B) {
			p, err := NewPattern(c.expr)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(64 << 20)
			b.ReportAllocs()
			for b.Loop() {
				s, err := l.Lines(nil, nil, 0)
				if err != nil {
					b.Fatal(err)
				}
				for s.Scan(func(line *Line) bool {
					_, _, ok := p.Find(line.Text)
					return !ok
				}) {
				}
				if s.Scanned() != 64<<20 {
					b.Fatalf("%d bytes", s.Scanned())
				}
			}
		})
	}
}
