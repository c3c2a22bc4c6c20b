package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/lifecycle"
	sessions "github.com/go-dsync/dsync/internal/session"
)

const (
	idleFor      = 5 * time.Minute        // how long a session without users is kept
	minKeepAlive = 250 * time.Millisecond // the minimum time for an attempt to keep a session alive
)

// session is the lease that carries all locks of a driver with renewal and the
// same TTL. The session keeps the lease alive every third of the TTL. Once the
// End has passed, the lease is never kept alive again, but revoked.
type session struct {
	sessions.Frame
	carrier
	driver  *Driver
	seconds int64 // the TTL that callers requested

	mu     sync.Mutex
	holds  holdList            // granted, and not released
	firsts map[string]struct{} // the dirs whose key with number 0 may be on the server
}

func newSession(d *Driver, ttl time.Duration) *session {
	s := &session{driver: d, seconds: int64(ttl / time.Second), firsts: make(map[string]struct{})}
	s.carrier.end = &s.End
	return s
}

// takeNumber takes a number for the key. Numbers distinguish the keys of
// concurrent attempts. A number is used again as soon as it is free, and 0 is
// the first for each name, so that a name has few keys over time. Whenever the
// server reads the keys of a name, it goes through all keys that the name has
// had since the last compaction.
func (h *hold) takeNumber(dir string) {
	if h.session == nil || !h.session.takeFirst(dir) {
		h.number = h.driver.numbers.take()
	}
}

// putNumber returns the number. No request for the key may be on its way,
// because it would affect the key of the next attempt.
func (h *hold) putNumber() {
	if h.number > 0 {
		h.driver.numbers.put(h.number)
		return
	}
	s := h.session
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.firsts, h.dir())
}

// takeFirst takes number 0 of a name. It reports whether the number was free,
// and so not in use by another attempt on the session.
func (s *session) takeFirst(dir string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.firsts[dir]; taken {
		return false
	}
	s.firsts[dir] = struct{}{}
	return true
}

// numbers are the numbers of keys above 0, for all names.
type numbers struct {
	mu   sync.Mutex
	last uint64
	free []uint64 // the last one is used first
}

func (n *numbers) take() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i := len(n.free) - 1; i >= 0 {
		number := n.free[i]
		n.free = n.free[:i]
		return number
	}
	n.last++
	return n.last
}

func (n *numbers) put(number uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.free = append(n.free, number)
}

// add adds a user of the session to its holds, unless the session is dead.
func (s *session) add(h *hold) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.IsDead() { // Lose, which takes the holds, may not have begun
		return false
	}
	s.holds.Add(h)
	return true
}

// remove is the opposite of add.
func (s *session) remove(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds.Remove(h)
}

// Start implements session.Member.
func (s *session) Start() error {
	return s.driver.grant(s.driver.life.Open(), &s.carrier, s.seconds)
}

// Tend implements session.Member. It keeps the lease alive if that is due. An
// answer that is too late for Tend still extends the lease, so even a slow
// server keeps the lease alive.
func (s *session) Tend() time.Duration {
	d := s.driver
	now, end := d.now(), s.End.At()
	if due := end - int64(s.ttl)*2/3; now < due {
		return time.Duration(due - now)
	}
	left := time.Duration(end - now)
	err := errNoAnswer
	timer := time.NewTimer(min(max(s.ttl/6, minKeepAlive), left))
	defer timer.Stop()
	select {
	case err = <-d.refresh(d.life.Context(), &s.carrier, left):
	case <-timer.C:
	}
	d.keptAlive(err)
	now, end = d.now(), s.End.At()
	switch {
	case isLeaseGone(err):
		s.Die(driver.ErrSessionEnded)
		return 0
	case err != nil:
		return min(s.ttl/20, time.Duration(end-now))
	}
	return time.Duration(end - int64(s.ttl)*2/3 - now)
}

// keptAlive reports the outcome of a keep-alive to package dsync, unless the
// driver has ended.
func (d *Driver) keptAlive(err error) {
	if d.onKeepAlive == nil || d.life.Context().Err() != nil {
		return
	}
	if isLeaseGone(err) || errors.Is(err, errTooLate) {
		err = nil // the server has answered
	}
	if isContextError(err) {
		err = errNoAnswer
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", driver.ErrUnavailable, rpctypes.Error(err))
	}
	d.onKeepAlive(err)
}

// Lose implements session.Member. The waiters of the session start again.
func (s *session) Lose(cause error) {
	s.mu.Lock()
	holds := s.holds.Take()
	s.mu.Unlock()
	for _, h := range holds {
		h.lose(cause)
	}
}

// Bury implements session.Member. A grant that has failed cleans up its own
// lease.
func (s *session) Bury() {
	if s.Err() == nil {
		s.driver.ghosts.Add(&ghost{carrier: &s.carrier})
	}
}

const (
	checkEvery = time.Second
	// holds with their own lease in one request; servers accept 128 operations
	// by default
	checkBatch = 100
	// a hold is first checked within twice checkEvery of its grant, and then
	// every checkEvery
	detect = 3 * time.Second
)

// checker finds out whether other clients removed holds, with a single request
// for all holds of a session, regardless of their number. A watch on each hold
// would report removals sooner, but would use ten times the memory of the lock.
// A lock that is held only briefly is never checked.
type checker struct {
	driver  *Driver
	running atomic.Bool
}

// start is called after a hold was listed.
func (c *checker) start() {
	if c.running.CompareAndSwap(false, true) && !c.driver.life.Go(c.run) {
		c.running.Store(false)
	}
}

// run returns when there are no holds, or when the driver is closed.
func (c *checker) run() {
	d := c.driver
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-d.life.Context().Done():
			return
		}
		ofSessions, fixed, any := d.held(d.now() - int64(checkEvery))
		if !any {
			c.running.Store(false)
			if _, _, any = d.held(0); !any || !c.running.CompareAndSwap(false, true) {
				return
			}
		}
		for s, holds := range ofSessions {
			d.checkSession(s, holds)
		}
		for len(fixed) > 0 {
			n := min(len(fixed), checkBatch)
			d.checkFixed(fixed[:n])
			fixed = fixed[n:]
		}
	}
}

// held returns the holds that were granted before a time, and reports whether
// there are any holds at all.
func (d *Driver) held(before int64) (ofSessions map[*session][]*hold, fixed []*hold, any bool) {
	ofSessions = make(map[*session][]*hold)
	for _, s := range d.sessions.All() {
		s.mu.Lock()
		any = any || !s.holds.Empty()
		if holds := s.holds.before(before); len(holds) > 0 {
			ofSessions[s] = holds
		}
		s.mu.Unlock()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return ofSessions, d.fixed.before(before), any || !d.fixed.Empty()
}

// checkSession checks whether the keys of holds are still attached to the lease
// of their session.
func (d *Driver) checkSession(s *session, holds []*hold) {
	ctx, cancel := d.background(requestFor)
	defer cancel()
	answer, err := d.timeToLive(ctx, s.id, clientv3.WithAttachedKeys())
	if isLeaseGone(err) || err == nil && answer.TTL < 0 {
		s.Die(driver.ErrSessionEnded)
		return
	}
	if err != nil {
		return // the session ends if this continues
	}
	// index in holds by key: this lookup copies no keys
	of := make(map[string]int, len(holds))
	for i, h := range holds {
		of[h.key] = i
	}
	there := make([]bool, len(holds))
	for _, key := range answer.Keys {
		if i, ok := of[string(key)]; ok {
			there[i] = true
		}
	}
	for i, h := range holds {
		if !there[i] {
			d.verify(ctx, h)
		}
	}
}

// checkFixed checks whether the keys of holds are there.
func (d *Driver) checkFixed(holds []*hold) {
	ctx, cancel := d.background(requestFor)
	defer cancel()
	gets := make([]clientv3.Op, len(holds))
	for i, h := range holds {
		gets[i] = clientv3.OpGet(h.key, clientv3.WithSerializable())
	}
	answer, err := d.transact(ctx, nil, gets, nil)
	if err != nil {
		return // the next check, or the end of the leases, will show
	}
	for i, h := range holds {
		if kvs := answer.Responses[i].GetResponseRange().Kvs; len(kvs) == 0 || !h.isOf(kvs[0]) {
			d.verify(ctx, h)
		}
	}
}

// changes keeps the lease to which the ids of changes are attached. The lease
// is neither kept alive nor ended, not even by Close, because the server must
// remember each id for a while.
type changes struct {
	driver *Driver
	inUse  chan struct{} // has an element while a call is using the field below
	lease  *carrier
}

// The server remembers an id for at least idsFor. Each lease is then used for
// another idsFor.
const idsFor = 2 * driver.RepeatFor

// carrier returns a lease that lasts for idsFor.
func (c *changes) carrier(ctx context.Context) (*carrier, error) {
	select {
	case c.inUse <- struct{}{}:
		defer func() { <-c.inUse }()
	case <-ctx.Done():
		return nil, lifecycle.WithCause(ctx, driver.ErrUnavailable, errNoAnswer)
	}
	if l := c.lease; l != nil && l.end.At()-c.driver.now() >= int64(idsFor) {
		return l, nil
	}
	l := newCarrier()
	if err := c.driver.grantNow(ctx, l, int64(2*idsFor/time.Second)); err != nil {
		return nil, err
	}
	c.lease = l
	return l, nil
}

// forget makes the next change use a new lease, because the server no longer
// knows this one.
func (c *changes) forget(gone *carrier) {
	c.inUse <- struct{}{}
	defer func() { <-c.inUse }()
	if c.lease == gone {
		c.lease = nil
	}
}
