package mcp

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// progressEvery is how often a long call says that it is alive. Clients that reset their
// 60 s on progress then wait on, and a person sees that something happens.
const progressEvery = 5 * time.Second

// progress tells the client of a call, if it gave a token, how long it takes, how much
// was written, and the last line. It begins with the first progressEvery: short calls
// pay for a timer at most.
type progress struct {
	c         *conn
	b         *bound
	session   *sdk.ServerSession
	token     any
	began     time.Time
	process   string // guarded by mu; "" until it is known
	execution string // guarded by mu; of a run, by which its process is found

	ctx  context.Context // of the request: it says where the notification goes
	end  context.CancelFunc
	mu   sync.Mutex // held while one is sent
	t    *time.Timer
	over bool  // guarded by mu
	sent int64 // guarded by mu
	seen int64 // guarded by mu; raw offset
}

func (c *conn) progress(ctx context.Context, b *bound, req *sdk.CallToolRequest, process string) *progress {
	p := &progress{c: c, b: b, session: req.Session, token: req.Params.GetProgressToken(), process: process, began: time.Now()}
	if p.token != nil {
		p.ctx, p.end = context.WithCancel(ctx)
		p.t = time.AfterFunc(progressEvery, p.tick) // stop waits for one that runs
	}
	return p
}

// runs says that it is about the process of an execution.
func (p *progress) runs(execution string) {
	if p.token == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.execution = execution
}

// stop ends it. Nothing is sent after it returns.
func (p *progress) stop() {
	if p.t == nil {
		return
	}
	p.t.Stop()
	p.end()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
}

func (p *progress) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over || p.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(p.ctx, progressEvery)
	defer cancel()
	message := p.message(ctx)
	p.sent = max(p.sent+1, int64(time.Since(p.began).Seconds()))
	// The number grows by the second; there is no total, because nobody knows it.
	if err := p.session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{
		ProgressToken: p.token, Progress: float64(p.sent), Message: message,
	}); err != nil {
		p.c.log.Debug("progress was not sent", "err", err)
	}
	p.t.Reset(progressEvery)
}

func (p *progress) message(ctx context.Context) string {
	s := fmt.Sprintf("%d s", int(time.Since(p.began).Seconds()))
	if p.process == "" && p.execution != "" {
		p.find(ctx)
	}
	if p.process == "" {
		return s
	}
	page, err := p.b.procs.Read(ctx, wire.Read{ProcessRef: wire.ProcessRef{Process: p.process}, Offset: &p.seen, View: wire.ViewSafe})
	if err != nil {
		return s
	}
	s += fmt.Sprintf(", %d bytes of output", page.Output.TotalBytes)
	if line := lastLine(pageText(page)); line != "" && !page.HasMore {
		s += ": " + line
	}
	p.seen = page.Output.TotalBytes
	return s
}

// find finds the process of an execution, which only its answer would name.
func (p *progress) find(ctx context.Context) {
	l, err := p.b.List(ctx)
	if err != nil {
		return
	}
	for i := range l.Processes {
		if l.Processes[i].ExecutionID == p.execution {
			p.process = l.Processes[i].Process
		}
	}
}

func lastLine(text string) string {
	text = strings.TrimRight(text, "\r\n \t")
	line := text[strings.LastIndexByte(text, '\n')+1:]
	const most = 120 // characters
	if r := []rune(line); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return line
}
