package runtime

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"
)

// bareExec is what everything is measured against: os/exec of bash with two pipes.
func bareExec(b *testing.B, env []string) {
	var out, errOut bytes.Buffer
	cmd := exec.Command("bash", "-c", "true")
	cmd.Env = env
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		b.Fatal(err)
	}
}

// startTrue is the same by a Forker, with the look for survivors that every end pays.
func startTrue(b *testing.B, f *Forker, s Spec) {
	s.Tag = tagFor(b) // one tree, one tag
	c, err := f.Start(s)
	if err != nil {
		b.Fatal(err)
	}
	var streams sync.WaitGroup
	for _, file := range []*os.File{c.Stdout, c.Stderr} {
		streams.Go(func() {
			var out bytes.Buffer
			if _, err := io.Copy(&out, file); err != nil {
				b.Error(err)
			}
		})
	}
	e, err := c.Wait()
	if err != nil || e.Code != 0 {
		b.Fatal(e, err)
	}
	if n, _, err := c.Survivors(); n != 0 || err != nil {
		b.Fatal(n, err)
	}
	streams.Wait()
	if err := c.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkStart alternates the two, so that both see the same machine, and reports
// the ratio of their medians and of their 99th percentiles.
func BenchmarkStart(b *testing.B) {
	for _, kind := range []string{"cgroup", "scan"} {
		b.Run(kind, func(b *testing.B) {
			needBash(b)
			f := forker(b, kind)
			s := bash(b, "true")
			bare, ours := make([]time.Duration, 0, b.N), make([]time.Duration, 0, b.N)
			for i := range b.N {
				one := func(into *[]time.Duration, f func()) {
					t := time.Now()
					f()
					*into = append(*into, time.Since(t))
				}
				first, second := func() { one(&bare, func() { bareExec(b, s.Env) }) }, func() { one(&ours, func() { startTrue(b, f, s) }) }
				if i%2 == 1 {
					first, second = second, first
				}
				first()
				second()
			}
			slices.Sort(bare)
			slices.Sort(ours)
			at := func(l []time.Duration, p float64) float64 { return float64(l[int(p*float64(len(l)-1))]) }
			b.ReportMetric(at(ours, 0.5)/at(bare, 0.5), "x-bare")
			b.ReportMetric(at(ours, 0.99)/at(bare, 0.99), "x-bare-p99")
			b.ReportMetric(at(ours, 0.5), "p50-ns")
		})
	}
}

// BenchmarkParallel is the rate of 16 callers against that of bare os/exec.
func BenchmarkParallel(b *testing.B) {
	for _, kind := range []string{"cgroup", "scan"} {
		b.Run(kind, func(b *testing.B) {
			needBash(b)
			f := forker(b, kind)
			s := bash(b, "true")
			// Rounds take turns, so that both see the same machine.
			var bare, ours time.Duration
			for range 5 {
				bare += by16(b.N, func() { bareExec(b, s.Env) })
				ours += by16(b.N, func() { startTrue(b, f, s) })
			}
			b.ReportMetric(float64(bare)/float64(ours), "x-bare-rate")
			b.ReportMetric(float64(5*b.N)/ours.Seconds(), "starts/s")
		})
	}
}

// by16 has 16 callers do something n times together.
func by16(n int, do func()) time.Duration {
	began := time.Now()
	work := make(chan struct{})
	var callers sync.WaitGroup
	for range 16 {
		callers.Go(func() {
			for range work {
				do()
			}
		})
	}
	for range n {
		work <- struct{}{}
	}
	close(work)
	callers.Wait()
	return time.Since(began)
}

// BenchmarkTreeState is what one look costs at the end of a process.
func BenchmarkTreeState(b *testing.B) {
	f := forker(b, "cgroup")
	l, err := f.tree.acquire()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = f.tree.release(l) })
	look := func(b *testing.B) {
		for b.Loop() {
			if _, _, err := l.state(); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("kept", look)
	b.Run("opened", func(b *testing.B) { l.shut(); look(b) })
	b.Run("scan", func(b *testing.B) {
		for b.Loop() {
			if _, err := f.scan(&Child{PID: 1 << 30, tag: "none"}, true); err != nil {
				b.Fatal(err)
			}
		}
	})
}
