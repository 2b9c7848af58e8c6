package actors

import (
	"context"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// searchMax bounds one search whose request has no earlier deadline. What was not looked
// at by then is left to the next: the answer says from where.
const searchMax = 10 * time.Second

// search looks for lines in a goroutine of the actor, one of those that watch.
func (p *process) search(r request, m *wire.Search) {
	p.waitingIn(&p.watchers, reportWatcher, r, func() {
		ctx, cancel := context.WithTimeout(p.ctx, answerBy(r, searchMax))
		defer cancel()
		st := stateOf(p.snap.Load()) // before the look, so that one that says "end" is the last
		found, err := p.out.Search(ctx, *m, st)
		if err != nil {
			refuse(r, err)
			return
		}
		answer(r, found)
	})
}
