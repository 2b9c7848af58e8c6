package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// FollowFrom says where a Follow starts. The zero value starts with the first message
// retained.
type FollowFrom struct {
	seq            uint64
	at             time.Time
	fresh, perSubj bool
}

// FromStart starts with the first message retained.
func FromStart() FollowFrom { return FollowFrom{} }

// FromSeq starts with this sequence, or the first retained after it.
func FromSeq(seq uint64) FollowFrom { return FollowFrom{seq: max(seq, 1)} }

// FromTime starts with the first message stored at or after t.
func FromTime(t time.Time) FollowFrom { return FollowFrom{at: t} }

// FromNew starts with the first message stored after the call.
func FromNew() FollowFrom { return FollowFrom{fresh: true} }

// FromLastPerSubject starts with the last message of each subject, then what comes.
func FromLastPerSubject() FollowFrom { return FollowFrom{perSubj: true} }

// Follow gives fn each message of the filters (all when none), in order, each once,
// until ctx ends or fn returns an error, which it returns. Outages are waited out: it
// goes on behind the last message fn has seen. What the stream dropped meanwhile shows
// as a gap in Stored.Seq (a filter makes gaps too). fn runs on the caller's goroutine;
// at most 256 messages or 8 MiB wait for it, the rest waits in the stream.
//
// A stream that does not exist, or a filter that is not permitted, is an error at once.
func (c *Conn) Follow(ctx context.Context, stream string, filters []string, from FollowFrom, fn func(Stored) error) error {
	f := follower{conn: c, stream: stream, filters: filters, from: from, fn: fn}
	wait := 50 * time.Millisecond
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.closed:
			return ErrClosed
		case <-retry.C:
		}
		seen := f.last
		err := f.run(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case f.fnErr != nil:
			return f.fnErr
		case errors.Is(err, ErrNotFound), errors.Is(err, ErrDenied):
			return fmt.Errorf("follow %s: %w", stream, err)
		}
		if f.last != seen {
			wait = 50 * time.Millisecond
		}
		c.log.Debug("following again", "stream", stream, "after", f.last, "err", err)
		retry.Reset(wait)
		wait = min(2*wait, 2*time.Second)
	}
}

type follower struct {
	conn    *Conn
	stream  string
	filters []string
	from    FollowFrom
	fn      func(Stored) error
	last    uint64 // the sequence fn saw last
	fnErr   error
}

func (f *follower) config(name string) jetstream.OrderedConsumerConfig {
	cfg := jetstream.OrderedConsumerConfig{
		NamePrefix: name, FilterSubjects: f.filters, InactiveThreshold: 30 * time.Second, MaxResetAttempts: 1,
		DeliverPolicy: jetstream.DeliverAllPolicy,
	}
	switch {
	case f.last > 0:
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, f.last+1
	case f.from.seq > 0:
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, f.from.seq
	case !f.from.at.IsZero():
		at := f.from.at
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &at
	case f.from.perSubj:
		cfg.DeliverPolicy = jetstream.DeliverLastPerSubjectPolicy
	}
	return cfg
}

// pin makes "new" a sequence. An ordered consumer that is made again before its first
// message would begin with what is new then, and miss what was stored meanwhile.
func (f *follower) pin(ctx context.Context, name string) error {
	cfg := jetstream.ConsumerConfig{
		Name: name, FilterSubjects: f.filters, DeliverPolicy: jetstream.DeliverNewPolicy,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: 10 * time.Second,
	}
	if len(f.filters) == 1 { // then the filter stands in the request's subject, where permissions see it
		cfg.FilterSubject, cfg.FilterSubjects = f.filters[0], nil
	}
	cons, err := f.conn.js.CreateConsumer(ctx, f.stream, cfg)
	if err != nil {
		return err
	}
	f.from = FromSeq(cons.CachedInfo().Delivered.Stream + 1)
	_ = f.conn.js.DeleteConsumer(ctx, f.stream, name) // see InactiveThreshold
	return nil
}

// run follows until something breaks.
func (f *follower) run(ctx context.Context) error {
	name := f.conn.consumerName()
	ctx, end := f.conn.failFast(ctx, name)
	defer end()
	create, cancel := context.WithTimeout(ctx, f.conn.cfg.AckWait)
	defer cancel()
	if f.from.fresh {
		if err := f.pin(create, name); err != nil {
			return callError(ctx, err)
		}
	}
	oc, err := f.conn.js.OrderedConsumer(create, f.stream, f.config(name))
	if err != nil {
		return callError(ctx, err)
	}
	it, err := oc.Messages(jetstream.PullMaxMessages(page), jetstream.PullExpiry(30*time.Second), jetstream.PullHeartbeat(2*time.Second))
	if err != nil {
		return err
	}
	defer it.Stop()
	for {
		m, err := it.Next(jetstream.NextContext(ctx))
		if err != nil {
			return callError(ctx, err)
		}
		s, err := stored(m)
		if err != nil {
			return err
		}
		if s.Seq <= f.last {
			continue // sent again around a reset
		}
		if err := f.fn(s); err != nil {
			f.fnErr = err
			return err
		}
		f.last = s.Seq
	}
}
