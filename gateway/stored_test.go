package gateway_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/actors/output"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// printed is a log of lines, as a worker has it.
func printed(tb testing.TB, id string, lines int) *output.Log {
	tb.Helper()
	l, err := output.Open(output.Config{Process: id, Limits: wire.OutputLimits{WindowBytes: 1 << 20}})
	if err != nil {
		tb.Fatal(err)
	}
	offset := int64(0)
	for i := range lines {
		data := fmt.Appendf(nil, "line %d \x1b[1mé\x1b[0m\n", i)
		err := l.Append(output.Chunk{Number: int64(i), Offset: offset, Stream: wire.Stream(1 + i%2), Data: data, At: time.Unix(int64(i), 0)})
		if err != nil {
			tb.Fatal(err)
		}
		offset += int64(len(data))
	}
	return l
}

// ship stores the chunks of a log from one number to another, as one message.
func (w *worker) ship(tenant, id string, l *output.Log, from, to int64) {
	w.tb.Helper()
	whole := l.Ship(nil, from, 1<<20, w.e)
	m, err := wire.DecodeOutput(whole.Message)
	if err != nil {
		w.tb.Fatal(err)
	}
	b := wire.AppendOutputHeader(nil, &m.OutputHeader)
	for i := range m.Chunks[:to-from] {
		b = wire.AppendOutputChunk(b, &m.Chunks[i])
	}
	w.store(tenant, id, b)
}

func (w *worker) store(tenant, id string, b []byte) {
	w.tb.Helper()
	if _, err := w.conn.Append(w.tb.Context(), w.conn.Root().Output(tenant, w.name, id), nil, b, bus.ExpectAny()); err != nil {
		w.tb.Fatal(err)
	}
}

// pages reads all pages from a cursor on.
func pages(tb testing.TB, conn *bus.Conn, id string, cursor int64, view wire.View) (all []wire.Page) {
	tb.Helper()
	for {
		p := mustAsk[wire.Page](tb, conn, "local", wire.VerbRead, &wire.Read{
			Version: 1, ProcessRef: ref(id), Cursor: &cursor, View: view, MaxBytes: wire.MinPageBytes, WaitMS: 60_000,
		})
		all = append(all, *p)
		if cursor = p.NextCursor; p.End || !p.HasMore {
			return all
		}
	}
}

func chunks(all []wire.Page) (out []wire.Chunk, gaps []wire.Gap) {
	for _, p := range all {
		out, gaps = append(out, p.Chunks...), append(gaps, p.Gaps...)
	}
	return out, gaps
}

// What has ended reads without its worker as it did with it, and what is not stored is a
// gap, up to the end.
func TestReadWithoutTheWorker(t *testing.T) {
	s := server(t)
	w := newWorker(t, s, "w1")
	serve(t, s, "g1")
	tenant := connect(t, s, subjects.RoleTenant, "local")
	const n = 600
	l := printed(t, "p", n)
	l.Close(true, "")
	stats := l.Stats()
	for _, id := range []string{"whole", "holed", "headed", "none"} {
		w.record(wire.Receipt{Process: id, Tenant: "local", Session: "s1", State: wire.StateFailed, ExitCode: new(3), Output: stats})
	}
	w.record(wire.Receipt{Process: "silent", Tenant: "local", State: wire.StateCompleted, ExitCode: new(0), Output: wire.OutputStats{Complete: true}})
	w.ship("local", "whole", l, 0, 200)
	w.ship("local", "whole", l, 200, n)
	w.ship("local", "holed", l, 0, 100)
	w.store("local", "holed", []byte("no message"))
	w.ship("local", "holed", l, 400, n)
	w.ship("local", "headed", l, 0, 100)
	w.stop()

	for _, view := range []wire.View{wire.ViewText, wire.ViewSafe, wire.ViewBase64} {
		st := output.State{State: wire.StateFailed, ExitCode: new(3)}
		read := func(from, to int64) (want []wire.Chunk) {
			for cursor := from; cursor < to; {
				p, err := l.Read(wire.Read{Cursor: &cursor, View: view, MaxBytes: wire.MinPageBytes}, st)
				if err != nil {
					t.Fatal(err)
				}
				want, cursor = append(want, p.Chunks...), p.NextCursor
			}
			return want[:to-from]
		}
		for _, tt := range []struct {
			id     string
			cursor int64
			want   []wire.Chunk
			gap    [2]int64
		}{
			{"whole", 0, read(0, n), [2]int64{}},
			{"whole", 333, read(333, n), [2]int64{}},
			{"holed", 0, append(read(0, 100), read(400, n)...), [2]int64{100, 400}},
			{"holed", 250, read(400, n), [2]int64{100, 400}},
			{"headed", 50, read(50, 100), [2]int64{100, n}},
			{"headed", 300, nil, [2]int64{100, n}},
			{"silent", 0, nil, [2]int64{}},
		} {
			all := pages(t, tenant, tt.id, tt.cursor, view)
			got, gaps := chunks(all)
			if len(got) != len(tt.want) || len(got) > 0 && !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%s of %s from %d: %d chunks, want %d", view, tt.id, tt.cursor, len(got), len(tt.want))
			}
			if tt.gap[1] == 0 && len(gaps) > 0 ||
				tt.gap[1] > 0 && (len(gaps) != 1 || gaps[0].Cursor != tt.gap[0] || gaps[0].NextCursor != tt.gap[1] || gaps[0].Reason != wire.GapNotShipped) {
				t.Errorf("%s from %d: gaps %+v, want %v", tt.id, tt.cursor, gaps, tt.gap)
			}
			last := all[len(all)-1]
			if !last.End || last.Owner != wire.OwnerUnreachable || last.State == wire.StateUnreachable || last.ExitCode == nil || !last.Output.Complete {
				t.Errorf("%s from %d ends with %+v", tt.id, tt.cursor, last)
			}
			if o := last.Output; o.KeptBytes+o.DroppedBytes != o.TotalBytes || tt.id != "silent" && o.TotalBytes != stats.TotalBytes {
				t.Errorf("%s: %+v", tt.id, o)
			}
		}
	}
	// A place inside a chunk, and one ahead of all.
	at := stats.TotalBytes - 5
	p := mustAsk[wire.Page](t, tenant, "local", wire.VerbRead, &wire.Read{Version: 1, ProcessRef: ref("whole"), Offset: &at})
	if p.Offset != at || p.NextOffset != stats.TotalBytes || !p.End {
		t.Errorf("%+v", p)
	}
	at = stats.TotalBytes + 1
	if _, err := ask[wire.Page](t, tenant, "local", wire.VerbRead, &wire.Read{Version: 1, ProcessRef: ref("whole"), Offset: &at}); code(err) != wire.CodeCursorAhead {
		t.Errorf("ahead of all: %v", err)
	}
	// Nothing is stored, though there was output: the worker may have it.
	_, err := ask[wire.Page](t, tenant, "local", wire.VerbRead, &wire.Read{Version: 1, ProcessRef: ref("none")})
	if e := wire.AsError(err); e.Code != wire.CodeUnreachable || e.Details["owner"] != wire.OwnerUnreachable || e.Details["state"] != "failed" {
		t.Errorf("%+v", e)
	}
}

// A search finds in the stream what it found in the worker's log.
func TestSearchWithoutTheWorker(t *testing.T) {
	s := server(t)
	w := newWorker(t, s, "w1")
	serve(t, s, "g1")
	tenant := connect(t, s, subjects.RoleTenant, "local")
	const n = 600
	l := printed(t, "p", n)
	l.Close(true, "")
	for _, id := range []string{"p", "holed"} {
		w.record(wire.Receipt{Process: id, Tenant: "local", State: wire.StateCompleted, ExitCode: new(0), Output: l.Stats()})
	}
	w.record(wire.Receipt{Process: "live", Tenant: "local", State: wire.StateRunning})
	w.ship("local", "p", l, 0, 333)
	w.ship("local", "p", l, 333, n)
	w.ship("local", "holed", l, 0, 100)
	w.ship("local", "holed", l, 400, n)
	w.ship("local", "live", l, 0, 100)
	w.stop()
	search := func(m wire.Search) *wire.Found {
		t.Helper()
		m.Version = 1
		return mustAsk[wire.Found](t, tenant, "local", wire.VerbSearch, &m)
	}
	for _, m := range []wire.Search{
		{Pattern: `line \d*7 é`, MaxMatches: 1000},
		{Pattern: "line 33", Literal: true, Stream: "stderr", BeforeLines: 2, AfterLines: 3},
		{Pattern: "LINE 5", IgnoreCase: true, Cursor: new(int64(300)), MaxMatches: 5},
		{Pattern: "nowhere"},
	} {
		m.ProcessRef = ref("p")
		want, err := l.Search(t.Context(), m, output.State{State: wire.StateCompleted, ExitCode: new(0)})
		if err != nil {
			t.Fatal(err)
		}
		want.Version, want.Owner = 1, wire.OwnerUnreachable
		if got := search(m); !reflect.DeepEqual(got, want) {
			t.Errorf("%s\n%+v\n%+v", m.Pattern, got, want)
		}
	}
	got := search(wire.Search{ProcessRef: ref("holed"), Pattern: "line (99|100|399|400) "})
	if len(got.Matches) != 2 || len(got.Gaps) != 1 || got.Gaps[0].Reason != wire.GapNotShipped || !got.End {
		t.Errorf("%+v", got)
	}
	got = search(wire.Search{ProcessRef: ref("live"), Pattern: "line 9"})
	if len(got.Matches) != 11 || got.End || got.State != wire.StateUnreachable || got.NextCursor != 100 {
		t.Errorf("%d matches, %+v", len(got.Matches), got)
	}
	for _, m := range []wire.Search{{Cursor: new(int64(500))}, {Offset: new(int64(1 << 30))}} {
		m.ProcessRef, m.Pattern = ref("live"), "line"
		got = search(m)
		if len(got.Matches) > 0 || got.End || m.Cursor != nil && got.NextCursor != 500 || m.Offset != nil && got.NextOffset != 1<<30 {
			t.Errorf("%+v", got)
		}
	}
	if _, err := ask[wire.Found](t, tenant, "local", wire.VerbSearch, &wire.Search{Version: 1, ProcessRef: ref("p"), Pattern: "("}); code(err) != wire.CodeInvalidArguments {
		t.Errorf("%v", err)
	}
}

// Of what may still run, the start is read in a row, and is never the end: a reader goes
// on where it stopped when the worker is back.
func TestReadOfWhatMayStillRun(t *testing.T) {
	s := server(t)
	w := newWorker(t, s, "w1")
	serve(t, s, "g1")
	tenant := connect(t, s, subjects.RoleTenant, "local")
	l := printed(t, "p", 600)
	for _, id := range []string{"live", "fresh"} {
		w.record(wire.Receipt{Process: id, Tenant: "local", Session: "s1", State: wire.StateRunning})
	}
	w.ship("local", "live", l, 0, 100)
	w.ship("local", "live", l, 400, 600) // its worker went between this and the record
	w.stop()
	began := time.Now()
	all := pages(t, tenant, "live", 0, wire.ViewText)
	got, gaps := chunks(all)
	last := all[len(all)-1]
	if len(got) != 100 || len(gaps) > 0 || last.End || last.State != wire.StateUnreachable || last.Owner != wire.OwnerUnreachable || last.NextCursor != 100 {
		t.Errorf("%d chunks, gaps %v, %+v", len(got), gaps, last)
	}
	for _, ahead := range []int64{100, 101, 1 << 40} {
		for _, r := range []wire.Read{{Cursor: &ahead}, {Offset: new(ahead << 8)}} {
			r.Version, r.ProcessRef, r.WaitMS = 1, ref("live"), 60_000
			p := mustAsk[wire.Page](t, tenant, "local", wire.VerbRead, &r)
			if len(p.Chunks) > 0 || p.End || p.HasMore || p.CursorExpired || r.Cursor != nil && p.NextCursor != ahead {
				t.Errorf("at %d: %+v", ahead, p)
			}
		}
	}
	if p := mustAsk[wire.Page](t, tenant, "local", wire.VerbRead, &wire.Read{Version: 1, ProcessRef: ref("fresh")}); len(p.Chunks) > 0 || p.End {
		t.Errorf("%+v", p)
	}
	if d := time.Since(began); d > 30*time.Second {
		t.Errorf("somebody waited: %v", d)
	}
	// A process of another session is as unknown as one that never was.
	for session, want := range map[string]wire.Code{"s1": "", "s2": wire.CodeNotFound} {
		for verb, m := range map[string]any{
			wire.VerbRead:   &wire.Read{Version: 1, ProcessRef: wire.ProcessRef{Process: "live", InSession: session}},
			wire.VerbStatus: &wire.Status{Version: 1, ProcessRef: wire.ProcessRef{Process: "live", InSession: session}},
			wire.VerbWait:   &wire.Wait{Version: 1, ProcessRef: wire.ProcessRef{Process: "live", InSession: session}},
		} {
			if _, err := ask[struct{}](t, tenant, "local", verb, m); code(err) != want {
				t.Errorf("%s in session %s: %v", verb, session, err)
			}
		}
	}
	missing := mustFail(t, tenant, &wire.Read{Version: 1, ProcessRef: ref("never")})
	foreign := mustFail(t, tenant, &wire.Read{Version: 1, ProcessRef: wire.ProcessRef{Process: "live", InSession: "s2"}})
	if strings.ReplaceAll(missing.Error(), "never", "live") != foreign.Error() {
		t.Errorf("%v differs from %v", foreign, missing)
	}
	if e := mustFail(t, tenant, &wire.Read{Version: 1, ProcessRef: ref("live"), MaxBytes: 1}); e.Field != "max_bytes" {
		t.Errorf("%v", e)
	}
}

func mustFail(tb testing.TB, conn *bus.Conn, m *wire.Read) *wire.Error {
	tb.Helper()
	_, err := ask[wire.Page](tb, conn, "local", wire.VerbRead, m)
	if err == nil {
		tb.Fatalf("%+v was answered", m)
	}
	return wire.AsError(err)
}

// What the worker has let go of is read from the stream, whose last word is the record.
func TestReadOfWhatTheWorkerDoesNotKeep(t *testing.T) {
	s := server(t)
	w := newWorker(t, s, "w1")
	serve(t, s, "g1")
	tenant := connect(t, s, subjects.RoleTenant, "local")
	l := printed(t, "p", 50)
	l.Close(true, "")
	for _, id := range []string{"stored", "gone"} {
		w.record(wire.Receipt{Process: id, Tenant: "local", State: wire.StateCompleted, ExitCode: new(0), Output: l.Stats()})
	}
	w.ship("local", "stored", l, 0, 50)
	w.answers(func(r *bus.Request, target subjects.Target) bool {
		if target.Verb != wire.VerbRead && target.Verb != wire.VerbWrite {
			return false
		}
		w.check(r.RespondError(wire.Errorf(wire.CodeExpired, "the output is no longer retained")))
		return true
	})
	all := pages(t, tenant, "stored", 0, wire.ViewText)
	if got, gaps := chunks(all); len(got) != 50 || len(gaps) > 0 || !all[len(all)-1].End || all[0].Owner != "" {
		t.Errorf("%d chunks, gaps %v, owner %q", len(got), gaps, all[0].Owner)
	}
	if e := mustFail(t, tenant, &wire.Read{Version: 1, ProcessRef: ref("gone")}); e.Code != wire.CodeExpired {
		t.Errorf("%v", e)
	}
	if _, err := ask[wire.Receipt](t, tenant, "local", wire.VerbWrite, &wire.Write{Version: 1, ProcessRef: ref("stored"), Text: "x"}); code(err) != wire.CodeExpired {
		t.Errorf("write: %v", err)
	}
}
