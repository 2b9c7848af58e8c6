package registry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/bus/embedded"
	"github.com/limpet-sh/limpet/subjects/bus/embedded/embeddedtest"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// line is a connection that can be cut at the worst moments: behind a write whose
// acknowledgement is then lost, or under a write that never arrives.
type line struct {
	mu   sync.Mutex
	dial func() (net.Conn, error) // guarded by mu
	conn *cutConn                 // guarded by mu
}

type cutConn struct {
	net.Conn
	loseAck, loseWrite atomic.Bool
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.loseAck.Load() {
		c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

func (c *cutConn) Write(b []byte) (int, error) {
	if c.loseWrite.Load() {
		c.Conn.Close()
		return len(b), nil // "sent"
	}
	return c.Conn.Write(b)
}

func (l *line) connect() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, err := l.dial()
	if err != nil {
		return nil, err
	}
	l.conn = &cutConn{Conn: c}
	return l.conn, nil
}

func (l *line) now() *cutConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn
}

func faulty(t *testing.T, s *embedded.Server, worker string) (*registry.Registry, *line, *bus.Conn) {
	l := &line{dial: s.Dial()}
	c := embeddedtest.Connect(t, s, subjects.RoleWorker, worker, func(c *bus.Config) { c.Dial = l.connect })
	return registry.New(c, worker), l, c
}

// TestAmbiguousWritesAreResolved: the write landed and its acknowledgement did not, or
// the write did not land: in both cases the caller gets the exact answer.
func TestAmbiguousWritesAreResolved(t *testing.T) {
	s := single(t)
	reg, l, conn := faulty(t, s, "W1")
	for name, cut := range map[string]func(*cutConn){
		"acknowledgement lost": func(c *cutConn) { c.loseAck.Store(true) },
		"write lost":           func(c *cutConn) { c.loseWrite.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			for i := range 10 {
				for !conn.Connected() {
					<-time.After(time.Millisecond)
				}
				rec := execution(fmt.Sprintf("%c-%d", name[0], i), "W1")
				cut(l.now())
				rev, existing, err := reg.CreateExecution(ctx, tenant, rec)
				if err != nil || existing != nil {
					t.Fatal(i, existing, err)
				}
				got, grev, err := reg.Execution(ctx, tenant, rec.ExecutionID)
				if err != nil || grev != rev || got.Receipt.Process != rec.Receipt.Process {
					t.Fatal(i, got, grev, rev, err)
				}
				cut(l.now())
				rec.Receipt.State = wire.StateCompleted
				if rev, err = reg.UpdateExecution(ctx, tenant, rec, rev); err != nil {
					t.Fatal(i, err)
				}
				if got, grev, err := reg.Execution(ctx, tenant, rec.ExecutionID); err != nil || grev != rev || got.Receipt.State != wire.StateCompleted {
					t.Fatal(i, got, err)
				}
			}
		})
	}
	if n := conn.Stats().Reconnects; n < 30 {
		t.Errorf("only %d of 40 cuts were real", n)
	}
}

// TestAway: what cannot be sent fails at once, and nothing is written later.
func TestAway(t *testing.T) {
	s := single(t)
	reg, l, conn := faulty(t, s, "W1")
	l.mu.Lock()
	l.dial = func() (net.Conn, error) { return nil, errors.New("down") }
	l.mu.Unlock()
	l.now().Close()
	for conn.Connected() {
		<-time.After(time.Millisecond)
	}
	began := time.Now()
	_, _, err := reg.CreateExecution(t.Context(), tenant, execution("e", "W1"))
	if !errors.Is(err, bus.ErrDisconnected) || errors.Is(err, bus.ErrUnknownOutcome) || time.Since(began) > time.Second {
		t.Fatal(err, time.Since(began))
	}
	if we, ok := errors.AsType[*wire.Error](err); !ok || we.Code != wire.CodeUnavailable {
		t.Fatal(we)
	}
	gw := registry.New(embeddedtest.Connect(t, s, subjects.RoleGateway, "g"), "")
	if _, _, err := gw.Execution(t.Context(), tenant, "e"); !errors.Is(err, registry.ErrNotFound) {
		t.Fatal(err)
	}
}

// TestRestarts: two workers race for the same ids while the server restarts and
// connections are cut. Every id gets one winner, every winner's record is there.
func TestRestarts(t *testing.T) {
	s := embeddedtest.Start(t, embedded.Config{Dir: t.TempDir()})
	embeddedtest.Provision(t, s, bus.StreamOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	const ids, callers = 200, 8
	var regs [2]*registry.Registry
	var lines [2]*line
	for i := range regs {
		regs[i], lines[i], _ = faulty(t, s, fmt.Sprintf("W%d", i+1))
	}
	stop := make(chan struct{})
	var faults sync.WaitGroup
	faults.Go(func() {
		tick := time.NewTicker(30 * time.Millisecond)
		defer tick.Stop()
		for n := 1; ; n++ {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			if n%10 == 0 {
				if err := s.Restart(ctx); err != nil {
					t.Error(err)
				}
				continue
			}
			c := lines[rand.N(2)].now()
			if rand.N(2) == 0 {
				c.loseAck.Store(true)
			} else {
				c.loseWrite.Store(true)
			}
		}
	})
	winners := make([]map[string]string, callers) // id -> process, by caller
	var wg sync.WaitGroup
	var unsent atomic.Int64
	for n := range callers {
		winners[n] = map[string]string{}
		wg.Go(func() {
			for i := range ids {
				id := fmt.Sprint("e", i)
				rec := execution(id, fmt.Sprintf("W%d", n%2+1))
				for {
					_, existing, err := regs[n%2].CreateExecution(ctx, tenant, rec)
					if err == nil {
						if existing == nil {
							winners[n][id] = rec.Receipt.Process
						}
						break
					}
					if !errors.Is(err, bus.ErrDisconnected) || errors.Is(err, bus.ErrUnknownOutcome) {
						t.Errorf("%s: %v", id, err)
						return
					}
					unsent.Add(1)
					select {
					case <-time.After(time.Millisecond):
					case <-ctx.Done():
						t.Error(ctx.Err())
						return
					}
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	faults.Wait()
	gw := registry.New(embeddedtest.Connect(t, s, subjects.RoleGateway, "g"), "")
	all, err := gw.Executions(ctx, tenant)
	if err != nil || len(all) != ids {
		t.Fatal(len(all), err)
	}
	won := 0
	for _, e := range all {
		n := 0
		for _, w := range winners {
			if p, ok := w[e.Record.ExecutionID]; ok {
				n++
				if p != e.Record.Receipt.Process {
					t.Errorf("%s: the record is another's", e.Record.ExecutionID)
				}
			}
		}
		if n != 1 {
			t.Errorf("%s: %d winners", e.Record.ExecutionID, n)
		}
		won += n
	}
	t.Logf("%d ids, %d winners, %d calls failed unsent", len(all), won, unsent.Load())
}

// TestClusterSurvivesAServer: on a cluster of three, one server goes away in the middle.
func TestClusterSurvivesAServer(t *testing.T) {
	nodes := embeddedtest.Cluster(t, 3)
	embeddedtest.Provision(t, nodes[0], bus.StreamOptions{Replicas: 3})
	var next atomic.Int64
	anyNode := func() (net.Conn, error) { return nodes[next.Add(1)%3].Dial()() }
	c := embeddedtest.Connect(t, nodes[1], subjects.RoleWorker, "W1", func(c *bus.Config) { c.Dial = anyNode })
	reg := registry.New(c, "W1")
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	down := make(chan struct{})
	const n = 300
	for i := range n {
		if i == 100 {
			go func() { defer close(down); nodes[0].Close() }()
		}
		rec := execution(fmt.Sprint("c", i), "W1")
		for {
			rev, existing, err := reg.CreateExecution(ctx, tenant, rec)
			if err == nil && existing != nil {
				t.Fatalf("%d: taken by %s", i, existing.Receipt.Process)
			}
			if err == nil {
				rec.Receipt.State = wire.StateCompleted
				if _, err = reg.UpdateExecution(ctx, tenant, rec, rev); err == nil || errors.Is(err, bus.ErrDisconnected) {
					break
				}
			}
			if !errors.Is(err, bus.ErrDisconnected) {
				t.Fatal(i, err)
			}
			<-time.After(5 * time.Millisecond)
		}
	}
	<-down
	for i := range n {
		if _, _, err := reg.Execution(ctx, tenant, fmt.Sprint("c", i)); err != nil {
			t.Fatal(i, err)
		}
	}
}
