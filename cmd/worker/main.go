// Command worker runs a worker, with its keeper beside it, against a NATS URL.
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

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/app"
	"github.com/limpet-sh/limpet/subjects"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "keeper" { // this binary re-executed
		os.Exit(keeper.Main(os.Args[2:]))
	}
	if err := run(); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}

func run() error {
	host, _ := os.Hostname()
	fs := flag.NewFlagSet("worker", flag.ContinueOnError)
	var o app.WorkerOptions
	fs.StringVar(&o.Name, "name", host, "name of this worker, unique in the installation")
	fs.StringVar(&o.Dir, "dir", "", "directory of this worker's keeper and spool (required)")
	fs.StringVar(&o.Cwd, "cwd", "", "directory of sessions that give none (default: home)")
	fs.StringVar(&o.Bus.URL, "url", "nats://127.0.0.1:4222", "NATS servers, comma separated")
	fs.StringVar(&o.Bus.User, "user", "", "NATS user")
	fs.StringVar(&o.Bus.CredsFile, "creds", "", "NATS credentials file")
	fs.DurationVar(&o.Keeper.Config.Window, "window", app.AdoptionWindow, "how long the keeper waits for the next worker before it ends all processes")
	verbose := fs.Bool("verbose", false, "log what goes on")
	if err := fs.Parse(os.Args[1:]); err != nil {
		return err
	}
	o.Bus.Password = os.Getenv("LIMPET_NATS_PASSWORD") // never in our argv
	o.Bus.InboxPrefix = subjects.InboxPrefix(subjects.RoleWorker, o.Name)
	level := slog.LevelInfo
	if *verbose {
		level = slog.LevelDebug
	}
	o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	app.Modest()
	w, err := app.NewWorker(o)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return w.Run(ctx)
}
