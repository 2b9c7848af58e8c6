package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Stored is a message of a stream.
type Stored struct {
	Subject string
	Seq     uint64
	Time    time.Time // when the stream stored it
	Header  Header
	Data    []byte
	// Pending counts the messages of the same Follow that were stored after this one
	// when it was sent; 0 means caught up. Only Follow sets it.
	Pending uint64
}

// Last returns the last message of a subject, or of all subjects matching a filter.
// The leader of the stream answers, never a follower, whose view may be old.
func (c *Conn) Last(ctx context.Context, stream, subjectOrFilter string) (*Stored, error) {
	req, err := json.Marshal(map[string]string{"last_by_subj": subjectOrFilter})
	if err != nil {
		return nil, err
	}
	return c.get(ctx, stream, req)
}

// Get returns one message by its sequence, from the leader.
func (c *Conn) Get(ctx context.Context, stream string, seq uint64) (*Stored, error) {
	req, err := json.Marshal(map[string]uint64{"seq": seq})
	if err != nil {
		return nil, err
	}
	return c.get(ctx, stream, req)
}

func (c *Conn) get(ctx context.Context, stream string, req []byte) (*Stored, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.cfg.AckWait)
		defer cancel()
	}
	m, err := c.Request(ctx, "$JS.API.STREAM.MSG.GET."+stream, nil, req)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", stream, err)
	}
	var resp struct {
		Error   *APIError `json:"error"`
		Message struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(m.Data, &resp); err != nil {
		return nil, fmt.Errorf("read %s: answer: %w", stream, err)
	}
	if resp.Error != nil {
		return nil, fmt.Errorf("read %s: %w", stream, apiError(resp.Error))
	}
	s := &Stored{Subject: resp.Message.Subject, Seq: resp.Message.Seq, Data: resp.Message.Data, Time: resp.Message.Time}
	if len(resp.Message.Header) > 0 {
		if s.Header, err = nats.DecodeHeadersMsg(resp.Message.Header); err != nil {
			return nil, fmt.Errorf("read %s: headers of %d: %w", stream, s.Seq, err)
		}
	}
	return s, nil
}

func apiError(err *APIError) error {
	switch err.Code {
	case apiMessageNotFound, apiStreamNotFound:
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return err
}

// page bounds the messages asked for at a time.
const page = 256

// LastPerSubject returns the last message of each subject that matches filter, in the
// order of their sequences. It reads pages of 256 messages; the whole result is held
// in memory, so filter by tenant or worker.
func (c *Conn) LastPerSubject(ctx context.Context, stream, filter string) ([]Stored, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 3*c.cfg.AckWait)
		defer cancel()
	}
	cons, err := c.js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{
		FilterSubject: filter, DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1,
		InactiveThreshold: 10 * time.Second, // it removes itself where the delete below does not arrive
	})
	if err != nil {
		return nil, fmt.Errorf("list %s of %s: %w", filter, stream, consumerError(err))
	}
	info := cons.CachedInfo()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = c.js.DeleteConsumer(ctx, stream, info.Name) // see InactiveThreshold
	}()
	left := info.NumPending
	out := make([]Stored, 0, min(left, 1<<16))
	for left > 0 {
		batch, err := cons.Fetch(int(min(left, page)), jetstream.FetchContext(ctx))
		if err != nil {
			return nil, fmt.Errorf("list %s of %s: %w", filter, stream, err)
		}
		n := 0
		for m := range batch.Messages() {
			s, err := stored(m)
			if err != nil {
				return nil, fmt.Errorf("list %s of %s: %w", filter, stream, err)
			}
			out = append(out, s)
			left = s.Pending
			n++
		}
		if err := batch.Error(); err != nil {
			return nil, fmt.Errorf("list %s of %s: %w", filter, stream, consumerError(err))
		}
		if n == 0 {
			return nil, fmt.Errorf("list %s of %s: %w", filter, stream, errors.Join(ErrTimeout, ctx.Err()))
		}
	}
	return out, nil
}

func stored(m jetstream.Msg) (Stored, error) {
	md, err := m.Metadata()
	if err != nil {
		return Stored{}, err
	}
	return Stored{
		Subject: m.Subject(), Seq: md.Sequence.Stream, Time: md.Timestamp,
		Header: m.Headers(), Data: m.Data(), Pending: md.NumPending,
	}, nil
}

// consumerError keeps the cause and adds our name for it.
func consumerError(err error) error {
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api):
		return apiError(&APIError{Status: api.Code, Code: int(api.ErrorCode), Description: api.Description})
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse):
		return fmt.Errorf("%w: %w", ErrNoResponders, err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	case errors.Is(err, nats.ErrDisconnected), errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionReconnecting):
		return fmt.Errorf("%w: %w", ErrDisconnected, err)
	}
	return err
}
