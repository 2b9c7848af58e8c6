package app

import (
	"context"

	"github.com/limpet-sh/limpet/observer"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// observerName of whoever reads the events of a host.
const observerName = "local"

// Events gives fn the stored observations of all processes of what is up, and those
// that come if follow is set, until ctx ends.
func Events(ctx context.Context, d *Discovery, follow bool, fn func(wire.Event) error) error {
	conn, err := bus.Connect(ctx, bus.Config{
		Name: "limpet events", Dial: bus.DialUnix(d.Socket), User: d.Observer, Password: d.ObserverPassword,
		InboxPrefix: subjects.InboxPrefix(subjects.RoleObserver, observerName),
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	if follow {
		return observer.Follow(ctx, conn, d.Tenant, "", true, fn)
	}
	return observer.Replay(ctx, conn, d.Tenant, "", fn)
}
