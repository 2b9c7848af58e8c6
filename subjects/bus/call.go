package bus

import (
	"context"
	"strings"
)

// apiCall is a call to the JetStream API that the jetstream package makes for us. It
// does not hear of a denial, so its context is cancelled.
type apiCall struct {
	token  string // a part of the subjects it uses that no other call has: a consumer or stream name
	cancel context.CancelCauseFunc
}

// failFast returns a context that ends when the server denies a call to the API that
// names token. end must be called.
func (c *Conn) failFast(ctx context.Context, token string) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	call := &apiCall{token, cancel}
	c.mu.Lock()
	c.calls[call] = struct{}{}
	c.mu.Unlock()
	return ctx, func() {
		c.mu.Lock()
		delete(c.calls, call)
		c.mu.Unlock()
		cancel(nil)
	}
}

func (c *Conn) denyCalls(subject string, err error) {
	if !strings.HasPrefix(subject, "$JS.API.") {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for call := range c.calls {
		if strings.Contains(subject, call.token) {
			call.cancel(err)
		}
	}
}

// callError is what a failed call means: a denial, or what its error says.
func callError(ctx context.Context, err error) error {
	if ctx.Err() != nil && err != nil {
		return ended(ctx)
	}
	return consumerError(err)
}
