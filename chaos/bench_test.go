package chaos

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// Every figure is a ratio of one run: the machine's speed drifts, ratios do not.

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[len(v)/2]
}

func percentile(d []time.Duration, p float64) time.Duration {
	d = slices.Clone(d)
	slices.Sort(d)
	return d[min(len(d)-1, int(p*float64(len(d))))]
}

func bareTrue(tb testing.TB) {
	cmd := exec.Command("bash", "-c", "true")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		tb.Error(err)
	}
}

func limpetTrue(ctx context.Context, tb testing.TB, s *client.Session) {
	res, err := s.Run(ctx, wire.Run{Version: wire.Version, Command: wire.Command{Text: "true", TimeoutMS: 60_000}})
	if err != nil {
		tb.Error(err)
		return
	}
	if res.Receipt.State != wire.StateCompleted {
		tb.Errorf("true ended as %s: %+v", res.Receipt.State, res.Receipt)
	}
}

// BenchmarkRunTrue: `run true` against bare os/exec of `bash -c true` with pipes,
// interleaved, the median of five runs, on what `limpet up` is: a file store.
func BenchmarkRunTrue(b *testing.B) {
	for _, store := range []string{"file", "memory", "sync_always"} {
		b.Run(store, func(b *testing.B) { benchRunTrue(b, store) })
	}
}

func benchRunTrue(b *testing.B, store string) {
	env := []string{"LIMPET_LAB_STORE=" + store}
	if store == "sync_always" {
		env = append(env, "LIMPET_LAB_SYNC=always")
	}
	s := open(b, start(b, env...))
	ctx := b.Context()
	for range 50 {
		bareTrue(b)
		limpetTrue(ctx, b, s)
	}
	const each = 300
	var p50, p99 []float64
	b.ResetTimer()
	for b.Loop() {
		for range 5 {
			var bare, ours []time.Duration
			for range each {
				t := time.Now()
				bareTrue(b)
				bare = append(bare, time.Since(t))
				t = time.Now()
				limpetTrue(ctx, b, s)
				ours = append(ours, time.Since(t))
			}
			p50 = append(p50, float64(percentile(ours, 0.5))/float64(percentile(bare, 0.5)))
			p99 = append(p99, float64(percentile(ours, 0.99))/float64(percentile(bare, 0.99)))
			b.Logf("%s: p50 %v against %v bare, p99 %v against %v", store, percentile(ours, 0.5), percentile(bare, 0.5), percentile(ours, 0.99), percentile(bare, 0.99))
		}
	}
	b.ReportMetric(median(p50), "p50-x-bare")
	b.ReportMetric(median(p99), "p99-x-bare")
}

// BenchmarkRunTrueCPU is the processor time of one `run true` in each process: what a
// busy machine cannot hide.
func BenchmarkRunTrueCPU(b *testing.B) {
	l := start(b)
	s := open(b, l)
	ctx := b.Context()
	for range 50 {
		limpetTrue(ctx, b, s)
	}
	parts := []string{"up", "worker", "keeper"}
	before, slept := make([]int, len(parts)), make([]int, len(parts))
	for i, p := range parts {
		before[i], slept[i] = cpuTicks(b, l.PID(p)), switches(b, l.PID(p))
	}
	own := cpuTicks(b, os.Getpid())
	n := 0
	for b.Loop() {
		limpetTrue(ctx, b, s)
		n++
	}
	const tick = 10_000 // µs
	for i, p := range parts {
		b.ReportMetric(float64((cpuTicks(b, l.PID(p))-before[i])*tick)/float64(n), p+"-µs")
		b.ReportMetric(float64(switches(b, l.PID(p))-slept[i])/float64(n), p+"-switches")
	}
	b.ReportMetric(float64((cpuTicks(b, os.Getpid())-own)*tick)/float64(n), "client-µs")
}

// cpuTicks is user and system time of a process without its children, in 10 ms.
func cpuTicks(tb testing.TB, pid int) int {
	tb.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		tb.Fatal(err)
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return user + system
}

// switches is how often the threads of a process have given up the processor.
func switches(tb testing.TB, pid int) (n int) {
	tb.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		tb.Fatal(err)
	}
	for _, task := range tasks {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/status", pid, task.Name()))
		for line := range strings.SplitSeq(string(b), "\n") {
			var v int
			if _, err := fmt.Sscanf(line, "voluntary_ctxt_switches: %d", &v); err == nil {
				n += v
			}
		}
	}
	return n
}

// BenchmarkRunTrue16 is the rate of 16 callers against 16 bare ones.
func BenchmarkRunTrue16(b *testing.B) {
	s := open(b, start(b))
	ctx := b.Context()
	rate := func(f func()) float64 {
		const callers, each = 16, 60
		t := time.Now()
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for range each {
					f()
				}
			})
		}
		wg.Wait()
		return callers * each / time.Since(t).Seconds()
	}
	ours := func() { limpetTrue(ctx, b, s) }
	bare := func() { bareTrue(b) }
	rate(ours)
	var ratios []float64
	b.ResetTimer()
	for b.Loop() {
		for range 5 {
			bareRate, ourRate := rate(bare), rate(ours)
			ratios = append(ratios, ourRate/bareRate)
			b.Logf("16 callers: %.0f/s against %.0f/s bare", ourRate, bareRate)
		}
	}
	b.ReportMetric(median(ratios), "rate-x-bare")
}

// BenchmarkOutput is the rate of 1 GiB into the log against a bare pipe drain.
func BenchmarkOutput(b *testing.B) {
	s := open(b, start(b))
	ctx := b.Context()
	var ratios []float64
	b.ResetTimer()
	for b.Loop() {
		for range 3 {
			t := time.Now()
			cmd := exec.Command("head", "-c", "1G", "/dev/zero")
			out, err := cmd.StdoutPipe()
			if err != nil {
				b.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				b.Fatal(err)
			}
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{out}, make([]byte, 64<<10))
			if err != nil || n != 1<<30 {
				b.Fatal(n, err)
			}
			_ = cmd.Wait()
			bare := time.Since(t)
			t = time.Now()
			r, err := s.Start(ctx, wire.Start{Version: wire.Version, Command: wire.Command{Text: "exec head -c 1G /dev/zero"}})
			if err != nil {
				b.Fatal(err)
			}
			r, err = s.Client().WaitEnd(ctx, r.Process)
			if err != nil {
				b.Fatal(err)
			}
			ours := time.Since(t)
			o := r.Output
			if o.TotalBytes != 1<<30 || o.KeptBytes+o.DroppedBytes != o.TotalBytes || !o.Complete {
				b.Fatalf("output %+v", o)
			}
			ratios = append(ratios, float64(bare)/float64(ours))
			b.Logf("1 GiB: %v against %v bare; kept %d, dropped %d", ours, bare, o.KeptBytes, o.DroppedBytes)
		}
	}
	b.ReportMetric(median(ratios), "rate-x-bare")
}

// usage of a part of the installation.
type usage struct {
	rssKB, pssKB, fds, threads int
}

func (l *Lab) usage(tb testing.TB, part string) (u usage) {
	tb.Helper()
	pid := l.PID(part)
	read := func(name string) string {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
		if err != nil {
			tb.Fatal(err)
		}
		return string(b)
	}
	for line := range strings.SplitSeq(read("status")+read("smaps_rollup"), "\n") {
		_, _ = fmt.Sscanf(line, "VmRSS: %d", &u.rssKB)
		_, _ = fmt.Sscanf(line, "Pss: %d", &u.pssKB)
		_, _ = fmt.Sscanf(line, "Threads: %d", &u.threads)
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		tb.Fatal(err)
	}
	u.fds = len(fds)
	return u
}

// BenchmarkIdle is what 2,000 idle processes cost worker and keeper together, how long
// a list of them takes, and how soon a waiter learns of an end.
func BenchmarkIdle(b *testing.B) {
	const n = 2000
	l := start(b)
	s := open(b, l)
	ctx := b.Context()
	for range 20 {
		limpetTrue(ctx, b, s)
	}
	for b.Loop() {
		w0, k0 := l.usage(b, "worker"), l.usage(b, "keeper")
		ids := make([]string, n)
		for i := range ids {
			r, err := s.Start(ctx, wire.Start{Version: wire.Version, Command: wire.Command{Argv: []string{"sleep", "1000"}}})
			if err != nil {
				b.Fatal(err)
			}
			ids[i] = r.Process
		}
		w1, k1 := l.usage(b, "worker"), l.usage(b, "keeper")
		b.Logf("worker %+v → %+v, keeper %+v → %+v", w0, w1, k0, k1)
		b.ReportMetric(float64(w1.rssKB-w0.rssKB+k1.rssKB-k0.rssKB)/n, "KiB/process")
		b.ReportMetric(float64(w1.fds-w0.fds+k1.fds-k0.fds)/n, "fds/process")
		b.ReportMetric(float64(w1.threads+k1.threads), "threads")
		var lists []time.Duration
		for range 21 {
			t := time.Now()
			all, err := s.List(ctx)
			if err != nil || len(all.Processes) < n {
				b.Fatal(err)
			}
			lists = append(lists, time.Since(t))
		}
		b.ReportMetric(float64(percentile(lists, 0.5).Microseconds())/1000, "list-ms")
		b.ReportMetric(float64(wakes(b, s, ids[:200]).Microseconds())/1000, "wake-ms")
		if _, err := s.Close(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// wakes ends processes one by one and gives the median time from the exit, as the
// keeper saw it, to the waiter's answer.
func wakes(b *testing.B, s *client.Session, ids []string) time.Duration {
	ctx := b.Context()
	var late []time.Duration
	for _, id := range ids {
		done := make(chan time.Duration, 1)
		go func() { // ends with the answer, for which we wait
			r, err := s.Client().Wait(ctx, wire.Wait{Version: wire.Version, ProcessRef: wire.ProcessRef{Process: id}, For: "exit", WaitMS: 20_000})
			if err != nil || r.ExitedAt == nil {
				done <- time.Hour
				return
			}
			done <- time.Since(*r.ExitedAt)
		}()
		time.Sleep(2 * time.Millisecond) // the waiter is there first
		if _, err := s.Client().Signal(ctx, id, "KILL"); err != nil {
			b.Fatal(err)
		}
		late = append(late, <-done)
	}
	return percentile(late, 0.5)
}
