package keeper

import (
	"errors"
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
