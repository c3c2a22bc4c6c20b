package redisson

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

const (
	maxGhosts  = 10_000 // beyond that the one that ends soonest is left to its TTL
	maxBatch   = 100    // requests at once
	cleanFor   = 2 * time.Second
	firstClean = 50 * time.Millisecond
	lastClean  = 5 * time.Second
	outOfReach = time.Minute // how long after its end a ghost is remembered while the server does not answer
)

// ghost is a hold that may be left on the server, or come to be there, and that nobody wants.
type ghost struct {
	name, hold string
	until      int64  // when it is over by itself
	granted    bool   // the server said so: if the hold is not found, it is gone for good
	order      uint64 // of the request that may have made it: what a later one of this order finds is final
	lease      *lease // of a hold whose Release failed

	next int64 // when to ask
	wait time.Duration
}

// cleaner releases ghosts, in one goroutine that lives as long as there are any.
//
// That a hold is absent means nothing yet if the request that makes it can still arrive. Then it is asked again, ever more seldom,
// until the hold is found, or would be over.
type cleaner struct {
	driver *Driver
	wake   chan struct{}

	mu      sync.Mutex
	ghosts  []*ghost
	working int           // taken out of ghosts for now
	orphans int           // ops whose callers have left, which may leave a ghost
	running bool          // the goroutine
	none    chan struct{} // closed when there is nothing left of all that, once Close waits for it
}

func newCleaner(d *Driver) *cleaner { return &cleaner{driver: d, wake: make(chan struct{}, 1)} }

// add has a ghost released, beginning now.
func (c *cleaner) add(g ghost) {
	g.next, g.wait = c.driver.now(), firstClean
	c.mu.Lock()
	defer c.mu.Unlock()
	c.push(g)
	if !c.running {
		c.running = c.driver.life.Go(c.run)
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *cleaner) push(g ghost) {
	if len(c.ghosts) >= maxGhosts {
		soonest := slices.MinFunc(c.ghosts, func(a, b *ghost) int { return cmp.Compare(a.until, b.until) })
		c.ghosts = slices.DeleteFunc(c.ghosts, func(g *ghost) bool { return g == soonest })
	}
	c.ghosts = append(c.ghosts, &g)
}

// run ends when there is nothing left to release, or with the driver.
func (c *cleaner) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due, wait, end := c.due()
		if end {
			return
		}
		if len(due) > 0 {
			c.release(due)
			continue
		}
		timer.Reset(wait)
		select {
		case <-c.wake:
		case <-timer.C:
		case <-c.driver.life.Context().Done():
			return
		}
	}
}

// due takes the ghosts out that are to be asked for now, or tells how long there is none.
func (c *cleaner) due() (due []*ghost, wait time.Duration, end bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.driver.now()
	next := int64(math.MaxInt64)
	c.ghosts = slices.DeleteFunc(c.ghosts, func(g *ghost) bool {
		if g.next <= now && len(due) < maxBatch {
			due = append(due, g)
			return true
		}
		next = min(next, g.next)
		return false
	})
	c.working = len(due)
	if len(due) > 0 || len(c.ghosts) > 0 {
		return due, time.Duration(next - now), false
	}
	c.running = false
	c.tell()
	return nil, 0, true
}

// orphan counts an op whose caller leaves, or one less.
func (c *cleaner) orphan(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.orphans += n
	c.tell()
}

// left returns how much there is to do. It is called with mu held.
func (c *cleaner) left() int { return len(c.ghosts) + c.working + c.orphans }

// tell lets finish return when there is nothing left. It is called with mu held.
func (c *cleaner) tell() {
	if c.none != nil && c.left() == 0 {
		close(c.none)
		c.none = nil
	}
}

// release asks once for each ghost, and puts those back that may still come.
func (c *cleaner) release(ghosts []*ghost) {
	d := c.driver
	ctx, cancel := context.WithTimeout(d.life.Context(), cleanFor)
	defer cancel()
	calls := make([]call, len(ghosts))
	for i, g := range ghosts {
		calls[i] = d.releaseCall(g.name, g.hold)
	}
	order := d.order()
	results, _ := d.evalAll(ctx, d.client, d.scripts.release, calls, 0)
	if order != d.order() {
		order = unordered
	}
	now := d.now()

	c.mu.Lock()
	defer c.mu.Unlock()
	c.working = 0
	for i, g := range ghosts {
		if g.settled(results[i], order, now) {
			continue
		}
		g.next = now + int64(g.wait)
		g.wait = min(2*g.wait, lastClean)
		c.push(*g)
	}
}

// settled takes the answer to a request of some order and reports whether the ghost is gone for good.
func (g *ghost) settled(result rueidis.RedisResult, order uint64, now int64) bool {
	told, err := result.ToInt64()
	answer, refused := rueidis.IsRedisErr(err)
	switch {
	case refused && hasCode(answer.Error(), permissionCodes...):
		return true // it will have to end by itself
	case err != nil && g.granted:
		return now > g.until
	case err != nil:
		return now > g.until+int64(outOfReach)
	}
	if g.lease != nil {
		g.lease.cleaned(told)
	}
	return told >= 0 || g.granted || order != unordered && order == g.order || now > g.until
}

// finish returns when there is nothing left to clean up, or else ctx is done, with how much there is.
func (c *cleaner) finish(ctx context.Context) int {
	c.mu.Lock()
	if c.left() == 0 {
		c.mu.Unlock()
		return 0
	}
	none := make(chan struct{})
	c.none = none
	now := c.driver.now()
	for _, g := range c.ghosts { // those with a long pause before them
		g.next, g.wait = min(g.next, now), firstClean
	}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
	select {
	case <-none:
		return 0
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left()
}
