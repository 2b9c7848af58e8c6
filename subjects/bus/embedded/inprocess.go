package embedded

import (
	"net"
	"sync/atomic"
)

// greeting is the client's end of an in-process connection. The pipe has no buffer, and
// a server that refuses a user writes its reason while the client still writes: both
// would wait for each other until a deadline. So what the client writes before the
// server's first answer is written by a goroutine; the client reads meanwhile and sees
// the reason. After that answer this costs one atomic load a write.
type greeting struct {
	net.Conn
	answered atomic.Bool
	// last is closed when the last such write has ended, by success or by Close. Only
	// the writer touches it: a client writes from one goroutine at a time.
	last chan struct{}
	sent atomic.Bool
}

func (g *greeting) Write(b []byte) (int, error) {
	if g.answered.Load() {
		if g.last != nil {
			<-g.last
			g.last = nil
		}
		return g.Conn.Write(b)
	}
	before, done := g.last, make(chan struct{})
	g.last = done
	data := append([]byte(nil), b...)
	g.sent.Store(true)
	go func() { // ends with the write, which Close ends
		defer close(done)
		if before != nil {
			<-before
		}
		_, _ = g.Conn.Write(data) // the client's next read or write finds the error again
	}()
	return len(b), nil
}

func (g *greeting) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if !g.answered.Load() && n > 0 && g.sent.Load() {
		g.answered.Store(true)
	}
	return n, err
}
