package client

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// Follow gives fn the output of a process from a cursor on (0 for all that is
// retained), chunk by chunk as it comes, until the process has ended and all is read;
// then it returns the receipt. Each chunk comes once, in order, and its exact bytes are
// [Bytes]. Where output is gone the offset of the next chunk tells how much.
//
// It rides out restarts of gateway and worker for Config.FollowPatience at a time. While
// the worker is away, what it had shipped is given as far as it goes in a row. Of a process
// that has ended the rest is given after Config.Patience, with a gap. An error of fn ends
// it and is returned. When the output itself is gone, the receipt comes with an error of
// code expired.
func (c *Client) Follow(ctx context.Context, process string, from int64, fn func(wire.Chunk) error) (*wire.Receipt, error) {
	m := wire.Read{
		Version: wire.Version, ProcessRef: c.ref(process),
		Cursor: &from, View: wire.ViewBase64, MaxBytes: wire.MaxPageBytes, WaitMS: c.piece().Milliseconds(),
	}
	heard := time.Now() // of the worker
	for {
		page, err := callFor[wire.Page](ctx, c, wire.VerbRead, &m, retryAlways, c.limitFor(m.WaitMS), c.cfg.FollowPatience)
		if err != nil {
			if wire.AsError(err).Code != wire.CodeExpired {
				return nil, err
			}
			r, statusErr := c.Status(ctx, process)
			if statusErr != nil {
				return nil, statusErr
			}
			return r, err
		}
		if page.Owner == "" {
			heard = time.Now()
		}
		away := time.Since(heard)
		if page.Owner != "" && away < c.cfg.Patience {
			beforeGap(page, from)
		}
		for i := range page.Chunks {
			if page.Chunks[i].Cursor < from {
				return nil, wire.Errorf(wire.CodeInternal, "a page from cursor %d holds chunk %d", from, page.Chunks[i].Cursor)
			}
			if err := fn(page.Chunks[i]); err != nil {
				return nil, err
			}
		}
		if page.NextCursor < from {
			return nil, wire.Errorf(wire.CodeInternal, "a page from cursor %d goes on at %d", from, page.NextCursor)
		}
		if page.End {
			return c.WaitEnd(ctx, process)
		}
		if page.NextCursor == from && page.Owner != "" { // answered at once
			if !page.State.Terminal() && away >= c.cfg.FollowPatience {
				return nil, wire.Errorf(wire.CodeUnreachable, "the worker of process %s does not come back; that says nothing of the process", process)
			}
			if err := sleep(ctx, 250*time.Millisecond); err != nil {
				return nil, err
			}
		}
		from = page.NextCursor
	}
}

// beforeGap cuts a page where something was not shipped, which its worker may have.
func beforeGap(p *wire.Page, from int64) {
	i := slices.IndexFunc(p.Gaps, func(g wire.Gap) bool { return g.Reason == wire.GapNotShipped })
	if i < 0 {
		return
	}
	g := p.Gaps[i]
	p.Gaps, p.NextCursor, p.NextOffset, p.End = p.Gaps[:i], max(g.Cursor, from), g.Offset, false
	p.Chunks = slices.DeleteFunc(p.Chunks, func(c wire.Chunk) bool { return c.Cursor >= g.Cursor })
}

// Bytes are the exact bytes of a chunk read with the base64 view.
func Bytes(ch wire.Chunk) ([]byte, error) {
	b, err := base64.StdEncoding.DecodeString(ch.Data)
	if err != nil {
		return nil, fmt.Errorf("chunk %d: %w", ch.Cursor, err)
	}
	if len(b) != ch.SourceBytes {
		return nil, fmt.Errorf("chunk %d holds %d bytes of %d", ch.Cursor, len(b), ch.SourceBytes)
	}
	return b, nil
}
