package zk

import (
	"context"
	"errors"
	"strings"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
)

const (
	// backStop is the pause after which a waiter looks although there was no
	// event.
	backStop = 16 * time.Second

	// probeEvery is how often a waiter makes sure that the server still
	// answers.
	probeEvery = time.Second
)

// wait returns when the node has the lock, or is gone. The waiter looks for the node right before its own, and watches that node until the
// next look.
func (h *hold) wait(c caller, waited *bool) error {
	var w *watch
	for {
		before, err := h.look(c, w)
		if before == "" || err != nil {
			return err
		}
		if h.request.NoWait {
			return h.abandon(c, driver.ErrLocked)
		}
		if w, err = h.watch(c, before, nil); err != nil {
			return err
		}
		if !*waited {
			*waited = true
			h.request.Events.Waiting()
		}
		if err := h.sleep(c, w, nil); err != nil {
			return err
		}
	}
}

// sleep waits until there is something to look at, as one of the watches tells.
func (h *hold) sleep(c caller, w, other *watch) error {
	h.session.mu.Lock()
	h.crowded = true
	h.session.mu.Unlock()
	h.driver.nameNodes.crowd(h.dir, h.driver.now()+crowdedFor)
	var otherOver chan struct{}
	if other != nil {
		otherOver = other.over
	}
	quiet := time.Duration(h.driver.nudgeAfter.Load())
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	until := h.driver.now() + int64(backStop)
	for {
		select {
		case <-w.over:
			return nil
		case <-otherOver:
			return nil
		case <-timer.C:
			if h.driver.now() >= until {
				return nil
			}
			h.session.nudge(min(quiet, probeEvery/2))
			quiet = min(2*quiet, probeEvery)
			timer.Reset(quiet)
		case <-h.session.over:
			return errAgain
		case <-c.stop:
			return driver.ErrClosed // Close ends the node with the session
		case <-c.ctx.Done():
			return h.giveUp(c)
		}
	}
}

// giveUp ends a wait.
func (h *hold) giveUp(c caller) error {
	return h.abandon(c, withCause(c.ctx, driver.ErrLocked, errors.New("the wait has ended")))
}

// look returns the node right before that of the hold, or "" if the hold has the lock. The last watch may know, if over.
func (h *hold) look(c caller, last *watch) (before string, err error) {
	s := h.session
	l, sent, ok := last.list()
	if !ok {
		sent = h.driver.now()
		l, err = query(c, s, func(c *gozk.Conn) (listing, error) { return list(c, h.dir) })
	}
	switch {
	case errors.Is(err, gozk.ErrNoNode):
		return "", h.vanish()
	case errors.Is(err, errOver):
		return "", errAgain
	case errors.Is(err, errStopping):
		return "", driver.ErrClosed
	case errors.Is(err, errNoAnswer):
		return "", h.leaveBehind(withCause(c.ctx, driver.ErrUnknown, err))
	case err != nil:
		return "", h.abandon(c, fault(c.ctx, s, err))
	}
	p := h.placeAmong(l.children)
	if !p.found {
		return "", h.vanish()
	}
	r := l.record()
	if r.seal != "" {
		return "", h.abandon(c, driver.ErrSealed)
	}
	s.mu.Lock()
	h.ours, h.record = isOurMake(&l.stat) && r.child == "" && p.isLast, r
	h.crowded = h.crowded || p.shared
	s.mu.Unlock()
	if p.before == "" {
		h.sent = sent
		return "", nil
	}
	return h.dir + "/" + p.before, nil
}

// place is where a node stands among the contenders.
type place struct {
	found  bool   // the node is among them
	before string // the last one before the node that the two exclude each other, or ""
	isLast bool   // no such one is behind the node
	shared bool   // both the node and another one are for reading
}

// placeAmong returns the place of the node. A Read counts no other Read, so all between two writers look out for the same node, and a
// writer looks out for one of those before it, and for another one when that has gone.
func (h *hold) placeAmong(children []string) place {
	own := contender{h.node[len(h.dir)+1:], h.request.Mode, h.seq}
	p := place{isLast: true}
	var latest contender // before the node
	for _, child := range children {
		other, ok := contenderOf(child)
		switch {
		case !ok:
		case child == own.child:
			p.found = true
		case !own.mode.Excludes(other.mode):
			p.shared = true
		case !other.before(own):
			p.isLast = false
		case p.before == "" || latest.before(other):
			p.before, latest = child, other
		}
	}
	return p
}

// vanish ends an attempt whose node somebody removed.
func (h *hold) vanish() error {
	h.forget()
	return errAgain
}

// abandon removes the node of an attempt, and returns err, or ErrUnknown
// without an answer at once. The removal goes on in the background then.
func (h *hold) abandon(c caller, err error) error {
	d, s := h.driver, h.session
	ctx, cancel := d.background(leaveFor)
	defer cancel()
	defer context.AfterFunc(c.ctx, func() { // ends with ctx
		if d.life.Sleep(ctx, leaveSoon) {
			cancel()
		}
	})()
	_, failed := query(caller{ctx, c.stop}, s, h.removeNodes)
	switch {
	case failed == nil, errors.Is(failed, gozk.ErrNoNode):
		h.removeNameNode()
		h.forget()
		return err
	case errors.Is(failed, errOver):
		return err // the node went with the session
	case errors.Is(failed, errStopping):
		return driver.ErrClosed // Close ends the node with the session
	}
	if c.ctx.Err() != nil {
		return h.leaveBehind(withCause(c.ctx, driver.ErrUnknown, failed))
	}
	return h.leaveBehind(errors.Join(driver.ErrUnknown, err))
}

// leaveBehind has the node removed in the background.
func (h *hold) leaveBehind(err error) error {
	h.driver.haunt(&ghost{session: h.session, hold: h})
	return err
}

// watch waits for the end of a node, on behalf of waiters of one session.
type watch struct {
	over chan struct{} // closed when there is something to look at
	bare bool          // for permits: the contenders are not asked for
	set  bool          // the server tells of the end; guarded by session.mu

	// The contenders, if the goroutine of the event asked for them: waiters are woken by their arrival. These fields are set
	// before over is closed.
	known   bool
	listing listing
	sent    int64 // when the contenders were asked for
}

// list returns what is known of the contenders, if the watch is over and anything is.
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

// watch returns a watch of a node: over when the node is gone, or was changed, or may have been, and not before the node was seen. Waiters
// for the same node share a watch. For permits a request is given: the server has set the watch when watch returns.
func (h *hold) watch(c caller, node string, request func(*gozk.Conn, string) error) (*watch, error) {
	s := h.session
	bare := request != nil
	if !bare {
		request = getW
	}
	s.mu.Lock()
	w := s.watches[node]
	if w != nil && (w.set || !bare) {
		s.mu.Unlock()
		return w, nil
	}
	if w == nil {
		w = &watch{over: make(chan struct{}), bare: bare}
		s.watches[node] = w
	}
	s.mu.Unlock()
	answer := send(s, func(c *gozk.Conn) (struct{}, error) {
		err := request(c, node)
		if err == nil {
			s.mu.Lock()
			w.set = true
			s.mu.Unlock()
		} else if w := s.unwatch(node); w != nil {
			close(w.over)
		}
		return struct{}{}, err
	})
	_, err := receive(c, s, answer)
	switch {
	case errors.Is(err, errOver):
		return nil, errAgain
	case errors.Is(err, errStopping):
		return nil, driver.ErrClosed
	case errors.Is(err, errNoAnswer):
		return nil, h.giveUp(c)
	case err != nil && !isAnswer(err), isThrottled(err):
		if err := s.pause(c); err != nil {
			return nil, h.giveUp(c)
		}
	}
	return w, nil
}

// unwatch takes the watch of a node out, if there is one.
func (s *session) unwatch(node string) *watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watches[node]
	delete(s.watches, node)
	return w
}

// wakeWaiters takes an event of a node. The event alone does not tell whose the lock is now, so the contenders are asked for from right
// here, and waiters wake when they are known.
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
