package actors

import (
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// BenchmarkWaitForPattern looks through 64 MiB of an ended command for a line that is not
// there, in one call to a worker.
func BenchmarkWaitForPattern(b *testing.B) {
	bench := newBench(b, nil)
	s := bench.open(wire.Open{Name: "one"})
	const size = 64 << 20
	r := bench.start(s, wire.Command{
		Text:   "yes 'the quick brown fox jumps over the lazy dog 0123456789 abcdefg' | head -c 67108864",
		Output: &wire.OutputLimits{SpoolBytes: 4 * size, HeadBytes: 4 * size},
	})
	if end := bench.wait(r.Process); end.Output.KeptBytes != size {
		b.Fatalf("%+v", end.Output)
	}
	m := waitOf(r.Process, wire.WaitFor{For: "pattern", Pattern: `\b(ready|listening)\b`})
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		w := must[wire.Waited](bench)(ask[wire.Waited](bench, bench.process(r.Process, "wait_for"), m))
		if w.Met || !w.Results[0].Ended {
			b.Fatalf("%+v", w)
		}
	}
}
