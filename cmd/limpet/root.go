package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/limpet-sh/limpet/app"
	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// sessionName of what a person starts, unless --session says otherwise.
const sessionName = "cli"

// flags that every command takes.
type globals struct {
	state   string
	session string
	config  string
	json    bool
	verbose bool
	// again is closed at the second Ctrl-C: what was asked to end is ended at once.
	again <-chan struct{}
}

func newRoot(again <-chan struct{}) *cobra.Command {
	g := &globals{again: again}
	root := &cobra.Command{
		Use:   "limpet",
		Short: "A shell that holds on",
		Long: `Limpet runs shell commands and keeps hold of them: every process of a command is
owned, its output is kept and can be read again, and nothing is left behind.

Start with:
  limpet run -- 'make test'        run a command, see its output, get its exit code
  limpet up                        keep commands alive in the background; then, elsewhere:
  limpet start -- 'make serve'     start one and get its process id
  limpet ps | logs -f ID | wait ID | kill ID`,
		Example:       "  limpet run --timeout 30s -- 'sleep 5; echo done'",
		Version:       app.Version(),
		Args:          knownCommand,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			if err := g.settings(c); err != nil {
				return err
			}
			level := slog.LevelError
			if g.verbose {
				level = slog.LevelDebug
			}
			slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
			return nil
		},
	}
	p := root.PersistentFlags()
	p.StringVar(&g.state, "state", "", "state directory (default $LIMPET_STATE, $XDG_STATE_HOME/limpet, ~/.local/state/limpet)")
	p.StringVar(&g.session, "session", sessionName, "session that owns what run and start start")
	p.StringVar(&g.config, app.ConfigFlag, "", "file of settings (default $LIMPET_CONFIG, $XDG_CONFIG_HOME/limpet/config.toml)")
	p.BoolVar(&g.json, "json", false, "print JSON")
	p.BoolVarP(&g.verbose, "verbose", "v", false, "log to stderr what goes on")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usagef("%v; see: %s --help", err, c.CommandPath())
	})
	root.AddCommand(
		newRun(g), newUp(g), newStart(g), newPS(g), newLogs(g), newSearch(g), newWait(g),
		newWrite(g), newKill(g), newEvents(g), newMCP(g), newWorker(),
	)
	return root
}

// settings gives flags their values from the environment and the file. The worker of up
// has none: what up was told holds for it.
func (g *globals) settings(c *cobra.Command) error {
	if c.Name() == workerCommand {
		return nil
	}
	tables := []app.Table{{Flags: c.Root().PersistentFlags(), Active: true}}
	for _, sub := range c.Root().Commands() {
		if name := sub.Name(); name != workerCommand && name != "help" && name != "completion" {
			tables = append(tables, app.Table{Name: name, Flags: sub.LocalNonPersistentFlags(), Active: sub == c})
		}
	}
	if err := app.Settings(tables, g.config); err != nil {
		return usagef("%v", err)
	}
	return nil
}

// knownCommand refuses a word that is no command of ours.
func knownCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("there is no command %q", args[0])
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		text += "; did you mean: limpet " + strings.Join(near, ", ")
	}
	return usagef("%s; see: limpet --help", text)
}

// stateDir resolves --state.
func (g *globals) stateDir() (app.State, error) { return app.StateDir(g.state) }

// errUpEnded ends what waits for a process. A client by itself would be patient, as
// after a kill -9 of up it has to be.
var errUpEnded = errors.New("limpet up has ended, and its processes with it")

// withClient runs f with what is up. The context it hands over also ends with that.
func (g *globals) withClient(ctx context.Context, f func(context.Context, *client.Client) error) error {
	s, err := g.stateDir()
	if err != nil {
		return err
	}
	d, err := app.Discover(s)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	b := d.Bus("limpet cli")
	c, err := client.Connect(ctx, client.Config{
		Dial: func() (net.Conn, error) {
			conn, err := b.Dial()
			if err != nil && s.Ended() {
				cancel(errUpEnded)
			}
			return conn, err
		},
		User: b.User, Password: b.Password, InboxPrefix: b.InboxPrefix, Tenant: d.Tenant,
	})
	if err != nil {
		return err
	}
	defer c.Close()
	if err = f(ctx, c); err != nil && errors.Is(context.Cause(ctx), errUpEnded) {
		return errUpEnded
	}
	return err
}

// openSession opens the person's session, which stays until up ends.
func (g *globals) openSession(ctx context.Context, c *client.Client) (*client.Session, error) {
	return c.Open(ctx, wire.Open{
		Version: wire.Version, Name: g.session, IdleTTLMS: -1, DefaultTimeoutMS: -1,
		Limits: &wire.SessionLimits{LiveProcesses: 256}, // a person and a script, not one agent
	})
}

// process finds a process by its id or by a start of it that is unique.
func (g *globals) process(ctx context.Context, c *client.Client, id string) (string, error) {
	const (
		full = 22
		less = 4 // a number that was meant as a pid, or a slip of the finger, is no id
	)
	switch {
	case len(id) >= full:
		return id, nil
	case len(id) < less:
		return "", usagef("%q is too short; give %d characters or more of a process id, as limpet ps shows it", id, less)
	}
	l, err := c.ListAll(ctx)
	if err != nil {
		return "", err
	}
	var found []string
	for i := range l.Processes {
		if strings.HasPrefix(l.Processes[i].Process, id) {
			found = append(found, l.Processes[i].Process)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", usagef("there is no process %q; see: limpet ps", id)
	}
	return "", usagef("%q is the start of %d process ids; give more of it", id, len(found))
}

// noWords is the argument check of commands that take flags only.
func noWords(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s takes no words, such as %q; see: %[1]s --help", c.CommandPath(), args[0])
	}
	return nil
}

// oneProcess is the argument check of commands that take a process id.
func oneProcess(c *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return usagef("give one process id, as limpet ps shows it: %s", strings.TrimSuffix(c.UseLine(), " [flags]"))
	}
	return nil
}

// command makes a Command of the words after --. One word is shell text; several are
// a program and its arguments.
func commandOf(args []string) (wire.Command, error) {
	switch len(args) {
	case 0:
		return wire.Command{}, usagef("give a command after --, such as: limpet run -- 'ls -l'")
	case 1:
		return wire.Command{Text: args[0]}, nil
	}
	return wire.Command{Argv: args}, nil
}

// notUp tells whether err says that nothing is up.
func notUp(err error) bool { return errors.Is(err, app.ErrNotUp) }

func envVars(list []string) ([]wire.EnvVar, error) {
	var vars []wire.EnvVar
	for _, e := range list {
		name, value, ok := strings.Cut(e, "=")
		if !ok || name == "" {
			return nil, usagef("--env %q: give NAME=VALUE", e)
		}
		vars = append(vars, wire.EnvVar{Name: name, Value: value})
	}
	return vars, nil
}

func printJSON(v any) error {
	b, err := jsonIndent(v)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	_, err = os.Stdout.Write(append(b, '\n'))
	return err
}
