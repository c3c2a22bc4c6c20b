package zk

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/internal/cleaner"
)

const (
	maxCleaning = 16 // requests at a time
	retireAfter = 2 * time.Second
)

// ghost is a node that may be left at the server, or come to be there, and that nobody wants.
//
// One whose making was answered is gone when the server has removed it, or says that it is not there. One of which nobody knows whether
// it was made may yet come, from a server that stood still: it is looked for again, ever more seldom, and its session takes no more
// locks, so that it ends, and the node with it, as soon as the last one does. Ghosts are bounded by the requests that fail while a
// session lasts.
type ghost struct {
	cleaner.Ghost
	session *session
	hold    *hold // nil if it is not known to be there
	leaves  bool  // the hold is still a user of the session

	dir, prefix string
	answer      <-chan reply[string] // to the request that makes it, if that may come yet
	both        bool                 // which makes the node of the name as well
}

// newCleaner returns what ends ghosts.
func newCleaner(d *Driver) *cleaner.Cleaner[*ghost] {
	settle := func(ghosts []*ghost) []*ghost { return slices.DeleteFunc(ghosts, d.exorcise) }
	return cleaner.New(d.life, cleaner.Policy[*ghost]{Settle: settle, Batch: 1, Calls: maxCleaning})
}

// exorcise asks once, and reports whether the ghost is gone for good.
func (d *Driver) exorcise(g *ghost) bool {
	ctx, cancel := d.background(attemptFor)
	defer cancel()
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
	sent := h.driver.now()
	_, err := receive(c, s, h.askToRemove())
	if err != nil && !errors.Is(err, gozk.ErrNoNode) {
		return false
	}
	s.mu.Lock()
	had := h.phase != waiting
	h.phase, h.sent = over, sent
	s.mu.Unlock()
	h.isGone(had && err == nil)
	return true
}

// find looks for a node that may have been made, and removes it.
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
		if err == nil {
			return g.remove(c, node, g.both)
		}
	}
	l, err := query(c, s, func(c *gozk.Conn) (listing, error) { return listSynced(c, g.dir) })
	if err != nil && !errors.Is(err, gozk.ErrNoNode) {
		return false
	}
	for _, child := range l.children {
		if strings.HasPrefix(child, g.prefix) {
			return g.remove(c, g.dir+"/"+child, isOurMake(&l.stat))
		}
	}
	if time.Since(g.Added) > retireAfter {
		s.retire()
	}
	return false
}

// remove removes the node, and that of the name if the driver made it and it is empty.
func (g *ghost) remove(c caller, node string, ours bool) bool {
	_, err := query(c, g.session, func(c *gozk.Conn) (struct{}, error) { return remove(c, node) })
	if err != nil && !errors.Is(err, gozk.ErrNoNode) {
		return false
	}
	if ours {
		send(g.session, func(c *gozk.Conn) (struct{}, error) { return struct{}{}, c.Delete(g.dir, ourVersion) })
	}
	return true
}
