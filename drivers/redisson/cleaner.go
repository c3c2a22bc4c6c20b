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
	maxGhosts  = 10_000 // beyond that the hold that ends soonest is left to its TTL, and nobody gets a place in a queue
	maxBatch   = 64     // ghosts in one request
	maxCleans  = 4      // requests at once, so that one node of a cluster holds up few others
	cleanFor   = 2 * time.Second
	firstClean = 50 * time.Millisecond
	lastClean  = 5 * time.Second
	outOfReach = time.Minute // how long after its end a ghost is remembered while the server does not answer
)

// ghost is a hold that may be left on the server, or come to be there, and that nobody wants.
type ghost struct {
	name, hold string
	until      int64         // when a hold is over by itself
	granted    bool          // the server said so: if the hold is not found, it is gone for good
	place      bool          // it may have a place in the queue of a fair lock, which does not end by itself
	order      uint64        // of the request that may have made it: what a later one of this order finds is final
	lease      *lease        // of a hold whose Release failed
	gone       chan struct{} // closed when the ghost is; nil if nobody waits for that

	next   int64 // when to ask
	wait   time.Duration
	absent int64 // when it was not found for the first time
}

// cleaner releases ghosts, in one goroutine and one for each request, which live as long as there are any.
//
// That a hold is absent means nothing yet if the request that makes it can still arrive. Then it is asked again, ever more seldom,
// until the hold is found, or would be over. A place in a queue is asked for until the server has answered, however long that takes.
type cleaner struct {
	driver *Driver
	wake   chan struct{}

	mu      sync.Mutex
	ghosts  []*ghost
	cleans  int           // requests under way
	working int           // taken out of ghosts for these
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
	c.push(&g)
	if !c.running {
		c.running = c.driver.life.Go(c.run)
	}
	c.kick()
}

func (c *cleaner) kick() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// push puts a ghost back, or in, where a place is never left to its fate for. It is called with mu held.
func (c *cleaner) push(g *ghost) {
	c.ghosts = append(c.ghosts, g)
	if len(c.ghosts) <= maxGhosts {
		return
	}
	soonest := -1
	for i, g := range c.ghosts {
		if !g.place && (soonest < 0 || g.until < c.ghosts[soonest].until) {
			soonest = i
		}
	}
	if soonest >= 0 {
		c.ghosts = slices.Delete(c.ghosts, soonest, soonest+1)
	}
}

// full reports whether no more places in queues may come to be left behind.
func (c *cleaner) full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.ghosts)+c.working >= maxGhosts
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
			c.driver.life.Go(func() { c.release(due) }) // not if the driver is ending
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
	if c.left() == c.orphans {
		c.running = false
		c.tell()
		return nil, 0, true
	}
	if c.cleans == maxCleans {
		return nil, math.MaxInt64, false
	}
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
	if len(due) > 0 {
		c.cleans++
		c.working += len(due)
	}
	return due, time.Duration(next - now), false
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
	groups := d.groups(ghosts)
	calls := make([]call, len(groups))
	for i, group := range groups {
		holds := make([]string, len(group))
		for j, g := range group {
			holds[j] = g.hold
		}
		calls[i] = d.releaseCall(group[0].name, holds...)
	}
	order := d.order()
	results, _ := d.evalAll(ctx, d.client, d.scripts.release, calls, 0)
	if order != d.order() {
		order = unordered
	}
	now := d.now()

	c.mu.Lock()
	defer c.mu.Unlock()
	c.cleans--
	c.working -= len(ghosts)
	for i, group := range groups {
		told, err := answersOf(results[i], len(group))
		for j, g := range group {
			switch {
			case err == nil && g.settled(told[j], order, now), err != nil && g.forgotten(err, now):
			default:
				g.next = now + int64(g.wait)
				g.wait = min(2*g.wait, lastClean)
				c.push(g)
				continue
			}
			if g.gone != nil {
				close(g.gone)
			}
		}
	}
	c.kick()
}

// groups puts those ghosts together that one run of the release script may release: of a fair lock, the youngest first, who are
// further back in the queue.
func (d *Driver) groups(ghosts []*ghost) [][]*ghost {
	var groups [][]*ghost
	if d.options.Fair {
		slices.SortFunc(ghosts, func(a, b *ghost) int {
			return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(len(b.hold), len(a.hold)), cmp.Compare(b.hold, a.hold))
		})
	}
	for i, g := range ghosts {
		if d.options.Fair && i > 0 && ghosts[i-1].name == g.name {
			last := len(groups) - 1
			groups[last] = append(groups[last], g)
		} else {
			groups = append(groups, []*ghost{g})
		}
	}
	return groups
}

// answersOf reads what the release script answers for n holds.
func answersOf(result rueidis.RedisResult, n int) ([]int64, error) {
	if n == 1 {
		told, err := result.ToInt64()
		return []int64{told}, err
	}
	told, err := result.AsIntSlice()
	if err == nil && len(told) != n {
		err = errAnswer
	}
	return told, err
}

// forgotten takes the error of a request and reports whether the ghost is given up: it will have to end by itself.
func (g *ghost) forgotten(err error, now int64) bool {
	answer, refused := rueidis.IsRedisErr(err)
	switch {
	case g.place:
		return false
	case refused && hasCode(answer.Error(), permissionCodes...):
		return true
	case g.granted:
		return now > g.until
	}
	return now > g.until+int64(outOfReach)
}

// settled takes the answer to a request of some order and reports whether the ghost is gone for good.
func (g *ghost) settled(told int64, order uint64, now int64) bool {
	if g.lease != nil {
		g.lease.cleaned(told)
	}
	if told >= 0 || g.granted || order != unordered && order == g.order {
		return true
	}
	if g.absent == 0 {
		g.absent = now
	}
	// A server that stood still may have the request for a place yet, which it reads within moments of this one.
	return now > g.until && (!g.place || now > g.absent+int64(late))
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
	c.kick()
	select {
	case <-none:
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left()
}
