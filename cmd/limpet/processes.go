package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects/wire"
)

func newStart(g *globals) *cobra.Command {
	var f commandFlags
	c := &cobra.Command{
		Use:   "start [flags] -- COMMAND",
		Short: "Start a command in the background and print its process id",
		Long: `Starts a command under "limpet up" and prints its process id, by which logs, wait,
write and kill find it. The command runs until it ends, its --timeout, or the end of up.`,
		Example: "  id=$(limpet start -- 'make serve')\n  limpet logs -f $id",
		RunE: func(cmd *cobra.Command, args []string) error {
			command, err := f.command(args)
			if err != nil {
				return err
			}
			return g.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				s, err := g.openSession(ctx, c)
				if err != nil {
					return err
				}
				r, err := s.Start(ctx, wire.Start{Version: wire.Version, Command: command})
				if err != nil {
					return err
				}
				if g.json {
					return printJSON(r)
				}
				fmt.Println(r.Process)
				return nil
			})
		},
	}
	f.add(c)
	return c
}

func newPS(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "ps", Short: "List processes, live and ended", Args: noWords,
		Long: `Lists the processes of this host: those that live, and of the ended ones those whose
output is still kept. Other commands take a PROCESS, or 4 characters or more of its start.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				l, err := c.ListAll(ctx)
				if err != nil {
					return err
				}
				if g.json {
					return printJSON(l)
				}
				return table(os.Stdout, l.Processes)
			})
		},
	}
}

// table prints processes for a person.
func table(w io.Writer, list []wire.Receipt) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PROCESS\tSTATE\tEXIT\tAGE\tTIME\tOUTPUT\tWHAT")
	for i := range list {
		r := &list[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Process, stateText(r), exitText(r),
			ago(r.CreatedAt), took(r), size(r.Output.TotalBytes), what(r))
	}
	return t.Flush()
}

func stateText(r *wire.Receipt) string {
	switch r.Reason {
	case wire.ReasonNone, wire.ReasonExit:
		return string(r.State)
	}
	return string(r.State) + " (" + string(r.Reason) + ")"
}

func exitText(r *wire.Receipt) string {
	switch {
	case r.Signal != "":
		return "SIG" + r.Signal
	case r.ExitCode == nil:
		return "-"
	}
	return strconv.Itoa(*r.ExitCode)
}

func what(r *wire.Receipt) string {
	const width = 60
	if r.Description != "" {
		return oneLine(r.Description, width)
	}
	return oneLine(r.Cwd, width)
}

// oneLine makes a text safe to show in a line: its first line, cut to so many
// characters, without what would move the cursor of a terminal.
func oneLine(s string, characters int) string {
	s = strings.TrimSpace(s)
	first, _, more := strings.Cut(s, "\n")
	clean := []rune(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(first, "?")))
	if more = more || len(clean) > characters; !more {
		return string(clean)
	}
	return string(clean[:min(len(clean), characters-1)]) + "…"
}

func ago(t time.Time) string { return time.Since(t).Round(time.Second).String() }

func took(r *wire.Receipt) string {
	switch {
	case r.StartedAt == nil:
		return "-"
	case r.EndedAt != nil:
		return r.EndedAt.Sub(*r.StartedAt).Round(time.Millisecond).String()
	}
	return time.Since(*r.StartedAt).Round(time.Second).String()
}

func size(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	f, units := float64(n)/unit, "KMGT"
	for ; f >= unit && len(units) > 1; units = units[1:] {
		f /= unit
	}
	return fmt.Sprintf("%.1f %ciB", f, units[0])
}

func newLogs(g *globals) *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use: "logs [-f] ID", Short: "Show the output of a process", Args: oneProcess,
		Long: `Shows the output of a process from its beginning, stdout and stderr apart. It can be read
as often as wanted. Where something was dropped it says how much.`,
		Example: "  limpet logs -f Xx3k\n  limpet logs Xx3k 2>errors.txt | less",
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				id, err := g.process(ctx, c, args[0])
				if err != nil {
					return err
				}
				if follow {
					_, err := c.Follow(ctx, id, 0, g.show)
					return err
				}
				return pages(ctx, c, id, g.show)
			})
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the process has ended")
	return c
}

// show prints a chunk where it belongs; as JSON, one object a line.
func (g *globals) show(ch wire.Chunk) error {
	if g.json {
		return printJSONLine(ch)
	}
	b, err := client.Bytes(ch)
	if err != nil {
		return err
	}
	out := os.Stdout
	if ch.Stream == wire.Stderr.String() {
		out = os.Stderr
	}
	_, err = out.Write(b)
	return err
}

// pages shows what there is now.
func pages(ctx context.Context, c *client.Client, id string, show func(wire.Chunk) error) error {
	cursor := int64(0)
	for {
		page, err := c.Read(ctx, wire.Read{
			Version: wire.Version, ProcessRef: wire.ProcessRef{Process: id}, Cursor: &cursor,
			View: wire.ViewBase64, MaxBytes: wire.MaxPageBytes,
		})
		if err != nil {
			return err
		}
		for _, gap := range page.Gaps {
			fmt.Fprintf(os.Stderr, "limpet: %d bytes of output are gone (%s)\n", gap.Bytes, gap.Reason)
		}
		for _, ch := range page.Chunks {
			if err := show(ch); err != nil {
				return err
			}
		}
		if !page.HasMore || page.NextCursor == cursor {
			return nil
		}
		cursor = page.NextCursor
	}
}

func newWait(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "wait ID", Short: "Wait for a process and exit with its code", Args: oneProcess,
		Long: `Waits until a process has ended, and exits with its code.

` + exitCodesOfRun,
		Example: "  limpet wait Xx3k && echo it went well",
		RunE: func(cmd *cobra.Command, args []string) error {
			return notRun(g.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				id, err := g.process(ctx, c, args[0])
				if err != nil {
					return err
				}
				r, err := c.WaitEnd(ctx, id)
				if err != nil {
					return err
				}
				if g.json {
					if err := printJSON(r); err != nil {
						return err
					}
				}
				return exitOf(r)
			}))
		},
	}
}

func newWrite(g *globals) *cobra.Command {
	var closeInput, noNewline bool
	c := &cobra.Command{
		Use:   "write ID [TEXT]",
		Short: "Write to the input of a process",
		Long: `Writes TEXT and a newline to the input of a process that was started with --stdin or
--tty. Without TEXT, what this command itself reads from its stdin is written.`,
		Example: "  limpet write Xx3k yes\n  limpet write --close Xx3k < answers.txt",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usagef("give a process id and at most one text: limpet write ID [TEXT]")
			}
			return g.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				id, err := g.process(ctx, c, args[0])
				if err != nil {
					return err
				}
				var data []byte
				switch {
				case len(args) == 2 && noNewline:
					data = []byte(args[1])
				case len(args) == 2:
					data = []byte(args[1] + "\n")
				default:
					if data, err = io.ReadAll(io.LimitReader(os.Stdin, maxWrite+1)); err != nil {
						return fmt.Errorf("read stdin: %w", err)
					}
					if len(data) > maxWrite {
						return usagef("stdin holds more than %d MiB; write it in parts", maxWrite>>20)
					}
				}
				r, err := writeOrClose(ctx, c, id, data, closeInput)
				if err != nil {
					return err
				}
				if g.json {
					return printJSON(r)
				}
				return nil
			})
		},
	}
	c.Flags().BoolVar(&closeInput, "close", false, "close the input afterwards")
	c.Flags().BoolVarP(&noNewline, "no-newline", "n", false, "do not add a newline to TEXT")
	return c
}

// maxWrite is what one limpet write takes from its stdin.
const maxWrite = 64 << 20

// writeOrClose writes data in as many writes as it takes, or only closes.
func writeOrClose(ctx context.Context, c *client.Client, id string, data []byte, closeInput bool) (r *wire.Receipt, err error) {
	if len(data) == 0 {
		if !closeInput {
			return nil, usagef("there is nothing to write; give a text, some input, or --close")
		}
		return c.CloseStdin(ctx, id)
	}
	for len(data) > 0 {
		n := min(len(data), wire.MaxInputBytes)
		m := wire.Write{Version: wire.Version, ProcessRef: wire.ProcessRef{Process: id}, Data: data[:n], Close: closeInput && n == len(data)}
		if r, err = c.Write(ctx, m); err != nil {
			return nil, err
		}
		data = data[n:]
	}
	return r, nil
}

func newKill(g *globals) *cobra.Command {
	var force bool
	var sig string
	c := &cobra.Command{
		Use:   "kill ID",
		Short: "End a process and everything it started",
		Long: `Ends the whole tree of a process: TERM, the grace, KILL. It returns when the end was
seen. With --signal it sends that signal to the process group instead, and no more.`,
		Args:    oneProcess,
		Example: "  limpet kill Xx3k\n  limpet kill -s INT Xx3k",
		RunE: func(cmd *cobra.Command, args []string) error {
			if force && sig != "" {
				return usagef("--force ends a process and --signal does not; give one of them")
			}
			return g.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				id, err := g.process(ctx, c, args[0])
				if err != nil {
					return err
				}
				var r *wire.Receipt
				if sig != "" {
					r, err = c.Signal(ctx, id, sig)
				} else {
					m := wire.Terminate{Version: wire.Version, ProcessRef: wire.ProcessRef{Process: id}, By: "limpet kill"}
					if force {
						m.Mode = "kill"
					}
					r, err = c.Terminate(ctx, m)
				}
				if err != nil {
					return err
				}
				if g.json {
					return printJSON(r)
				}
				if sig != "" {
					fmt.Printf("%s got %s\n", r.Process, strings.ToUpper(sig))
					return nil
				}
				fmt.Printf("%s %s, exit %s\n", r.Process, stateText(r), exitText(r))
				if r.State == wire.StateOutcomeUnknown || !r.State.Terminal() {
					return &exitError{code: exitFailed}
				}
				return nil
			})
		},
	}
	c.Flags().BoolVarP(&force, "force", "9", false, "KILL at once")
	c.Flags().StringVarP(&sig, "signal", "s", "", "send this signal, such as INT, and no more")
	return c
}
