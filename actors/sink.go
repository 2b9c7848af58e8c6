package actors

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/actors/output"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// sink is where the pump puts output: the log, and an observation of it. It is called
// by the pump alone; close and last by the actor.
type sink struct {
	ctx    context.Context //nolint:containedctx // the actor's life, which ends a wait for room
	log    *output.Log
	feed   feed
	ship   *shipper        // may be nil
	trim   func(raw int64) // of the journal; the log calls it itself for what it has got
	limit  int64           // kill_over_bytes; 0 none
	over   func()
	last   atomic.Int64 // unix nanoseconds of the newest output
	closed atomic.Bool  // the log is closed; what comes is let go
	until  int64        // raw offset at which an earlier incarnation closed the log; 0 none
	told   bool
}

// Append implements keeper.Sink.
func (s *sink) Append(c keeper.Chunk) error {
	s.last.Store(time.Now().UnixNano())
	if s.closed.Load() || s.until > 0 && c.Offset >= s.until {
		return s.let(c)
	}
	err := s.append(output.Chunk{
		Number: c.Number, Offset: c.Offset, Stream: c.Stream, Data: c.Data, At: c.At,
		OrderUnknown: c.OrderUnknown, StdoutOffset: c.StdoutOffset, Descriptors: c.Descriptors,
	})
	if errors.Is(err, output.ErrClosed) && s.closed.Load() {
		return s.let(c) // it was closed while this came
	}
	if err != nil {
		return err
	}
	s.ship.wrote(c.Offset + int64(len(c.Data)))
	if s.feed != nil {
		s.feed.OutputFunc(len(c.Data), func() wire.Chunk { return s.view(c) })
	}
	if s.limit > 0 && !s.told && c.Offset+int64(len(c.Data)) > s.limit {
		s.told = true
		s.over()
	}
	return nil
}

// let lets output go: kept leftovers would come to wait for room.
func (s *sink) let(c keeper.Chunk) error {
	s.trim(c.Offset + int64(len(c.Data)))
	return nil
}

// append waits for room where a lossless log has none; else it never waits.
func (s *sink) append(c output.Chunk) error {
	for {
		err := s.log.Append(c)
		if !errors.Is(err, output.ErrFull) {
			return err
		}
		again := time.NewTimer(time.Second) // a disk does not say when it is no longer full
		select {
		case <-s.log.Room():
		case <-again.C:
		case <-s.ctx.Done():
			again.Stop()
			return context.Cause(s.ctx)
		}
		again.Stop()
	}
}

// view is a chunk as observers get it: text, with binary withheld.
func (s *sink) view(c keeper.Chunk) wire.Chunk {
	v := wire.Chunk{Cursor: c.Number, Offset: c.Offset, Stream: c.Stream.String(), SourceBytes: len(c.Data), At: c.At}
	page, err := s.log.Read(wire.Read{Version: wire.Version, Cursor: &c.Number, MaxBytes: wire.MinPageBytes, View: wire.ViewText}, output.State{})
	if err == nil && len(page.Chunks) > 0 && page.Chunks[0].Cursor == c.Number {
		v = page.Chunks[0]
	}
	return v
}

func (s *sink) close() { s.closed.Store(true) }
