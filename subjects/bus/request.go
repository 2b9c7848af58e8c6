package bus

import (
	"context"
	"maps"
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/limpet-sh/limpet/subjects"
)

// Header holds the headers of a message: a name as given, and its values.
type Header = nats.Header

// Msg is a message as it arrived.
type Msg struct {
	Subject string
	Reply   string
	Header  Header
	Data    []byte
}

func fromNATS(m *nats.Msg) *Msg {
	return &Msg{Subject: m.Subject, Reply: m.Reply, Header: m.Header, Data: m.Data}
}

// Publish sends a message that nobody answers. The server may still refuse it, which
// is told to OnLoss.
func (c *Conn) Publish(subject string, h Header, data []byte) error {
	return sendError(c.nc.PublishMsg(&nats.Msg{Subject: subject, Header: h, Data: data}))
}

// Request asks and waits for one answer until ctx ends. A deadline of ctx travels in
// the Limpet-Deadline header, unless h holds one. Neither h nor data is kept.
//
// It fails with ErrNoResponders at once when nobody serves the subject, ErrDenied when
// the server forbids it, ErrTooLarge, ErrOverloaded, ErrDisconnected when the
// connection is or goes away, ErrTimeout at the deadline. After the last two the
// request may have been seen.
func (c *Conn) Request(ctx context.Context, subject string, h Header, data []byte) (*Msg, error) {
	if ctx.Err() != nil {
		return nil, ended(ctx)
	}
	s, err := c.replies.take(subject)
	if err != nil {
		return nil, err
	}
	defer c.replies.put(s)
	header := h
	if d, ok := ctx.Deadline(); ok && h[subjects.HeaderDeadline] == nil {
		header = s.merged(h)
		header[subjects.HeaderDeadline] = []string{strconv.FormatInt(d.UnixMilli(), 10)}
	}
	reply := s.reply()
	if err := c.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Header: header, Data: data}); err != nil {
		return nil, sendError(err)
	}
	m, err := s.await(ctx, reply, 0)
	if err != nil {
		return nil, err
	}
	return fromNATS(m), nil
}

// merged returns the slot's own header map, filled with h.
func (s *slot) merged(h Header) nats.Header {
	clear(s.header)
	maps.Copy(s.header, h)
	return s.header
}
