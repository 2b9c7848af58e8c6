package bus

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// A slot is a standing reply subscription that one request at a time uses. The reader
// of the connection puts the answer straight into the slot's channel, so an answer
// wakes its asker and no goroutine in between; a shared reply subscription would cost
// one more wake-up on every round trip. A slot holds 1 KiB and no goroutine.
type slot struct {
	sub    *nats.Subscription
	prefix string // "<inbox>." ; answers arrive at <inbox>.<seq>
	seq    uint64
	ch     chan *nats.Msg // 8: answers; a responder that sends more is reported as a slow consumer
	ctl    chan error     // 1: denied, disconnected, closed
	timer  *time.Timer
	header nats.Header // built anew for each request, encoded before the call returns

	subject string // guarded by replies.mu; "" while idle
}

// replies is the pool of slots. It grows to max and never shrinks: as many slots as
// requests were ever waiting at once.
type replies struct {
	nc  *nats.Conn
	max int

	mu   sync.Mutex
	all  []*slot // guarded by mu
	idle []*slot // guarded by mu; the last used first, its memory is warm
	busy int     // guarded by mu
	made int     // guarded by mu; includes those being made
}

func (r *replies) init(nc *nats.Conn, limit int) { r.nc, r.max = nc, limit }

func (r *replies) waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.busy
}

// take reserves a slot for a request to subject.
func (r *replies) take(subject string) (*slot, error) {
	r.mu.Lock()
	if n := len(r.idle); n > 0 {
		s := r.idle[n-1]
		r.idle = r.idle[:n-1]
		s.subject = subject
		r.busy++
		r.mu.Unlock()
		s.reset()
		return s, nil
	}
	if r.made >= r.max {
		r.mu.Unlock()
		return nil, ErrOverloaded
	}
	r.made++
	r.mu.Unlock()

	s, err := newSlot(r.nc)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.made--
		return nil, err
	}
	s.subject = subject
	r.busy++
	r.all = append(r.all, s)
	return s, nil
}

func newSlot(nc *nats.Conn) (*slot, error) {
	inbox := nc.NewInbox()
	s := &slot{
		prefix: inbox + ".", ch: make(chan *nats.Msg, 8), ctl: make(chan error, 1),
		timer: time.NewTimer(time.Hour), header: make(nats.Header, 4),
	}
	s.timer.Stop()
	sub, err := nc.ChanSubscribe(inbox+".*", s.ch)
	if err != nil {
		return nil, sendError(err)
	}
	s.sub = sub
	return s, nil
}

func (r *replies) put(s *slot) {
	s.timer.Stop()
	r.mu.Lock()
	s.subject = ""
	r.busy--
	r.idle = append(r.idle, s)
	r.mu.Unlock()
}

// reset forgets answers and signals that came for an earlier request.
func (s *slot) reset() {
	for {
		select {
		case <-s.ch:
		case <-s.ctl:
		default:
			return
		}
	}
}

// reply returns the subject for the answer of the next request.
func (s *slot) reply() string {
	s.seq++
	return s.prefix + strconv.FormatUint(s.seq, 36)
}

// await returns the answer sent to reply. limit bounds the wait when positive.
func (s *slot) await(ctx context.Context, reply string, limit time.Duration) (*nats.Msg, error) {
	var expired <-chan time.Time
	if limit > 0 {
		s.timer.Reset(limit)
		expired = s.timer.C
	}
	for {
		select {
		case m := <-s.ch:
			if m.Subject != reply {
				continue // the late answer of an earlier request
			}
			if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
				return nil, ErrNoResponders
			}
			return m, nil
		case err := <-s.ctl:
			return nil, err
		case <-expired:
			return nil, ErrTimeout
		case <-ctx.Done():
			return nil, ended(ctx)
		}
	}
}

// signal tells the asker of s that no answer will come; r.mu is held.
func (s *slot) signal(err error) {
	select {
	case s.ctl <- err:
	default: // one signal is enough
	}
}

// deny tells those who wait for an answer from subject that the server forbids it.
func (r *replies) deny(subject string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.all {
		if s.subject != "" && (s.subject == subject || s.sub.Subject == subject) {
			s.signal(err)
		}
	}
}

// fail tells all who wait, and returns how many.
func (r *replies) fail(err error) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, s := range r.all {
		if s.subject != "" {
			s.signal(err)
			n++
		}
	}
	return n
}
