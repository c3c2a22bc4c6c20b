package zk

import (
	"container/heap"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	gozk "github.com/go-zookeeper/zk"
)

const (
	maxCleaning = 16 // requests at a time
	firstClean  = 50 * time.Millisecond
	lastClean   = 5 * time.Second
	retireAfter = 2 * time.Second
)

// ghost is an unwanted node that may be left at the server, or appear there later.
//
// A known node is gone when the server has removed it, or answers that there is none. A node whose creation got no answer may yet appear,
// from a server that stood still: the cleaner looks again, ever more seldom, and the session takes no more locks, so that the session
// ends, and the node with it, as soon as the last of its locks does. Ghosts are bounded by the requests that fail while a session lasts.
type ghost struct {
	session *session
	hold    *hold // nil if the node is not known to be there
	leaves  bool  // the hold is still a user of the session

	dir, prefix string
	answer      <-chan reply[string] // to the request for the node, if the answer may come yet
	node        string               // the path of the node, once known
	both        bool                 // the node of the name goes with the node

	since int64
	next  int64 // when to ask
	wait  time.Duration
}

// cleaner ends ghosts, in a goroutine with the life of the last of them.
type cleaner struct {
	driver *Driver
	wake   chan struct{}

	mu      sync.Mutex
	ghosts  ghostHeap
	running bool // the goroutine
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
	select {
	case c.wake <- struct{}{}:
	default:
	}
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

// due takes out the ghosts whose time has come, or tells how long there is none.
func (c *cleaner) due() (due []*ghost, wait time.Duration, end bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.driver.now()
	for len(c.ghosts) > 0 && len(due) < maxCleaning && c.ghosts[0].next <= now {
		due = append(due, heap.Pop(&c.ghosts).(*ghost))
	}
	if len(due) > 0 {
		return due, 0, false
	}
	if len(c.ghosts) > 0 {
		return nil, time.Duration(c.ghosts[0].next - now), false
	}
	c.running = false
	return nil, 0, true
}

// clean asks once for each ghost, and puts back the ghosts that may still come.
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
	s := g.session
	settled := s.isDead() // and all its nodes with it
	switch {
	case settled:
	case g.hold != nil:
		settled = g.hold.exorcise(ctx)
	default:
		settled = d.find(ctx, g)
	}
	if settled && g.leaves {
		s.leave()
	}
	return settled
}

// exorcise asks once to remove the node.
func (h *hold) exorcise(ctx context.Context) bool {
	s := h.session
	c := caller{ctx: ctx}
	if s.await(c) != nil {
		return false
	}
	_, err := receive(c, s, h.askToRemove())
	if err != nil && !errors.Is(err, gozk.ErrNoNode) {
		return false
	}
	s.mu.Lock()
	h.phase = over
	s.mu.Unlock()
	h.forget()
	return true
}

// find looks for the node of a request without an answer, and removes the node.
func (d *Driver) find(ctx context.Context, g *ghost) bool {
	s := g.session
	c := caller{ctx: ctx}
	if g.answer != nil {
		node, err := receive(c, s, g.answer)
		if isOurs(err) {
			return false
		}
		g.answer = nil
		if isAnswer(err) && err != nil {
			return true // nothing was made
		}
		g.node = node // "" after an error
	}
	if g.node == "" && !g.look(c) {
		return false
	}
	// A repeat finds no node where the request before did its work and its answer is missing.
	_, err := query(c, s, func(c *gozk.Conn) (struct{}, error) { return remove(c, g.node) })
	if err != nil && !errors.Is(err, gozk.ErrNoNode) {
		return false
	}
	if g.both {
		send(s, func(c *gozk.Conn) (struct{}, error) { return struct{}{}, c.Delete(g.dir, ourVersion) })
	}
	return true
}

// look reports whether the node is at the server. If the node does not appear for some time, the session ends with its last lock.
func (g *ghost) look(c caller) bool {
	s := g.session
	l, err := query(c, s, func(c *gozk.Conn) (listing, error) { return listSynced(c, g.dir) })
	if err != nil && !errors.Is(err, gozk.ErrNoNode) {
		return false
	}
	for _, child := range l.children {
		if strings.HasPrefix(child, g.prefix) {
			g.node, g.both = g.dir+"/"+child, isOurMake(&l.stat)
			return true
		}
	}
	if s.driver.now() > g.since+int64(retireAfter) {
		s.retire()
	}
	return false
}

// ghostHeap has the ghost with the earliest next first.
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
