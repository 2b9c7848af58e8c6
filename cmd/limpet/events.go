package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/limpet-sh/limpet/app"
	"github.com/limpet-sh/limpet/subjects/wire"
)

func newEvents(g *globals) *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use:   "events [-f]",
		Short: "Show what happens to processes",
		Long: `Shows events of all processes of this host: started, backgrounded, state, output,
finished. Without -f it shows what is stored and ends.`,
		Args:    noWords,
		Example: "  limpet events\n  limpet events -f --json | jq -r .phase",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := g.stateDir()
			if err != nil {
				return err
			}
			d, err := app.Discover(s)
			if err != nil {
				return err
			}
			err = app.Events(cmd.Context(), d, follow, g.event)
			if errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until Ctrl-C")
	return c
}

// event prints one observation: a line for a person, or the JSON as it was published.
func (g *globals) event(e wire.Event) error {
	if g.json {
		return printJSONLine(e)
	}
	text := ""
	switch {
	case e.Chunk != nil:
		text = fmt.Sprintf("%s %d bytes", e.Chunk.Stream, e.Chunk.SourceBytes)
	case e.Status != nil:
		text = string(e.Status.State)
		if e.Status.ExitCode != nil {
			text += fmt.Sprintf(", exit %d", *e.Status.ExitCode)
		}
		if r := e.Status.Reason; r != "" && r != wire.ReasonExit {
			text += " (" + string(r) + ")"
		}
	}
	_, err := fmt.Printf("%s  %s  %-12s %s\n", e.At.Local().Format(time.TimeOnly), e.OperationID, e.Phase, text)
	return err
}

func printJSONLine(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	_, err = os.Stdout.Write(append(b, '\n'))
	return err
}
