package output

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// Bounds of what is told in one text.
const (
	maxOthers = 8  // M22
	maxListed = 50 // processes
	maxWhat   = 60 // characters of a description
)

// Others tells which of the processes still live, one notice a line: at most 8, the
// newest first, and how many more there are. except is left out. Ages need now.
func Others(list []wire.Receipt, except string, now time.Time) []string {
	var lives []*wire.Receipt
	for i := range list {
		if r := &list[i]; live(r) && r.Process != except {
			lives = append(lives, r)
		}
	}
	newestFirst(lives)
	var out []string
	for _, r := range lives[:min(len(lives), maxOthers)] {
		s := "[also running: " + r.Process
		if r.State != wire.StateRunning {
			s += ", " + stateWords(r.State)
		}
		if a := age(r, now); a != "" {
			s += ", " + a
		}
		out = append(out, s+", "+what(r)+"]")
	}
	if n := len(lives) - len(out); n > 0 {
		out = append(out, fmt.Sprintf("[and %d more running]", n))
	}
	return out
}

func newestFirst(list []*wire.Receipt) {
	slices.SortStableFunc(list, func(a, b *wire.Receipt) int { return b.CreatedAt.Compare(a.CreatedAt) })
}

// what tells a person what a process is: its description, else where it runs.
func what(r *wire.Receipt) string {
	if r.Description != "" {
		return oneLine(r.Description, maxWhat)
	}
	return "in " + oneLine(r.Cwd, maxWhat)
}

// OneLine makes a text of somebody else's, such as a description, fit for a notice: one
// line of at most 60 characters, without control characters.
func OneLine(s string) string { return oneLine(s, maxWhat) }

// age is the time since a process was admitted; "" when it is not known what time it is.
func age(r *wire.Receipt, now time.Time) string {
	if now.IsZero() || r.CreatedAt.IsZero() {
		return ""
	}
	return max(now.Sub(r.CreatedAt), 0).Round(time.Second).String()
}

// ListText is a line a process: id, state, age, how it ended, what it is. Those that
// live come first, then the newest; at most 50, and how many more there are.
func ListText(list *wire.Processes, o TextOptions) string {
	if len(list.Processes) == 0 {
		return "(no processes)"
	}
	all := make([]*wire.Receipt, len(list.Processes))
	for i := range all {
		all[i] = &list.Processes[i]
	}
	newestFirst(all)
	slices.SortStableFunc(all, func(a, b *wire.Receipt) int { return rank(a) - rank(b) })
	t := newText(o)
	for _, r := range all[:min(len(all), maxListed)] {
		cells := []string{r.Process, string(r.State)}
		if a := age(r, o.Now); a != "" {
			cells = append(cells, a)
		}
		switch {
		case r.State.Terminal() && ending(r) == "":
			cells = append(cells, howEnded(r))
		case r.State.Terminal():
			cells = append(cells, ending(r))
		case howEnded(r) != "":
			cells = append(cells, "exited ("+howEnded(r)+")")
		default:
			cells = append(cells, "-")
		}
		t.line(strings.Join(append(cells, what(r)), "  "))
	}
	if n := len(all) - maxListed; n > 0 {
		t.note("and %d more", n)
	}
	return t.String()
}

// rank is the order in a list: what may still change comes first.
func rank(r *wire.Receipt) int {
	switch {
	case live(r):
		return 0
	case !r.State.Terminal():
		return 1
	}
	return 2
}

// ReceiptText is the text of a receipt that came alone or with a page: of a start, a
// wait, a status, a cancel, a terminate.
func ReceiptText(r *wire.Receipt, o TextOptions) string {
	t := newText(o)
	next := int64(0)
	if p := r.Page; p != nil {
		t.page(p)
		next = p.NextOffset
		if p.HasMore && !live(r) {
			t.note("more output: %s", o.rest(r.Process, next))
		}
	}
	t.status(r, next)
	t.receipt(r)
	t.others(r.Process)
	return t.String()
}

// status is where a process stands, in one notice or two.
func (t *text) status(r *wire.Receipt, next int64) {
	switch s := ending(r); {
	case live(r):
		seen := *r
		seen.Output.TotalBytes = next // what was shown
		t.alive(&seen)
	case s == "":
		t.note("process %s: %s", r.Process, howEnded(r))
	default:
		t.note("process %s: %s", r.Process, s)
	}
	if n := r.Output.TotalBytes; r.Page == nil && n > 0 && !live(r) {
		t.note("%s of output: %s", plural(n, "byte", "bytes"), t.opt.rest(r.Process, 0))
	}
}

// WriteText is the text of a write or a close_stdin, with its page if it has one.
func WriteText(r *wire.Receipt, o TextOptions) string {
	t := newText(o)
	next := int64(0)
	if r.Page != nil {
		t.page(r.Page)
		next = r.Page.NextOffset
	}
	state := "closed"
	if r.StdinOpen {
		state = "open"
	}
	t.note("stdin of %s: %s written in all, %s", r.Process, plural(r.StdinBytes, "byte", "bytes"), state)
	switch {
	case !live(r):
		t.status(r, next)
	case r.Page != nil:
		t.note("%s; later output: %s", stateWords(r.State), o.rest(r.Process, next))
	}
	t.receipt(r)
	return t.String()
}

// ResizeText is the text of a resize.
func ResizeText(r *wire.Receipt, o TextOptions) string {
	t := newText(o)
	if r.TTY != nil {
		t.note("the terminal of %s has %d rows and %d columns", r.Process, r.TTY.Rows, r.TTY.Cols)
	}
	if !live(r) {
		t.status(r, 0)
	}
	return t.String()
}

// SignalText is the text of a signal that was sent.
func SignalText(r *wire.Receipt, signal string, o TextOptions) string {
	t := newText(o)
	name := strings.TrimPrefix(strings.ToUpper(oneLine(signal, maxWhat)), "SIG")
	if _, err := strconv.Atoi(name); err != nil {
		name = "SIG" + name
	} else {
		name = "signal " + name
	}
	if r.ExitedAt != nil || r.State.Terminal() { // before the signal, or of it
		t.note("%s: the command of %s has ended", name, r.Process)
	} else {
		t.note("%s was sent to the process group of %s", name, r.Process)
	}
	t.status(r, 0)
	return t.String()
}
