package client

import (
	"context"
	"encoding/json"

	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// livePending is how many observations of one process wait for their taker.
const livePending = 256

// Live gives fn the observations of a process as they come, one after another, until
// stop is called, which returns when fn has returned for the last time. What comes while
// the connection is away, or faster than fn takes it, is lost: who needs the end asks
// for it too. Observations of other sessions' processes are not given to a client that
// is [Client.Within] one.
func (c *Client) Live(process string, fn func(wire.Event)) (stop func(), err error) {
	if err := (&wire.Status{ProcessRef: c.ref(process)}).Validate(); err != nil {
		return nil, err
	}
	sub, err := c.conn.Subscribe(c.conn.Root().LiveProcess(c.cfg.Tenant, process), livePending, func(m *bus.Msg) {
		var e wire.Event
		if json.Unmarshal(m.Data, &e) != nil || c.within != "" && e.Session != c.within {
			return
		}
		fn(e)
	})
	if err != nil {
		return nil, err
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), c.cfg.MaxRequest)
		defer cancel()
		_ = sub.Stop(ctx) // it ends with the connection at the latest
	}, nil
}
