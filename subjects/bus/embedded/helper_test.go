package embedded_test

import (
	"context"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
)

var root = subjects.Default()

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func serveEcho(t *testing.T, c *bus.Conn, subject, queue string) {
	t.Helper()
	_, err := c.Serve(subject, queue, 64, func(r *bus.Request) {
		if err := r.Respond([]byte(r.Subject)); err != nil {
			t.Errorf("respond: %v", err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}
