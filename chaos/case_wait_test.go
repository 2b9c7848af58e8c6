package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// awaits waits for one process; it gives the result, and how long it took.
func (a agent) awaits(t testing.TB, id string, m wire.WaitFor) (*wire.ProcessWait, time.Duration) {
	t.Helper()
	res, took, err := a.tryWait(t, id, m)
	if err != nil {
		t.Fatalf("wait_for %s: %v", m.For, err)
	}
	return res, took
}

func (a agent) tryWait(t testing.TB, id string, m wire.WaitFor) (*wire.ProcessWait, time.Duration, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	m.Process = id
	sent := time.Now()
	w, err := a.c.WaitFor(ctx, m)
	took := time.Since(sent)
	if err != nil {
		return nil, took, err
	}
	if len(w.Results) != 1 || w.Met != w.Results[0].Met || w.Results[0].Process != id || w.Results[0].Receipt == nil {
		t.Fatalf("%+v", w)
	}
	return &w.Results[0], took, nil
}

func met(t testing.TB, res *wire.ProcessWait, met, ended bool) {
	t.Helper()
	if res.Met != met || res.Ended != ended {
		t.Errorf("met %v, ended %v; want %v, %v: %+v", res.Met, res.Ended, met, ended, res)
	}
}

// freePort is a TCP port of this host on which nobody listens.
func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// server says that it starts, then listens on a port, then says that it is ready. The
// interpreter needs a moment, as servers do.
const server = `echo starting; exec python3 -u -c '
import socket, sys, time
family = socket.AF_INET6 if sys.argv[2] == "6" else socket.AF_INET
s = socket.socket(family)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("::1" if sys.argv[2] == "6" else "127.0.0.1", int(sys.argv[1])))
time.sleep(0.3)
s.listen(1)
print("re", end="", flush=True)
time.sleep(0.1)
print("ady on", sys.argv[1])
time.sleep(300)
' `

func TestCaseWaitForAServer(t *testing.T) {
	need(t, "python3")
	a := newAgent(t, start(t), wire.Open{Cwd: t.TempDir()})
	for _, version := range []string{"4", "6"} {
		t.Run("its port, IPv"+version, func(t *testing.T) {
			if l, err := net.Listen("tcp6", "[::1]:0"); version == "6" && err != nil {
				t.Skip("this host has no IPv6")
			} else if err == nil {
				l.Close()
			}
			port := freePort(t)
			id := a.start(t, wire.Command{Text: server + strconv.Itoa(port) + " " + version})
			defer a.kill(t, id)
			if early, _ := a.awaits(t, id, wire.WaitFor{For: "port", Port: port, WaitMS: 1}); early.Met {
				t.Error("listened before it was asked to")
			}
			res, took := a.awaits(t, id, wire.WaitFor{For: "port", Port: port})
			met(t, res, true, false)
			if res.PortOwner != "process" {
				t.Errorf("the owner is %q", res.PortOwner)
			}
			t.Logf("seen after %v", took)
			res, _ = a.awaits(t, id, wire.WaitFor{For: "pattern", Pattern: `ready on \d+`})
			if met(t, res, true, false); res.Match.Line != fmt.Sprint("ready on ", port) {
				t.Errorf("%+v", res.Match)
			}
			c, err := net.Dial("tcp", net.JoinHostPort(map[string]string{"4": "127.0.0.1", "6": "::1"}[version], strconv.Itoa(port)))
			if err != nil {
				t.Error(err) // its only place was not taken by who waited
			} else {
				c.Close()
			}
		})
	}
	t.Run("a child that has left its session, and its environment", func(t *testing.T) {
		port := freePort(t)
		id := a.start(t, wire.Command{Text: `setsid env -i PATH="$PATH" bash -c '` + strings.ReplaceAll(server, "'", `'\''`) + strconv.Itoa(port) + " 4' & wait"})
		defer a.kill(t, id)
		res, _ := a.awaits(t, id, wire.WaitFor{For: "port", Port: port})
		if met(t, res, true, false); res.PortOwner != "process" {
			t.Errorf("the owner is %q", res.PortOwner)
		}
	})
	t.Run("another process is in its place", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).Port
		id := a.start(t, wire.Command{Text: server + strconv.Itoa(port) + " 4"})
		res, _ := a.awaits(t, id, wire.WaitFor{For: "port", Port: port})
		if met(t, res, true, res.Ended); res.PortOwner != "other" {
			t.Errorf("the owner is %q", res.PortOwner)
		}
		if r := a.end(t, id); *r.ExitCode == 0 {
			t.Errorf("it got the port: %+v", r)
		}
		res, _ = a.awaits(t, id, wire.WaitFor{For: "port", Port: port})
		if met(t, res, true, true); res.PortOwner != "other" {
			t.Errorf("the owner is %q", res.PortOwner)
		}
	})
	t.Run("it ends before it listens", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "echo failed >&2; sleep 0.2; exit 3"})
		res, took := a.awaits(t, id, wire.WaitFor{For: "port", Port: freePort(t)})
		if met(t, res, false, true); *res.Receipt.ExitCode != 3 || took > long/2 {
			t.Errorf("after %v: %+v", took, res.Receipt)
		}
	})
	t.Run("a server that was left behind on purpose", func(t *testing.T) {
		port := freePort(t)
		id := a.start(t, wire.Command{Text: "(" + server + strconv.Itoa(port) + " 4) & :", Leftovers: wire.LeftoversKeep})
		if r := a.end(t, id); r.State != wire.StateCompleted || r.LeftoversLive == 0 {
			t.Fatalf("%+v", r)
		}
		defer a.kill(t, id)
		res, _ := a.awaits(t, id, wire.WaitFor{For: "port", Port: port})
		if met(t, res, true, res.Ended); res.PortOwner != "process" {
			t.Errorf("the owner is %q", res.PortOwner)
		}
	})
}

func TestCaseWaitForALine(t *testing.T) {
	need(t, "pty")
	a := newAgent(t, start(t), wire.Open{Cwd: t.TempDir()})
	pattern := func(p string) wire.WaitFor { return wire.WaitFor{For: "pattern", Pattern: p} }
	t.Run("a prompt without an end", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: `read -s -p "Password: " p </dev/tty; echo; read -p "Again: " q; echo "${#p} $q"`, TTY: tty})
		res, _ := a.awaits(t, id, pattern("(?i)password: $"))
		if met(t, res, true, false); res.Match.Line != "Password: " || !res.Match.Unfinished {
			t.Errorf("%+v", res.Match)
		}
		a.typed(t, id, "hunter2\n")
		next := pattern(`: $`)
		next.Offset = &res.Match.NextOffset // not the prompt that was answered
		res, _ = a.awaits(t, id, next)
		if met(t, res, true, false); res.Match.Line != "Again: " {
			t.Errorf("%+v", res.Match)
		}
		a.typed(t, id, "ok\n")
		res, _ = a.awaits(t, id, pattern("^7 ok$"))
		met(t, res, true, res.Ended)
		a.end(t, id)
	})
	t.Run("split over two writes, and over a character", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: `printf 'server is rea\xe8'; sleep 0.2; printf '\xaa'; sleep 0.2; printf '\x9edy\n'; sleep 300`})
		defer a.kill(t, id)
		res, _ := a.awaits(t, id, pattern("rea語dy"))
		if met(t, res, true, false); res.Match.Line != "server is rea語dy" {
			t.Errorf("%+v", res.Match)
		}
	})
	t.Run("what was there already, and stderr alone", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "echo ready; echo ready too >&2; exec sleep 300"})
		defer a.kill(t, id)
		a.until(t, id, "ready\n") // of either
		res, _ := a.awaits(t, id, pattern("^ready$"))
		if met(t, res, true, false); res.Match.Stream != "stdout" || res.Match.Unfinished {
			t.Errorf("%+v", res.Match)
		}
		m := pattern("ready")
		m.Stream = "stderr"
		res, _ = a.awaits(t, id, m)
		if met(t, res, true, false); res.Match.Line != "ready too" {
			t.Errorf("%+v", res.Match)
		}
		m.Stream, m.Pattern, m.WaitMS = "stdout", "too", 1
		res, _ = a.awaits(t, id, m)
		met(t, res, false, false)
	})
	t.Run("in colours, and drawn over", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: `for i in 10 50 100; do printf '\r\e[32m%d%%\e[0m' $i; sleep 0.05; done; printf '\r\e[Kdone\n'; sleep 300`})
		defer a.kill(t, id)
		for _, p := range []string{"^50%$", "^100%$", "^done$"} {
			res, _ := a.awaits(t, id, pattern(p))
			met(t, res, true, false)
		}
	})
	t.Run("never, and at the end", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "sleep 0.3; echo last words"})
		m := pattern("never")
		m.WaitMS = 100
		res, took := a.awaits(t, id, m)
		if met(t, res, false, false); took < 100*time.Millisecond {
			t.Errorf("answered after %v", took)
		}
		res, _ = a.awaits(t, id, pattern("never"))
		met(t, res, false, true)
		res, _ = a.awaits(t, id, pattern("last"))
		met(t, res, true, true)
	})
	t.Run("behind 32 MiB that still come", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "yes 'nothing to see here' | head -c 33554432; echo; echo found at last; exec sleep 300"})
		defer a.kill(t, id)
		res, took := a.awaits(t, id, pattern("^found .* last$"))
		met(t, res, true, false)
		t.Logf("after %v", took)
	})
}

func TestCaseWaitForFilesAndQuiet(t *testing.T) {
	dir := t.TempDir()
	a := newAgent(t, start(t), wire.Open{Cwd: dir})
	t.Run("a file that is made and renamed", func(t *testing.T) {
		if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
			t.Fatal(err)
		}
		id := a.start(t, wire.Command{Text: "sleep 0.3; echo content > tmp; mv tmp out.txt; sleep 300", Cwd: filepath.Join(dir, "sub")})
		defer a.kill(t, id)
		res, _ := a.awaits(t, id, wire.WaitFor{For: "file", Path: "out.txt"})
		met(t, res, true, false)
		if b, err := os.ReadFile(filepath.Join(dir, "sub", "out.txt")); err != nil || string(b) != "content\n" {
			t.Errorf("%q, %v", b, err)
		}
		res, _ = a.awaits(t, id, wire.WaitFor{For: "file", Path: filepath.Join(dir, "sub")})
		met(t, res, true, false)
		res, _ = a.awaits(t, id, wire.WaitFor{For: "file", Path: "never", WaitMS: 50})
		met(t, res, false, false)
	})
	t.Run("quiet after a burst", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "for i in $(seq 30); do echo $i; sleep 0.02; done; sleep 300"})
		defer a.kill(t, id)
		a.until(t, id, "1\n")
		res, _ := a.awaits(t, id, wire.WaitFor{For: "quiet", QuietMS: 1500})
		met(t, res, true, false)
		if out := a.until(t, id, "30\n"); !strings.HasPrefix(out, "1\n2\n") {
			t.Errorf("%q", out)
		}
		if n := res.Receipt.Output.TotalBytes; n != 81 {
			t.Errorf("quiet after %d bytes of 81", n)
		}
	})
	t.Run("it ends before it is quiet for long", func(t *testing.T) {
		id := a.start(t, wire.Command{Text: "sleep 0.2; echo x"})
		res, took := a.awaits(t, id, wire.WaitFor{For: "quiet", QuietMS: 50_000})
		if met(t, res, false, true); took > long/2 {
			t.Errorf("after %v", took)
		}
	})
}

func TestCaseWaitForEnds(t *testing.T) {
	a := newAgent(t, start(t), wire.Open{Cwd: t.TempDir()})
	id := a.start(t, wire.Command{Text: "sleep 0.3; exit 7"})
	res, _ := a.awaits(t, id, wire.WaitFor{For: "exit"})
	if met(t, res, true, true); *res.Receipt.ExitCode != 7 {
		t.Errorf("%+v", res.Receipt)
	}
	for _, m := range []wire.WaitFor{{}, {For: "end"}, {For: "exit"}} {
		res, _ = a.awaits(t, id, m)
		met(t, res, true, true)
	}
	if _, _, err := a.tryWait(t, "nobody", wire.WaitFor{}); !errors.Is(err, &wire.Error{Code: wire.CodeNotFound}) {
		t.Errorf("nobody's end: %v", err)
	}
}

// More agents than may wait for one process: those beyond are told to come again, and
// all get their answer.
func TestCaseWaitForWithManyAgents(t *testing.T) {
	a := newAgent(t, start(t), wire.Open{Cwd: t.TempDir()})
	id := a.start(t, wire.Command{Text: "read x; echo ready; sleep 300", Stdin: wire.StdinPipe})
	defer a.kill(t, id)
	const agents = 100
	var all sync.WaitGroup
	errs := make(chan error, agents)
	for range agents {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), long)
			defer cancel()
			w, err := a.c.WaitFor(ctx, wire.WaitFor{ProcessRef: wire.ProcessRef{Process: id}, For: "pattern", Pattern: "ready", WaitMS: 50_000})
			if err == nil && !w.Met {
				err = fmt.Errorf("%+v", w)
			}
			errs <- err
		})
	}
	time.Sleep(300 * time.Millisecond) // most of them wait by now, in whatever order
	a.typed(t, id, "go\n")
	all.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
}

// A worker that is killed under a wait costs the caller nothing but time.
func TestCaseWaitForAcrossAKill(t *testing.T) {
	l := start(t)
	dir := t.TempDir()
	a := newAgent(t, l, wire.Open{Cwd: dir})
	port := freePort(t)
	id := a.start(t, wire.Command{Text: "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two; sleep 300"})
	defer a.kill(t, id)
	ended := a.start(t, wire.Command{Text: "while [ ! -e go ]; do sleep 0.02; done; exit 4"})
	conditions := map[string]wire.WaitFor{
		id:    {For: "pattern", Pattern: "two", WaitMS: 50_000},
		ended: {For: "end", WaitMS: 50_000},
	}
	type answer struct {
		id  string
		res *wire.Waited
		err error
	}
	answers := make(chan answer, len(conditions))
	for id, m := range conditions {
		m.Process = id
		go func() { // ends with its answer, at the latest with its time
			ctx, cancel := context.WithTimeout(context.Background(), long)
			defer cancel()
			res, err := a.c.WaitFor(ctx, m)
			answers <- answer{id, res, err}
		}()
	}
	a.until(t, id, "one")
	before := l.PID("worker")
	if err := l.Kill("worker"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range conditions {
		got := <-answers
		if got.err != nil || !got.res.Met {
			t.Errorf("%s: %+v, %v", conditions[got.id].For, got.res, got.err)
		}
	}
	l.another(t, "worker", before)
	// The one that adopted it waits for it as its own worker did.
	res, _ := a.awaits(t, id, wire.WaitFor{For: "pattern", Pattern: "^one$"})
	met(t, res, true, false)
	res, _ = a.awaits(t, id, wire.WaitFor{For: "port", Port: port, WaitMS: 1})
	met(t, res, false, false)
	res, _ = a.awaits(t, ended, wire.WaitFor{For: "pattern", Pattern: "x"})
	met(t, res, false, true)
}
