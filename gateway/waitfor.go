package gateway

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

const (
	// maxWaits bounds the processes that are waited for by all wait_for together, where
	// they name several.
	maxWaits = 4096
	// A worker goes on with a wait that nobody needs any more until its time is up. So
	// one process is asked in pieces that double: what is left over is never longer than
	// what was waited. The output is looked through anew for each piece, so that those of
	// a pattern begin longer.
	firstPiece        = 50 * time.Millisecond
	firstPatternPiece = time.Second
	// overdue is how much longer than its piece an answer may take, a look through a large
	// output included.
	overdue = 12 * time.Second
	// waitPause is how long a process is left alone whose worker does not answer.
	waitPause = 500 * time.Millisecond
	// lastWords is how much longer than the wait the answers to its last pieces may take.
	lastWords = 150 * time.Millisecond
	// wayBack is left of a deadline for the answer, which comes lastWords after the wait.
	wayBack = 2 * lastWords
)

// waitFor waits for one process on its worker, or for several, each on its own.
func (g *Gateway) waitFor(ctx context.Context, c *call) ([]byte, error) {
	var a address
	if err := wire.Unmarshal(c.ContentType(), c.Data, &a, false); err != nil {
		return nil, err
	}
	if a.Process != "" {
		return g.toProcess(ctx, c)
	}
	req, err := wire.DecodeRequest(c.verb, c.ContentType(), c.Data)
	if err != nil {
		return nil, err
	}
	m := req.(*wire.WaitFor)
	n := int64(len(m.Processes))
	defer g.waits.Add(-n)
	if g.waits.Add(n) > maxWaits {
		return nil, errOverloaded
	}
	limit := time.Duration(cmp.Or(m.WaitMS, wire.DefaultWaitForMS)) * time.Millisecond
	if d, ok := ctx.Deadline(); ok {
		rest := time.Until(d)
		limit = min(limit, rest-min(wayBack, rest/3))
	}
	began := time.Now()
	w := several{gateway: g, call: c, m: m, base: ctx, began: began, until: began.Add(limit), news: make(chan waitNews, n)}
	ctx, cancel := context.WithTimeout(ctx, limit+lastWords)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	for i, id := range m.Processes {
		waiting.Go(func() { w.one(ctx, i, id) }) // ends with ctx, or when nothing more can come of it
	}
	return wire.EncodeReply(c.ContentType(), w.collect(ctx), nil)
}

// several is a wait for several processes.
type several struct {
	gateway *Gateway
	call    *call
	m       *wire.WaitFor
	base    context.Context //nolint:containedctx // of the request; those of its pieces have deadlines of their own
	began   time.Time
	until   time.Time
	news    chan waitNews
}

// waitNews is how the wait for one process stands.
type waitNews struct {
	i    int
	res  wire.ProcessWait
	last bool // nothing more will be told of it
}

// collect returns when the wait as a whole has an answer, when the time is up, or when ctx
// ends: with what is known then.
func (w *several) collect(ctx context.Context) *wire.Waited {
	n := len(w.m.Processes)
	out := &wire.Waited{Version: wire.Version, Results: make([]wire.ProcessWait, n)}
	known := make([]bool, n)
	for i, id := range w.m.Processes {
		out.Results[i].Process = id
	}
	for open := n; open > 0 && !w.answered(out); {
		var news waitNews
		select {
		case news = <-w.news:
		case <-ctx.Done():
			select {
			case news = <-w.news: // it was there before
			default:
				open = 0
				continue
			}
		}
		out.Results[news.i], known[news.i] = news.res, true
		if news.last {
			open--
		}
	}
	for i := range out.Results {
		if !known[i] && !w.answered(out) {
			out.Results[i].Error = w.silent(out.Results[i].Process)
		}
	}
	out.Met = met(w.m.Mode, out.Results)
	return out
}

// silent says that the worker of a process has not answered in time.
func (w *several) silent(process string) *wire.Error {
	return &wire.Error{
		Code: wire.CodeUnreachable, Message: "the worker of this process has not answered in time; that says nothing of the process",
		Details: map[string]any{"owner": wire.OwnerUnreachable, "process": process},
	}
}

func (w *several) answered(out *wire.Waited) bool {
	return w.m.Mode != "all" && met(w.m.Mode, out.Results) || out.Over()
}

// met: any of them, or all.
func met(mode string, results []wire.ProcessWait) bool {
	n := 0
	for i := range results {
		if results[i].Met {
			n++
		}
	}
	return mode != "all" && n > 0 || n == len(results)
}

// one waits for one process, piece by piece. What keeps it from being asked is told and
// tried again, because it may pass while the others are waited for.
func (w *several) one(ctx context.Context, i int, id string) {
	piece := firstPiece
	if w.m.For == "pattern" {
		piece = firstPatternPiece
	}
	pause := time.NewTimer(0)
	defer pause.Stop()
	for ; ; piece = longer(piece) {
		began := time.Now()
		res, again := w.ask(ctx, id, min(piece, time.Until(w.until)))
		if ctx.Err() != nil {
			return
		}
		rest := time.Until(w.until)
		last := res.Met || res.Ended || res.Error != nil && !again || rest < time.Millisecond
		select {
		case w.news <- waitNews{i, *res, last}:
		case <-ctx.Done():
			return
		}
		if last {
			return
		}
		if res.Error != nil || time.Since(began) < piece/2 { // answered from the record, or not at all
			pause.Reset(min(waitPause, rest))
			select {
			case <-pause.C:
			case <-ctx.Done():
				return
			}
		}
	}
}

// longer is the length of the piece after one. It stays below what a wait may be: while a
// worker is away there is a piece each waitPause, and doubled each time it would overflow.
func longer(piece time.Duration) time.Duration {
	return min(2*piece, wire.MaxWaitMS*time.Millisecond)
}

// ask asks the worker of one process for one piece of the wait. An error may pass when
// again is set.
func (w *several) ask(ctx context.Context, id string, piece time.Duration) (res *wire.ProcessWait, again bool) {
	m := *w.m
	m.Process, m.Processes, m.Mode, m.WaitMS = id, nil, "", max(1, piece.Milliseconds())
	if m.For == "quiet" { // counts from the call, not from its pieces
		m.WaitedMS = min(m.WaitedMS+time.Since(w.began).Milliseconds(), wire.MaxWaitMS)
	}
	asked, cancel := context.WithTimeout(w.base, piece+overdue)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	waited, err := w.gateway.askWait(asked, w.call, &m)
	if err == nil && len(waited.Results) == 1 {
		return &waited.Results[0], false
	}
	e := wire.AsError(cmp.Or(err, errNoResult))
	switch e.Code {
	case wire.CodeUnreachable, wire.CodeUnavailable, wire.CodeOverloaded, wire.CodeDeadlineExceeded, wire.CodeSupervisorShuttingDown:
		again = true
	}
	return &wire.ProcessWait{Process: id, Error: e}, again
}

var errNoResult error = wire.Errorf(wire.CodeInternal, "the worker answered for another process")

// askWait forwards a wait for one process, whose deadline is that of ctx.
func (g *Gateway) askWait(ctx context.Context, c *call, m *wire.WaitFor) (*wire.Waited, error) {
	data, err := wire.Marshal(c.ContentType(), m)
	if err != nil {
		return nil, err
	}
	p, err := g.findProcess(ctx, c.tenant, m.ProcessRef)
	if err != nil {
		return nil, err
	}
	r := *c.Request
	r.Data, r.Header = data, bus.Header{}
	for k, v := range c.Header {
		if k != subjects.HeaderDeadline {
			r.Header[k] = v
		}
	}
	one := &call{Request: &r, tenant: c.tenant, verb: c.verb}
	reply, err := g.askProcess(ctx, one, &address{ProcessRef: m.ProcessRef}, p)
	if errors.Is(err, bus.ErrNoResponders) {
		reply, err = g.withoutWorker(ctx, one, p)
	}
	if err != nil {
		return nil, err
	}
	return wire.DecodeReply[wire.Waited](c.ContentType(), reply)
}

// waitedFrom answers a wait from a receipt alone; nil where only the worker knows.
func waitedFrom(m *wire.WaitFor, r *wire.Receipt) *wire.Waited {
	res := wire.ProcessWait{Process: r.Process, Receipt: r, Ended: r.State.Terminal()}
	switch m.For {
	case "", "end":
		res.Met = res.Ended
	case "exit":
		res.Met = res.Ended || r.ExitedAt != nil
	default:
		return nil
	}
	return &wire.Waited{Version: wire.Version, Met: res.Met, Results: []wire.ProcessWait{res}}
}
