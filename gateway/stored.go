package gateway

import (
	"context"
	"errors"
	"fmt"

	"github.com/limpet-sh/limpet/actors/output"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

const (
	// restoreAtOnce bounds the outputs that are in memory to be read.
	restoreAtOnce = 16
	// maxStored is the most that is read of one output, in bytes of message.
	maxStored = wire.MaxShipBytes + 1<<20
)

// errNothingStored: the OUTPUT stream has nothing of a process that printed something.
var errNothingStored = errors.New("no output is stored")

// fromOutput answers a read or search from the OUTPUT stream, at once. Output of a
// process that may still run ends before the first gap, so that nothing of it is passed
// by that its worker still has.
func (g *Gateway) fromOutput(ctx context.Context, c *call, req wire.Request, r *wire.Receipt, owner string) ([]byte, error) {
	select {
	case g.restoring <- struct{}{}:
		defer func() { <-g.restoring }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	final := r.State.Terminal()
	log, err := g.restore(ctx, c.tenant, r)
	switch {
	case err != nil:
		return nil, err
	case final && r.Output.TotalBytes > 0 && log.Next() == 0:
		return nil, errNothingStored
	case final:
		log.Finish(r.Output)
	}
	st := output.State{State: r.State, ExitCode: r.ExitCode}
	switch m := req.(type) {
	case *wire.Read:
		page, err := readStored(log, m, st)
		if err != nil {
			return nil, err
		}
		page.Owner = owner
		return wire.EncodeReply(c.ContentType(), page, nil)
	case *wire.Search:
		found, err := searchStored(ctx, log, m, st)
		if err != nil {
			return nil, err
		}
		found.Owner = owner
		return wire.EncodeReply(c.ContentType(), found, nil)
	}
	return nil, fmt.Errorf("%T is not answered from the stream", req)
}

// readStored makes a page. What a process that may still run printed is not known to its
// end: a place ahead of what is stored is no mistake, and has nothing yet.
func readStored(log *output.Log, m *wire.Read, st output.State) (*wire.Page, error) {
	end, ahead := isAhead(log, m.Cursor, m.Offset, st)
	if !ahead {
		return log.Read(*m, st)
	}
	at := *m
	at.Cursor, at.Offset = &end, nil
	page, err := log.Read(at, st)
	if err != nil {
		return nil, err
	}
	if m.Cursor != nil {
		page.Cursor, page.NextCursor = *m.Cursor, *m.Cursor
	} else {
		page.Offset, page.NextOffset = *m.Offset, *m.Offset
	}
	return page, nil
}

// searchStored looks for lines, under the same terms.
func searchStored(ctx context.Context, log *output.Log, m *wire.Search, st output.State) (*wire.Found, error) {
	end, ahead := isAhead(log, m.Cursor, m.Offset, st)
	if !ahead {
		return log.Search(ctx, *m, st)
	}
	at := *m
	at.Cursor, at.Offset = &end, nil
	found, err := log.Search(ctx, at, st)
	if err != nil {
		return nil, err
	}
	if m.Cursor != nil {
		found.NextCursor = *m.Cursor
	} else {
		found.NextOffset = *m.Offset
	}
	found.Matches = []wire.Match{} // the line without an end may be looked at whole: it is before the place
	return found, nil
}

// isAhead reports whether a place is behind all that is stored of a process that may still
// run, and where that ends.
func isAhead(log *output.Log, cursor, offset *int64, st output.State) (end int64, ahead bool) {
	have := log.Stats()
	ahead = cursor != nil && *cursor > have.LatestCursor || offset != nil && *offset > have.TotalBytes
	return have.LatestCursor, ahead && !st.State.Terminal()
}

// restore makes a log of what is stored of a process.
func (g *Gateway) restore(ctx context.Context, tenant string, r *wire.Receipt) (*output.Log, error) {
	root := g.conn.Root()
	stored, err := g.conn.Subject(ctx, root.Stream(subjects.StreamOutput), root.Output(tenant, r.Worker, r.Process), maxStored)
	if err != nil {
		if errors.Is(err, bus.ErrTooLarge) {
			return nil, wire.Errorf(wire.CodeSpoolCorrupt, "more is stored of the output than can be")
		}
		return nil, noStore(err)
	}
	messages := make([]*wire.OutputMessage, 0, len(stored))
	for i := range stored {
		m, err := wire.DecodeOutput(stored[i].Data)
		if err != nil {
			// The others are still good; what is missing is a gap.
			g.log.Error("a message of the OUTPUT stream cannot be read", "subject", stored[i].Subject, "seq", stored[i].Seq, "err", err)
			continue
		}
		messages = append(messages, m)
	}
	return output.Restore(r.Process, r.TTY != nil, !r.State.Terminal(), messages)
}

// noStore is the answer when a stream cannot be read.
func noStore(err error) error {
	if errors.Is(err, bus.ErrNoResponders) || errors.Is(err, bus.ErrTimeout) || errors.Is(err, bus.ErrDisconnected) {
		return wire.Errorf(wire.CodeUnavailable, "the stored output cannot be read now; try again")
	}
	return err
}
