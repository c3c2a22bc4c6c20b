package zk

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/linked"
)

const (
	never       = math.MaxInt64
	removeAfter = 10 * time.Millisecond

	// crowdedFor is how long other clients are expected to wait for a name
	// again. If no client waits, the release of a free lock takes one more
	// transaction. If a client waits for a name that was not known to be
	// crowded, the hand-over waits for a refused transaction.
	crowdedFor = int64(10 * time.Second)
)

// hold is a granted claim, the driver.Lease.
type hold struct {
	linked.Links[hold] // in session.fresh; guarded by session.mu
	*claim

	request *driver.Request
	paths   int           // bytes of the paths of the request's nodes
	first   atomic.Uint64 // token
	sent    int64         // when the request of the grant was sent
	granted int64         // when the answer came
	end     atomic.Int64  // end of a fixed lease, apart from the session

	// Guarded by session.mu.
	record    record
	sealing   bool // the node may have become a seal
	phase     phase
	timer     *time.Timer // ends a fixed lease
	doubtedAt int64       // when the first unanswered release was sent
}

// phase is the progress of the end of a hold.
type phase int8

const (
	held    phase = iota
	ending        // Release was called
	doubted       // a request to release the hold got no answer
	expired       // a fixed lease whose time has passed
	over
)

// Tokens implements driver.Lease. The token is a transaction that had been
// committed when the lock was granted. That transaction does not precede the
// end of the previous hold, and it precedes the end of this hold.
func (h *hold) Tokens() (first uint64, n int) {
	if h.session.driver.options.NoTokens || h.request.Mode == driver.Permit {
		return 0, 0
	}
	return h.first.Load(), tokensPerGrant
}

// Expires implements driver.Lease.
func (h *hold) Expires() time.Time { return h.session.driver.epoch.Add(time.Duration(h.expires())) }

// Session implements driver.SessionLease. A fixed lease may be extended beyond
// the TTL of its session.
func (h *hold) Session() (expires time.Time, ttl time.Duration) {
	s := h.session
	return s.driver.epoch.Add(time.Duration(s.End.At())), s.ttl()
}

// expires is an even number, even after the end of the session was seen to have
// passed. So the end does not appear to move.
func (h *hold) expires() int64 { return min(h.end.Load(), h.session.End.At()) &^ 1 }

// Renew implements driver.Lease. The session of the lease is kept alive anyway,
// so the request checks whether the node still exists. The end of a fixed lease
// is moved here.
func (h *hold) Renew(ctx context.Context, ttl time.Duration) error {
	s := h.session
	d := s.driver
	if err := h.isHeld(); err != nil {
		return err
	}
	sent := d.now()
	c := caller{session: s, ctx: ctx}
	_, err := query(c, func(c *gozk.Conn) (struct{}, error) { return struct{}{}, h.checkNodes(c) })
	switch {
	case errors.Is(err, gozk.ErrNoNode):
		h.removed()
		return driver.ErrNotHeld
	case errors.Is(err, errOver):
		return driver.ErrNotHeld
	case err != nil:
		return c.explain(undecided{err})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := d.now(); h.phase != held || s.dead || s.End.Passed(now) || now >= h.end.Load() {
		return driver.ErrNotHeld
	}
	if h.request.Fixed {
		h.end.Store(sent + int64(ttl))
		h.timer.Reset(time.Duration(h.end.Load() - d.now()))
	}
	return nil
}

// leaveSession ends the use of the session.
func (h *hold) leaveSession() { h.session.Leave(h.paths) }

// isHeld returns ErrNotHeld if the hold is known to have ended.
func (h *hold) isHeld() error {
	s := h.session
	now := s.driver.now()
	if s.End.Passed(now) {
		s.Die(driver.ErrSessionEnded)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.phase != held || s.dead || now >= h.end.Load() {
		return driver.ErrNotHeld
	}
	return nil
}

// expire ends a fixed lease when its time has passed.
func (h *hold) expire() {
	s := h.session
	s.mu.Lock()
	if h.phase != held || s.dead {
		s.mu.Unlock()
		return
	}
	if left := h.end.Load() - s.driver.now(); left > 0 {
		h.timer.Reset(time.Duration(left))
		s.mu.Unlock()
		return
	}
	h.phase = expired
	s.fresh.Remove(h)
	s.mu.Unlock()
	haunt(&ghost{claim: h.claim, hold: h, leaves: true})
}

// lose ends a hold other than by Release, and reports whether to notify the
// holder.
func (h *hold) lose(cause error) bool {
	s := h.session
	s.mu.Lock()
	tell := h.phase == held
	h.phase = over
	if h.timer != nil {
		h.timer.Stop()
	}
	s.fresh.Remove(h)
	s.mu.Unlock()
	if tell {
		h.leaveSession()
	}
	return tell
}

// removed ends a hold whose node another client removed.
func (h *hold) removed() {
	told := h.lose(driver.ErrRemoved)
	h.forget()
	if told && h.count > 1 {
		haunt(&ghost{claim: h.claim, hold: h}) // the other nodes
	}
	if told {
		h.request.Events.Lost(driver.ErrRemoved)
	}
}

// forget removes the hold from its session. The server no longer has the node.
func (h *hold) forget() {
	s := h.session
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range h.count {
		if node := sibling(h.node, i); s.nodes[node] == h {
			delete(s.nodes, node)
		}
	}
}

// Release implements driver.Lease and repeats a failed request until ctx or the
// hold ends.
func (h *hold) Release(ctx context.Context) error {
	s := h.session
	if s.End.Passed(s.driver.now()) {
		s.Die(driver.ErrSessionEnded)
	}
	s.mu.Lock()
	if h.phase == over || h.phase == expired || s.dead {
		h.phase = over
		s.mu.Unlock()
		return driver.ErrNotHeld
	}
	first := h.phase == held
	if first {
		h.phase = ending
		s.fresh.Remove(h)
		if h.timer != nil {
			h.timer.Stop()
		}
	}
	s.mu.Unlock()
	if !first {
		ctx, cancel := context.WithTimeout(ctx, attemptFor)
		defer cancel()
		return h.release(ctx)
	}
	err := h.release(ctx)
	if errors.Is(err, driver.ErrUnknown) {
		haunt(&ghost{claim: h.claim, hold: h, leaves: true})
	} else {
		h.leaveSession()
	}
	return err
}

// release sends requests to remove the node until the matter is settled.
//
// If a repeated request finds no node, the unanswered request before it counts
// as successful, provided that it was sent before the lease could have ended,
// and that the node cannot have become a seal. The end of the session never
// counts as such a success, because the node may have gone with the session
// before the request was sent.
func (h *hold) release(ctx context.Context) error {
	s := h.session
	c := caller{session: s, ctx: ctx}
	for {
		var sent int64 // 0: no request was sent
		err := c.await()
		if err == nil {
			sent = s.driver.now()
			_, err = outcome(c, h.sendRemove())
		}
		if errors.Is(err, errOver) && !s.hasEnded(c) {
			return c.explain(undecided{err})
		}
		settled, ended := err == nil || errors.Is(err, gozk.ErrNoNode) || errors.Is(err, errOver), err == nil
		s.mu.Lock()
		switch {
		case h.phase == over:
			s.mu.Unlock()
			return driver.ErrNotHeld
		case settled:
			ended = ended || h.phase == doubted && h.doubtedAt < h.expires()&^1 && !h.sealing && !s.lost
			h.phase = over
			crowded := ended && h.crowded
			s.mu.Unlock()
			if crowded {
				h.removeNameNode()
			}
			h.forget()
			if !ended {
				return driver.ErrNotHeld
			}
			return nil
		case h.phase == ending && sent > 0 && !isAnswer(err):
			h.phase, h.doubtedAt = doubted, sent
		}
		s.mu.Unlock()
		if isOurs(err) || isAnswer(err) && !isThrottled(err) {
			return c.explain(undecided{err})
		}
		if err := c.pause(); err != nil {
			return c.explain(undecided{err})
		}
	}
}

// hasEnded reports whether a dead session has also ended on the server. A
// session that was lost has ended. The request of Close to end a session may
// get no answer.
func (s *session) hasEnded(c caller) bool {
	if s.driver.life.Open().Err() == nil {
		return true
	}
	s.mu.Lock()
	closed := s.dead && !s.lost
	s.mu.Unlock()
	if !closed {
		return true
	}
	select {
	case <-s.Buried():
	case <-c.ctx.Done():
	}
	return s.gone.Load()
}

// nodeChanged handles an event of a node.
func (s *session) nodeChanged(node string, deleted bool) {
	s.wakeWaiters(node)
	h := s.find(node)
	switch {
	case h == nil:
	case deleted:
		h.vanished()
	default:
		s.mu.Lock()
		if h.phase == held {
			s.fresh.Add(h) // its watch was used up
		}
		s.mu.Unlock()
		s.Look()
	}
}

// find returns the hold of a node, or nil.
func (s *session) find(node string) *hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[node]
}

// vanished handles the disappearance of the node, which another client may have
// removed.
func (h *hold) vanished() {
	s := h.session
	s.mu.Lock()
	mine := h.phase != held || h.sealing
	s.mu.Unlock()
	if !mine {
		h.removed()
	}
}

// background returns a context for a request that no caller can cancel.
func (d *Driver) background(bound time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(d.life.Context(), bound)
}
