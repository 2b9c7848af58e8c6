package chaos

import (
	"testing"
	"time"

	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// BenchmarkRunTrueState: `run true` in a session that captures state against one that does
// not, interleaved, the median of five runs; and with a change of state each time.
func BenchmarkRunTrueState(b *testing.B) {
	for _, shell := range []string{"bash", "sh"} {
		b.Run(shell, func(b *testing.B) { benchState(b, shell) })
	}
}

func benchState(b *testing.B, shell string) {
	l := start(b)
	plain := newAgent(b, l, wire.Open{Cwd: "/", Shell: shell, DefaultTimeoutMS: -1})
	captures := newAgent(b, l, wire.Open{Cwd: "/", Shell: shell, DefaultTimeoutMS: -1, CaptureState: true})
	run := func(s *client.Session, text string) time.Duration {
		began := time.Now()
		res, err := s.Run(b.Context(), wire.Run{Command: wire.Command{Text: text, TimeoutMS: 60_000}})
		if err != nil || res.Receipt.State != wire.StateCompleted || res.Receipt.StateCapture == "missed" {
			b.Fatalf("%+v, %v", res, err)
		}
		return time.Since(began)
	}
	const each = 200
	var same, changed []float64
	for b.Loop() {
		for range 5 {
			var none, kept, moved []time.Duration
			for i := range each {
				none = append(none, run(plain.s, "true"))
				kept = append(kept, run(captures.s, "true"))
				moved = append(moved, run(captures.s, "cd /"+[]string{"usr", "tmp"}[i%2]))
			}
			base := percentile(none, 0.5)
			same = append(same, float64(percentile(kept, 0.5))/float64(base))
			changed = append(changed, float64(percentile(moved, 0.5))/float64(base))
			b.Logf("p50 %v; captured %v, changed %v", base, percentile(kept, 0.5), percentile(moved, 0.5))
		}
	}
	b.ReportMetric(median(same), "captured-x-plain")
	b.ReportMetric(median(changed), "changed-x-plain")
}
