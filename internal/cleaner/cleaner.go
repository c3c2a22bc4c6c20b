// Package cleaner repeats requests that remove the remains of a driver's other
// requests from a server, until they are gone. The driver decides which request
// to send, when a ghost is permanently gone, and which ghost to give up.
package cleaner

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/go-dsync/dsync/internal/lifecycle"
)

// The pauses between the requests about one ghost.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second

	// lastInFinish bounds the pauses while Finish waits.
	lastInFinish = time.Second / 2
)

// Ghost is the part of a ghost that its Cleaner needs. Embed it. A ghost is an
// unwanted hold, or other state, that may be left on a server or may appear
// there later.
type Ghost struct {
	Added time.Time // when Add was called

	next  time.Time // when to send the next request
	pause time.Duration
}

func (g *Ghost) ghost() *Ghost { return g }

// Haunting is a pointer to a type that embeds Ghost.
type Haunting interface{ ghost() *Ghost }

// Policy contains the driver's decisions.
type Policy[G Haunting] struct {
	// Settle sends one request for some ghosts and returns the ghosts that are
	// not permanently gone. Its requests end with the context of the driver's
	// lifecycle. It may change the slice.
	Settle func(ghosts []G) (left []G)

	Batch int // the maximum number of ghosts in one call to Settle
	Calls int // the maximum number of concurrent calls to Settle

	// Max, if not 0, is the maximum number of waiting ghosts. If there are
	// more, Forget chooses the index of a ghost to give up, or -1 for none.
	Max    int
	Forget func(ghosts []G) int
}

// Cleaner settles ghosts, in one goroutine, plus one for each call to Settle.
// The goroutines live as long as there are ghosts. While a ghost is not gone,
// the Cleaner tries again, at growing intervals.
type Cleaner[G Haunting] struct {
	life   *lifecycle.Lifecycle
	policy Policy[G]
	wake   chan struct{}

	mu       sync.Mutex
	ghosts   ghosts[G]     // the waiting ghosts
	calls    int           // number of running calls to Settle
	settling int           // number of ghosts in these calls
	expected int           // see Expect
	running  bool          // the goroutine is running
	none     chan struct{} // closed when none of these are left, once Finish is waiting
}

// New returns a Cleaner of a driver with this lifecycle.
func New[G Haunting](life *lifecycle.Lifecycle, p Policy[G]) *Cleaner[G] {
	return &Cleaner[G]{life: life, policy: p, wake: make(chan struct{}, 1)}
}

// Add starts to settle a ghost.
func (c *Cleaner[G]) Add(g G) {
	base := g.ghost()
	base.Added = time.Now()
	base.next, base.pause = base.Added, firstPause
	c.mu.Lock()
	defer c.mu.Unlock()
	c.push(g)
	if !c.running {
		c.running = c.life.Go(c.run)
	}
	c.kick()
}

// Expect adds n to the number of requests that may leave a ghost. n may be
// negative.
func (c *Cleaner[G]) Expect(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expected += n
	c.signalNone()
}

// Left returns the number of ghosts that are waiting, are being settled or are
// expected.
func (c *Cleaner[G]) Left() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left()
}

// Full reports whether the number of ghosts has reached its maximum.
func (c *Cleaner[G]) Full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.ghosts)+c.settling >= c.policy.Max
}

// Finish waits until no ghost is left, or ctx is done, and returns the number
// of ghosts left. It is called once. It settles ghosts immediately if their
// next request would come only after a long pause.
func (c *Cleaner[G]) Finish(ctx context.Context) (left int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for _, g := range c.ghosts {
		if base := g.ghost(); base.next.After(now) {
			base.next = now
		}
		g.ghost().pause = firstPause
	}
	heap.Init(&c.ghosts)
	c.kick()
	for c.left() > 0 && ctx.Err() == nil { // a ghost may arrive even after none was left
		none := make(chan struct{})
		c.none = none
		c.mu.Unlock()
		select {
		case <-none:
		case <-ctx.Done():
		}
		c.mu.Lock()
	}
	return c.left()
}

// run returns when there are no ghosts, or when the driver is closed.
func (c *Cleaner[G]) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due, next, end := c.due()
		if end {
			return
		}
		if len(due) > 0 {
			c.life.Go(func() { c.settle(due) }) // does nothing if the driver is ending
			continue
		}
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		select {
		case <-c.wake:
		case <-timer.C:
		case <-c.life.Context().Done():
			return
		}
	}
}

// due removes and returns the ghosts that are due now. If there are none, it
// returns the time at which the next ghost is due. A zero time means that a
// call to Settle must end first.
func (c *Cleaner[G]) due() (due []G, next time.Time, end bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.ghosts)+c.settling == 0 {
		c.running = false
		return nil, next, true
	}
	if c.calls == c.policy.Calls || len(c.ghosts) == 0 {
		return nil, next, false
	}
	now := time.Now()
	for len(c.ghosts) > 0 && len(due) < c.policy.Batch && !c.ghosts[0].ghost().next.After(now) {
		due = append(due, heap.Pop(&c.ghosts).(G))
	}
	if len(due) == 0 {
		return nil, c.ghosts[0].ghost().next, false
	}
	c.calls++
	c.settling += len(due)
	return due, next, false
}

// settle calls Settle once for each ghost and puts back the ghosts that are
// left.
func (c *Cleaner[G]) settle(ghosts []G) {
	n := len(ghosts)
	left := c.policy.Settle(ghosts)
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls--
	c.settling -= n
	for _, g := range left {
		base := g.ghost()
		base.next = now.Add(base.pause)
		base.pause = min(2*base.pause, lastPause)
		if c.none != nil {
			base.pause = min(base.pause, lastInFinish)
		}
		c.push(g)
	}
	c.signalNone()
	c.kick()
}

// push adds a ghost, or puts it back. Called with mu held.
func (c *Cleaner[G]) push(g G) {
	heap.Push(&c.ghosts, g)
	if c.policy.Max == 0 || len(c.ghosts) <= c.policy.Max {
		return
	}
	if i := c.policy.Forget(c.ghosts); i >= 0 {
		heap.Remove(&c.ghosts, i)
	}
}

// kick makes the goroutine check the ghosts again.
func (c *Cleaner[G]) kick() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// left is Left, with mu held.
func (c *Cleaner[G]) left() int { return len(c.ghosts) + c.settling + c.expected }

// signalNone lets Finish return when there is nothing left. Called with mu
// held.
func (c *Cleaner[G]) signalNone() {
	if c.none != nil && c.left() == 0 {
		close(c.none)
		c.none = nil
	}
}

// ghosts is a heap. The ghost that is due first is at its head.
type ghosts[G Haunting] []G

func (h ghosts[G]) Len() int           { return len(h) }
func (h ghosts[G]) Less(i, j int) bool { return h[i].ghost().next.Before(h[j].ghost().next) }
func (h ghosts[G]) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *ghosts[G]) Push(g any)        { *h = append(*h, g.(G)) }
func (h *ghosts[G]) Pop() any {
	last := len(*h) - 1
	g := (*h)[last]
	clear((*h)[last:])
	*h = (*h)[:last]
	return g
}
