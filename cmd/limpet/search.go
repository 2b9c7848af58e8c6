package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects/wire"
)

func newSearch(g *globals) *cobra.Command {
	var m wire.Search
	var around, most int
	c := &cobra.Command{
		Use:   "search ID PATTERN",
		Short: "Find lines in the output of a process",
		Long: `Finds the lines that match a regular expression (RE2) in what a process has written, and
prints them as grep does, with the stream before each. Lines are as a person would see
them: without colours, and of one that was redrawn what it showed in the end.

Exit codes: 0 a line was found, 1 none was or limpet failed, 2 the call makes no sense.`,
		Example: "  limpet search Xx3k 'error|warn'\n  limpet search -F -i -A 3 --stream stderr Xx3k 'not found'",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 || args[0] == "" || args[1] == "" {
				return usagef("give a process id and a pattern: limpet search ID PATTERN")
			}
			if most < 0 {
				return usagef("--max %d: give a number of lines, or 0 for all", most)
			}
			m.Pattern = args[1]
			if !cmd.Flags().Changed("before") {
				m.BeforeLines = around
			}
			if !cmd.Flags().Changed("after") {
				m.AfterLines = around
			}
			return g.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				id, err := g.process(ctx, c, args[0])
				if err != nil {
					return err
				}
				m.Process = id
				return g.searchAll(ctx, c, m, most)
			})
		},
	}
	f := c.Flags()
	f.BoolVarP(&m.Literal, "fixed-strings", "F", false, "take PATTERN as text")
	f.BoolVarP(&m.IgnoreCase, "ignore-case", "i", false, "ignore upper and lower case")
	f.IntVarP(&m.BeforeLines, "before", "B", 0, "also show so many lines before each")
	f.IntVarP(&m.AfterLines, "after", "A", 0, "also show so many lines after each")
	f.IntVarP(&around, "context", "C", 0, "also show so many lines before and after each")
	f.IntVarP(&most, "max", "m", 0, "stop after so many lines (0 all)")
	f.StringVar(&m.Stream, "stream", "", "look at this stream only: stdout or stderr")
	return c
}

// searchAll asks for one page after the other and shows the matches.
func (g *globals) searchAll(ctx context.Context, c *client.Client, m wire.Search, most int) error {
	found := 0
	for {
		m.MaxMatches = wire.MaxMatches
		if most > 0 {
			m.MaxMatches = min(most-found, wire.MaxMatches)
		}
		page, err := c.Search(ctx, m)
		if err != nil {
			return err
		}
		for _, gap := range page.Gaps {
			fmt.Fprintf(os.Stderr, "limpet: %d bytes of output are gone (%s)\n", gap.Bytes, gap.Reason)
		}
		for i := range page.Matches {
			if err := g.showMatch(&page.Matches[i], found > 0); err != nil {
				return err
			}
			found++
		}
		if !page.HasMore || most > 0 && found >= most {
			break
		}
		m.Cursor, m.Offset = nil, &page.NextOffset
	}
	if found == 0 {
		return &exitError{code: exitFailed}
	}
	return nil
}

// showMatch prints a match as grep does; as JSON, one object a line.
func (g *globals) showMatch(m *wire.Match, more bool) error {
	if g.json {
		return printJSONLine(m)
	}
	var text []byte
	if more && len(m.Before)+len(m.After) > 0 {
		text = append(text, "--\n"...)
	}
	for _, s := range m.Before {
		text = fmt.Appendf(text, "%s-%s\n", m.Stream, s)
	}
	text = fmt.Appendf(text, "%s:%s", m.Stream, m.Line)
	if m.Truncated {
		text = append(text, "…"...)
	}
	text = append(text, '\n')
	for _, s := range m.After {
		text = fmt.Appendf(text, "%s-%s\n", m.Stream, s)
	}
	_, err := os.Stdout.Write(text)
	return err
}
