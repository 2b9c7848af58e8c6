package app

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/limpet-sh/limpet/gateway"
	"github.com/limpet-sh/limpet/subjects/bus"
)

// GatewayOptions of a gateway alone.
type GatewayOptions struct {
	// Bus says how to connect as a gateway.
	Bus    bus.Config
	Logger *slog.Logger
}

// Gateway serves the api until ctx ends.
func Gateway(ctx context.Context, o GatewayOptions) error {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.Bus.Name, o.Bus.Logger = "gateway", o.Logger
	conn, err := bus.Connect(ctx, o.Bus)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	g, err := gateway.New(gateway.Config{Conn: conn, Logger: o.Logger})
	if err != nil {
		return err
	}
	return g.Run(ctx)
}
