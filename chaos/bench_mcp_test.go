package chaos

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/gateway/mcp"
)

// mcpPipe is an MCP server as a child, and a client by hand: what is measured is the
// server, not a client library.
type mcpPipe struct {
	tb   testing.TB
	in   interface{ Write([]byte) (int, error) }
	out  *bufio.Reader
	next int
	pid  int
}

func startMCPPipe(tb testing.TB, l *Lab) *mcpPipe {
	tb.Helper()
	cmd := exec.Command("/proc/self/exe", "mcp", string(l.State))
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	p := &mcpPipe{tb: tb, pid: cmd.Process.Pid, in: in, out: bufio.NewReaderSize(out, 1<<20)}
	p.ask(`"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}`)
	if _, err := in.Write([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n")); err != nil {
		tb.Fatal(err)
	}
	return p
}

func (p *mcpPipe) ask(rest string) []byte {
	p.next++
	if _, err := fmt.Fprintf(p.in, `{"jsonrpc":"2.0","id":%d,%s}`+"\n", p.next, rest); err != nil {
		p.tb.Fatal(err)
	}
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		p.tb.Fatal(err)
	}
	return line
}

func (p *mcpPipe) runTrue() {
	line := p.ask(`"method":"tools/call","params":{"name":"bash","arguments":{"command":"true"}}`)
	if !bytes.Contains(line, []byte(`"exit_code":0`)) || !bytes.Contains(line, []byte(fmt.Sprintf(`"id":%d,`, p.next))) {
		p.tb.Fatalf("%s", line)
	}
}

// BenchmarkMCPRunTrue is `run true` over MCP stdio on a host that is up, against bare
// os/exec of `bash -c true`, interleaved.
func BenchmarkMCPRunTrue(b *testing.B) {
	p := startMCPPipe(b, start(b))
	const each = 200
	for range 50 {
		p.runTrue()
		bareTrue(b)
	}
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
				p.runTrue()
				ours = append(ours, time.Since(t))
			}
			p50 = append(p50, float64(percentile(ours, 0.5))/float64(percentile(bare, 0.5)))
			p99 = append(p99, float64(percentile(ours, 0.99))/float64(percentile(bare, 0.99)))
			b.Logf("p50 %v against %v bare, p99 %v against %v", percentile(ours, 0.5), percentile(bare, 0.5), percentile(ours, 0.99), percentile(bare, 0.99))
		}
	}
	b.ReportMetric(median(p50), "p50-x-bare")
	b.ReportMetric(median(p99), "p99-x-bare")
}

// BenchmarkMCPRunTrueCPU is the processor time of the MCP server for one `run true`, and
// how often its threads give up the processor.
func BenchmarkMCPRunTrueCPU(b *testing.B) {
	p := startMCPPipe(b, start(b))
	for range 50 {
		p.runTrue()
	}
	before, slept := cpuTicks(b, p.pid), switches(b, p.pid)
	n := 0
	for b.Loop() {
		p.runTrue()
		n++
	}
	const tick = 10_000 // µs
	b.ReportMetric(float64((cpuTicks(b, p.pid)-before)*tick)/float64(n), "mcp-µs")
	b.ReportMetric(float64(switches(b, p.pid)-slept)/float64(n), "mcp-switches")
}

// BenchmarkMCPClients is 200 clients over streamable HTTP with 25 calls each, at once,
// each with a session of its own: none of the 5,000 answers is lost, and none is
// another's.
func BenchmarkMCPClients(b *testing.B) {
	l := start(b)
	h := &mcpHost{c: l.Client}
	h.Server = h.serve(b)
	s := h.http(b, mcp.HTTPConfig{})
	const clients, calls = 200, 25
	began, n := time.Now(), 0
	for b.Loop() {
		crowd(b, s.URL, clients, calls)
		n += clients * calls
	}
	b.ReportMetric(float64(n)/time.Since(began).Seconds(), "calls/s")
}

// BenchmarkMCPConnection is what a connection costs before its first call: over stdio,
// in processor time of the server.
func BenchmarkMCPConnection(b *testing.B) {
	l := start(b)
	h := &mcpHost{c: l.Client}
	h.Server = h.serve(b)
	for b.Loop() {
		in, out := io.Pipe()
		ended := make(chan error, 1)
		go func() { ended <- h.ServeStdio(b.Context(), in, nopWriter{}) }() // ends with in
		_ = out.Close()
		if err := <-ended; err != nil {
			b.Fatal(err)
		}
	}
}

type nopWriter struct{}

func (nopWriter) Write(p []byte) (int, error) { return len(p), nil }
func (nopWriter) Close() error                { return nil }
