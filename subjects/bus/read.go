package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/limpet-sh/limpet/subjects"
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
	name := c.consumerName()
	ctx, end := c.failFast(ctx, name)
	defer end()
	cons, err := c.js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Name: name, FilterSubject: filter, DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1,
		InactiveThreshold: 10 * time.Second, // it removes itself where the delete below does not arrive
	})
	if err != nil {
		return nil, fmt.Errorf("list %s of %s: %w", filter, stream, callError(ctx, err))
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = c.js.DeleteConsumer(ctx, stream, name) // see InactiveThreshold
	}()
	out, err := lastOfEach(ctx, cons)
	if err != nil {
		return nil, fmt.Errorf("list %s of %s: %w", filter, stream, err)
	}
	return out, nil
}

// lastOfEach reads what a consumer has until nothing is pending. A subject written
// meanwhile comes again, and one that expired does not come: so pages are not waited
// for, and the newest of a subject counts.
func lastOfEach(ctx context.Context, cons jetstream.Consumer) ([]Stored, error) {
	pending := cons.CachedInfo().NumPending
	if pending == 0 {
		return nil, nil
	}
	newest := make(map[string]Stored, min(pending, 1<<16))
	// Writers faster than this reader must not hold it for ever.
	for most := 4*pending + 1024; pending > 0 && most > 0; {
		batch, err := cons.FetchNoWait(page)
		if err != nil {
			return nil, callError(ctx, err)
		}
		n := uint64(0)
		for m := range batch.Messages() {
			s, err := stored(m)
			if err != nil {
				return nil, err
			}
			newest[s.Subject] = s
			pending = s.Pending
			n++
		}
		if err := batch.Error(); err != nil || ctx.Err() != nil {
			return nil, callError(ctx, errors.Join(err, ctx.Err()))
		}
		if n == 0 {
			break
		}
		most -= min(n, most)
	}
	return slices.SortedFunc(maps.Values(newest), func(a, b Stored) int { return cmp.Compare(a.Seq, b.Seq) }), nil
}

// consumerName is unique and, being ours, known before the server answers.
func (c *Conn) consumerName() string { return "limpet_" + subjects.NewID() }

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
