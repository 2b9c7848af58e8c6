package registry_test

import (
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/bus/embedded"
	"github.com/limpet-sh/limpet/subjects/bus/embedded/embeddedtest"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// bed is a worker's registry on one kind of server.
func bed(b *testing.B, name string) *registry.Registry {
	cfg := embedded.Config{}
	if name != "memory" && name != "memory-unix" {
		cfg.Dir = b.TempDir()
	}
	cfg.SyncAlways = name == "file-sync-always"
	unix := name == "memory-unix" || name == "file-unix"
	if unix {
		cfg.UnixSocket = filepath.Join(b.TempDir(), "s")
	}
	s := embeddedtest.Start(b, cfg)
	embeddedtest.Provision(b, s, bus.StreamOptions{Memory: cfg.Dir == ""})
	c := embeddedtest.Connect(b, s, subjects.RoleWorker, "W1", func(c *bus.Config) {
		if unix {
			c.Dial = bus.DialUnix(cfg.UnixSocket)
		}
	})
	return registry.New(c, "W1")
}

var beds = []string{"memory", "memory-unix", "file", "file-unix", "file-sync-always"}

// BenchmarkCreateExecution is the first of two writes that a short run waits for.
func BenchmarkCreateExecution(b *testing.B) {
	for _, name := range beds {
		b.Run(name, func(b *testing.B) {
			reg := bed(b, name)
			rec := execution("e", "W1")
			base := strconv.FormatInt(time.Now().UnixNano(), 36) + "-"
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				rec.ExecutionID = base + strconv.Itoa(i)
				i++
				if _, existing, err := reg.CreateExecution(b.Context(), tenant, rec); err != nil || existing != nil {
					b.Fatal(existing, err)
				}
			}
		})
	}
}

// BenchmarkShortRun is what a short run writes: the create, the process record beside,
// the terminal update.
func BenchmarkShortRun(b *testing.B) {
	for _, name := range beds {
		b.Run(name, func(b *testing.B) {
			reg := bed(b, name)
			b.ReportAllocs()
			for b.Loop() {
				rec := execution(subjects.NewID(), "W1")
				rev, _, err := reg.CreateExecution(b.Context(), tenant, rec)
				if err != nil {
					b.Fatal(err)
				}
				wait, err := reg.CreateProcessAsync(b.Context(), tenant, &wire.ProcessRecord{Version: 1, Process: rec.Receipt.Process, Tenant: tenant, Worker: "W1"}, registry.Ended)
				if err != nil {
					b.Fatal(err)
				}
				rec.Receipt.State = wire.StateCompleted
				if _, err := reg.UpdateExecution(b.Context(), tenant, rec, rev); err != nil {
					b.Fatal(err)
				}
				if _, err := wait(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
