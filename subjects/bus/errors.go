package bus

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// fault is an error of the bus that also knows what a caller outside is told.
type fault struct {
	code wire.Code
	text string
}

func (f *fault) Error() string { return f.text }

// As gives the *wire.Error a front end shows.
func (f *fault) As(target any) bool {
	t, ok := target.(**wire.Error)
	if ok {
		*t = wire.Errorf(f.code, "%s", f.text)
	}
	return ok
}

// Errors of the bus, matched with errors.Is. Each is also a *wire.Error for errors.As.
var (
	// ErrNoResponders: nobody serves the subject. The message reached no one.
	ErrNoResponders error = &fault{wire.CodeUnreachable, "nobody serves this address"}
	// ErrTimeout: no answer before the deadline. Whether the request was seen is unknown.
	ErrTimeout error = &fault{wire.CodeDeadlineExceeded, "no answer before the deadline"}
	// ErrDisconnected: the connection is away, or was lost before the answer came.
	ErrDisconnected error = &fault{wire.CodeUnavailable, "the connection to NATS is away"}
	// ErrClosed: the connection was closed by its owner.
	ErrClosed error = &fault{wire.CodeUnavailable, "the connection to NATS is closed"}
	// ErrTooLarge: payload and headers exceed what the server takes. Nothing was sent.
	ErrTooLarge error = &fault{wire.CodeInvalidArguments, "the message is larger than the server accepts"}
	// ErrDenied: the server forbids this connection the subject. Nothing was delivered.
	ErrDenied error = &fault{wire.CodeInternal, "this connection may not use the subject"}
	// ErrOverloaded: too many requests are waiting for answers. Nothing was sent.
	ErrOverloaded error = &fault{wire.CodeOverloaded, "too many requests are waiting for an answer"}
	// ErrNotFound: no such message or stream.
	ErrNotFound error = &fault{wire.CodeNotFound, "not found"}
	// ErrWrongSequence: the expectation of an append did not hold. Nothing was written
	// by this attempt; an earlier attempt of the same write may have been.
	ErrWrongSequence error = &fault{wire.CodeUnavailable, "another write came first"}
	// ErrUnknownOutcome: the message was sent and no acknowledgement came. The writer
	// reads back to learn whether it is stored.
	ErrUnknownOutcome error = &fault{wire.CodeUnreachable, "the store did not confirm the write"}
	// ErrNoReply: the message asked for no answer.
	ErrNoReply = errors.New("the message has no reply subject")
)

// APIError is a refusal of the JetStream API that has no name above.
type APIError struct {
	Status      int    `json:"code"`
	Code        int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *APIError) Error() string {
	return fmt.Sprintf("jetstream: %s (%d)", e.Description, e.Code)
}

// Codes of the JetStream API that mean something to us.
const (
	apiMessageNotFound = 10037
	apiStreamNotFound  = 10059
	apiWrongSequence   = 10071 // the expectation does not hold
	apiInFlight        = 10164 // an append to the same subject is in flight; try again
)

// sendError names what a failed publish means: in every case nothing was sent.
func sendError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, nats.ErrMaxPayload):
		return ErrTooLarge
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining):
		return ErrClosed
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionReconnecting),
		errors.Is(err, nats.ErrDisconnected):
		return ErrDisconnected
	}
	return fmt.Errorf("%w: %w", ErrDisconnected, err)
}

// ended names why a context ended while an answer was awaited.
func ended(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrTimeout, cause)
	}
	return cause
}
