package zk

import (
	"errors"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/lifecycle"
)

const (
	// backStop is the pause after which a waiter checks again even without an
	// event.
	backStop = 16 * time.Second

	// probeEvery is the interval at which a waiter checks that the server still
	// answers.
	probeEvery = time.Second
)

// forLocks is the rule of the modes whose contenders are in one queue, by their
// numbers. The node of a claim is its place in the queue, and a claim is
// granted when no contender before it excludes it.
var forLocks = rule{
	begin: func(r *request) state {
		if r.asked.NoWait && r.session.driver.nameNodes.exists(r.claim.dir) {
			return looking
		}
		return asking
	},
	look: (*request).lookInQueue,
	arm: func(r *request) (state, error) {
		var err error
		r.ahead, err = r.watch(r.before, nil)
		return waiting, err
	},
}

// lookInQueue determines the node directly before the claim's node. If the last
// watch has ended, it may know that node.
func (r *request) lookInQueue() (state, error) {
	q := r.claim
	if q.node == "" {
		return r.lookAhead()
	}
	l, sent, ok := r.ahead.list()
	var err error
	if !ok {
		sent = r.session.driver.now()
		l, err = r.list(q.dir)
	}
	if err != nil && !errors.Is(err, gozk.ErrNoNode) {
		return 0, err
	}
	p := q.placeAmong(l.children)
	if !p.found {
		q.node = ""
		return 0, errGone
	}
	if r.record = l.record(); r.record.seal != "" {
		return 0, driver.ErrSealed
	}
	q.ours = isOurMake(&l.stat) && r.record.child == "" && p.isLast
	q.crowded = q.crowded || p.shared
	switch {
	case p.before == "":
		r.sent = sent
		return entering, nil
	case r.asked.NoWait:
		return 0, driver.ErrLocked
	}
	r.before = q.dir + "/" + p.before
	return arming, nil
}

// lookAhead checks, before a claim is made, whether it would be granted. It is
// for requests that must not wait. Unless a server knows all transactions that
// precede the call, it may lag and still list a holder that has released.
func (r *request) lookAhead() (state, error) {
	dir := r.claim.dir
	read := r.listSynced
	if r.synced {
		read = r.list
	}
	l, err := read(dir)
	if errors.Is(err, gozk.ErrNoNode) {
		r.session.driver.nameNodes.remove(dir)
		return asking, nil
	}
	if err != nil {
		return 0, err
	}
	if l.record().seal != "" {
		return 0, driver.ErrSealed
	}
	for _, child := range l.children {
		if other, ok := contenderOf(child); ok && r.asked.Mode.Excludes(other.mode) {
			return 0, driver.ErrLocked
		}
	}
	return asking, nil
}

// wait sleeps until one of the watches shows that the request should check
// again.
func (r *request) wait() (state, error) {
	if !r.waited {
		r.waited = true
		r.asked.Events.Waiting()
	}
	s, q := r.session, r.claim
	if r.queued != nil {
		q = r.queued
	}
	d := s.driver
	q.crowded = true
	d.nameNodes.crowd(q.dir, d.now()+crowdedFor)
	var limit <-chan struct{}
	if r.limit != nil {
		limit = r.limit.over
	}
	quiet := time.Duration(d.nudgeAfter.Load())
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	until := d.now() + int64(backStop)
	for {
		select {
		case <-r.ahead.over:
			return looking, nil
		case <-limit:
			return looking, nil
		case <-timer.C:
			if d.now() >= until {
				return looking, nil
			}
			s.nudge(min(quiet, probeEvery/2))
			quiet = min(2*quiet, probeEvery)
			timer.Reset(quiet)
		case <-s.Over():
			return 0, errOver
		case <-r.stop:
			return 0, errStopping
		case <-r.ctx.Done():
			return 0, r.waitEnded()
		}
	}
}

// waitEnded returns the error of a wait that the caller has ended.
func (r *request) waitEnded() error {
	return lifecycle.WithCause(r.ctx, driver.ErrLocked, errors.New("the wait has ended"))
}

// place is the position of a node among the contenders.
type place struct {
	found  bool   // the node is one of the contenders
	before string // the last node before it that excludes it, or ""
	isLast bool   // no node that excludes the node is behind it
	shared bool   // both the node and another one are for reading
}

// placeAmong returns the place of the node. A Read ignores other Reads, so all
// Reads between two writers watch the same node. A writer watches one of the
// nodes before it, and another one when that node is gone.
func (q *claim) placeAmong(children []string) place {
	own := contender{q.node[len(q.dir)+1:], q.mode, q.seq}
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

// watch returns a watch of a node. The watch ends when the node is gone or was
// changed, or when that may have happened. It does not end before the node has
// been seen. Waiters for the same node share a watch. For permits, request is
// not nil, and the server has set the watch when watch returns.
func (r *request) watch(node string, request func(*gozk.Conn, string) error) (*watch, error) {
	s := r.session
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
	_, err := receive(r.caller, answer)
	if err != nil && !isAnswer(err) && !isOurs(err) || isThrottled(err) {
		err = r.pause()
	}
	switch {
	case errors.Is(err, errNoAnswer):
		return nil, r.waitEnded()
	case isOurs(err):
		return nil, err
	}
	return w, nil
}
