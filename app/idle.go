package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// untilIdle returns nil when, for so long, no client was connected and no session lived,
// or ctx has ended. A session that never ends by itself, such as that of the command
// line, counts only while it has a live process.
func (h *host) untilIdle(ctx context.Context, limit time.Duration) error {
	if err := h.gateway.WaitWorker(ctx); err != nil {
		return nil //nolint:nilerr // ctx has ended
	}
	b := h.bus(subjects.RoleTenant, Tenant)
	cfg := clientOf(b, Tenant)
	cfg.Patience = -1 // it looks again soon
	c, err := client.Connect(ctx, cfg)
	if err != nil {
		return fmt.Errorf("until idle: %w", err)
	}
	defer c.Close()
	look := time.NewTicker(min(max(limit/8, 10*time.Millisecond), 5*time.Second))
	defer look.Stop()
	busy := time.Now()
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil
		}
		if h.inUse(ctx, c) {
			busy = time.Now()
		}
		if time.Since(busy) >= limit {
			h.log.Info("nobody uses it: ending", "idle", limit)
			return nil
		}
	}
}

// inUse also when that cannot be found out: what may live is not ended.
func (h *host) inUse(ctx context.Context, c *client.Client) bool {
	if h.server.Clients() > 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	sessions, err := registry.New(h.gatewayConn, "").Sessions(ctx, Tenant)
	if err != nil {
		h.log.Warn("look for sessions", "err", err)
		return true
	}
	for _, s := range sessions {
		switch {
		case s.Record.Closed:
			continue
		case s.Record.IdleTTLMS > 0:
			return true
		}
		// To ask a session is to use it; this one has no end that would put off.
		l, err := c.Session(s.Record.Name).List(ctx)
		if errors.Is(err, &wire.Error{Code: wire.CodeNotFound}) || errors.Is(err, &wire.Error{Code: wire.CodeSessionClosed}) {
			continue // it has just ended
		}
		if err != nil {
			h.log.Warn("look for processes", "session", s.Record.Name, "err", err)
			return true
		}
		for i := range l.Processes {
			if !l.Processes[i].State.Terminal() {
				return true
			}
		}
	}
	return false
}
