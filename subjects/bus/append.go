package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// HeaderTTL removes a stored message after its value, such as "168h"; the stream must
// allow it. The smallest is 1 s.
const HeaderTTL = "Nats-TTL"

const (
	headerExpectSeq     = "Nats-Expected-Last-Subject-Sequence"
	headerExpectSubject = "Nats-Expected-Last-Subject-Sequence-Subject"
)

// Expect is what must hold of a stream for an append to be stored. The zero value
// expects nothing.
type Expect struct {
	set    bool
	filter string
	seq    uint64
}

// ExpectAny expects nothing.
func ExpectAny() Expect { return Expect{} }

// ExpectLast expects that the last message of the subject has this sequence; 0 that
// there is none.
func ExpectLast(seq uint64) Expect { return Expect{set: true, seq: seq} }

// ExpectLastOn expects that the last message of all subjects matching filter has this
// sequence; 0 that there is none.
func ExpectLastOn(filter string, seq uint64) Expect {
	return Expect{set: true, filter: filter, seq: seq}
}

// Append stores a message in the stream that owns the subject and returns its sequence.
// It waits for the acknowledgement until ctx ends, at most Config.AckWait.
//
// ErrWrongSequence: the expectation does not hold. ErrDisconnected, ErrTooLarge,
// ErrDenied, ErrOverloaded and an *[APIError]: nothing is stored. ErrUnknownOutcome:
// the message was sent and not acknowledged; whoever wrote reads back. Neither h nor
// data is kept after the return.
func (c *Conn) Append(ctx context.Context, subject string, h Header, data []byte, expect Expect) (uint64, error) {
	s, err := c.sendAppend(ctx, subject, h, data, expect)
	if err != nil {
		return 0, err
	}
	defer c.replies.put(s.slot)
	return s.wait(ctx)
}

// Pending is an append whose acknowledgement has not been waited for yet.
type Pending struct {
	conn    *Conn
	slot    *slot
	reply   string
	subject string
	header  Header
	data    []byte
	expect  Expect
	sentAt  time.Time
}

// AppendAsync sends like [Conn.Append] and leaves the acknowledgement to
// [Pending.Wait], which must be called exactly once. At most Config.MaxAsync are in
// flight; one more blocks until another is waited for, or ctx ends. h and data belong
// to the append until Wait returns.
func (c *Conn) AppendAsync(ctx context.Context, subject string, h Header, data []byte, expect Expect) (*Pending, error) {
	select {
	case c.async <- struct{}{}:
	case <-ctx.Done():
		return nil, ended(ctx)
	}
	p, err := c.sendAppend(ctx, subject, h, data, expect)
	if err != nil {
		<-c.async
		return nil, err
	}
	return &p, nil
}

// Wait returns what [Conn.Append] would.
func (p *Pending) Wait(ctx context.Context) (uint64, error) {
	defer func() {
		p.conn.replies.put(p.slot)
		<-p.conn.async
	}()
	return p.wait(ctx)
}

func (c *Conn) sendAppend(ctx context.Context, subject string, h Header, data []byte, expect Expect) (Pending, error) {
	if ctx.Err() != nil {
		return Pending{}, ended(ctx)
	}
	s, err := c.replies.take(subject)
	if err != nil {
		return Pending{}, err
	}
	p := Pending{conn: c, slot: s, subject: subject, header: h, data: data, expect: expect}
	if err := p.send(); err != nil {
		c.replies.put(s)
		return Pending{}, err
	}
	return p, nil
}

func (p *Pending) send() error {
	s := p.slot
	h := p.header
	if p.expect.set {
		h = s.merged(p.header)
		h[headerExpectSeq] = []string{strconv.FormatUint(p.expect.seq, 10)}
		if p.expect.filter != "" {
			h[headerExpectSubject] = []string{p.expect.filter}
		}
	}
	p.reply = s.reply()
	p.sentAt = time.Now()
	return sendError(p.conn.nc.PublishMsg(&nats.Msg{Subject: p.subject, Reply: p.reply, Header: h, Data: p.data}))
}

// wait returns the sequence. A conflict with an append still in flight (10164) is no
// lost race: the same is sent again after 1 to 5 ms, for as long as ctx and AckWait allow.
func (p *Pending) wait(ctx context.Context) (uint64, error) {
	limit := p.sentAt.Add(p.conn.cfg.AckWait)
	for {
		m, err := p.slot.await(ctx, p.reply, max(time.Until(limit), 1))
		if err != nil {
			if errors.Is(err, ErrDenied) {
				return 0, err
			}
			return 0, fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
		}
		seq, err := ackSeq(m.Data)
		var api *APIError
		if !errors.As(err, &api) {
			return seq, err
		}
		switch api.Code {
		case apiWrongSequence:
			return 0, fmt.Errorf("%w: %w", ErrWrongSequence, api)
		case apiInFlight:
		default:
			return 0, err
		}
		if err := p.pause(ctx, limit); err != nil {
			// Every attempt so far was refused: this append is not stored.
			return 0, fmt.Errorf("%w: %w", err, api)
		}
		if err := p.send(); err != nil {
			return 0, err
		}
	}
}

func (p *Pending) pause(ctx context.Context, limit time.Time) error {
	d := time.Millisecond + rand.N(4*time.Millisecond)
	if time.Until(limit) < d {
		return ErrTimeout
	}
	p.slot.timer.Reset(d)
	select {
	case <-p.slot.timer.C:
		return nil
	case <-ctx.Done():
		return ended(ctx)
	}
}

// ackSeq reads an acknowledgement, {"stream":"…","seq":7} or {"error":{…},…}.
func ackSeq(data []byte) (uint64, error) {
	if seq, ok := plainSeq(data); ok {
		return seq, nil
	}
	var ack struct {
		Error  *APIError `json:"error"`
		Stream string    `json:"stream"`
		Seq    uint64    `json:"seq"`
	}
	if err := json.Unmarshal(data, &ack); err != nil {
		return 0, fmt.Errorf("%w: acknowledgement %.100q: %w", ErrUnknownOutcome, data, err)
	}
	if ack.Error != nil {
		return 0, ack.Error
	}
	if ack.Stream == "" || ack.Seq == 0 {
		return 0, fmt.Errorf("%w: acknowledgement %.100q names no sequence", ErrUnknownOutcome, data)
	}
	return ack.Seq, nil
}

// plainSeq reads the usual acknowledgement without the decoder, which would take longer
// than everything else an append does here.
func plainSeq(data []byte) (seq uint64, ok bool) {
	const key = `"seq":`
	_, after, ok := bytes.Cut(data, []byte(key))
	if !ok || bytes.Contains(data, []byte(`"error"`)) {
		return 0, false
	}
	for n, b := range after {
		switch {
		case b >= '0' && b <= '9' && n < 19:
			seq = seq*10 + uint64(b-'0')
		case b == ',' || b == '}':
			return seq, seq > 0
		default:
			return 0, false
		}
	}
	return 0, false
}
