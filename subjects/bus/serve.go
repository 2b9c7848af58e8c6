package bus

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// maxPendingBytes bounds what waits for one handler, beside the count of messages.
const maxPendingBytes = 64 << 20

// Request is a message that asks for an answer.
type Request struct {
	Subject string
	Header  Header
	Data    []byte
	msg     *nats.Msg
}

// ContentType is the type of the payload; msgpack when it does not say.
func (r *Request) ContentType() string {
	if t := r.Header.Get(subjects.HeaderContentType); t != "" {
		return t
	}
	return subjects.TypeMsgpack
}

// Deadline is the time after which nobody waits for the answer. A header that is not a
// number counts as none.
func (r *Request) Deadline() (time.Time, bool) {
	ms, err := strconv.ParseInt(r.Header.Get(subjects.HeaderDeadline), 10, 64)
	if err != nil {
		return time.Time{}, false
	}
	return time.UnixMilli(ms), true
}

// Respond answers with data in the content type of the request. The first answer
// counts. It may be called from any goroutine.
func (r *Request) Respond(data []byte) error {
	if r.msg.Reply == "" {
		return ErrNoReply
	}
	m := &nats.Msg{Data: data}
	if t := r.Header.Get(subjects.HeaderContentType); t != "" && t != subjects.TypeMsgpack {
		m.Header = Header{subjects.HeaderContentType: {t}}
	}
	return sendError(r.msg.RespondMsg(m))
}

// RespondError answers with the error a caller may see, as [wire.AsError] gives it, in
// the content type of the request, or msgpack where that is not spoken.
func (r *Request) RespondError(err error) error {
	data, encErr := wire.EncodeReply[struct{}](r.ContentType(), nil, err)
	if encErr != nil {
		r.Header = nil
		if data, encErr = wire.EncodeReply[struct{}](subjects.TypeMsgpack, nil, err); encErr != nil {
			return fmt.Errorf("encode error answer: %w", encErr)
		}
	}
	return r.Respond(data)
}

// Subscription is a standing interest in a subject.
type Subscription struct {
	conn     *Conn
	sub      *nats.Subscription
	done     chan struct{} // closed when the handler has returned for the last time
	reported int64         // guarded by conn.mu; dropped messages told so far
}

// Serve hands each request to h, one after another in order of arrival. Of several
// subscribers with the same queue name one gets each request; an empty queue gives all
// to everyone. At most pendingMsgs (and 64 MiB) wait for h; more are dropped, and their
// askers run into their deadlines: so h may only hand over, and says "overloaded"
// itself when its own mailbox is full.
//
// When Serve returns, the server knows of the subscription: it waits for one round trip,
// at most Config.AckWait.
func (c *Conn) Serve(subject, queue string, pendingMsgs int, h func(*Request)) (*Subscription, error) {
	return c.subscribe(subject, queue, pendingMsgs, func(m *nats.Msg) {
		h(&Request{Subject: m.Subject, Header: m.Header, Data: m.Data, msg: m})
	})
}

// Subscribe hands each message to h, under the terms of [Conn.Serve]. It is for live
// observation: what arrives while the connection is away is lost.
func (c *Conn) Subscribe(subject string, pendingMsgs int, h func(*Msg)) (*Subscription, error) {
	return c.subscribe(subject, "", pendingMsgs, func(m *nats.Msg) { h(fromNATS(m)) })
}

func (c *Conn) subscribe(subject, queue string, pending int, h nats.MsgHandler) (*Subscription, error) {
	if pending < 1 {
		return nil, fmt.Errorf("bus: subscribe %s: at least one message must be able to wait", subject)
	}
	c.mu.Lock()
	sub, err := c.nc.QueueSubscribe(subject, queue, h)
	if err != nil {
		c.mu.Unlock()
		return nil, fmt.Errorf("bus: subscribe %s: %w", subject, sendError(err))
	}
	s := &Subscription{conn: c, sub: sub, done: make(chan struct{})}
	c.subs[sub] = s
	c.mu.Unlock()
	sub.SetClosedHandler(func(string) { close(s.done) })
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.AckWait)
	defer cancel()
	if err := sub.SetPendingLimits(pending, maxPendingBytes); err != nil {
		_ = s.Stop(ctx)
		return nil, fmt.Errorf("bus: subscribe %s: %w", subject, err)
	}
	// One round trip: a violation is told before its answer, and requests sent after
	// this return find the subscription.
	if err := c.Flush(ctx); err != nil {
		_ = s.Stop(ctx)
		return nil, fmt.Errorf("bus: subscribe %s: %w", subject, err)
	}
	if err := c.nc.LastError(); err != nil && deniedSubscription(err.Error(), subject) {
		_ = s.Stop(ctx)
		return nil, fmt.Errorf("bus: subscribe %s: %w", subject, ErrDenied)
	}
	return s, nil
}

// deniedSubscription reports whether the connection's last error forbids the subject.
// The server says it in words only.
func deniedSubscription(text, subject string) bool {
	return strings.Contains(text, `Subscription to "`+subject+`"`)
}

// Dropped counts the messages that did not fit.
func (s *Subscription) Dropped() int64 {
	n, err := s.sub.Dropped()
	if err != nil {
		return 0 // it has ended
	}
	return int64(n)
}

// Done is closed when the handler has returned for the last time.
func (s *Subscription) Done() <-chan struct{} { return s.done }

// Stop ends the subscription: no new messages, the handler gets those that are here,
// and then it returns; or when ctx ends. It must not be called from the handler.
func (s *Subscription) Stop(ctx context.Context) error {
	if err := s.sub.Drain(); err != nil {
		// The connection is away or closed: there is nothing to drain.
		_ = s.sub.Unsubscribe()
	}
	defer func() {
		s.conn.mu.Lock()
		defer s.conn.mu.Unlock()
		delete(s.conn.subs, s.sub)
	}()
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		_ = s.sub.Unsubscribe()
		return ended(ctx)
	}
}
