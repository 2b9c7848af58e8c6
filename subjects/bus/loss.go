package bus

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// LossKind says how something was lost.
type LossKind string

// Kinds of losses.
const (
	LossSlowConsumer LossKind = "slow_consumer" // messages dropped: the handler did not hand over in time
	LossAnswers      LossKind = "answers"       // requests in flight when the connection broke; each has returned ErrDisconnected
	LossOutage       LossKind = "outage"        // what others published while this connection was away; the count is unknown
	LossDenied       LossKind = "denied"        // a publish or subscription the server forbids
	LossMalformed    LossKind = "malformed"     // a message whose headers cannot be read
)

// Loss is one report of what did not arrive.
type Loss struct {
	Kind     LossKind
	Subject  string        // of the subscription or publish, where there is one
	Messages int64         // how many; -1 when nobody can know
	Outage   time.Duration // for LossOutage: how long the connection was away
	Err      error
}

// Losses are the totals since Connect.
type Losses struct {
	SlowConsumerMessages int64
	Answers              int64
	Denied               int64
	Outages              int64
	OutageTime           time.Duration
}

type lossCounters struct{ slow, answers, denied, outages, outageTime atomic.Int64 }

// Losses returns the totals since Connect.
func (c *Conn) Losses() Losses {
	l := Losses{
		SlowConsumerMessages: c.losses.slow.Load(),
		Answers:              c.losses.answers.Load(),
		Denied:               c.losses.denied.Load(),
		Outages:              c.losses.outages.Load(),
		OutageTime:           time.Duration(c.losses.outageTime.Load()),
	}
	// What was dropped since a subscription was last reported.
	c.mu.Lock()
	defer c.mu.Unlock()
	for s, sub := range c.subs {
		if n, err := s.Dropped(); err == nil {
			l.SlowConsumerMessages += int64(n) - sub.reported
		}
	}
	return l
}

// Stats are the messages and bytes of this connection since Connect.
type Stats struct {
	InMessages, OutMessages, InBytes, OutBytes uint64
	Reconnects                                 uint64
	Waiting                                    int // requests and appends without an answer yet
}

// Stats returns the counters of this connection.
func (c *Conn) Stats() Stats {
	s := c.nc.Stats()
	return Stats{s.InMsgs, s.OutMsgs, s.InBytes, s.OutBytes, s.Reconnects, c.replies.waiting()}
}

func (c *Conn) lost(l Loss) {
	if c.closing.Load() {
		return
	}
	c.log.Warn("lost messages", "kind", string(l.Kind), "subject", l.Subject, "messages", l.Messages, "outage", l.Outage, "err", l.Err)
	if c.cfg.OnLoss != nil {
		c.cfg.OnLoss(l)
	}
}

func (c *Conn) onError(_ *nats.Conn, s *nats.Subscription, err error) {
	switch {
	case errors.Is(err, nats.ErrSlowConsumer):
		c.lost(c.slowConsumer(s, err))
	case errors.Is(err, nats.ErrPermissionViolation):
		subject := quoted(err.Error())
		c.losses.denied.Add(1)
		// A denied publish is no error at the call, only a line from the server: who
		// waits for its answer is told here instead of running into its deadline.
		denied := fmt.Errorf("%w: %q", ErrDenied, subject)
		c.replies.deny(subject, denied)
		c.denyCalls(subject, denied)
		c.lost(Loss{Kind: LossDenied, Subject: subject, Messages: 1, Err: err})
	case errors.Is(err, nats.ErrBadHeaderMsg):
		l := Loss{Kind: LossMalformed, Messages: 1, Err: err}
		if s != nil {
			l.Subject = s.Subject
		}
		c.lost(l)
	default:
		c.log.Warn("nats", "err", err)
	}
}

func (c *Conn) slowConsumer(s *nats.Subscription, err error) Loss {
	l := Loss{Kind: LossSlowConsumer, Messages: -1, Err: err}
	if s == nil {
		return l
	}
	l.Subject = s.Subject
	n, derr := s.Dropped()
	c.mu.Lock()
	defer c.mu.Unlock()
	if sub := c.subs[s]; sub != nil && derr == nil {
		l.Messages = int64(n) - sub.reported
		sub.reported = int64(n)
		c.losses.slow.Add(l.Messages)
	}
	return l
}

// quoted is the first quoted text of a violation: the subject.
func quoted(s string) string {
	_, rest, _ := strings.Cut(s, `"`)
	subject, _, _ := strings.Cut(rest, `"`)
	return subject
}

func (c *Conn) onDisconnect(_ *nats.Conn, err error) {
	c.mu.Lock()
	if c.downAt.IsZero() {
		c.downAt = time.Now()
	}
	c.mu.Unlock()
	if c.closing.Load() {
		c.replies.fail(ErrClosed)
		return
	}
	n := c.replies.fail(ErrDisconnected)
	c.log.Warn("disconnected from NATS", "waiting", n, "err", err)
	if n > 0 {
		c.losses.answers.Add(int64(n))
		c.lost(Loss{Kind: LossAnswers, Messages: int64(n), Err: err})
	}
}

func (c *Conn) onReconnect(nc *nats.Conn) {
	c.mu.Lock()
	var d time.Duration
	if !c.downAt.IsZero() {
		d = time.Since(c.downAt)
		c.downAt = time.Time{}
	}
	c.mu.Unlock()
	c.losses.outages.Add(1)
	c.losses.outageTime.Add(int64(d))
	c.log.Info("connected to NATS again", "server", nc.ConnectedServerName(), "outage", d)
	c.lost(Loss{Kind: LossOutage, Messages: -1, Outage: d})
}
