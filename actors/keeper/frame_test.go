package keeper

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// pair is two ends of a connection.
func pair(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	end := func(fd int) *net.UnixConn {
		f := os.NewFile(uintptr(fd), "pair")
		defer f.Close()
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c.(*net.UnixConn)
	}
	return end(fds[0]), end(fds[1])
}

func descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestFramesCarryDescriptors(t *testing.T) {
	a, b := pair(t)
	from, to := newLink(a), newLink(b)
	before := descriptors(t)
	big := journalList{Journals: make([]uint32, 1<<19)}
	for i := range big.Journals {
		big.Journals[i] = uint32(i) << 8
	}
	sent := make(chan error, 1)
	go func() {
		err := from.send(t.Context(), kindReply, 1, journalList{Journals: []uint32{7}}, 0, 1, 2)
		for range 3 {
			err = errors.Join(err, from.send(t.Context(), kindReply, 2, big), from.send(t.Context(), kindExited, 0, &Exited{Process: "p"}, 1))
		}
		sent <- err
	}()
	check := func(want frame, n int) frame {
		t.Helper()
		f, err := to.receive()
		if err != nil {
			t.Fatal(err)
		}
		if f.kind != want.kind || f.id != want.id || len(f.descriptors) != n {
			t.Fatalf("kind %d id %d with %d descriptors", f.kind, f.id, len(f.descriptors))
		}
		f.closeDescriptors()
		return f
	}
	var list journalList
	if err := check(frame{kind: kindReply, id: 1}, 3).decode(&list); err != nil || list.Journals[0] != 7 {
		t.Error(list, err)
	}
	for range 3 {
		if err := check(frame{kind: kindReply, id: 2}, 0).decode(&list); err != nil || len(list.Journals) != 1<<19 || list.Journals[3] != 3<<8 {
			t.Error(len(list.Journals), err)
		}
		check(frame{kind: kindExited}, 1)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	if now := descriptors(t); now != before {
		t.Errorf("%d descriptors, %d before", now, before)
	}
	if err := from.send(t.Context(), kindReply, 3, journalList{Journals: make([]uint32, 5<<20)}); err == nil {
		t.Error("a body over the limit was sent")
	}
}

func TestBrokenFramesEndTheConnectionOnly(t *testing.T) {
	dir := startKeeper(t, time.Minute)
	good := header{kind: kindHello, id: 1}.append(nil)
	for name, raw := range map[string][]byte{
		"version":     append([]byte{0, 0, 0, 0, 9}, good[5:]...),
		"length":      append([]byte{0xff, 0xff, 0xff, 0xff}, good[4:]...),
		"no kind":     append(append([]byte{}, good[:5]...), append([]byte{0}, good[6:]...)...),
		"descriptors": header{kind: kindHello, id: 1, descriptors: 3}.append(nil),
		"half":        good[:9],
		"noise":       bytes.Repeat([]byte{0xa5}, 4000),
	} {
		conn, err := connect(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(raw)
		_ = conn.CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := io.ReadAll(conn); err != nil && !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s: the keeper keeps the connection: %v", name, err)
		}
		_ = conn.Close()
	}
	c, ev, _ := attach(t, dir, 1)
	// Nonsense in a body is an error of that request.
	for k := kindSpawn; k <= kindDropJournals+1; k++ {
		for _, body := range []any{nil, 7, []int{1}, map[string]any{"proces": "x"}, map[string]any{"process": 5}} {
			if _, err := c.call(t.Context(), k, body, nil); !isCode(err, wire.CodeInvalidArguments) && !isCode(err, wire.CodeUnknownField) {
				t.Errorf("kind %d with %v: %v", k, body, err)
			}
		}
	}
	p := spawn(t, c, bash("p", "true"))
	if e := ev.exited(t, p); e.Code != 0 {
		t.Error(e)
	}
}

// FuzzFrame feeds bytes to the reader and to every decoder: no crash, no memory beyond
// the bound, no message with a field that was never written.
func FuzzFrame(f *testing.F) {
	seed := func(k kind, v any) {
		body, err := wire.Marshal("", v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(header{length: len(body), kind: k, id: 1}.append(nil), body...))
	}
	s := bash("p", "true")
	r, _ := s.request()
	seed(kindSpawn, r)
	seed(kindHello, helloReply{Incarnation: 1, PID: 2})
	seed(kindAttach, attachRequest{Incarnation: 1})
	seed(kindReply, attachReply{Processes: 1, Journals: []uint32{1, 2}})
	seed(kindAdopted, processInfo{Process: "p", Meta: []byte("m"), Exited: &Exited{Process: "p"}, Gone: &Gone{Unsignalled: []int{1}}})
	seed(kindStop, stopRequest{Process: "p", Mode: Kill})
	seed(kindError, wire.Errorf(wire.CodeInternal, "x"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 32<<10 {
			return // the socket holds no more without a second goroutine
		}
		a, b := pair(t)
		if _, err := a.Write(data); err != nil {
			t.Fatal(err)
		}
		_ = a.Close()
		l := newLink(b)
		for {
			m, err := l.receive()
			if err != nil {
				return
			}
			if len(m.body) > len(data) {
				t.Fatalf("a body of %d bytes from %d", len(m.body), len(data))
			}
			for _, v := range []any{
				&spawnRequest{}, &helloReply{}, &attachRequest{}, &attachReply{}, &processInfo{}, &stopRequest{},
				&signalRequest{}, &processRequest{}, &journalsRequest{}, &journalList{}, &Exited{}, &Gone{}, &wire.Error{},
			} {
				if err := m.decode(v); err != nil {
					continue
				}
				if r, ok := v.(*spawnRequest); ok && r.validate() == nil {
					_ = r.spec()
				}
			}
		}
	})
}
