package keeper

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// TestSendIsBounded: a peer that does not read makes nobody wait for ever.
func TestSendIsBounded(t *testing.T) {
	a, _ := pair(t)
	l := newLink(a)
	l.limit = 300 * time.Millisecond
	body := journalList{Journals: make([]uint32, 1<<14)}
	fill := func(ctx context.Context) (err error) {
		for range 1000 {
			if err = l.send(ctx, kindReply, 1, body); err != nil {
				return err
			}
		}
		return nil
	}
	began := time.Now()
	if err := fill(t.Context()); !errors.Is(err, context.DeadlineExceeded) && !isTimeout(err) {
		t.Errorf("got %v", err)
	}
	if d := time.Since(began); d > 3*time.Second {
		t.Errorf("took %v", d)
	}
	if err := l.send(t.Context(), kindHello, 1, nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after half a frame: %v", err)
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// TestSendEndsWithItsContext: before the first byte that is no fault of the connection.
func TestSendEndsWithItsContext(t *testing.T) {
	a, b := pair(t)
	l := newLink(a)
	for range 2000 { // whole frames, until there is no room for the smallest
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := l.send(ctx, kindHello, 1, nil)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	to := newLink(b)
	for range 10 {
		if _, err := to.receive(); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.send(t.Context(), kindHello, 1, nil); err != nil {
		t.Errorf("the connection is gone: %v", err)
	}
}

// TestStuckKeeper: a keeper that is stopped holds up neither Spawn nor Close.
func TestStuckKeeper(t *testing.T) {
	dir := startKeeper(t, time.Minute)
	c, _, _ := attach(t, dir, 1)
	pid := keeperPID(t, dir)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	for i := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		s := bash("p"+strconv.Itoa(i), "sleep 30")
		s.Meta = make([]byte, maxMeta)
		began := time.Now()
		if _, err := c.Spawn(ctx, s); err == nil {
			t.Error("spawned")
		}
		cancel()
		if d := time.Since(began); d > time.Second {
			t.Fatalf("Spawn took %v", d)
		}
	}
	began := time.Now()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if d := time.Since(began); d > detachLimit+time.Second {
		t.Errorf("Close took %v", d)
	}
}

// TestGivenUpStartsAreUndone: also when Close follows at once, and when Close comes in
// the middle of a start.
func TestGivenUpStartsAreUndone(t *testing.T) {
	dir := startKeeper(t, time.Minute)
	c, _, _ := attach(t, dir, 1)
	pid := keeperPID(t, dir)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if _, err := c.Spawn(ctx, bash("p"+strconv.Itoa(i), "sleep 30")); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		cancel()
	}
	result := make(chan error, 1)
	go func() {
		_, err := c.Spawn(context.Background(), bash("late", "sleep 30"))
		result <- err
	}()
	eventually(t, "the start is under way", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.starting["late"] != nil
	})
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	eventually(t, "it closes", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.closing
	})
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := <-result; !isCode(err, wire.CodeUnavailable) {
		t.Errorf("a start while closing: %v", err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	_, _, adopted := attach(t, dir, 2)
	for _, p := range adopted {
		t.Errorf("%s runs on", p.ID())
	}
}

// TestUnannouncedProcessIsEnded: when its descriptors cannot be passed, the start fails
// and nothing of it stays.
func TestUnannouncedProcessIsEnded(t *testing.T) {
	k, err := newKeeper(settings{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	a, b := pair(t)
	s := &session{keeper: k, link: newLink(a)}
	r, err := (&Spawn{Process: "p", Path: "/bin/sleep", Argv: []string{"sleep", "30"}, Env: testEnv}).request()
	if err != nil {
		t.Fatal(err)
	}
	c, err := k.start(r)
	if err != nil {
		t.Fatal(err)
	}
	k.work.Go(func() { k.watch(c) })
	s.announce(7, c, c.info, []int{1 << 20})
	f, err := newLink(b).receive()
	if err != nil || f.kind != kindError || f.id != 7 {
		t.Errorf("answered with %+v, %v", f, err)
	}
	eventually(t, "it is forgotten", func() bool { return k.count() == 0 })
	if err := unix.Kill(c.info.PID, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("it runs: %v", err)
	}
	k.work.Wait()
	if err := k.close(); err != nil {
		t.Error(err)
	}
}
