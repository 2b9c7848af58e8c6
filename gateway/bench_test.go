package gateway_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

func time2ms(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }

// The price of the gateway: the same run asked of the worker directly and through it.
func BenchmarkForward(b *testing.B) {
	s := server(b)
	newWorker(b, s, "w1")
	serve(b, s, "g1")
	tenant := connect(b, s, subjects.RoleTenant, "local")
	o := mustAsk[wire.Session](b, tenant, "local", wire.VerbOpen, &wire.Open{Version: 1, Name: "one"})
	data, err := wire.Marshal("", &wire.Run{Version: 1, SessionRef: named("one"), ExecutionID: subjects.NewID(), Command: wire.Command{Text: "true"}})
	if err != nil {
		b.Fatal(err)
	}
	gw := connect(b, s, subjects.RoleGateway, "direct")
	for _, path := range []struct {
		name, subject string
		conn          *bus.Conn
	}{
		{"direct", gw.Root().Session("local", "w1", o.Incarnation, o.ID, wire.VerbRun), gw},
		{"gateway", gw.Root().API("local", wire.VerbRun), tenant},
	} {
		b.Run(path.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second)
				_, err := path.conn.Request(ctx, path.subject, nil, data)
				cancel()
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
