package actors

import (
	"context"
	"errors"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// request is one call on its way to an actor.
type request struct {
	*bus.Request
	target subjects.Target
	call   *call              // of a start or run, decoded by the session
	to     func([]byte) error // takes the answer in the place of the bus; may be nil
}

// unasked is the request of what nobody asked for: its answer goes nowhere.
func unasked() request {
	return request{Request: &bus.Request{}, to: func([]byte) error { return nil }}
}

func (r request) respond(b []byte) error {
	if r.to != nil {
		return r.to(b)
	}
	return r.Respond(b)
}

// validator is a message that can check itself.
type validator interface{ Validate() error }

// decode reads the body into m, strictly, and checks it.
func decode[M any, P interface {
	*M
	validator
}](r request) (*M, error) {
	m := new(M)
	if err := wire.Unmarshal(r.ContentType(), r.Data, m, true); err != nil {
		return nil, err
	}
	if err := P(m).Validate(); err != nil {
		return nil, err
	}
	return m, nil
}

// answer sends a result; an answer that cannot be encoded is a fault of ours.
func answer[T any](r request, result *T) {
	b, err := wire.EncodeReply(r.ContentType(), result, nil)
	if err != nil {
		refuse(r, err)
		return
	}
	if err := r.respond(b); errors.Is(err, bus.ErrTooLarge) {
		refuse(r, wire.Errorf(wire.CodeOutputQuotaExceeded, "the answer is larger than a message may be; ask for less at once"))
	} // a caller that is gone is told nothing
}

// refuse sends an error. What is not a *wire.Error is ours, and its text stays here.
func refuse(r request, err error) {
	e := public(err)
	b, encErr := wire.EncodeReply[struct{}](r.ContentType(), nil, e)
	if encErr != nil {
		return
	}
	_ = r.respond(b)
}

// public turns any error into what a caller may see.
func public(err error) *wire.Error {
	var e *wire.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded):
		return wire.Errorf(wire.CodeDeadlineExceeded, "the call's deadline passed")
	case errors.Is(err, context.Canceled):
		return wire.Errorf(wire.CodeSupervisorShuttingDown, "the worker is shutting down")
	}
	return wire.Errorf(wire.CodeInternal, "an internal error; the worker's log has it")
}

// answerBy is when an answer is still of use: the limit, or the caller's own deadline
// less the way back.
func answerBy(r request, limit time.Duration) time.Duration {
	const wayBack = 200 * time.Millisecond
	if d, ok := r.Deadline(); ok {
		return max(0, min(limit, time.Until(d)-wayBack))
	}
	return limit
}

// post hands m to a mailbox, or reports that it is full.
func post[M any](box chan<- M, m M) bool {
	select {
	case box <- m:
		return true
	default:
		return false
	}
}

var errOverloaded = wire.Errorf(wire.CodeOverloaded, "too many calls are waiting here; nothing was started; try again shortly")
