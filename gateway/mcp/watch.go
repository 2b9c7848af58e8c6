package mcp

import (
	"context"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/limpet-sh/limpet/subjects/wire"
)

const (
	// maxWatched bounds the subscriptions of a connection.
	maxWatched = 256
	// coalesce is the least time between two updates of one process.
	coalesce = 500 * time.Millisecond
	// lookEvery is how often a watched process is asked for, because observations may be
	// lost.
	lookEvery = 5 * time.Second
)

// watches are the processes whose changes are told: to who subscribed to their
// resources, or their end alone.
type watches struct {
	mu        sync.Mutex
	byProcess map[string]*watched // guarded by mu; one goroutine each
	uris      int                 // guarded by mu
}

type watched struct {
	uris map[string]*subscribed // guarded by watches.mu
	end  bool                   // guarded by watches.mu; its end is told to the whole connection
	stop context.CancelFunc
}

type subscribed struct {
	resource
	times int // that it was subscribed to
}

// subscribe is asked by the SDK, which then remembers who is to get the updates.
func (c *conn) subscribe(ctx context.Context, req *sdk.SubscribeRequest) error {
	uri := req.Params.URI
	r, ok := parseURI(uri)
	if !ok {
		return sdk.ResourceNotFoundError(uri)
	}
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return rpcError(err)
	}
	defer done()
	b, err := c.session(ctx)
	if err == nil {
		_, err = b.procs.Status(ctx, r.process)
	}
	if err != nil {
		if wire.AsError(err).Code == wire.CodeNotFound {
			return sdk.ResourceNotFoundError(uri)
		}
		return rpcError(err)
	}
	w := &c.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.uris >= maxWatched {
		return rpcError(wire.Errorf(wire.CodeOverloaded, "%d subscriptions; unsubscribe from some first", w.uris))
	}
	p := c.watchProcess(r.process)
	if p == nil {
		return rpcError(errEnded)
	}
	if p.uris[uri] == nil {
		p.uris[uri] = &subscribed{resource: r}
	}
	p.uris[uri].times++
	w.uris++
	return nil
}

func (c *conn) unsubscribe(_ context.Context, req *sdk.UnsubscribeRequest) error {
	r, ok := parseURI(req.Params.URI)
	if !ok {
		return nil
	}
	w := &c.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.byProcess[r.process]
	if p == nil || p.uris[req.Params.URI] == nil {
		return nil
	}
	w.uris--
	if p.uris[req.Params.URI].times--; p.uris[req.Params.URI].times == 0 {
		delete(p.uris, req.Params.URI)
	}
	if len(p.uris) == 0 && !p.end {
		delete(w.byProcess, r.process)
		p.stop()
	}
	return nil
}

// watchEnd tells the end of a process to the connection.
func (c *conn) watchEnd(process string) {
	w := &c.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := c.watchProcess(process); p != nil {
		p.end = true
	}
}

// watchProcess starts to watch a process, unless it is watched. watch.mu is held.
func (c *conn) watchProcess(process string) *watched {
	w := &c.watch
	if p := w.byProcess[process]; p != nil {
		return p
	}
	ctx, stop := context.WithCancel(c.ctx)
	p := &watched{uris: make(map[string]*subscribed), stop: stop}
	if !c.spawn(func() { c.follow(ctx, process, p) }) {
		stop()
		return nil
	}
	w.byProcess[process] = p
	return p
}

// follow tells the changes of a process until it has ended, or nobody wants to know.
func (c *conn) follow(ctx context.Context, process string, p *watched) {
	defer c.unwatch(process, p)
	b := c.bound.Load()
	if b == nil {
		return
	}
	events := make(chan struct{}, 1)
	var mu sync.Mutex
	var output, record, ended bool // guarded by mu; what changed
	note := func(o, r, e bool) {
		mu.Lock()
		output, record, ended = output || o, record || r, ended || e
		mu.Unlock()
		select {
		case events <- struct{}{}:
		default: // there is news already
		}
	}
	stop, err := b.procs.Live(process, func(e wire.Event) {
		end := e.Phase == wire.PhaseFinished || e.Phase == wire.PhaseResolved
		note(e.Phase == wire.PhaseOutput || end, e.Phase != wire.PhaseOutput, end)
	})
	if err == nil {
		defer stop()
	} // else it is only asked for now and then
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	last := c.look(ctx, b, process, nil, note)
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			last = c.look(ctx, b, process, last, note)
			continue
		case <-events:
		}
		pause := time.NewTimer(coalesce)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
		mu.Lock()
		o, r, e := output, record, ended
		output, record = false, false
		mu.Unlock()
		c.tell(process, p, o, r, e)
		if e {
			return
		}
	}
}

// look asks for the receipt and notes what changed since the last.
func (c *conn) look(ctx context.Context, b *bound, process string, last *wire.Receipt, note func(output, record, ended bool)) *wire.Receipt {
	ctx, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()
	r, err := b.procs.Status(ctx, process)
	if err != nil {
		return last
	}
	end := r.State.Terminal()
	if end || last != nil && (r.State != last.State || r.Output.TotalBytes != last.Output.TotalBytes) {
		note(last == nil || r.Output.TotalBytes != last.Output.TotalBytes, last == nil || r.State != last.State, end)
	}
	return r
}

// tell sends the updates.
func (c *conn) tell(process string, p *watched, output, record, ended bool) {
	w := &c.watch
	w.mu.Lock()
	var uris []string
	end := p.end && ended
	if ended && w.byProcess[process] == p {
		delete(w.byProcess, process) // who comes from now on is told by a watch of its own
	}
	for uri, s := range p.uris {
		if s.record && record && (!end || uri != recordURI(process)) || !s.record && output {
			uris = append(uris, uri)
		}
	}
	w.mu.Unlock()
	for _, uri := range uris {
		c.updated(uri)
	}
	if end {
		c.notifyEnd(process)
	}
}

func (c *conn) updated(uri string) {
	if err := c.sdk.ResourceUpdated(c.ctx, &sdk.ResourceUpdatedNotificationParams{URI: uri}); err != nil {
		c.log.Debug("an update was not sent", "uri", uri, "err", err)
	}
}

// notifyEnd tells the end of a process that was left running, once: its record has
// changed, and with it the list of resources, which all hear who listen at all.
func (c *conn) notifyEnd(process string) {
	l := &c.left
	l.mu.Lock()
	p := l.byID[process]
	first := p != nil && !p.told
	if first {
		p.ended, p.told = true, true
	}
	l.mu.Unlock()
	if !first {
		return
	}
	uri := recordURI(process)
	c.updated(uri)
	// The SDK tells a changed list where it sees one change; the list itself is ours.
	c.sdk.AddResource(&sdk.Resource{URI: uri, Name: "record of " + process, MIMEType: recordType}, c.readResource)
	c.sdk.RemoveResources(uri)
}

// unwatch forgets a process that is followed no longer.
func (c *conn) unwatch(process string, p *watched) {
	p.stop()
	w := &c.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range p.uris {
		w.uris -= s.times
	}
	clear(p.uris)
	if w.byProcess[process] == p {
		delete(w.byProcess, process)
	}
}
