package chaos

import (
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// BenchmarkRunShipped is a run whose output is shipped over one whose output is not, by
// the medians: of runs that are apart, so that what is shipped behind an answer costs
// nobody, and of runs in a row, where it falls into the next ones.
func BenchmarkRunShipped(b *testing.B) {
	for name, text := range map[string]string{"line": "echo hello", "1MB": "head -c 1000000 /dev/zero | tr '\\0' x"} {
		b.Run(name, func(b *testing.B) {
			l := start(b)
			s := open(b, l)
			one := func(ship int64) float64 {
				began := time.Now()
				res, err := s.Run(b.Context(), wire.Run{Command: wire.Command{Text: text, Output: &wire.OutputLimits{ShipBytes: ship}}})
				if err != nil || res.Receipt.ExitCode == nil || *res.Receipt.ExitCode != 0 {
					b.Fatalf("%+v, %v", res, err)
				}
				return float64(time.Since(began).Microseconds())
			}
			for range 20 {
				one(0)
				one(-1)
			}
			const row = 10
			var apart, row1 [2][]float64
			for b.Loop() {
				for i, ship := range []int64{0, -1} {
					time.Sleep(50 * time.Millisecond) // the last one's is done with
					apart[i] = append(apart[i], one(ship))
					time.Sleep(50 * time.Millisecond)
					began := time.Now()
					for range row {
						one(ship)
					}
					row1[i] = append(row1[i], float64(time.Since(began).Microseconds())/row)
				}
			}
			b.ReportMetric(median(apart[1]), "unshipped-µs")
			b.ReportMetric(median(apart[0])/median(apart[1]), "apart-x")
			b.ReportMetric(median(row1[0])/median(row1[1]), "in-a-row-x")
		})
	}
}
