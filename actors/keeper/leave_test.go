package keeper

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// TestCloseEndsWrites: a write that the process does not read is over before the
// keeper is told that this worker is done, and Close does not wait for its limit.
func TestCloseEndsWrites(t *testing.T) {
	dir := startKeeper(t, time.Minute)
	c, _, _ := attach(t, dir, 1)
	s := bash("p", "sleep 30")
	s.Stdin = true
	p := spawn(t, c, s)
	result := make(chan error, 1)
	go func() {
		_, err := p.WriteInput(t.Context(), 0, make([]byte, 4<<20))
		result <- err
	}()
	eventually(t, "the write waits", func() bool { return p.slot.word(wordWriting).Load() != 0 })
	<-time.After(100 * time.Millisecond) // the pipe is full
	began := time.Now()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if d := time.Since(began); d > 2*time.Second {
		t.Errorf("Close took %v", d)
	}
	if err := <-result; !isCode(err, wire.CodeDeliveryUnknown) {
		t.Errorf("the write: %v", err)
	}
}

// TestStraysEndWithTheKeeper: without cgroups a daemon that no scan of its tree finds is
// gone when the keeper is.
func TestStraysEndWithTheKeeper(t *testing.T) {
	dir := newDir(t)
	cmd, err := Ensure(t.Context(), Config{Dir: dir, Window: time.Minute, Cgroup: "off", Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	c, ev, _ := attach(t, dir, 1)
	p := spawn(t, c, bash("p", "env -i setsid sleep 60 >/dev/null 2>&1 & echo $!"))
	var sink record
	if err := p.Pump(t.Context(), &sink, 0); err != nil {
		t.Fatal(err)
	}
	ev.exited(t, p)
	daemon, err := strconv.Atoi(strings.TrimSpace(sink.text(wire.Stdout)))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the daemon has a session of its own", func() bool { sid, err := unix.Getsid(daemon); return err == nil && sid == daemon })
	if err := p.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if !alive(daemon) {
		t.Fatal("the daemon ended with its tree, so this test shows nothing")
	}
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if alive(daemon) {
		t.Error("the daemon has outlived the keeper")
		_ = unix.Kill(daemon, unix.SIGKILL)
	}
}

// TestMissingDescriptors: whatever is missing is a broken frame.
func TestMissingDescriptors(t *testing.T) {
	for _, n := range []int{0, 1, 2} {
		fds := make([]int, n)
		for i := range fds {
			fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			fds[i] = fd
		}
		if _, err := new(Client).newProcess(processInfo{Process: "p", Master: true, Between: true}, fds); !errors.Is(err, errFrame) {
			t.Errorf("%d of 3: %v", n, err)
		}
	}
}
