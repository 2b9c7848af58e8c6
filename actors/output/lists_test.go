package output

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

func TestPageText(t *testing.T) {
	at := func(cursor int64, stream, text string) wire.Chunk {
		return wire.Chunk{Cursor: cursor, Stream: stream, Text: text, SourceBytes: len(text)}
	}
	page := func(state wire.State, change func(*wire.Page), chunks ...wire.Chunk) *wire.Page {
		p := &wire.Page{Process: "P1", NextCursor: int64(len(chunks)), NextOffset: 40, Chunks: chunks, State: state, Output: wire.OutputStats{TotalBytes: 40}}
		if change != nil {
			change(p)
		}
		return p
	}
	withheld := wire.Chunk{Stream: "stdout", Binary: true, SourceBytes: 4096, Text: "[binary]"}
	data := func(s string) wire.Chunk {
		return wire.Chunk{Stream: "stdout", Data: base64.StdEncoding.EncodeToString([]byte(s))}
	}
	end := func(code int) func(*wire.Page) { return func(p *wire.Page) { p.End, p.ExitCode = true, &code } }
	none := func(p *wire.Page) { p.Output.TotalBytes = 0 }
	var texts [][2]string
	for _, c := range []struct {
		name string
		*wire.Page
	}{
		{"more", page(wire.StateRunning, func(p *wire.Page) { p.HasMore = true }, at(0, "stdout", "out"), at(1, "stderr", "err\n"))},
		{"all so far", page(wire.StateRunning, nil, at(0, "stdout", "$ "))},
		{"end", page(wire.StateFailed, end(7), at(0, "stdout", "x\n"))},
		{"end without a code", page(wire.StateOutcomeUnknown, func(p *wire.Page) { p.End = true }, at(0, "stdout", "x\n"))},
		{"nothing yet", page(wire.StateStarting, none)},
		{"nothing new", page(wire.StateCancelRequested, nil)},
		{"nothing ever", page(wire.StateCompleted, func(p *wire.Page) { none(p); end(0)(p) })},
		{"nothing to see", page(wire.StateRunning, nil, at(0, "stdout", ""))},
		{"unreachable", page(wire.StateRunning, func(p *wire.Page) { p.Owner = wire.OwnerUnreachable }, at(0, "stdout", "x\n"))},
		{"unreachable, nothing", page(wire.StateUnreachable, none)},
		{"gaps", page(wire.StateCompleted, func(p *wire.Page) {
			end(0)(p)
			p.Gaps = []wire.Gap{{Cursor: 0, NextCursor: 5, Bytes: 100, Reason: "budget"}, {Cursor: 6, Bytes: 7, Reason: "torn"}, {Cursor: 9, Bytes: 8, Reason: "spool_error"}}
			p.NextCursor = 9
		}, at(5, "stdout", "five"), at(8, "stdout", "eight\n"))},
		{"binary", page(wire.StateRunning, nil, at(0, "stdout", "x"), withheld, withheld, at(3, "stdout", "y\n"))},
		{"loss", page(wire.StateRunning, nil, wire.Chunk{Stream: "stdout", Text: "\uFFFD\uFFFD", EncodingLoss: 2})},
		{"descriptors", page(wire.StateRunning, nil, at(0, "stdout", "a"), at(1, "fd3", "{}"), at(2, "fd3", "\n"), at(3, "fd4", "x\n"), at(4, "stderr", "b\n"), at(5, "stdout", "c\n"))},
		{"base64", page(wire.StateRunning, nil, data("ab"), data("cd"))},
	} {
		texts = append(texts, [2]string{c.name, PageText(c.Page, TextOptions{})})
	}
	golden(t, "pages.golden", texts)
}

func TestReceiptTexts(t *testing.T) {
	p := &wire.Page{Process: "P1", Chunks: []wire.Chunk{{Stream: "stdout", Text: "ready\n"}}, NextOffset: 6, NextCursor: 1, Output: wire.OutputStats{TotalBytes: 6}}
	more := *p
	more.HasMore = true
	with := func(p *wire.Page) func(*wire.Receipt) { return func(r *wire.Receipt) { r.Page = p } }
	running := func(f func(*wire.Receipt)) *wire.Receipt { return ran(wire.StateRunning, "", f) }
	done := func(f func(*wire.Receipt)) *wire.Receipt {
		return ran(wire.StateCompleted, wire.ReasonExit, all(exited(0), f))
	}
	same := func(*wire.Receipt) {}
	var texts [][2]string
	for _, c := range []struct {
		name string
		*wire.Receipt
	}{
		{"start", running(with(p))},
		{"start of what has ended", done(with(p))},
		{"start, ended, with more", done(with(&more))},
		{"wait expired", running(nil)},
		{"waited for the end", done(same)},
		{"nothing written", done(silent)},
		{"terminated", ran(wire.StateCancelled, wire.ReasonCancel, killed("TERM", 15))},
		{"unreachable", ran(wire.StateUnreachable, "", nil)},
	} {
		texts = append(texts, [2]string{c.name, ReceiptText(c.Receipt, TextOptions{})})
	}
	open := func(r *wire.Receipt) { r.StdinOpen, r.StdinBytes = true, 4 }
	sized := func(r *wire.Receipt) { r.TTY = &wire.WindowSize{Rows: 40, Cols: 120} }
	texts = append(texts,
		[2]string{"write", WriteText(running(open), TextOptions{})},
		[2]string{"write and read", WriteText(running(all(open, with(p))), TextOptions{})},
		[2]string{"write and close", WriteText(running(func(r *wire.Receipt) { r.StdinBytes = 1 }), TextOptions{})},
		[2]string{"write, and it ended", WriteText(done(with(p)), TextOptions{})},
		[2]string{"resize", ResizeText(running(sized), TextOptions{})},
		[2]string{"resize of what has ended", ResizeText(done(sized), TextOptions{})},
		[2]string{"signal", SignalText(running(nil), "int", TextOptions{})},
		[2]string{"signal by number", SignalText(ran(wire.StateFailed, wire.ReasonSignal, killed("USR1", 10)), "10", TextOptions{})},
		[2]string{"other words", ReceiptText(running(nil), TextOptions{Live: func(p string, n int64) string { return fmt.Sprintf("%s@%d", p, n) }})},
	)
	golden(t, "receipts.golden", texts)
}

// crowd is n running processes, one older than the next, and an ended one.
func crowd(n int) []wire.Receipt {
	list := []wire.Receipt{*ran(wire.StateFailed, wire.ReasonTimeout, killed("TERM", 15))}
	for i := range n {
		list = append(list, *ran(wire.StateRunning, "", func(r *wire.Receipt) {
			r.Process = fmt.Sprintf("P%02d", i+2)
			r.CreatedAt = textNow.Add(-time.Duration(i) * time.Minute)
			r.Description = "make serve " + strings.Repeat("x", i)
		}))
	}
	return list
}

func TestOthersAreTold(t *testing.T) { // M22
	golden(t, "others.golden", [][2]string{
		{"none", Text(resultOf(ran(wire.StateCompleted, wire.ReasonExit, exited(0))), TextOptions{Others: crowd(0), Now: textNow})},
		{"itself is none", ReceiptText(&crowd(1)[1], TextOptions{Others: crowd(1), Now: textNow})},
		{"some", Text(resultOf(ran(wire.StateCompleted, wire.ReasonExit, exited(0))), TextOptions{Others: crowd(2), Now: textNow})},
		{"many", strings.Join(Others(crowd(12), "P03", textNow), "\n")},
		{"at no known time", strings.Join(Others([]wire.Receipt{*ran(wire.StateCancelRequested, "", nil)}, "", time.Time{}), "\n")},
	})
	if n := len(Others(crowd(100), "", textNow)); n != maxOthers+1 {
		t.Errorf("%d lines of others", n)
	}
}

func TestListText(t *testing.T) {
	list := crowd(2)
	list = append(list,
		*ran(wire.StateCompleted, wire.ReasonExit, exited(0)),
		*ran(wire.StateUnreachable, "", nil),
		*ran(wire.StateRunning, wire.ReasonExit, exited(3)),
		*ran(wire.StateOutcomeUnknown, wire.ReasonWorkerLost, func(r *wire.Receipt) { r.Description = "two\nlines" }),
	)
	golden(t, "list.golden", [][2]string{
		{"none", ListText(&wire.Processes{}, TextOptions{})},
		{"some", ListText(&wire.Processes{Processes: list}, TextOptions{Now: textNow})},
	})
	long := ListText(&wire.Processes{Processes: crowd(60)}, TextOptions{Now: textNow})
	if lines := strings.Split(long, "\n"); len(lines) != maxListed+1 || lines[maxListed] != "[and 11 more]" {
		t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
	}
}

func TestWaitedText(t *testing.T) {
	met := func(f func(*wire.ProcessWait)) *wire.Waited {
		w := &wire.Waited{Met: true, Results: []wire.ProcessWait{{Process: "P1", Met: true, Receipt: ran(wire.StateRunning, "", nil)}}}
		if f != nil {
			f(&w.Results[0])
		}
		return w
	}
	ended := ran(wire.StateFailed, wire.ReasonExit, exited(2))
	several := &wire.Waited{Results: []wire.ProcessWait{
		{Process: "P1", Ended: true, Receipt: ended},
		{Process: "P2", Receipt: ran(wire.StateRunning, "", nil)},
		{Process: "P3", Error: wire.Errorf(wire.CodeNotFound, "there is no process P3")},
	}}
	owned := func(s string) func(*wire.ProcessWait) { return func(w *wire.ProcessWait) { w.PortOwner = s } }
	var texts [][2]string
	for _, c := range []struct {
		name string
		wire.WaitFor
		*wire.Waited
	}{
		{"end", wire.WaitFor{}, met(func(w *wire.ProcessWait) {
			w.Ended, w.Receipt = true, ran(wire.StateCompleted, wire.ReasonExit, exited(0))
		})},
		{"exit", wire.WaitFor{For: "exit"}, met(func(w *wire.ProcessWait) { w.Receipt = ended })},
		{"no receipt", wire.WaitFor{}, met(func(w *wire.ProcessWait) { w.Receipt = nil })},
		{"pattern", wire.WaitFor{For: "pattern"}, met(func(w *wire.ProcessWait) {
			w.Match = &wire.Match{Stream: "stderr", Line: "ready on\t:3000", NextOffset: 50}
		})},
		{"port", wire.WaitFor{For: "port", Port: 3000}, met(owned("process"))},
		{"port of another", wire.WaitFor{For: "port", Port: 3000}, met(owned("other"))},
		{"port of nobody knows", wire.WaitFor{For: "port", Port: 3000}, met(owned("unknown"))},
		{"file", wire.WaitFor{For: "file", Path: "/tmp/x"}, met(nil)},
		{"quiet", wire.WaitFor{For: "quiet", QuietMS: 2500}, met(nil)},
		{"time is up, of several", wire.WaitFor{For: "pattern", WaitMS: 1500}, several},
	} {
		texts = append(texts, [2]string{c.name, WaitedText(&c.WaitFor, c.Waited, TextOptions{})})
	}
	golden(t, "waited.golden", texts)
}

func TestFoundText(t *testing.T) {
	found := func(f func(*wire.Found), list ...wire.Match) string {
		x := &wire.Found{Process: "P1", Matches: list, Scanned: 1234, NextOffset: 99, State: wire.StateCompleted, End: true}
		if f != nil {
			f(x)
		}
		return FoundText(x, TextOptions{})
	}
	a, b := wire.Match{Offset: 3, Stream: "stdout", Line: "error: a"}, wire.Match{Offset: 12, Stream: "stderr", Line: "error: b"}
	around := a
	around.Before, around.After = []string{"one", "two"}, []string{""}
	long, open := a, b
	long.Truncated, open.Unfinished = true, true
	golden(t, "found.golden", [][2]string{
		{"none", found(nil)},
		{"some", found(nil, a, b)},
		{"lines around", found(nil, around, b)},
		{"long and unfinished", found(nil, long, open)},
		{"more", found(func(f *wire.Found) { f.HasMore, f.End = true, false }, a)},
		{"it still writes", found(func(f *wire.Found) { f.State, f.End = wire.StateRunning, false }, a)},
		{"unreachable", found(func(f *wire.Found) { f.Owner, f.End = wire.OwnerUnreachable, false }, a)},
		{"gaps", found(func(f *wire.Found) { f.Gaps = []wire.Gap{{Offset: 7, Bytes: 100, Reason: "budget"}} }, a)},
	})
}
