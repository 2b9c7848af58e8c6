// Command gateway runs the api service against a NATS URL.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/limpet-sh/limpet/app"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
)

func main() {
	if err := run(); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}

func run() error {
	host, _ := os.Hostname()
	fs := flag.NewFlagSet("gateway", flag.ContinueOnError)
	var b bus.Config
	name := fs.String("name", host, "name of this gateway")
	fs.StringVar(&b.URL, "url", "nats://127.0.0.1:4222", "NATS servers, comma separated")
	fs.StringVar(&b.User, "user", "", "NATS user; its password is read from $LIMPET_NATS_PASSWORD")
	fs.StringVar(&b.CredsFile, "creds", "", "NATS credentials file")
	if err := fs.Parse(os.Args[1:]); err != nil {
		return err
	}
	if err := subjects.CheckToken("name", *name); err != nil {
		return err
	}
	b.Password = os.Getenv("LIMPET_NATS_PASSWORD") // never in our argv
	b.InboxPrefix = subjects.InboxPrefix(subjects.RoleGateway, *name)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return app.Gateway(ctx, app.GatewayOptions{Bus: b, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
}
