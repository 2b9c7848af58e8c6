package client

import (
	"context"
	"encoding/base64"
	"fmt"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// Follow gives fn the output of a process from a cursor on (0 for all that is
// retained), chunk by chunk as it comes, until the process has ended and all is read;
// then it returns the receipt. Each chunk comes once, in order, and its exact bytes are
// [Bytes]. Where output is gone the offset of the next chunk tells how much.
//
// It rides out restarts of gateway and worker for Config.FollowPatience at a time. An
// error of fn ends it and is returned. When the output itself is gone, the receipt comes
// with an error of code expired.
func (c *Client) Follow(ctx context.Context, process string, from int64, fn func(wire.Chunk) error) (*wire.Receipt, error) {
	m := wire.Read{
		Version: wire.Version, ProcessRef: c.ref(process),
		Cursor: &from, View: wire.ViewBase64, MaxBytes: wire.MaxPageBytes, WaitMS: c.piece().Milliseconds(),
	}
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
		if page.NextCursor == from && page.State == wire.StateUnreachable {
			// Answered at once from the record: the owner is away.
			if err := sleep(ctx, 250*time.Millisecond); err != nil {
				return nil, err
			}
		}
		from = page.NextCursor
	}
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
