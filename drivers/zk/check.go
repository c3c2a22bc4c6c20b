package zk

import (
	"context"
	"errors"
	"sync"
	"time"

	gozk "github.com/go-zookeeper/zk"
)

const (
	// usualCheckAfter is how old a hold has to be for a watch of its own node: most locks are gone before, and need none.
	usualCheckAfter = 500 * time.Millisecond

	// checkEvery is the pause between rounds of check.
	checkEvery = 250 * time.Millisecond

	maxChecking = 32 // requests at a time
)

// checkFresh has watches set for the holds of some age, and reports when to do so again.
func (s *session) checkFresh(now int64) (due int64, ok bool) {
	s.mu.Lock()
	if s.fresh.Empty() || s.dead {
		s.mu.Unlock()
		return 0, false
	}
	first, age := s.fresh.First(), s.driver.checkAfter.Load()
	if s.checking || first.granted+age > now {
		s.mu.Unlock()
		return max(first.granted+age, now+int64(checkEvery)), true
	}
	var old []*hold
	for h := range s.fresh.All() {
		if h.granted+age > now {
			break
		}
		s.fresh.Remove(h)
		old = append(old, h)
	}
	s.checking = true
	s.mu.Unlock()
	if !s.driver.life.Go(func() { s.check(old) }) {
		return 0, false
	}
	return now + int64(checkEvery), true
}

// check sets a watch on the node of each hold, so that the driver learns when somebody removes the node. check ends with the session.
func (s *session) check(holds []*hold) {
	defer func() {
		s.mu.Lock()
		s.checking = false
		s.mu.Unlock()
		s.look()
	}()
	next := make(chan *hold)
	var workers sync.WaitGroup
	for range min(len(holds), maxChecking) {
		workers.Go(func() { // ends with next
			for h := range next {
				h.check()
			}
		})
	}
	for _, h := range holds {
		next <- h
	}
	close(next)
	workers.Wait()
}

func (h *hold) check() {
	s := h.session
	c := caller{ctx: context.Background()} // the session ends at the latest when its time has passed
	_, err := query(c, s, func(c *gozk.Conn) (struct{}, error) {
		if h.isHeld() != nil {
			return struct{}{}, errOver
		}
		for i := range h.count() {
			if err := ownedW(c, sibling(h.node, i)); err != nil {
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	})
	if errors.Is(err, gozk.ErrNoNode) {
		h.vanished()
	}
}

// WatchRemoval implements driver.RemovalWatcher. The hold is watched anyway,
// except at first.
func (h *hold) WatchRemoval(func()) (stop func()) {
	h.driver.life.Go(h.check)
	return func() {}
}

// childrenW sets a watch on the children of a node.
func childrenW(c *gozk.Conn, node string) error {
	_, _, _, err := c.ChildrenW(node)
	return err
}

// getW sets a watch on a node, and none where there is no node.
func getW(c *gozk.Conn, node string) error {
	_, err := statW(c, node)
	return err
}

// ownedW is getW for a node of the session. A node that somebody put in its
// place counts as none.
func ownedW(c *gozk.Conn, node string) error {
	stat, err := statW(c, node)
	if err == nil && stat.EphemeralOwner != c.SessionID() {
		return gozk.ErrNoNode
	}
	return err
}

func statW(c *gozk.Conn, node string) (*gozk.Stat, error) {
	_, stat, _, err := c.GetW(node)
	if errors.Is(err, gozk.ErrNoAuth) {
		var exists bool
		if exists, stat, _, err = c.ExistsW(node); err == nil && !exists {
			return nil, gozk.ErrNoNode
		}
	}
	return stat, err
}
