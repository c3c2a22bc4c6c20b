package conformance

import (
	"sync/atomic"
	"time"
)

// progress counts what goroutines of a check have done. Many steps together may take long on a slow backend; but if not a single step is
// done for a time in which only a hang takes so long, the check hangs.
type progress struct{ atomic.Int64 }

// awaitAll waits until all goroutines have ended, for as long as p moves on.
func (e *env) awaitAll(what string, all []*goroutine, p *progress) {
	last := p.Load()
	hangs := time.NewTimer(e.hangs())
	defer hangs.Stop()
	for _, g := range all {
		for !g.isDone() {
			select {
			case <-g.done:
				continue
			case <-hangs.C:
			}
			now := p.Load()
			if now == last {
				e.endf("%s: nothing has happened for %v, after %d times", what, e.hangs(), now)
			}
			last = now
			hangs.Reset(e.hangs())
		}
	}
}
