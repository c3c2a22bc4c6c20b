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
// pause has to be longer than half a tick, a quarter of the shortest timeout,
// unless the server was told to keep shorter ones.
func (s *session) pace() time.Duration { return max(s.ttl()/4, s.driver.minTTL*3/10) }

// keep has the session confirmed until the session is over: on a new connection
// at once, and then in rounds of two requests, of which every second one has a
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

// confirm sends the due requests, one after the other, and returns how long
// none is.
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
			return s.pace() // unless there is another connection before
		}
	}
}

// reportKeepAlive reports whether the session is kept alive, unless the session
// is over.
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

// confirmBy sends a request whose answer alone matters, and returns nil if
// there was one. If there was none in half the time that is left, the server is
// given up: perhaps another one is not cut off from the leader.
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

// reach is how far an answered request got.
type reach int8

const (
	toServer   reach = iota // the server of the connection may have answered it alone
	toLeader                // the leader has handled it
	toMajority              // a majority of the ensemble has stored it
)

// reachOf tells how far a request of an operation gets, if the answer is no
// error.
func reachOf(op int32) reach {
	switch op {
	case opSync:
		return toLeader
	case opCreate, opDelete, opSetData, opSetACL, opCheck, opMulti, opCreate2, opCreateContainer, opCreateTTL:
		return toMajority
	}
	return toServer
}

// confirmation finds out from the answers to a session until when its timeout
// has begun anew, where that counts: at the leader of the ensemble. An answer
// alone says little. A follower answers pings and reads by itself, also when
// cut off from the leader, and a leader that is cut off from the others answers
// while they already have another one. Two facts make a moment count.
//
// The leader has heard of the session since. Each half tick the leader sends a
// ping to a follower, which answers with the sessions heard of; the connection
// between the two keeps the order of all messages, both ways. So let a request
// be answered by a follower, and the leader send a ping later. A request to the
// leader behind the ping brings its own answer to the follower behind the ping,
// and a second one, sent when the first was answered, gets to the leader behind
// the follower's answer to the ping: when the second one is answered, the
// leader has heard of the session. How long a leader is silent at most is age.
//
// And the leader still led. The servers that elect another leader are a
// majority, and so are the servers that stored a write before its answer. So a
// server is in both, and followed the old leader when it stored the write: the
// new leader was elected after the write was sent. All sessions begin anew
// under a new leader. A sync proves no leadership: a leader answers syncs
// although nobody follows.
type confirmation struct {
	mu    sync.Mutex
	age   int64  // longer than a leader goes without a ping to a follower
	first moment // a request that was answered
	then  moment // one before it, since which the follower has received a ping
	heard int64  // the leader has heard of the session since
	led   int64  // the leader led then
}

// moment is when a request was sent and answered, or zero.
type moment struct{ sent, answered int64 }

// opened begins with a connection whose request for the session was answered,
// as only the leader does. To make the session takes a write; a connection to a
// session of before takes none.
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

// answered takes the answer to a request, and returns since when the session is
// known to be alive.
func (c *confirmation) answered(r reach, sent, now int64) (alive int64) {
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

// next returns the next useful request, or toServer and when there is one.
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
	// usualCheckAfter is how old a hold has to be for a watch of its own node:
	// most locks are gone before, and need none.
	usualCheckAfter = 500 * time.Millisecond

	// checkEvery is the pause between rounds of check.
	checkEvery = 250 * time.Millisecond

	maxChecking = 32 // requests at a time
)

// checkFresh has watches set for the holds of some age, and reports when to do
// so again.
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

// check sets a watch on the node of each hold, so that the driver learns when
// somebody removes the node. check ends with the session.
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

// WatchRemoval implements driver.RemovalWatcher. The hold is watched anyway,
// except at first.
func (h *hold) WatchRemoval(func()) (stop func()) {
	h.session.driver.life.Go(h.watchNodes)
	return func() {}
}

// watch waits for the end of a node, on behalf of waiters of one session.
type watch struct {
	over chan struct{} // closed when there is something to look at
	bare bool          // for permits: the contenders are not asked for
	set  bool          // the server tells of the end; guarded by session.mu

	// The contenders, if the goroutine of the event asked for them: waiters are
	// woken by their arrival. These fields are set before over is closed.
	known   bool
	listing listing
	sent    int64 // when the contenders were asked for
}

// list returns what is known of the contenders, if the watch is over and
// anything is.
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

// isOver reports whether there is something to look at, or no watch.
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

// unwatch takes the watch of a node out, if there is one.
func (s *session) unwatch(node string) *watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watches[node]
	delete(s.watches, node)
	return w
}

// wakeWaiters takes an event of a node. The event alone does not tell whose the
// lock is now, so the contenders are asked for from right here, and waiters
// wake when they are known.
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
