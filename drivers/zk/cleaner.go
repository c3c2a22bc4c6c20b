package zk

import (
	"context"
	"errors"
	"slices"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/internal/cleaner"
)

const (
	maxCleaning = 16 // requests at a time
	retireAfter = 2 * time.Second
)

// ghost is an unwanted node that may be left at the server, or appear there later.
//
// A known node is gone when the server has removed it, or answers that there is none. A node whose creation got no answer may yet appear,
// from a server that stood still: the cleaner looks again, ever more seldom, and the session takes no more locks, so that the session
// ends, and the node with it, as soon as the last of its locks does. Ghosts are bounded by the requests that fail while a session lasts.
type ghost struct {
	cleaner.Ghost
	session *session
	hold    *hold // nil if the node is not known to be there
	leaves  bool  // the hold is still a user of the session
	refused bool  // the server refuses to remove the node

	dir, prefix string
	answer      <-chan reply[string] // to the request for the node, if the answer may come yet
	node        string               // the path of the node, once known
	more        int                  // nodes that were made together with the node
	both        bool                 // the node of the name goes with the node
	paths       int                  // bytes of the paths of the nodes, unless those count as the hold's
}

// newCleaner returns what ends ghosts.
func newCleaner(d *Driver) *cleaner.Cleaner[*ghost] {
	settle := func(ghosts []*ghost) []*ghost { return slices.DeleteFunc(ghosts, d.endGhost) }
	return cleaner.New(d.life, cleaner.Policy[*ghost]{Settle: settle, Batch: 1, Calls: maxCleaning})
}

// haunt has a ghost settled. Its nodes count among those of the session.
func (d *Driver) haunt(g *ghost) {
	if !g.leaves {
		dir, prefix, more := g.dir, g.prefix, g.more
		if h := g.hold; h != nil {
			dir, prefix, more = h.dir, h.prefix, h.more
		}
		g.paths = (more + 1) * pathSize(dir, len(prefix))
		g.session.mu.Lock()
		g.session.paths += g.paths
		g.session.mu.Unlock()
	}
	d.ghosts.Add(g)
}

// endGhost asks once, and reports whether the ghost is gone for good.
func (d *Driver) endGhost(g *ghost) bool {
	ctx, cancel := d.background(attemptFor)
	defer cancel()
	s := g.session
	settled := s.isDead() // and all its nodes with it
	switch {
	case settled:
	case g.hold != nil:
		settled = g.hold.removeOnce(ctx, g)
	default:
		settled = d.find(ctx, g)
	}
	if !settled && g.refused && time.Since(g.Added) > retireAfter { // the node goes with the session
		s.retire()
		if g.leaves {
			g.leaves = false
			g.hold.leave()
		}
	}
	switch {
	case settled && g.leaves:
		g.hold.leave()
	case settled:
		s.mu.Lock()
		s.paths -= g.paths
		s.mu.Unlock()
	}
	return settled
}

// removeOnce asks once to remove the node of a ghost.
func (h *hold) removeOnce(ctx context.Context, g *ghost) bool {
	s := h.session
	c := caller{ctx: ctx}
	if s.await(c) != nil {
		return false
	}
	_, err := receive(c, s, h.askToRemove())
	if err != nil && !errors.Is(err, gozk.ErrNoNode) {
		g.refused = isAnswer(err) && !isThrottled(err)
		return false
	}
	s.mu.Lock()
	h.phase = over
	crowded := h.crowded
	s.mu.Unlock()
	if crowded {
		h.removeNameNode()
	}
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
	for i := range g.more + 1 {
		_, err := query(c, s, func(c *gozk.Conn) (struct{}, error) { return removeOwn(c, sibling(g.node, i)) })
		if err != nil && !errors.Is(err, gozk.ErrNoNode) {
			g.refused = isAnswer(err) && !isThrottled(err)
			return false
		}
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
	if child := l.first(g.prefix); child != "" {
		g.node, g.both = g.dir+"/"+child, isOurMake(&l.stat)
		return true
	}
	if time.Since(g.Added) > retireAfter {
		s.retire()
	}
	return false
}
