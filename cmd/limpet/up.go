package main

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/limpet-sh/limpet/app"
)

func newUp(g *globals) *cobra.Command {
	var (
		syncAlways, memory bool
		untilIdle          time.Duration
	)
	c := &cobra.Command{
		Use:   "up",
		Short: "Keep commands alive in the background, on this host",
		Long: `Runs NATS, the gateway, the keeper and the worker of this host until Ctrl-C, which
ends all sessions first. Other limpet commands of this user find it by the state
directory.

Should the worker die it is restarted, and commands, their output and exit codes
survive it. Should up itself be killed, keeper and worker run on, and the next up takes
them over.`,
		Example: "  limpet up\n  limpet up --state ./state &",
		Args:    noWords,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := g.stateDir()
			if err != nil {
				return err
			}
			level := slog.LevelWarn
			if g.verbose {
				level = slog.LevelDebug
			}
			if untilIdle < 0 {
				return usagef("a time may not be negative")
			}
			app.Modest()
			began := time.Now()
			return app.Up(cmd.Context(), app.UpOptions{
				State: s, SyncAlways: syncAlways, Memory: memory, UntilIdle: untilIdle,
				Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
				OnUp: func(d *app.Discovery) {
					if g.json {
						_ = printJSON(map[string]any{"up": true, "state": string(s), "socket": d.Socket, "pid": d.PID})
						return
					}
					fmt.Printf("limpet is up in %s (%v)\n  try, elsewhere: limpet start%s -- 'echo hello; sleep 60'\n  stop with Ctrl-C\n",
						s, time.Since(began).Round(time.Millisecond), stateFlag(cmd, s))
				},
			})
		},
	}
	c.Flags().BoolVar(&syncAlways, "sync-always", false, "let every acknowledged write survive a power loss (slower)")
	c.Flags().BoolVar(&memory, "memory", false, "keep records in memory: they end with up")
	c.Flags().DurationVar(&untilIdle, "until-idle", 0, "end after this long without a client and without a session (default: never)")
	return c
}

// stateFlag is how to name our state directory to another command, where that is needed.
func stateFlag(c *cobra.Command, s app.State) string {
	if !c.Flags().Changed("state") {
		return ""
	}
	return " --state " + string(s)
}

// workerCommand is the command by which up starts the worker.
const workerCommand = "worker"

// newWorker is the worker that up starts.
func newWorker() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use: workerCommand, Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := app.WorkerFromFile(file)
			if err != nil {
				return err
			}
			app.Modest()
			o.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
			w, err := app.NewWorker(o)
			if err != nil {
				return err
			}
			return w.Run(cmd.Context())
		},
	}
	c.Flags().StringVar(&file, "file", "", "the file that up wrote")
	return c
}
