package dsync

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// latches has the waits of a client for latches, by name. All waits for a latch share the questions to the backend.
type latches struct {
	client *Client
	asking sync.WaitGroup // goroutines of groups

	mu     sync.Mutex
	closed bool
	groups map[string]*latchGroup
}

// latchGroup is the waits for one latch, and the goroutine that asks for them.
type latchGroup struct {
	latches *latches
	backend driver.Latcher
	name    string
	ctx     context.Context // until the last wait is over
	end     context.CancelFunc
	kick    chan struct{} // has an element when it is time for a question

	// Guarded by latches.mu.
	asked   uint64 // questions
	waits   map[*latchWait]struct{}
	trouble error // why the last question has no answer
}

// latchWait is one call of Wait.
type latchWait struct {
	after uint64     // only an answer to a later question counts: an earlier one may have been asked before the latch was set
	done  chan error // gets the outcome when the wait is taken off the group
}

// wait is Latch.Wait.
func (ls *latches) wait(ctx context.Context, backend driver.Latcher, name string) error {
	if ctx.Err() != nil {
		return newWaitError(ctx, nil, nil, false)
	}
	g, w := ls.join(backend, name)
	if g == nil {
		return ErrClosed
	}
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
	case <-ls.client.closing:
	}
	trouble := g.leave(w)
	select {
	case err := <-w.done: // the latch was gone at this very instant
		return err
	default:
	}
	if ctx.Err() != nil {
		return newWaitError(ctx, nil, trouble, false)
	}
	return ErrClosed
}

// join adds a wait to the group of a latch, which join makes if there is none. After close it returns nil.
func (ls *latches) join(backend driver.Latcher, name string) (*latchGroup, *latchWait) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.closed {
		return nil, nil
	}
	g := ls.groups[name]
	if g == nil {
		g = &latchGroup{latches: ls, backend: backend, name: name, kick: make(chan struct{}, 1), waits: map[*latchWait]struct{}{}}
		g.ctx, g.end = context.WithCancel(context.Background())
		if ls.groups == nil {
			ls.groups = map[string]*latchGroup{}
		}
		ls.groups[name] = g
		ls.asking.Go(g.run) // ends with the last wait
	}
	w := &latchWait{after: g.asked, done: make(chan error, 1)}
	g.waits[w] = struct{}{}
	g.changed()
	return g, w
}

// close ends all waits, and returns when nobody asks any more.
func (ls *latches) close() {
	ls.mu.Lock()
	ls.closed = true
	for _, g := range ls.groups {
		g.tell(g.asked+1, ErrClosed)
	}
	ls.mu.Unlock()
	ls.asking.Wait()
}

// run asks whether the latch is there: when the driver says that it may be gone, when another wait begins, and every third of the TTL; while the
// backend is out of reach, more often.
func (g *latchGroup) run() {
	stop := func() {}
	defer func() { stop() }()
	timer := time.NewTimer(0)
	defer timer.Stop()
	watched := false
	for pause := minAskPause; ; {
		select {
		case <-timer.C:
		case <-g.kick:
		case <-g.ctx.Done():
			return
		}
		next := g.latches.client.ttl / 3
		if g.ask() {
			pause = minAskPause
			if !watched && g.ctx.Err() == nil {
				watched = true
				if f, err := g.backend.WatchLatch(g.name, g.changed); err == nil {
					stop = f
				}
			}
		} else {
			next = min(next, pause)
			pause = min(2*pause, maxReachPause)
		}
		timer.Reset(next)
	}
}

// ask asks the backend, ends the waits for which the answer counts, and reports whether there was an answer.
func (g *latchGroup) ask() bool {
	ls := g.latches
	ls.mu.Lock()
	g.asked++
	question := g.asked
	ls.mu.Unlock()
	var left int
	err := ls.client.patiently(g.ctx, func(ctx context.Context) (err error) {
		left, err = g.backend.Latch(ctx, g.name)
		return err
	})
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if transient(err) {
		g.trouble = fmt.Errorf("%w: %v", ErrUnavailable, err) // also if the outcome is unknown: a question has none
		return false
	}
	g.trouble = nil
	if err != nil || left == 0 {
		g.tell(question, err)
	}
	return true
}

// changed has the goroutine ask. The driver calls changed.
func (g *latchGroup) changed() {
	select {
	case g.kick <- struct{}{}:
	default:
	}
}

// leave takes a wait off the group, unless its outcome is there, and returns why the last question has no answer.
func (g *latchGroup) leave(w *latchWait) (trouble error) {
	g.latches.mu.Lock()
	defer g.latches.mu.Unlock()
	g.remove(w)
	return g.trouble
}

// The methods below are called with latches.mu held.

// tell gives the waits that began before a question their outcome.
func (g *latchGroup) tell(question uint64, err error) {
	for w := range g.waits {
		if w.after < question {
			w.done <- err
			g.remove(w)
		}
	}
}

// remove takes a wait off the group. With the last one the group is over.
func (g *latchGroup) remove(w *latchWait) {
	delete(g.waits, w)
	if ls := g.latches; len(g.waits) == 0 && ls.groups[g.name] == g {
		delete(ls.groups, g.name)
		g.end()
	}
}
