// Command worker runs a worker, with its keeper beside it, against a NATS URL.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/app"
	"github.com/limpet-sh/limpet/subjects"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "keeper" { // this binary re-executed
		os.Exit(keeper.Main(os.Args[2:]))
	}
	if err := run(); err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}

func run() error {
	app.PassNothingOn()
	host, _ := os.Hostname()
	fs := pflag.NewFlagSet("worker", pflag.ContinueOnError)
	var o app.WorkerOptions
	var nats app.NATSFlags
	fs.StringVar(&o.Name, "name", host, "name of this worker, unique in the installation")
	fs.StringVar(&o.Dir, "dir", "", "directory of this worker's keeper and spool (required)")
	fs.StringVar(&o.Cwd, "cwd", "", "directory of sessions that give none (default: home)")
	fs.DurationVar(&o.Keeper.Config.Window, "window", app.AdoptionWindow, "how long the keeper waits for the next worker before it ends all processes")
	verbose := fs.BoolP("verbose", "v", false, "log what goes on")
	nats.Add(fs, "")
	if err := app.ParseSettings(fs, "worker", os.Args[1:]); err != nil {
		return err
	}
	var err error
	if o.Bus, err = nats.Bus(subjects.RoleWorker, o.Name, app.PasswordVariable); err != nil {
		return err
	}
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
