package actors

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/limpet-sh/limpet/actors/output"
	"github.com/limpet-sh/limpet/subjects/wire"
)

const (
	// looksAtLeast is how long an answer may take, whatever its wait_ms, to look through
	// what was there when it was asked for.
	looksAtLeast = 10 * time.Second
	// scanPause is the least time between two looks at the output of one wait. A process
	// that writes byte by byte is not looked at byte by byte.
	scanPause = 10 * time.Millisecond
	// Ports and files tell nobody: they are looked at after firstLook, then at intervals
	// that grow by half up to lastLook, which bounds how late an answer is.
	firstLook = 25 * time.Millisecond
	lastLook  = 250 * time.Millisecond
)

// waitFor answers wait_for of this process in a goroutine of the actor, of which there
// are at most maxWaiters beside those of the other calls, so that reads get through. It
// needs no fork to begin, and answers a process that has ended.
func (p *process) waitFor(r request, m *wire.WaitFor) {
	if len(m.Processes) > 0 {
		refuse(r, wire.Invalid("processes", "a worker waits for one process; give process, or ask a gateway"))
		return
	}
	p.waitingIn(&p.watchers, reportWatcher, r, func() {
		res, err := p.watch(r, m)
		if err != nil {
			refuse(r, err)
			return
		}
		answer(r, waited(res))
	})
}

func waited(res *wire.ProcessWait) *wire.Waited {
	return &wire.Waited{Version: wire.Version, Met: res.Met, Results: []wire.ProcessWait{*res}}
}

// watch waits until the condition is met, cannot be met any more, or the time is up. When
// the actor leaves it answers as things are, as wait does.
func (p *process) watch(r request, m *wire.WaitFor) (res *wire.ProcessWait, err error) {
	limit := time.Duration(cmp.Or(m.WaitMS, wire.DefaultWaitForMS)) * time.Millisecond
	// look ends what is under way when no answer is of use any more; ctx ends the wait.
	look, cancel := context.WithTimeout(p.ctx, answerBy(r, max(limit, looksAtLeast)))
	defer cancel()
	ctx, cancel := context.WithTimeout(look, limit)
	defer cancel()
	res = &wire.ProcessWait{Process: p.id}
	switch m.For {
	case "", "end":
		await(ctx, p.ended)
	case "exit":
		await(ctx, p.exited)
	case "pattern":
		err = p.awaitPattern(ctx, look, m, res)
	case "port":
		err = p.awaitPort(ctx, m, res)
	case "file":
		err = p.awaitFile(ctx, look, m, res)
	case "quiet":
		p.awaitQuiet(ctx, m, res)
	default:
		err = wire.Invalid("for", "%q is not built", m.For)
	}
	if err != nil {
		return nil, err
	}
	res.Receipt = p.seen()
	if p.ctx.Err() != nil && res.Receipt.State.Terminal() {
		res.Ended = true // and its output may be gone with the actor
	}
	hasEnded(m.For, res)
	return res, nil
}

// hasEnded answers what the receipt answers: end and exit.
func hasEnded(what string, res *wire.ProcessWait) {
	switch what {
	case "", "end":
		res.Met = res.Receipt.State.Terminal()
	case "exit":
		res.Met = res.Receipt.ExitedAt != nil || res.Receipt.State.Terminal()
	default:
		return
	}
	res.Ended = res.Met
}

// waitedFrom answers a wait from a receipt alone.
func waitedFrom(m *wire.WaitFor, rec *wire.Receipt) *wire.Waited {
	res := &wire.ProcessWait{Process: rec.Process, Receipt: rec, Ended: rec.State.Terminal()}
	hasEnded(m.For, res)
	return waited(res)
}

// await waits for c; false when ctx ended first.
func await(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-ctx.Done():
		return false
	}
}

// begun waits for the fork and gives the log; nil when there was none in time, or never.
func (p *process) begun(ctx context.Context) *output.Log {
	select {
	case <-p.forked:
	case <-p.ended:
	case <-ctx.Done():
	}
	return p.logRef.Load()
}

// awaitPattern looks through the output line by line, each part of it once. What is
// there at the call is looked at in any case, what comes then until ctx ends.
func (p *process) awaitPattern(ctx, look context.Context, m *wire.WaitFor, res *wire.ProcessWait) error {
	pattern, err := output.NewPattern(m.Pattern)
	if err != nil {
		return wire.Invalid("pattern", "is no regular expression of RE2 (%v)", err)
	}
	log := p.begun(ctx)
	if log == nil {
		res.Ended = p.snap.Load().State.Terminal()
		return nil
	}
	stream, _ := wire.ParseStream(m.Stream)
	lines, err := log.Lines(m.Cursor, m.Offset, stream)
	if err != nil {
		return fmt.Errorf("look at process %s: %w", p.id, err)
	}
	matches := func(line *output.Line) bool {
		start, end, ok := pattern.Find(line.Text)
		if !ok {
			return true
		}
		match := line.Match(start, end)
		res.Match, res.Met = &match, true
		return false
	}
	there := log.Next()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		// The end before the look, so that the look at what has ended is the last.
		over := p.snap.Load().State.Terminal() && log.Closed()
		for lines.Scan(matches) && look.Err() == nil {
			if ctx.Err() != nil && lines.Next() >= there {
				break
			}
		}
		if !res.Met {
			lines.Open(matches)
		}
		if res.Ended = over; over || res.Met || !p.hears(ctx, log, lines.Next()) {
			return nil
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Reset(scanPause)
	}
}

// hears waits for output past a cursor, or for the end; false when the time is up.
func (p *process) hears(ctx context.Context, log *output.Log, cursor int64) bool {
	if !await(ctx, log.Changed(cursor)) {
		return false
	}
	return log.Next() > cursor || await(ctx, p.ended)
}

// awaitQuiet waits for a time without output.
func (p *process) awaitQuiet(ctx context.Context, m *wire.WaitFor, res *wire.ProcessWait) {
	before := time.Duration(m.WaitedMS) * time.Millisecond
	from := int64(0)
	if log := p.logRef.Load(); log != nil && before == 0 {
		from = log.Next() // what came before the call does not count
	}
	log := p.begun(ctx)
	if log == nil {
		res.Ended = p.snap.Load().State.Terminal()
		return
	}
	stream, _ := wire.ParseStream(m.Stream)
	limit := time.Duration(m.QuietMS) * time.Millisecond
	since := time.Now().Add(-before)
	if at := p.snap.Load().StartedAt; before > 0 && at != nil && at.After(since) {
		since = *at
	}
	t := stopped()
	defer t.Stop()
	for {
		over := p.snap.Load().State.Terminal()
		at, next := log.Latest(from, stream)
		from = next
		if at.After(since) {
			since = at
		}
		rest := limit - max(0, time.Since(since)) // a clock that was set back does not count
		if res.Met, res.Ended = rest <= 0, over; res.Met || over {
			return
		}
		t.Reset(rest)
		select {
		case <-t.C:
		case <-p.ended:
		case <-ctx.Done():
			return
		}
	}
}

// poll looks at something that tells nobody when it changes: at once, then at growing
// intervals, and once more when the time is up. It ends when look says so, and with the
// process unless leftovers of it are kept, which may do what is waited for.
func (p *process) poll(ctx context.Context, res *wire.ProcessWait, look func() (bool, error)) (err error) {
	t := stopped()
	defer t.Stop()
	for pause, last := firstLook, false; ; pause = min(pause*3/2, lastLook) {
		rec := p.snap.Load()
		over, ended := rec.State.Terminal(), p.ended
		if over && rec.LeftoversLive > 0 {
			over, ended = false, nil
		}
		if res.Met, err = look(); err != nil {
			return err
		}
		if res.Ended = over; res.Met || over || last {
			return nil
		}
		t.Reset(pause)
		select {
		case <-t.C:
		case <-ended:
		case <-ctx.Done():
			last = true
		}
	}
}

// awaitPort waits for somebody to listen on a TCP port of this host.
func (p *process) awaitPort(ctx context.Context, m *wire.WaitFor, res *wire.ProcessWait) error {
	var sockets []string
	err := p.poll(ctx, res, func() (_ bool, err error) {
		sockets, err = listeners(m.Port)
		return len(sockets) > 0, err
	})
	if err != nil || !res.Met {
		return err
	}
	leader := 0
	if c := p.pumped.Load(); c != nil && !isDone(p.exited) {
		if c, ok := (*c).(interface{ PID() int }); ok {
			leader = c.PID()
		}
	}
	res.PortOwner = ownerOf(sockets, p.id, leader)
	if res.PortOwner == ownerOther {
		res.Ended = p.snap.Load().State.Terminal() // its own never will
	}
	return nil
}

// awaitFile waits for a file, relative to the directory of the process; links are
// followed.
func (p *process) awaitFile(ctx, look context.Context, m *wire.WaitFor, res *wire.ProcessWait) error {
	path := m.Path
	if !filepath.IsAbs(path) {
		path = filepath.Join(p.snap.Load().Cwd, path)
	}
	file := fileLook{files: p.deps.files, path: path}
	return p.poll(ctx, res, func() (bool, error) { return file.exists(look) })
}
