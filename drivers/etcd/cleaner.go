package etcd

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

const (
	maxCleaning = 16 // requests at a time
	firstClean  = 50 * time.Millisecond
	lastClean   = 5 * time.Second
	retireAfter = 2 * time.Second
)

// ghost is a key or a lease that may be left at the server, or come to be there, and that nobody wants.
//
// A revoked lease is gone for good, and so are keys that hang on it, also those whose request is still on its way. A key that is
// absent may yet come, if the request that puts it was not answered: then it is asked for again, ever more seldom; and if it hangs on
// a session, that takes no more locks, so that its lease can be revoked as soon as the last one ends. Ghosts are bounded by the
// requests that fail within a TTL: no session outlives that without an answer.
type ghost struct {
	key      string // "" if the lease is to be revoked
	revoke   bool
	carrier  *carrier
	session  *session // of a key; nil if its lease is on the way to be revoked, or it is definite
	definite bool     // the request that made the key was answered: if it is absent, it is gone
	sealing  bool     // the key may have become a seal, and then it is to stay

	since int64
	next  int64 // when to ask
	wait  time.Duration
}

// cleaner ends ghosts, in a goroutine that lives as long as there are any.
type cleaner struct {
	driver *Driver
	wake   chan struct{}

	mu      sync.Mutex
	ghosts  ghostHeap
	working int           // taken out of ghosts for now
	running bool          // the goroutine
	none    chan struct{} // closed when there are no more, once Close waits for that
}

func newCleaner(d *Driver) *cleaner { return &cleaner{driver: d, wake: make(chan struct{}, 1)} }

// add has a ghost ended, beginning now.
func (c *cleaner) add(g *ghost) {
	g.since = c.driver.now()
	g.next, g.wait = g.since, firstClean
	c.mu.Lock()
	defer c.mu.Unlock()
	heap.Push(&c.ghosts, g)
	if !c.running {
		c.running = c.driver.life.Go(c.run)
	}
	signal(c.wake)
}

// run ends when there is nothing left to end, or with the driver.
func (c *cleaner) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due, wait, end := c.due()
		if end {
			return
		}
		if len(due) > 0 {
			c.clean(due)
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
	for len(c.ghosts) > 0 && len(due) < maxCleaning && c.ghosts[0].next <= now {
		due = append(due, heap.Pop(&c.ghosts).(*ghost))
	}
	c.working = len(due)
	if len(due) > 0 {
		return due, 0, false
	}
	if len(c.ghosts) > 0 {
		return nil, time.Duration(c.ghosts[0].next - now), false
	}
	c.running = false
	if c.none != nil {
		close(c.none)
		c.none = nil
	}
	return nil, 0, true
}

// clean asks once for each ghost, and puts those back that may still come.
func (c *cleaner) clean(ghosts []*ghost) {
	ctx, cancel := c.driver.background(attemptFor)
	defer cancel()
	left := make([]bool, len(ghosts))
	var asking sync.WaitGroup
	for i, g := range ghosts {
		asking.Go(func() { left[i] = !c.driver.exorcise(ctx, g) })
	}
	asking.Wait()

	c.mu.Lock()
	defer c.mu.Unlock()
	c.working = 0
	for i, g := range ghosts {
		if left[i] {
			g.next = c.driver.now() + int64(g.wait)
			g.wait = min(2*g.wait, lastClean)
			heap.Push(&c.ghosts, g)
		}
	}
}

// exorcise asks once, and reports whether the ghost is gone for good.
func (d *Driver) exorcise(ctx context.Context, g *ghost) bool {
	if g.carrier.gone.Load() {
		return true
	}
	if g.revoke {
		return d.revoke(ctx, g.carrier) == nil || d.now() > g.carrier.lasts.Load()+int64(late)
	}
	if g.session != nil && g.session.isDead() {
		return true // the lease is a ghost of its own
	}
	removed, err := d.removeKey(ctx, g.key, g.sealing)
	if err == nil && (removed || g.definite) {
		return true
	}
	if !g.definite && d.now() > g.since+int64(retireAfter) {
		g.session.retire()
	}
	return false
}

// finish returns when there are no more ghosts, or ctx is done.
func (c *cleaner) finish(ctx context.Context) (left int) {
	c.mu.Lock()
	left = len(c.ghosts) + c.working
	if left == 0 {
		c.mu.Unlock()
		return 0
	}
	none := make(chan struct{})
	c.none = none
	now := c.driver.now()
	for _, g := range c.ghosts { // those with a long pause before them
		g.next, g.wait = min(g.next, now), firstClean
	}
	heap.Init(&c.ghosts)
	c.mu.Unlock()
	signal(c.wake)
	select {
	case <-none:
		return 0
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.ghosts) + c.working
}

// ghostHeap has the ghost first that is to be asked for first.
type ghostHeap []*ghost

func (h ghostHeap) Len() int           { return len(h) }
func (h ghostHeap) Less(i, j int) bool { return h[i].next < h[j].next }
func (h ghostHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *ghostHeap) Push(g any)        { *h = append(*h, g.(*ghost)) }
func (h *ghostHeap) Pop() any {
	old := *h
	g := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return g
}
