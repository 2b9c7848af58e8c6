package output

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

var update = flag.Bool("update", false, "write testdata/*.golden anew")

// golden compares texts by name with a file, in the order given.
func golden(t *testing.T, file string, texts [][2]string) {
	t.Helper()
	var b strings.Builder
	for _, x := range texts {
		fmt.Fprintf(&b, "== %s\n%s\n", x[0], x[1])
	}
	path := filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("%s differs; -update writes it anew\ngot\n%s\nwant\n%s", path, b.String(), want)
	}
}

var textNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// ran is a receipt of a process with output, changed by change.
func ran(state wire.State, reason wire.Reason, change func(*wire.Receipt)) *wire.Receipt {
	r := &wire.Receipt{
		Version: 1, Process: "P1", State: state, Reason: reason, Cwd: "/srv", CreatedAt: textNow.Add(-95 * time.Second),
		TimeoutMS: 30_000, Output: wire.OutputStats{TotalBytes: 6, StdoutBytes: 6, KeptBytes: 6, LatestCursor: 1, Complete: true},
	}
	if change != nil {
		change(r)
	}
	return r
}

func exited(code int) func(*wire.Receipt) {
	return func(r *wire.Receipt) { r.ExitCode = &code }
}

func killed(signal string, number int) func(*wire.Receipt) {
	return func(r *wire.Receipt) {
		code := 128 + number
		r.ExitCode, r.Signal = &code, signal
	}
}

func all(list ...func(*wire.Receipt)) func(*wire.Receipt) {
	return func(r *wire.Receipt) {
		for _, f := range list {
			f(r)
		}
	}
}

func failed(code wire.Code, text string) func(*wire.Receipt) {
	return func(r *wire.Receipt) { r.Error = wire.Errorf(code, "%s", text) }
}

func silent(r *wire.Receipt) { r.Output = wire.OutputStats{Complete: true} }

// resultOf is a run with the text "hello\n" for what was written.
func resultOf(r *wire.Receipt) *wire.Result {
	res := &wire.Result{Version: 1, Receipt: *r, OnTimeout: wire.OnTimeoutKill, Yielded: live(r)}
	if r.Output.TotalBytes > 0 {
		res.Stdout = wire.Rendered{Text: "hello\n", TotalBytes: 6}
	}
	return res
}

// TestTextOfEveryEnd: what is read of a run, for each way to end and each thing to be
// told of it.
func TestTextOfEveryEnd(t *testing.T) {
	const (
		completed, failure, cancelled, unknown = wire.StateCompleted, wire.StateFailed, wire.StateCancelled, wire.StateOutcomeUnknown
	)
	var texts [][2]string
	for _, c := range []struct {
		name string
		*wire.Receipt
	}{
		{"exit 0", ran(completed, wire.ReasonExit, exited(0))},
		{"exit 0, no output", ran(completed, wire.ReasonExit, all(exited(0), silent))},
		{"exit 7", ran(failure, wire.ReasonExit, exited(7))},
		{"exit 7, no output", ran(failure, wire.ReasonExit, all(exited(7), silent))},
		{"signal", ran(failure, wire.ReasonSignal, all(killed("SEGV", 11), func(r *wire.Receipt) { r.CoreDumped = true }))},
		{"timeout", ran(failure, wire.ReasonTimeout, killed("TERM", 15))},
		{"timeout of a part of a second, no output", ran(failure, wire.ReasonTimeout, all(killed("KILL", 9), silent, func(r *wire.Receipt) { r.TimeoutMS = 1500 }))},
		{"idle timeout", ran(failure, wire.ReasonIdleTimeout, killed("TERM", 15))},
		{"cancelled", ran(cancelled, wire.ReasonCancel, killed("TERM", 15))},
		{"cancelled by somebody", ran(cancelled, wire.ReasonCancel, all(exited(3), func(r *wire.Receipt) { r.CancelRequestedBy = "limpet\nkill" }))},
		{"session closed", ran(failure, wire.ReasonSessionClosed, killed("TERM", 15))},
		{"out of memory", ran(failure, wire.ReasonOOM, killed("KILL", 9))},
		{"output limit", ran(failure, wire.ReasonOutputLimit, killed("TERM", 15))},
		{"worker lost", ran(unknown, wire.ReasonWorkerLost, nil)},
		{"worker lost, with what is known", ran(unknown, wire.ReasonWorkerLost, failed(wire.CodeLostOnRestore, "the keeper is gone"))},
		{"internal", ran(failure, wire.ReasonInternal, all(killed("KILL", 9), failed(wire.CodeInternal, "see the worker's log")))},
		{"spawn failed", ran(failure, wire.ReasonSpawnFailed, all(silent, failed(wire.CodeSpawnFailed, "nosuch: no such file or directory")))},
		{"never started", ran(failure, wire.ReasonNeverStarted, all(silent, failed(wire.CodeUnavailable, "the store is away")))},
		{"cancelled before the start", ran(cancelled, wire.ReasonNeverStarted, silent)},
		{"a reason of a later version", ran(failure, "moon_phase", exited(1))},
		{"no reason", ran(failure, "", nil)},
		{"unreachable", ran(wire.StateUnreachable, "", nil)},
		{"unreachable, nothing known", ran(wire.StateUnreachable, "", silent)},
		{"starting", ran(wire.StateStarting, "", silent)},
		{"still running", ran(wire.StateRunning, "", nil)},
		{"still running, no output, stdin open", ran(wire.StateRunning, "", all(silent, func(r *wire.Receipt) { r.StdinOpen, r.StdinBytes = true, 4 }))},
		{"asked to end", ran(wire.StateCancelRequested, "", nil)},
		{"exited, streams open", ran(wire.StateRunning, wire.ReasonExit, exited(0))},
		{"leftovers ended", ran(completed, wire.ReasonExit, all(exited(0), func(r *wire.Receipt) { r.LeftoversLive, r.LeftoversKilled = 2, 2 }))},
		{"leftovers kept", ran(completed, wire.ReasonExit, all(exited(0), func(r *wire.Receipt) { r.LeftoversLive = 1 }))},
		{"could not be ended", ran(cancelled, wire.ReasonCancel, all(killed("KILL", 9), failed(wire.CodeTeardownFailed, "part of the tree could not be ended"),
			func(r *wire.Receipt) { r.Unsignalled, r.LeftoversLive = []int{11, 12}, 2 }))},
		{"nine that could not be ended", ran(cancelled, wire.ReasonCancel, all(exited(0), func(r *wire.Receipt) { r.Unsignalled = []int{1, 2, 3, 4, 5, 6, 7, 8, 9} }))},
		{"part of the output is gone", ran(completed, wire.ReasonExit, all(exited(0), func(r *wire.Receipt) { r.Output.DroppedBytes = 5 }))},
		{"output incomplete", ran(completed, wire.ReasonExit, all(exited(0), func(r *wire.Receipt) { r.Output.Complete, r.Output.Error = false, "the streams were held open" }))},
		{"descriptors", ran(completed, wire.ReasonExit, all(exited(0), func(r *wire.Receipt) { r.Output.Descriptors = []wire.DescriptorBytes{{Number: 3, Bytes: 12}} }))},
		{"stalled", ran(wire.StateRunning, "", func(r *wire.Receipt) { r.Output.Stalled = true })},
		{"state saved", ran(completed, wire.ReasonExit, all(exited(0), func(r *wire.Receipt) { r.StateCapture, r.SessionCwd = "saved", "/srv/app" }))},
		{"state unchanged", ran(completed, wire.ReasonExit, all(exited(0), func(r *wire.Receipt) { r.StateCapture, r.SessionCwd = "unchanged", "/srv" }))},
		{"state missed", ran(failure, wire.ReasonSignal, all(killed("KILL", 9), func(r *wire.Receipt) {
			r.StateCapture, r.Notes = "missed", []string{"the shell was killed", "and\x1b[31m more"}
		}))},
	} {
		texts = append(texts, [2]string{c.name, Text(resultOf(c.Receipt), TextOptions{})})
	}
	golden(t, "ends.golden", texts)
}

// constants gives the values of the constants of a type in a file of package wire.
func constants(t *testing.T, file, typ string) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "..", "subjects", "wire", file), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	ast.Inspect(f, func(n ast.Node) bool {
		s, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := s.Type.(*ast.Ident); !ok || id.Name != typ {
			return true
		}
		for _, v := range s.Values {
			text, err := strconv.Unquote(v.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, text)
		}
		return true
	})
	if len(values) < 2 {
		t.Fatalf("found %d constants of %s", len(values), typ)
	}
	return values
}

// A state or a reason that is added without a sentence of its own fails here.
func TestEveryStateAndReasonHasASentence(t *testing.T) {
	reasons := constants(t, "state.go", "Reason")
	for _, s := range constants(t, "state.go", "State") {
		state := wire.State(s)
		if got := stateWords(state); got == "state "+s {
			t.Errorf("state %s has no words", s)
		}
		for _, reason := range reasons {
			r := ran(state, wire.Reason(reason), exited(1))
			if got := reasonWords(r); got == "" || got == s+": "+reason || reason != "" && got == reason {
				t.Errorf("reason %s has no sentence: %q", reason, got)
			}
			got := Text(resultOf(r), TextOptions{})
			if !strings.HasPrefix(got, "hello\n[") || !strings.HasSuffix(got, "]") {
				t.Errorf("%s, %s: %q", s, reason, got)
			}
		}
	}
	if got := reasonWords(ran("failed", "new", nil)) + stateWords("new"); got != "failed: newstate new" {
		t.Errorf("unknown ones: %q", got)
	}
}

func TestTextOfStreams(t *testing.T) {
	whole := func(s string) wire.Rendered { return wire.Rendered{Text: s, TotalBytes: int64(len(s))} }
	const notice, brk = "[2 of 4 lines omitted (8 of 18 bytes); read P1 from offset 4]\n", "\n[0 of 0 lines omitted (8 of 12 bytes); read P1 from offset 2]\n"
	cut := wire.Rendered{
		Text: "one\n" + notice + "four\n", TotalBytes: 18,
		OmittedBytes: 8, OmittedLines: 2, OmittedOffset: 4, Truncated: true, NoticeAt: 4, NoticeBytes: len(notice),
	}
	inside := wire.Rendered{
		Text: "on" + brk + "ur", TotalBytes: 12,
		OmittedBytes: 8, OmittedOffset: 2, Truncated: true, NoticeAt: 2, NoticeBytes: len(brk),
	}
	var texts [][2]string
	for _, c := range []struct {
		name           string
		stdout, stderr wire.Rendered
		options        TextOptions
	}{
		{"stdout", whole("out"), whole(""), TextOptions{}},
		{"stderr", whole(""), whole("err\n"), TextOptions{}},
		{"both", whole("out"), whole("err\n"), TextOptions{}},
		{"cut", cut, whole("err\n"), TextOptions{}},
		{"cut, in other words", cut, whole(""), TextOptions{Rest: func(p string, n int64) string { return fmt.Sprintf("use action read, process %q, offset %d", p, n) }}},
		{"cut in a line, in other words", inside, whole(""), TextOptions{Rest: func(string, int64) string { return "there is no way to it" }}},
		{"cut without a notice in it", wire.Rendered{Text: "AAAA", TotalBytes: 9, OmittedBytes: 6, OmittedOffset: 3, Truncated: true}, whole("x"), TextOptions{}},
		{"binary", wire.Rendered{Text: placeholder(wire.Stdout, 100, 0.5), TotalBytes: 100, OmittedBytes: 100, Truncated: true, Binary: true}, whole(""), TextOptions{}},
		{"loss", wire.Rendered{Text: "\uFFFD\n", TotalBytes: 2, EncodingLoss: 1}, wire.Rendered{Text: "\uFFFD\uFFFD", TotalBytes: 2, EncodingLoss: 2}, TextOptions{}},
		{"nothing to see", wire.Rendered{TotalBytes: 9}, whole(""), TextOptions{}},
	} {
		res := resultOf(ran(wire.StateFailed, wire.ReasonExit, exited(1)))
		res.Stdout, res.Stderr = c.stdout, c.stderr
		texts = append(texts, [2]string{c.name, Text(res, c.options)})
	}
	golden(t, "streams.golden", texts)
}
