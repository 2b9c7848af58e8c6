package chaos

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/app"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

func TestBadInputMissing(t *testing.T) {
	b := newBadLab(t)
	for _, verb := range wire.Verbs() {
		least := b.least(verb)
		for name := range least {
			m := without(least, name)
			err := b.ask(t, verb, subjects.TypeJSON, encode(t, subjects.TypeJSON, m), nil)
			e := wire.AsError(err)
			if err == nil || e.Code != wire.CodeInvalidArguments || e.Field == "" {
				t.Errorf("%s without %s: %v", verb, name, err)
			}
			m = with(least, name, nil) // null is as good as nothing
			if err := b.ask(t, verb, subjects.TypeJSON, encode(t, subjects.TypeJSON, m), nil); err == nil || wire.AsError(err).Code != wire.CodeInvalidArguments {
				t.Errorf("%s with %s null: %v", verb, name, err)
			}
		}
	}
}

func TestBadInputNearestName(t *testing.T) {
	b := newBadLab(t)
	for _, tt := range []struct{ verb, path, nearest string }{
		{wire.VerbStart, "command.timeout", "timeout_ms"},
		{wire.VerbStart, "command.Text", "text"},
		{wire.VerbStart, "commnd", "command"},
		{wire.VerbRun, "yield_time_ms", "yield_ms"},
		{wire.VerbRun, "render.max_byte", "max_bytes"},
		{wire.VerbRead, "curser", "cursor"},
		{wire.VerbWrite, "read.maxbytes", "max_bytes"},
		{wire.VerbOpen, "limits.live_process", "live_processes"},
		{wire.VerbTerminate, "grace", "grace_ms"},
		{wire.VerbClose, "sesion", "session"},
	} {
		for _, contentType := range []string{subjects.TypeMsgpack, subjects.TypeJSON} {
			err := b.ask(t, tt.verb, contentType, encode(t, contentType, with(b.least(tt.verb), tt.path, 1)), nil)
			e := wire.AsError(err)
			if err == nil || e.Code != wire.CodeUnknownField || e.Field != tt.path || e.Details["nearest"] != tt.nearest {
				t.Errorf("%s %s: %v, field %q, details %v", tt.verb, tt.path, err, e.Field, e.Details)
			}
		}
	}
	for verb, nearest := range map[string]string{"strat": "start", "kill": "", "close-stdin": "close_stdin", "terminat": "terminate", "OPEN": "open", "x": ""} {
		err := b.ask(t, verb, "", nil, nil)
		e := wire.AsError(err)
		got, _ := e.Details["nearest"].(string)
		if err == nil || e.Code != wire.CodeInvalidArguments || e.Field != "verb" || nearest != "" && got != nearest {
			t.Errorf("verb %s: %v, details %v", verb, err, e.Details)
		}
	}
}

func TestBadInputBytes(t *testing.T) {
	b := newBadLab(t)
	for _, verb := range wire.Verbs() {
		for _, contentType := range []string{"", subjects.TypeMsgpack, subjects.TypeJSON} {
			good := encode(t, contentType, with(b.least(verb), "version", 1))
			tries := map[string][]byte{
				"a byte behind":      append(slices.Clone(good), 0xc0),
				"the message twice":  append(slices.Clone(good), good...),
				"text behind":        append(slices.Clone(good), " x"...),
				"a list":             encode(t, contentType, nil),
				"noise":              []byte("\xc1\xff\x00\x91 noise"),
				"huge claims":        {0xdf, 0xff, 0xff, 0xff, 0xff},
				"a long text":        {0xdb, 0xff, 0xff, 0xff, 0xff, 'x'},
				"nested without end": bytes.Repeat([]byte{0x91}, 100_000),
				"JSON without end":   bytes.Repeat([]byte{'['}, 100_000),
			}
			tries["a list"] = []byte{0x90}
			if contentType == subjects.TypeJSON {
				tries["a list"] = []byte("[]")
				tries["a key twice"] = []byte(`{"version":1,"version":1}`)
			}
			for n := range len(good) {
				tries[fmt.Sprintf("cut at %d", n)] = good[:n]
			}
			for name, data := range tries {
				err := b.ask(t, verb, contentType, data, nil)
				if err == nil || wire.AsError(err).Code != wire.CodeInvalidArguments {
					t.Errorf("%s %s: %s: %v", verb, contentType, name, err)
				}
			}
		}
	}
}

func TestBadInputHeaders(t *testing.T) {
	b := newBadLab(t)
	for _, verb := range wire.Verbs() {
		for _, contentType := range []string{"text/plain", "application/json; charset=utf-8", "APPLICATION/JSON", "application/cbor", "\x00", strings.Repeat("x", 10_000)} {
			err := b.ask(t, verb, contentType, encode(t, subjects.TypeJSON, b.least(verb)), nil)
			if e := wire.AsError(err); err == nil || e.Code != wire.CodeInvalidArguments || e.Field != subjects.HeaderContentType {
				t.Errorf("%s as %.40q: %v", verb, contentType, err)
			}
		}
		for _, version := range []string{"2", "0", "-1", "x", "1.0"} {
			err := b.ask(t, verb, subjects.TypeJSON, encode(t, subjects.TypeJSON, b.least(verb)), bus.Header{subjects.HeaderVersion: {version}})
			if e := wire.AsError(err); err == nil || e.Code != wire.CodeUnsupportedVersion || e.Field != subjects.HeaderVersion {
				t.Errorf("%s with version %q: %v", verb, version, err)
			}
		}
		past := strconv.FormatInt(time.Now().Add(-time.Second).UnixMilli(), 10)
		err := b.ask(t, verb, subjects.TypeJSON, encode(t, subjects.TypeJSON, b.least(verb)), bus.Header{subjects.HeaderDeadline: {past}})
		if e := wire.AsError(err); err == nil || e.Code != wire.CodeDeadlineExceeded {
			t.Errorf("%s past its deadline: %v", verb, err)
		}
	}
}

func TestBadInputIDs(t *testing.T) {
	b := newBadLab(t)
	malformed := []string{"a.b", "*", ">", "a b", "../x", "a/b", "é", "$SYS", strings.Repeat("x", 65), "-\n", "a\tb"}
	for _, verb := range wire.Verbs() {
		m := b.least(verb)
		for name := range m {
			var codes []wire.Code
			switch name {
			case "process", "session":
				codes = []wire.Code{wire.CodeNotFound}
			case "execution_id":
			default:
				continue
			}
			for _, id := range append(malformed, "AAAAAAAAAAAAAAAAAAAAAA", "local") {
				want := codes
				if slices.Contains(malformed, id) {
					want = []wire.Code{wire.CodeInvalidArguments}
				} else if codes == nil {
					continue
				}
				err := b.ask(t, verb, subjects.TypeJSON, encode(t, subjects.TypeJSON, with(m, name, id)), nil)
				if e := wire.AsError(err); err == nil || !slices.Contains(want, e.Code) || e.Field != name {
					t.Errorf("%s %s %q: %v of %q; want %v", verb, name, id, err, e.Field, want)
				}
			}
		}
	}
	t.Run("another tenant cannot be named", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		root := b.c.Conn().Root()
		e := b.s.Info().Incarnation
		for _, subject := range []string{
			root.API("other", wire.VerbStatus), root.API("*", wire.VerbStatus),
			root.Process(b.c.Tenant(), app.WorkerName, e, b.process, wire.VerbTerminate),
			root.Session(b.c.Tenant(), app.WorkerName, e, b.session, wire.VerbClose),
			root.WorkerOpen(b.c.Tenant(), app.WorkerName, e), root.Control(app.WorkerName, "drain"),
		} {
			_, err := b.c.Conn().Request(ctx, subject, nil, encode(t, "", b.least(wire.VerbStatus)))
			if err == nil {
				t.Errorf("%s was answered", subject)
			}
		}
	})
}

func TestBadInputPlaces(t *testing.T) {
	b := newBadLab(t)
	ref := wire.ProcessRef{Process: b.process}
	refused(t, b.raw(t, wire.VerbRead, wire.Read{Version: 1, ProcessRef: ref, Cursor: new(int64(1))}), wire.CodeCursorAhead, "cursor")
	refused(t, b.raw(t, wire.VerbRead, wire.Read{Version: 1, ProcessRef: ref, Offset: new(int64(1))}), wire.CodeCursorAhead, "offset")
	refused(t, b.raw(t, wire.VerbWrite, wire.Write{Version: 1, ProcessRef: ref, Text: "x", Read: &wire.Read{Cursor: new(int64(1))}}), wire.CodeCursorAhead, "read.cursor")
	refused(t, b.raw(t, wire.VerbWrite, wire.Write{Version: 1, ProcessRef: ref, Text: "x", Offset: new(int64(1))}), wire.CodeOffsetConflict, "offset")
	refused(t, b.raw(t, wire.VerbWrite, wire.Write{Version: 1, ProcessRef: ref, Data: make([]byte, 4<<20)}), wire.CodeInvalidArguments, "data")
	refused(t, b.raw(t, wire.VerbWrite, wire.Write{Version: 1, ProcessRef: ref, Text: strings.Repeat("x", 4<<20)}), wire.CodeInvalidArguments, "text")
	refused(t, b.raw(t, wire.VerbResize, wire.Resize{Version: 1, ProcessRef: ref, WindowSize: wire.WindowSize{Rows: 1, Cols: 1}}), wire.CodePTYUnavailable, "")
	for _, s := range []string{"NOPE", "0", "65", "-9", "SIG", "KILL ", "9.0", "+9"} {
		refused(t, b.raw(t, wire.VerbSignal, wire.Signal{Version: 1, ProcessRef: ref, Signal: s}), wire.CodeInvalidArguments, "signal")
	}
	session := wire.SessionRef{Session: b.session}
	for path, o := range map[string]wire.OutputLimits{
		"window_bytes":    {WindowBytes: 4095},
		"spool_bytes":     {SpoolBytes: 5},
		"head_bytes":      {SpoolBytes: 1 << 20, HeadBytes: 2 << 20},
		"kill_over_bytes": {KillOverBytes: -1},
		"lossless":        {Lossless: true, SpoolBytes: -1},
	} {
		c := wire.Command{Text: "touch " + b.marker, Output: &o}
		refused(t, b.raw(t, wire.VerbStart, wire.Start{Version: 1, SessionRef: session, Command: c}), wire.CodeInvalidArguments, "command.output."+path)
		refused(t, b.raw(t, wire.VerbPrepare, wire.Prepare{Version: 1, SessionRef: session, Command: c}), wire.CodeInvalidArguments, "command.output."+path)
	}
	refused(t, b.raw(t, wire.VerbOpen, wire.Open{Version: 1, Limits: &wire.SessionLimits{LiveProcesses: 50_000}}), wire.CodeInvalidArguments, "limits.live_processes")
	if len(b.all(t).Processes) != 1 {
		t.Error("something was started")
	}
}

// An ended process that is no longer retained has its receipt and nothing else.
func TestBadInputEvicted(t *testing.T) {
	l := start(t)
	a := newAgent(t, l, wire.Open{Cwd: t.TempDir(), Limits: &wire.SessionLimits{RetainedProcesses: 1}})
	first := a.run(t, wire.Command{Text: "echo first", Output: &wire.OutputLimits{ShipBytes: -1}}).Receipt.Process
	second := a.text(t, "echo second").Receipt.Process
	ref := wire.ProcessRef{Process: first}
	refused(t, a.raw(t, wire.VerbRead, wire.Read{Version: 1, ProcessRef: ref}), wire.CodeExpired, "")
	refused(t, a.raw(t, wire.VerbWrite, wire.Write{Version: 1, ProcessRef: ref, Text: "x"}), wire.CodeExpired, "")
	refused(t, a.raw(t, wire.VerbResize, wire.Resize{Version: 1, ProcessRef: ref, WindowSize: wire.WindowSize{Rows: 1, Cols: 1}}), wire.CodeExpired, "")
	refused(t, a.raw(t, wire.VerbSignal, wire.Signal{Version: 1, ProcessRef: ref, Signal: "TERM"}), wire.CodeExpired, "")
	// Also a message that is wrong is called wrong, whatever became of the process.
	refused(t, a.raw(t, wire.VerbSignal, wire.Signal{Version: 1, ProcessRef: ref, Signal: "NOPE"}), wire.CodeInvalidArguments, "signal")
	refused(t, a.raw(t, wire.VerbWait, wire.Wait{Version: 1, ProcessRef: ref, WaitMS: -5}), wire.CodeInvalidArguments, "wait_ms")
	for _, verb := range []string{wire.VerbStatus, wire.VerbWait, wire.VerbTerminate} {
		if err := a.raw(t, verb, wire.Status{Version: 1, ProcessRef: ref}); err != nil {
			t.Errorf("%s: %v", verb, err)
		}
	}
	if r := a.status(t, first); r.State != wire.StateCompleted || r.ExitCode == nil || *r.ExitCode != 0 || r.Output.TotalBytes != 6 {
		t.Errorf("%+v", r)
	}
	if out := a.output(t, second); out != "second\n" {
		t.Errorf("%q", out)
	}
}
