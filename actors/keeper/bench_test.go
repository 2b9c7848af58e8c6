package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"
)

// counting is a sink that keeps nothing.
type counting struct {
	process *Process
	n       int64
}

func (c *counting) Append(chunk Chunk) error {
	c.n += int64(len(chunk.Data))
	if chunk.Number%16 == 15 {
		c.process.Trim(chunk.Offset + int64(len(chunk.Data)))
	}
	return nil
}

// BenchmarkPump compares the pump with a bare read loop over the same command, run in
// turns. x-bare is the ratio of the rates: 1 is as fast.
func BenchmarkPump(b *testing.B) {
	const size = 1 << 30
	script := fmt.Sprintf("head -c %d /dev/zero", size)
	c, _, _ := attach(b, startKeeper(b, time.Minute), 1)
	var bare, ours []time.Duration
	buf := make([]byte, readBytes)
	i := 0
	for b.Loop() {
		i++
		start := time.Now()
		cmd := exec.Command("/bin/bash", "-c", script)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			b.Fatal(err)
		}
		var n int64
		for err == nil {
			var got int
			got, err = out.Read(buf)
			n += int64(got)
		}
		if !errors.Is(err, io.EOF) || n != size {
			b.Fatal(err, n)
		}
		_ = cmd.Wait()
		bare = append(bare, time.Since(start))

		start = time.Now()
		p := spawn(b, c, bash(fmt.Sprintf("p%d", i), script))
		sink := &counting{process: p}
		if err := p.Pump(b.Context(), sink, 0); err != nil || sink.n != size {
			b.Fatal(err, sink.n)
		}
		ours = append(ours, time.Since(start))
		_ = p.Release(b.Context())
	}
	report(b, bare, ours, func(bare, ours time.Duration) float64 { return float64(bare) / float64(ours) })
	b.ReportMetric(size/1e6/median(ours).Seconds(), "MB/s")
}

// BenchmarkSpawn compares Spawn, Pump to the end, Exited and Release with os/exec of
// the same command, in turns. x-bare is the ratio of the medians: 1 is as fast.
func BenchmarkSpawn(b *testing.B) {
	for _, script := range []string{"true", "echo hello"} {
		b.Run(script, func(b *testing.B) { benchmarkSpawn(b, script) })
	}
}

func benchmarkSpawn(b *testing.B, script string) {
	c, err := Dial(b.Context(), startKeeper(b, time.Minute))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	exited := make(chan *Exited, 1)
	if _, err := c.Attach(b.Context(), 1, func(e Event) {
		if e.Exited != nil {
			exited <- e.Exited
		}
	}); err != nil {
		b.Fatal(err)
	}
	var bare, ours []time.Duration
	i := 0
	for b.Loop() {
		i++
		start := time.Now()
		cmd := exec.Command("/bin/bash", "-c", script)
		cmd.Env, cmd.Dir = testEnv, "/"
		out, _ := cmd.StdoutPipe()
		errs, _ := cmd.StderrPipe()
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		done := make(chan struct{})
		go func() { _, _ = io.Copy(io.Discard, errs); close(done) }()
		_, _ = io.Copy(io.Discard, out)
		<-done
		if err := cmd.Wait(); err != nil {
			b.Fatal(err)
		}
		bare = append(bare, time.Since(start))

		start = time.Now()
		p, err := c.Spawn(context.Background(), bash(fmt.Sprintf("p%d", i), script))
		if err != nil {
			b.Fatal(err)
		}
		sink := &counting{process: p}
		if err := p.Pump(context.Background(), sink, 0); err != nil {
			b.Fatal(err)
		}
		if e := <-exited; e.Code != 0 || !e.Gone {
			b.Fatalf("%+v", e)
		}
		_ = p.Release(context.Background())
		ours = append(ours, time.Since(start))
	}
	report(b, bare, ours, func(bare, ours time.Duration) float64 { return float64(ours) / float64(bare) })
}

// BenchmarkParallel has 16 callers at once. x-bare-rate is the ratio of the rates.
func BenchmarkParallel(b *testing.B) {
	const callers, each = 16, 20
	c, err := Dial(b.Context(), startKeeper(b, time.Minute))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	var waiting sync.Map
	if _, err := c.Attach(b.Context(), 1, func(e Event) {
		if e.Exited != nil {
			done, _ := waiting.Load(e.Exited.Process)
			close(done.(chan struct{}))
		}
	}); err != nil {
		b.Fatal(err)
	}
	together := func(run func(id string) error) time.Duration {
		start := time.Now()
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				for j := range each {
					if err := run(fmt.Sprintf("%d-%d-%d", b.N, i, j)); err != nil {
						b.Error(err)
					}
				}
			})
		}
		all.Wait()
		return time.Since(start)
	}
	var bare, ours []time.Duration
	for b.Loop() {
		bare = append(bare, together(func(string) error {
			cmd := exec.Command("/bin/bash", "-c", "true")
			cmd.Env, cmd.Dir = testEnv, "/"
			_, err := cmd.Output()
			return err
		}))
		ours = append(ours, together(func(id string) error {
			done := make(chan struct{})
			waiting.Store(id, done)
			defer waiting.Delete(id)
			p, err := c.Spawn(context.Background(), bash(id, "true"))
			if err != nil {
				return err
			}
			if err := p.Pump(context.Background(), &counting{process: p}, 0); err != nil {
				return err
			}
			<-done
			return p.Release(context.Background())
		}))
	}
	b.ReportMetric(float64(median(bare))/float64(median(ours)), "x-bare-rate")
	b.ReportMetric(callers*each/median(ours).Seconds(), "runs/s")
}

func report(b *testing.B, bare, ours []time.Duration, ratio func(bare, ours time.Duration) float64) {
	b.ReportMetric(ratio(median(bare), median(ours)), "x-bare")
	b.ReportMetric(float64(median(bare).Microseconds()), "bare-µs")
	b.ReportMetric(float64(median(ours).Microseconds()), "ours-µs")
	b.ReportMetric(float64(at(ours, 99).Microseconds())/float64(at(bare, 99).Microseconds()), "p99-x-bare")
}

func median(d []time.Duration) time.Duration { return at(d, 50) }

func at(d []time.Duration, percent int) time.Duration {
	s := append([]time.Duration(nil), d...)
	slices.Sort(s)
	return s[min(len(s)-1, len(s)*percent/100)]
}
