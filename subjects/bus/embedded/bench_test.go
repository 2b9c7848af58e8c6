package embedded_test

import (
	"path/filepath"
	"testing"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/bus/embedded"
	"github.com/limpet-sh/limpet/subjects/bus/embedded/embeddedtest"
)

// BenchmarkRequest is one round trip from a gateway to a worker, whose answer is as
// long as the request, by what connects the worker and how long.
func BenchmarkRequest(b *testing.B) {
	for _, size := range []struct {
		name string
		n    int
	}{{"64B", 64}, {"4KiB", 4 << 10}, {"64KiB", 64 << 10}, {"1MiB", 1 << 20}} {
		for _, way := range []string{"inprocess", "unix", "tcp"} {
			b.Run(size.name+"/"+way, func(b *testing.B) {
				cfg := embedded.Config{UnixSocket: filepath.Join(b.TempDir(), "s"), Listen: "127.0.0.1:0"}
				s := embeddedtest.Start(b, cfg)
				gw := embeddedtest.Connect(b, s, subjects.RoleGateway, "g")
				w := embeddedtest.Connect(b, s, subjects.RoleWorker, "W1", func(c *bus.Config) {
					switch way {
					case "unix":
						c.Dial = bus.DialUnix(cfg.UnixSocket)
					case "tcp":
						c.Dial, c.URL = nil, s.URL()
					}
				})
				if _, err := w.Serve(root.WorkerAll("W1", 1), "", 16, func(r *bus.Request) { _ = r.Respond(r.Data) }); err != nil {
					b.Fatal(err)
				}
				data := make([]byte, size.n)
				subject := root.Process("local", "W1", 1, "p", "x")
				b.ReportAllocs()
				b.SetBytes(int64(2 * size.n))
				for b.Loop() {
					if _, err := gw.Request(b.Context(), subject, nil, data); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
