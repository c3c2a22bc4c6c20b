package zk

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
)

// pace is the pause between two rounds of requests that confirm a session. The
// pause must be longer than half a tick, a quarter of the shortest timeout,
// unless the server was configured for shorter timeouts.
func (s *session) pace() time.Duration { return max(s.ttl()/4, s.driver.minTTL*3/10) }

// keep confirms the session until it has ended: immediately on a new
// connection, and then in rounds of two requests. Every second round includes a
// write.
func (s *session) keep() {
	timer := time.NewTimer(s.pace())
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.joined:
		case <-s.Over():
			return
		}
		timer.Reset(s.confirm())
	}
}

// confirm sends the due requests, one after another, and returns the time until
// the next one is due.
func (s *session) confirm() time.Duration {
	for {
		now := s.driver.now()
		r, due := s.confirmation.next(now)
		if r == toServer {
			return max(time.Duration(due-now), time.Millisecond)
		}
		err := s.confirmBy(r, now)
		if !isThrottled(err) {
			s.reportKeepAlive(err)
		}
		if isThrottled(err) {
			return s.patience() / 20
		}
		if err != nil {
			return s.pace() // or earlier, if there is another connection
		}
	}
}

// reportKeepAlive reports whether the session is kept alive, unless the session
// has ended.
func (s *session) reportKeepAlive(err error) {
	if errors.Is(err, errOver) {
		return
	}
	if err != nil {
		if cause := s.trouble(); cause != nil {
			err = cause
		}
		err = fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	s.driver.reportKeepAlive(err)
}

// confirmBy sends a request and returns nil if there was any answer. If there
// was no answer in half the remaining time, it gives up the connection to the
// server, because another server may be able to reach the leader.
func (s *session) confirmBy(r reach, now int64) error {
	l := s.current.Load()
	if l == nil {
		return errNoServer
	}
	ctx, cancel := context.WithTimeout(s.online, time.Duration(s.End.At()-now)/2)
	defer cancel()
	_, err := receive(caller{session: s, ctx: ctx}, send(s, func(c *gozk.Conn) (struct{}, error) {
		if r == toMajority {
			_, err := c.Multi() // a transaction without a change, which needs no rights
			return struct{}{}, err
		}
		_, err := c.Sync("/")
		return struct{}{}, err
	}))
	if errors.Is(err, errNoAnswer) {
		l.Close()
	}
	return err
}

// reach is the furthest part of the ensemble that an answered request has
// reached.
type reach int8

const (
	toServer   reach = iota // the server of the connection may have answered without the leader
	toLeader                // the leader has handled it
	toMajority              // a majority of the ensemble has stored it
)

// reachOf returns the reach of a request with the given operation, if the
// answer is not an error.
func reachOf(op int32) reach {
	switch op {
	case opSync:
		return toLeader
	case opCreate, opDelete, opSetData, opSetACL, opCheck, opMulti, opCreate2, opCreateContainer, opCreateTTL:
		return toMajority
	}
	return toServer
}

// confirmation determines from the answers to a session the latest time at
// which its timeout has certainly started again at the leader of the ensemble.
// Only the leader's view matters. A single answer proves little. A follower
// answers pings and reads by itself, even when cut off from the leader. A
// leader that is cut off from the others still answers while they already have
// another leader. A moment counts if two conditions are met.
//
// The first condition is that the leader has heard of the session since then.
// Each half tick the leader sends a ping to a follower, which answers with the
// sessions it has heard from. The connection between the two keeps the order of
// all messages in both directions. Suppose that a follower answers a request,
// and the leader sends a ping later. The answer to any request sent to the
// leader after the ping reaches the follower after the ping. A second request,
// sent when the first was answered, reaches the leader after the follower's
// answer to the ping. So when the second request is answered, the leader has
// heard of the session. age is the longest time that a leader goes without a
// ping to a follower.
//
// The second condition is that the leader was still leading at that moment. The
// servers that elect another leader are a majority, and so are the servers that
// stored a write before its answer. So one server is in both majorities, and
// followed the old leader when it stored the write. So the new leader was
// elected after the write was sent. All sessions start again under a new
// leader. A sync does not prove leadership, because a leader answers syncs even
// without followers.
type confirmation struct {
	mu    sync.Mutex
	age   int64  // longer than a leader goes without a ping to a follower
	first moment // a request that was answered
	then  moment // an earlier request, since which the follower has received a ping
	heard int64  // the leader has heard of the session since then
	led   int64  // the time at which the leader is known to have led
}

// moment holds the times at which a request was sent and answered, or zero.
type moment struct{ sent, answered int64 }

// opened resets c for a new connection. The server has answered the request for
// the session, and only the leader can answer it. Making a session takes a
// write. Reconnecting to an existing session takes none.
func (c *confirmation) opened(sent, now, age int64, made bool) (alive int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.age, c.first, c.then = age, moment{sent, now}, moment{}
	c.heard = max(c.heard, sent)
	if made {
		c.led = max(c.led, sent)
	}
	return min(c.heard, c.led)
}

// noteAnswer handles the answer to a request and returns the latest time at
// which the session is known to have been alive.
func (c *confirmation) noteAnswer(r reach, sent, now int64) (alive int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r == toMajority {
		c.led = max(c.led, sent)
	}
	if r != toServer && c.then != (moment{}) && sent >= c.then.answered {
		c.heard = max(c.heard, c.then.sent)
		c.then = moment{}
	}
	if r != toServer && c.then == (moment{}) && sent >= c.first.answered+c.age {
		c.then = moment{c.first.sent, now}
		c.first = moment{sent, now}
	}
	return min(c.heard, c.led)
}

// next returns the reach of the next useful request and the time at which it is
// due, or toServer if there is none.
func (c *confirmation) next(now int64) (r reach, due int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	due = c.first.answered + c.age
	switch {
	case c.led < max(c.heard, c.then.sent):
		return toMajority, now
	case c.then != (moment{}), due <= now:
		return toLeader, now
	}
	return toServer, due
}

const (
	// usualCheckAfter is the age at which a hold gets a watch on its own node.
	// Most locks are released earlier and need no watch.
	usualCheckAfter = 500 * time.Millisecond

	// checkEvery is the pause between rounds of check.
	checkEvery = 250 * time.Millisecond

	maxChecking = 32 // concurrent requests
)

// checkFresh sets watches for holds that have reached a certain age, and
// returns the time at which to do so again.
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

// check sets a watch on the node of each hold, so that the driver notices when
// another client removes the node. check returns when the session ends.
func (s *session) check(holds []*hold) {
	_ = forEach(holds, maxChecking, func(h **hold) error {
		(*h).watchNodes()
		return nil
	})
	s.mu.Lock()
	s.checking = false
	s.mu.Unlock()
	s.Look()
}

func (h *hold) watchNodes() {
	s := h.session
	// the session ends at the latest when its time has passed
	c := caller{session: s, ctx: context.Background()}
	_, err := query(c, func(c *gozk.Conn) (struct{}, error) {
		if h.isHeld() != nil {
			return struct{}{}, errOver
		}
		for i := range h.count {
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

// WatchRemoval implements driver.RemovalWatcher. The driver watches the hold
// anyway, except for a short time after the grant.
func (h *hold) WatchRemoval(func()) (stop func()) {
	h.session.driver.life.Go(h.watchNodes)
	return func() {}
}

// watch waits for the end of a node, on behalf of waiters of one session.
type watch struct {
	over chan struct{} // closed when the waiters should check again
	bare bool          // for permits: the contenders are not read
	set  bool          // the server will report the end; guarded by session.mu

	// The contenders, if the goroutine of the event requested them: waiters are
	// woken by their arrival. These fields are set before over is closed.
	known   bool
	listing listing
	sent    int64 // when the contenders were requested
}

// list returns the known contenders, if the watch has ended and any are known.
func (w *watch) list() (l listing, sent int64, known bool) {
	if w == nil {
		return listing{}, 0, false
	}
	select {
	case <-w.over:
		return w.listing, w.sent, w.known
	default:
		return listing{}, 0, false
	}
}

// isOver reports whether the waiter should check again, or has no watch.
func (w *watch) isOver() bool {
	if w == nil {
		return true
	}
	select {
	case <-w.over:
		return true
	default:
		return false
	}
}

// unwatch removes and returns the watch of a node, if there is one.
func (s *session) unwatch(node string) *watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watches[node]
	delete(s.watches, node)
	return w
}

// wakeWaiters handles an event of a node. The event does not show which client
// holds the lock now. So wakeWaiters requests the contenders immediately, and
// the waiters wake when these are known.
func (s *session) wakeWaiters(node string) {
	w := s.unwatch(node)
	if w == nil {
		return
	}
	if w.bare {
		close(w.over)
		return
	}
	w.sent = s.driver.now()
	asked := s.listNow(node[:strings.LastIndexByte(node, '/')], func(l listing, err error) {
		w.listing, w.known = l, err == nil
		close(w.over)
	})
	if !asked {
		close(w.over)
	}
}

// childrenW sets a watch on the children of a node.
func childrenW(c *gozk.Conn, node string) error {
	_, _, _, err := c.ChildrenW(node)
	return err
}

// getW sets a watch on a node, if the node exists.
func getW(c *gozk.Conn, node string) error {
	_, err := statW(c, node)
	return err
}

// ownedW is like getW, but for a node of the session. A node that another
// client has put in its place does not count.
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
