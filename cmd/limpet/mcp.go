package main

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/limpet-sh/limpet/app"
)

func newMCP(g *globals) *cobra.Command {
	var (
		f         app.MCPFlags
		private   bool
		untilIdle time.Duration
		http      string
	)
	c := &cobra.Command{
		Use:   "mcp",
		Short: "Serve the shell to an MCP client",
		Long: `Serves the tool "bash" to an agent by the Model Context Protocol, over stdin and stdout
or over HTTP. The agent's host starts it; docs/mcp.md has the lines for common ones.

Commands run under "limpet up". Where nothing is up, one is started in the background:
all "limpet mcp" of this state directory share it, and it ends by itself when nobody
uses it. Nothing but the protocol goes to stdout; logs go to stderr.

When the client goes, its session is closed and all its commands are ended, unless
--session-name says to keep it.`,
		Example: `  limpet mcp
  limpet mcp --private --cwd ~/project
  limpet mcp --http 127.0.0.1:7774`,
		Args: noWords,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if untilIdle <= 0 {
				return usagef("--until-idle %v: give a time above 0", untilIdle)
			}
			front, err := f.Front()
			if err != nil {
				return err
			}
			level := slog.LevelWarn
			if g.verbose {
				level = slog.LevelDebug
			}
			o := app.MCPOptions{
				Private: private, Front: front, In: os.Stdin, Out: os.Stdout,
				Owner:  app.EnsureOptions{UntilIdle: untilIdle, Config: g.config},
				Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
			}
			if !private {
				if o.Owner.State, err = g.stateDir(); err != nil {
					return err
				}
			}
			if http != "" {
				h := f.HTTP(http, o.Owner.State, func(line string) { fmt.Fprintln(os.Stderr, "limpet:", line) })
				o.HTTP = &h
			}
			return app.MCP(cmd.Context(), o)
		},
	}
	fl := c.Flags()
	fl.BoolVar(&private, "private", false, "run everything in this process and in memory: nothing outlives it")
	fl.DurationVar(&untilIdle, "until-idle", app.UntilIdle, "end a limpet up that is started in the background after this long without clients and sessions")
	fl.StringVar(&http, "http", "", "serve streamable HTTP at this address, such as 127.0.0.1:7774, in place of stdin and stdout")
	f.Add(fl, "")
	return c
}
