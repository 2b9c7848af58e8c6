package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/limpet-sh/limpet/app"
	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// commandFlags say how a command is run.
type commandFlags struct {
	timeout  time.Duration
	idle     time.Duration
	grace    time.Duration
	tty      bool
	stdin    bool
	cwd      string
	env      []string
	shell    string
	memory   string
	leftover string
}

func (f *commandFlags) add(c *cobra.Command) {
	fl := c.Flags()
	fl.DurationVar(&f.timeout, "timeout", 0, "end the command after this long, such as 30s (default: no limit)")
	fl.DurationVar(&f.idle, "idle-timeout", 0, "end the command after this long without output")
	fl.DurationVar(&f.grace, "grace", 0, "time between TERM and KILL (default 2s)")
	fl.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal")
	fl.BoolVarP(&f.stdin, "stdin", "i", false, "give the command input; without it, it reads /dev/null")
	fl.StringVarP(&f.cwd, "cwd", "C", "", "directory to run in (default: this one)")
	fl.StringArrayVarP(&f.env, "env", "e", nil, "set NAME=VALUE for the command; may be repeated")
	fl.StringVar(&f.shell, "shell", "", `shell of the text: "bash" (default), "sh", or a path`)
	fl.StringVar(&f.leftover, "leftovers", "", `what happens to processes that outlive the command: "kill" (default) or "keep"`)
	fl.SetInterspersed(true)
}

// command is what the flags and the words after -- say.
func (f *commandFlags) command(args []string) (wire.Command, error) {
	c, err := commandOf(args)
	if err != nil {
		return c, err
	}
	if f.timeout < 0 || f.idle < 0 || f.grace < 0 {
		return c, usagef("a time may not be negative")
	}
	c.TimeoutMS = -1
	if f.timeout > 0 {
		c.TimeoutMS = max(1, f.timeout.Milliseconds())
	}
	c.IdleTimeoutMS, c.GraceMS = f.idle.Milliseconds(), f.grace.Milliseconds()
	c.Shell, c.Leftovers = f.shell, wire.Leftovers(f.leftover)
	if c.Cwd = f.cwd; c.Cwd == "" {
		if c.Cwd, err = os.Getwd(); err != nil {
			return c, fmt.Errorf("this directory is gone; give --cwd: %w", err)
		}
	}
	if c.Env, err = envVars(f.env); err != nil {
		return c, err
	}
	if f.stdin && !f.tty {
		c.Stdin = wire.StdinPipe
	}
	if f.tty {
		size := windowSize(os.Stdout)
		c.TTY = &size
	}
	return c, nil
}

func newRun(g *globals) *cobra.Command {
	var f commandFlags
	c := &cobra.Command{
		Use:   "run [flags] -- COMMAND",
		Short: "Run a command, show its output, exit with its code",
		Long: `Runs a command and shows its output as it comes, stdout and stderr apart. The exit
code is the command's; 124 says that --timeout ended it. Ctrl-C ends the command and
everything it started.

One word after -- is text for the shell; several words are a program and its arguments.
With "limpet up" running, the command is one of its processes. Otherwise run brings all
it needs, keeps it in memory, and takes it away at the end.`,
		Example: `  limpet run -- 'for i in 1 2 3; do echo $i; sleep 1; done'
  limpet run --timeout 30s -- make test
  limpet run --tty -- vim notes.txt`,
		RunE: func(cmd *cobra.Command, args []string) error {
			command, err := f.command(args)
			if err != nil {
				return err
			}
			if err := command.Validate(); err != nil {
				return err
			}
			return runCommand(cmd.Context(), g, command, f.stdin)
		},
	}
	f.add(c)
	return c
}

// runCommand runs on what is up, or brings its own.
func runCommand(ctx context.Context, g *globals, command wire.Command, stdin bool) error {
	// What serves the command outlives a Ctrl-C, which first ends the command.
	serving := context.WithoutCancel(ctx)
	c, err := g.connect(serving)
	if notUp(err) {
		local, err := app.StartLocal(ctx, app.LocalOptions{Cwd: command.Cwd})
		if err != nil {
			return fmt.Errorf("start a private limpet: %w", err)
		}
		defer local.Stop() //nolint:errcheck // the command's result is what counts; a failure is logged
		b := local.Bus("limpet run")
		c, err = client.Connect(serving, client.Config{
			Dial: b.Dial, User: b.User, Password: b.Password, InboxPrefix: b.InboxPrefix, Tenant: app.Tenant,
		})
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	defer c.Close()
	s, err := g.openSession(serving, c)
	if err != nil {
		return err
	}
	if g.json {
		return runJSON(ctx, s, command)
	}
	return runLive(ctx, s, command, stdin)
}

// runJSON prints the result as one object.
func runJSON(ctx context.Context, s *client.Session, command wire.Command) error {
	id := subjects.NewID()
	stop := context.AfterFunc(ctx, func() { cancel(s, id) })
	defer stop()
	res, err := s.Run(context.WithoutCancel(ctx), wire.Run{Version: wire.Version, ExecutionID: id, Command: command, Render: wire.Render{MaxBytes: wire.MaxRenderBytes}})
	if err != nil {
		return err
	}
	if err := printJSON(res); err != nil {
		return err
	}
	return exitOf(&res.Receipt)
}

// cancel ends an execution of which we may not know the process.
func cancel(s *client.Session, execution string) {
	ctx, done := context.WithTimeout(context.Background(), 30*time.Second)
	defer done()
	_, _ = s.Cancel(ctx, execution)
}

// runLive shows the output as it comes.
func runLive(ctx context.Context, s *client.Session, command wire.Command, stdin bool) error {
	id := subjects.NewID()
	stop := context.AfterFunc(ctx, func() { cancel(s, id) })
	defer stop()
	quiet := context.WithoutCancel(ctx)
	r, err := s.Start(quiet, wire.Start{Version: wire.Version, ExecutionID: id, Command: command})
	if err != nil {
		return err
	}
	if stdin || command.TTY != nil {
		restore := forward(s.Client(), r.Process, command.TTY != nil)
		defer restore()
	}
	offset := int64(0)
	end, err := s.Client().Follow(quiet, r.Process, 0, func(ch wire.Chunk) error {
		if ch.Offset > offset {
			fmt.Fprintf(os.Stderr, "limpet: %d bytes of output are gone\n", ch.Offset-offset)
		}
		b, err := client.Bytes(ch)
		if err != nil {
			return err
		}
		offset = ch.Offset + int64(len(b))
		out := os.Stdout
		if ch.Stream == wire.Stderr.String() {
			out = os.Stderr
		}
		_, err = out.Write(b)
		return err
	})
	if err != nil {
		cancel(s, id) // nobody reads any more
		if end == nil {
			return err
		}
	}
	return exitOf(end)
}

// exitOf turns a receipt into the exit code of limpet, and says what a code cannot.
func exitOf(r *wire.Receipt) error {
	switch r.Reason {
	case wire.ReasonTimeout:
		fmt.Fprintf(os.Stderr, "limpet: the command was ended after %v\n", time.Duration(r.TimeoutMS)*time.Millisecond)
		return &exitError{exitTimeout}
	case wire.ReasonIdleTimeout:
		fmt.Fprintln(os.Stderr, "limpet: the command was ended: it printed nothing for too long")
		return &exitError{exitTimeout}
	case wire.ReasonCancel, wire.ReasonSessionClosed:
		return &exitError{exitCancel}
	case wire.ReasonOOM:
		fmt.Fprintln(os.Stderr, "limpet: the command ran out of memory")
	}
	if r.LeftoversKilled > 0 {
		fmt.Fprintf(os.Stderr, "limpet: ended %d process(es) that the command had left\n", r.LeftoversKilled)
	}
	switch {
	case r.ExitCode == nil && r.Error != nil:
		return r.Error
	case r.ExitCode == nil:
		return errors.New("it is not known how the command ended: " + string(r.State))
	case *r.ExitCode != 0:
		return &exitError{*r.ExitCode}
	}
	return nil
}
