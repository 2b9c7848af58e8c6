package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	headerSequence = "Nats-Sequence"
	headerPending  = "Nats-Num-Pending"
	headerStatus   = "Status"

	statusNotFound = "404"
	statusEnd      = "204" // of a batch

	batchMessages = 512
	batchBytes    = 1 << 20
)

// Subject returns the messages of one subject, oldest first, by direct reads of a stream
// that allows them: any replica answers, and what was stored a moment ago may be missing.
// At most maxBytes of data are read; more is [ErrTooLarge].
func (c *Conn) Subject(ctx context.Context, stream, subject string, maxBytes int) ([]Stored, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.cfg.AckWait)
		defer cancel()
	}
	ctx, end := c.failFast(ctx, "DIRECT.GET."+stream)
	defer end()
	d := direct{conn: c, stream: stream, subject: subject, max: maxBytes}
	var err error
	if d.sub, err = c.nc.SubscribeSync(c.nc.NewInbox()); err != nil {
		return nil, fmt.Errorf("read %s: %w", stream, sendError(err))
	}
	defer func() { _ = d.sub.Unsubscribe() }() // fails only where the connection is closed
	for more := true; more; {
		if more, err = d.batch(ctx); err != nil {
			return nil, fmt.Errorf("read %s of %s: %w", subject, stream, err)
		}
	}
	return d.out, nil
}

// direct is a read of one subject under way.
type direct struct {
	conn            *Conn
	stream, subject string
	sub             *nats.Subscription
	max             int
	size            int
	out             []Stored
}

// batch reads the next messages and reports whether there are more.
func (d *direct) batch(ctx context.Context) (more bool, err error) {
	from := uint64(1)
	if n := len(d.out); n > 0 {
		from = d.out[n-1].Seq + 1
	}
	req, err := json.Marshal(map[string]any{"next_by_subj": d.subject, "seq": from, "batch": batchMessages, "max_bytes": batchBytes})
	if err != nil {
		return false, err
	}
	err = d.conn.nc.PublishMsg(&nats.Msg{Subject: "$JS.API.DIRECT.GET." + d.stream, Reply: d.sub.Subject, Data: req})
	if err != nil {
		return false, sendError(err)
	}
	for {
		m, err := d.next(ctx)
		if err != nil {
			return false, err
		}
		switch status := m.Header.Get(headerStatus); status {
		case "":
		case statusEnd:
			return m.Header.Get(headerPending) != "0", nil
		case statusNotFound:
			return false, nil
		case "503":
			return false, ErrNoResponders
		default:
			return false, &APIError{Description: status + " " + m.Header.Get("Description")}
		}
		if err := d.take(m); err != nil {
			return false, err
		}
	}
}

// next waits for a message, no longer than the connection stands.
func (d *direct) next(ctx context.Context) (*nats.Msg, error) {
	for {
		short, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
		m, err := d.sub.NextMsgWithContext(short)
		cancel()
		switch {
		case err == nil:
			return m, nil
		case errors.Is(err, nats.ErrNoResponders):
			return nil, ErrNoResponders
		case ctx.Err() != nil:
			return nil, ended(ctx)
		case !errors.Is(err, context.DeadlineExceeded):
			return nil, sendError(err)
		case !d.conn.Connected():
			return nil, ErrDisconnected
		}
	}
}

func (d *direct) take(m *nats.Msg) error {
	if d.size += len(m.Data); d.size > d.max {
		return ErrTooLarge
	}
	s := Stored{Subject: d.subject, Header: m.Header, Data: m.Data}
	var err error
	if s.Seq, err = strconv.ParseUint(m.Header.Get(headerSequence), 10, 64); err != nil {
		return fmt.Errorf("sequence: %w", err)
	}
	s.Time, _ = time.Parse(time.RFC3339Nano, m.Header.Get("Nats-Time-Stamp"))
	if n := len(d.out); n > 0 && s.Seq <= d.out[n-1].Seq {
		return fmt.Errorf("message %d came after %d", s.Seq, d.out[n-1].Seq)
	}
	d.out = append(d.out, s)
	return nil
}
