package client_test

import (
	"encoding/base64"
	"slices"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// page of chunks of one byte each, as a gateway makes it while the worker is away, or not.
func page(owner string, from, to int64) wire.Page {
	p := wire.Page{Version: 1, Process: "p", Cursor: from, NextCursor: to, Offset: from, NextOffset: to, State: wire.StateRunning, Owner: owner, Chunks: []wire.Chunk{}}
	for i := from; i < to; i++ {
		p.Chunks = append(p.Chunks, wire.Chunk{Cursor: i, Offset: i, Stream: "stdout", SourceBytes: 1, Data: base64.StdEncoding.EncodeToString([]byte{byte(i)})})
	}
	return p
}

// ended makes a page the last one of a process that has ended.
func ended(p wire.Page, gaps ...wire.Gap) wire.Page {
	p.State, p.End, p.Gaps = wire.StateCompleted, true, gaps
	return p
}

// What was not shipped is not given up while its worker may come back.
func TestFollowWaitsForTheWorker(t *testing.T) {
	away := wire.OwnerUnreachable
	hole := wire.Gap{Cursor: 3, NextCursor: 8, Offset: 3, NextOffset: 8, Bytes: 5, Reason: wire.GapNotShipped}
	tail := page(away, 0, 3)
	tail.Chunks = append(tail.Chunks, page(away, 8, 10).Chunks...)
	tail.NextCursor = 10
	inside := page(away, 8, 10)
	inside.CursorExpired = true
	empty := page(away, 3, 3)
	empty.State = wire.StateUnreachable
	for _, tt := range []struct {
		name     string
		pages    []wire.Page
		patience time.Duration
		want     []int64
		code     wire.Code
	}{
		{"it comes back", []wire.Page{ended(tail, hole), ended(inside, hole), ended(page("", 3, 10))}, time.Minute, []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, ""},
		{"it does not, and all is there", []wire.Page{ended(page(away, 0, 3))}, time.Minute, []int64{0, 1, 2}, ""},
		{"it does not, and something is missing", []wire.Page{ended(tail, hole), ended(inside, hole)}, 100 * time.Millisecond, []int64{0, 1, 2, 8, 9}, ""},
		{"it may still run", []wire.Page{page(away, 0, 3), empty, empty, ended(page("", 3, 5))}, time.Minute, []int64{0, 1, 2, 3, 4}, ""},
		{"it does not come back", []wire.Page{page(away, 0, 3), empty}, 100 * time.Millisecond, []int64{0, 1, 2}, wire.CodeUnreachable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := server(t)
			newAPI(t, s, func(r *request) {
				if r.verb != wire.VerbRead {
					echo(r)
					return
				}
				reply(r, &tt.pages[min(r.nth, len(tt.pages)-1)])
			})
			c := dial(t, s, func(cfg *client.Config) { cfg.Patience, cfg.FollowPatience = tt.patience, tt.patience })
			var got []int64
			_, err := c.Follow(t.Context(), "p", 0, func(ch wire.Chunk) error {
				got = append(got, ch.Cursor)
				return nil
			})
			if code(err) != tt.code || !slices.Equal(got, tt.want) {
				t.Errorf("%v, %v; want %v", got, err, tt.want)
			}
		})
	}
}

// A read that is answered at once while the worker is away does not ask without a pause.
func TestReadPausesWhileTheWorkerIsAway(t *testing.T) {
	s := server(t)
	empty := page(wire.OwnerUnreachable, 3, 3)
	empty.State = wire.StateUnreachable
	a := newAPI(t, s, func(r *request) { reply(r, &empty) })
	cursor := int64(3)
	p, err := dial(t, s).Read(t.Context(), wire.Read{ProcessRef: wire.ProcessRef{Process: "p"}, Cursor: &cursor, WaitMS: 1500})
	if err != nil || p.State != wire.StateUnreachable {
		t.Errorf("%+v, %v", p, err)
	}
	if n := a.count(wire.VerbRead); n > 4 {
		t.Errorf("%d requests in 1.5 s", n)
	}
}
