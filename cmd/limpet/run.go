package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
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
	leftover string
	about    string
}

func (f *commandFlags) add(c *cobra.Command) {
	fl := c.Flags()
	fl.DurationVar(&f.timeout, "timeout", 0, "end the command after this long, such as 30s or 5m (default: no limit)")
	fl.DurationVar(&f.idle, "idle-timeout", 0, "end the command after this long without output")
	fl.DurationVar(&f.grace, "grace", 0, "time between TERM and KILL (default 2s)")
	fl.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal")
	fl.BoolVarP(&f.stdin, "stdin", "i", false, "give the command input; without it, it reads /dev/null")
	fl.StringVarP(&f.cwd, "cwd", "C", "", "directory to run in (default: this one)")
	fl.StringArrayVarP(&f.env, "env", "e", nil, "set NAME=VALUE for the command; may be repeated")
	fl.StringVar(&f.shell, "shell", "", `shell of the text: "bash" (default), "sh", or a path`)
	fl.StringVar(&f.leftover, "leftovers", "", `what happens to processes that outlive the command: "kill" (default) or "keep"`)
	fl.StringVar(&f.about, "description", "", "what ps shows (default: the command)")
	// What follows the command's first word is the command's, -- or not.
	fl.SetInterspersed(false)
}

// atLeastOne is a time in milliseconds: one that was asked for is never none.
func atLeastOne(d time.Duration) int64 {
	if d == 0 {
		return 0
	}
	return max(1, d.Milliseconds())
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
		c.TimeoutMS = atLeastOne(f.timeout)
	}
	c.IdleTimeoutMS, c.GraceMS = atLeastOne(f.idle), atLeastOne(f.grace)
	c.Shell, c.Leftovers = f.shell, wire.Leftovers(f.leftover)
	c.Description = cmp.Or(f.about, oneLine(strings.Join(args, " "), wire.MaxDescription))
	// Relative to where we are, not to where the worker is.
	if c.Cwd, err = filepath.Abs(f.cwd); err != nil {
		return c, fmt.Errorf("this directory is gone; give --cwd: %w", err)
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
The command gets PATH, HOME and a few more of the environment, and what --env adds. It
reads /dev/null, unless --stdin or --tty says otherwise.

With "limpet up" running, the command is one of its processes. Otherwise run brings all
it needs, keeps it in memory, and takes it away at the end.

` + exitCodesOfRun,
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
			return notRun(runCommand(cmd.Context(), g, command, f.stdin))
		},
	}
	f.add(c)
	return c
}

// runCommand runs on what is up, or brings its own. A Ctrl-C ends the command; what
// serves the command goes on until then.
func runCommand(ctx context.Context, g *globals, command wire.Command, stdin bool) error {
	serving := context.WithoutCancel(ctx)
	run := func(serving context.Context, c *client.Client) error {
		s, err := g.openSession(serving, c)
		if err != nil {
			return err
		}
		id := subjects.NewID()
		defer g.ends(ctx, serving, s, id)()
		if g.json {
			return runJSON(serving, s, id, command)
		}
		return runLive(serving, s, id, command, stdin)
	}
	err := g.withClient(serving, run)
	if !notUp(err) {
		return err
	}
	local, err := app.StartLocal(ctx, app.LocalOptions{})
	if err != nil {
		return fmt.Errorf("start a private limpet: %w", err)
	}
	defer func() { // the command's result is what counts
		if err := local.Stop(); err != nil {
			slog.Error("end the private limpet", "err", err)
		}
	}()
	b := local.Bus("limpet run")
	c, err := client.Connect(serving, client.Config{
		Dial: b.Dial, User: b.User, Password: b.Password, InboxPrefix: b.InboxPrefix, Tenant: app.Tenant,
	})
	if err != nil {
		return err
	}
	defer c.Close()
	return run(serving, c)
}

// ends ends an execution when ctx does, and at the second Ctrl-C at once. The returned
// function ends the watch.
func (g *globals) ends(ctx, serving context.Context, s *client.Session, execution string) (stop func()) {
	serving, cancelAll := context.WithCancel(serving)
	var own sync.WaitGroup
	own.Go(func() {
		select {
		case <-ctx.Done():
		case <-serving.Done():
			return
		}
		own.Go(func() { cancel(serving, s, execution) })
		select {
		case <-g.again:
			kill(serving, s, execution)
		case <-serving.Done():
		}
	})
	return func() {
		cancelAll()
		own.Wait()
	}
}

// cancel ends an execution of which we may not know the process.
func cancel(serving context.Context, s *client.Session, execution string) {
	ctx, done := context.WithTimeout(serving, 30*time.Second)
	defer done()
	_, _ = s.Cancel(ctx, execution)
}

// kill ends an execution without a grace.
func kill(serving context.Context, s *client.Session, execution string) {
	ctx, done := context.WithTimeout(serving, 30*time.Second)
	defer done()
	l, err := s.List(ctx)
	if err != nil {
		return
	}
	for i := range l.Processes {
		if l.Processes[i].ExecutionID == execution {
			_, _ = s.Client().Terminate(ctx, wire.Terminate{
				Version: wire.Version, ProcessRef: wire.ProcessRef{Process: l.Processes[i].Process}, Mode: "kill", By: "limpet run",
			})
		}
	}
}

// runJSON prints the result as one object.
func runJSON(serving context.Context, s *client.Session, id string, command wire.Command) error {
	res, err := s.Run(serving, wire.Run{Version: wire.Version, ExecutionID: id, Command: command, Render: wire.Render{MaxBytes: wire.MaxRenderBytes}})
	if err != nil {
		return err
	}
	if err := printJSON(res); err != nil {
		return err
	}
	return exitOf(&res.Receipt)
}

// runLive shows the output as it comes.
func runLive(serving context.Context, s *client.Session, id string, command wire.Command, stdin bool) error {
	r, err := s.Start(serving, wire.Start{Version: wire.Version, ExecutionID: id, Command: command})
	if err != nil {
		return err
	}
	if stdin || command.TTY != nil {
		restore := forward(s.Client(), r.Process, command.TTY != nil)
		defer restore()
	}
	offset := int64(0)
	end, err := s.Client().Follow(serving, r.Process, 0, func(ch wire.Chunk) error {
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
		cancel(serving, s, id) // nobody reads any more
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
		return &exitError{code: exitTimeout}
	case wire.ReasonIdleTimeout:
		fmt.Fprintln(os.Stderr, "limpet: the command was ended: it printed nothing for too long")
		return &exitError{code: exitTimeout}
	case wire.ReasonCancel:
		fmt.Fprintln(os.Stderr, "limpet: the command was cancelled")
		return &exitError{code: exitCancel}
	case wire.ReasonSessionClosed:
		fmt.Fprintln(os.Stderr, "limpet: the command was ended: its session was closed")
		return &exitError{code: exitCancel}
	case wire.ReasonOOM:
		fmt.Fprintln(os.Stderr, "limpet: the command ran out of memory")
	}
	if r.LeftoversKilled > 0 {
		fmt.Fprintf(os.Stderr, "limpet: ended %d process(es) that the command had left\n", r.LeftoversKilled)
	}
	if r.Output.Error != "" {
		fmt.Fprintf(os.Stderr, "limpet: the output may not be all: %s\n", r.Output.Error)
	}
	switch {
	case r.ExitCode == nil && r.Error != nil:
		return r.Error
	case r.ExitCode == nil:
		return errors.New("it is not known how the command ended: " + string(r.State))
	case *r.ExitCode != 0:
		return &exitError{code: *r.ExitCode}
	}
	return nil
}
