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
)

const (
	idleFor      = 5 * time.Minute        // how long a session without users is kept
	minKeepAlive = 250 * time.Millisecond // the least time for one attempt to keep a session alive
)

// session is the lease that carries all locks of a driver with renewal and the same TTL. A goroutine of the session keeps the lease alive
// every third of the TTL. Once Expires has passed, the lease is never kept alive again, but revoked.
type session struct {
	carrier
	driver  *Driver
	seconds int64         // the TTL that callers asked for
	ready   chan struct{} // closed when the lease was granted, or err is set
	err     error
	over    chan struct{} // closed when the session is dead
	kick    chan struct{} // buffered; signaled when run has to look at the session

	mu      sync.Mutex
	users   int                 // attempts and holds
	holds   holdList            // granted, and not released
	firsts  map[string]struct{} // the dirs whose key with number 0 may be at the server
	retired bool                // takes no new users, and ends with the last one
	dead    bool
	idle    int64 // since when there are no users
}

// board returns the session for a TTL, with the caller as one of its users.
func (d *Driver) board(ctx context.Context, seconds int64) (*session, error) {
	for {
		s, err := d.boardOnce(ctx, seconds)
		if s != nil || err != nil {
			return s, err
		}
	}
}

// boardOnce returns nil, nil if the session that it found was over.
func (d *Driver) boardOnce(ctx context.Context, seconds int64) (*session, error) {
	d.mu.Lock()
	s := d.sessions[seconds]
	if s == nil {
		s = &session{driver: d, seconds: seconds, ready: make(chan struct{}), over: make(chan struct{}), kick: make(chan struct{}, 1),
			firsts: make(map[string]struct{})}
		if !d.life.Go(s.run) {
			d.mu.Unlock()
			return nil, driver.ErrClosed
		}
		d.sessions[seconds] = s
	}
	s.mu.Lock()
	s.users++
	s.mu.Unlock()
	d.mu.Unlock()
	if err := d.await(ctx, s.ready); err != nil { // the next call may find the session ready
		s.leave()
		return nil, err
	}
	if s.err != nil && d.life.Open().Err() != nil {
		return nil, driver.ErrClosed
	}
	if s.err != nil {
		return nil, s.err
	}
	if d.now() >= s.expires.Load() {
		s.die(driver.ErrSessionEnded)
	}
	if s.isDead() {
		s.leave()
		return nil, nil
	}
	return s, nil
}

// await waits for a grant. It gives up after requestFor, and the grant goes on.
func (d *Driver) await(ctx context.Context, granted <-chan struct{}) error {
	select {
	case <-granted:
		return nil
	default:
	}
	timer := time.NewTimer(requestFor)
	defer timer.Stop()
	select {
	case <-granted:
		return nil
	case <-d.life.Open().Done():
		return driver.ErrClosed
	case <-ctx.Done():
	case <-timer.C:
	}
	return withCause(ctx, driver.ErrUnavailable, errNoAnswer)
}

// leave ends what board began.
func (s *session) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users == 0 {
		s.idle = s.driver.now()
		if s.retired {
			s.wakeUp()
		}
	}
}

func (s *session) isDead() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dead
}

// wakeUp makes run look at the session.
func (s *session) wakeUp() { signal(s.kick) }

// add makes a user of the session a hold of it, unless the session is dead.
func (s *session) add(h *hold) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
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

// retire lets no more users in. When the last user has left, the lease is revoked: nothing else surely ends what an unanswered request of
// the session may still do.
func (s *session) retire() {
	d := s.driver
	d.mu.Lock()
	defer d.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeDoor()
	s.wakeUp()
}

// closeDoor is called with both mutexes held.
func (s *session) closeDoor() {
	d := s.driver
	s.retired = true
	if d.sessions[s.seconds] == s {
		delete(d.sessions, s.seconds)
		d.retired[s] = true
	}
}

// run ends with the session, or with the driver, which then revokes the lease.
func (s *session) run() {
	d := s.driver
	s.err = d.grant(d.life.Open(), &s.carrier, s.seconds)
	if s.err == nil && d.life.Open().Err() != nil {
		s.err = driver.ErrClosed
		d.ghosts.Add(&ghost{carrier: &s.carrier})
	}
	if s.err != nil {
		s.unlist()
		close(s.ready)
		return
	}
	s.mu.Lock()
	s.idle = d.now()
	s.mu.Unlock()
	close(s.ready)

	timer := time.NewTimer(time.Duration(s.expires.Load() - int64(s.ttl)*2/3 - d.now())) // the grant may have taken long
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.kick:
		case <-s.over:
			return
		case <-d.life.Context().Done():
			return
		}
		if s.useless() {
			s.die(driver.ErrSessionEnded)
			return
		}
		timer.Reset(s.keepUp())
	}
}

// useless reports whether nobody needs the session any more, and then retires it for good.
func (s *session) useless() bool {
	d := s.driver
	d.mu.Lock()
	defer d.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users > 0 || !s.retired && d.now()-s.idle < int64(idleFor) {
		return false
	}
	s.closeDoor() // lest somebody joins the session meanwhile
	return true
}

// keepUp keeps the session alive if a keep-alive is due, and returns when to look again.
func (s *session) keepUp() time.Duration {
	d := s.driver
	now, expires := d.now(), s.expires.Load()
	if now >= expires {
		s.die(driver.ErrSessionEnded)
		return 0
	}
	if due := expires - int64(s.ttl)*2/3; now < due {
		return time.Duration(due - now)
	}
	err := s.keepAliveFor(min(max(s.ttl/6, minKeepAlive), time.Duration(expires-now)))
	d.keptAlive(err)
	now, expires = d.now(), s.expires.Load()
	switch {
	case isLeaseGone(err), now >= expires:
		s.die(driver.ErrSessionEnded)
		return 0
	case err != nil:
		return min(s.ttl/20, time.Duration(expires-now))
	}
	return time.Duration(expires - int64(s.ttl)*2/3 - now)
}

// keepAliveFor waits for the outcome of one attempt for so long. An answer that
// comes later still prolongs the lease, so a slow server keeps it alive too.
func (s *session) keepAliveFor(bound time.Duration) error {
	d := s.driver
	outcome := make(chan error, 1)
	attempt := func() { // ends with the lease at the latest
		ctx, cancel := d.background(time.Duration(s.expires.Load() - d.now()))
		defer cancel()
		outcome <- d.keepAlive(ctx, &s.carrier)
	}
	if !d.life.Go(attempt) {
		return errNoAnswer
	}
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case err := <-outcome:
		return err
	case <-timer.C:
		return errNoAnswer
	}
}

// keptAlive reports the outcome of a keep-alive to package dsync, unless the driver ends.
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

// die ends a session: its holds are lost by cause, its waiters begin anew, and
// the lease is revoked. Without a cause no holder is told.
func (s *session) die(cause error) {
	d := s.driver
	s.mu.Lock()
	if s.dead {
		s.mu.Unlock()
		return
	}
	s.dead = true
	holds := s.holds.Take()
	close(s.over)
	s.mu.Unlock()
	d.ghosts.Add(&ghost{carrier: &s.carrier})
	s.unlist()
	for _, h := range holds {
		h.lose(cause)
	}
}

func (s *session) unlist() {
	d := s.driver
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.retired, s)
	if d.sessions[s.seconds] == s {
		delete(d.sessions, s.seconds)
	}
}

const (
	checkEvery = time.Second
	checkBatch = 100             // holds with a lease of their own in one request; servers take 128 operations by default
	detect     = 3 * time.Second // a hold is first looked at within twice checkEvery of its grant, and then every time
)

// checker finds out whether holds were removed by somebody else, with one request for all holds of a session, whatever their number.
// A watch on each hold would tell sooner, and cost ten times the memory of the lock. A lock that is held for a moment is never asked for.
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

// run ends when there are no holds, or with the driver.
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
		sessions, fixed, any := d.held(d.now() - int64(checkEvery))
		if !any {
			c.running.Store(false)
			if _, _, any = d.held(0); !any || !c.running.CompareAndSwap(false, true) {
				return
			}
		}
		for s, holds := range sessions {
			d.checkSession(s, holds)
		}
		for len(fixed) > 0 {
			n := min(len(fixed), checkBatch)
			d.checkFixed(fixed[:n])
			fixed = fixed[n:]
		}
	}
}

// held returns the holds that were granted before a time, and whether there are any at all.
func (d *Driver) held(before int64) (sessions map[*session][]*hold, fixed []*hold, any bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	sessions = make(map[*session][]*hold)
	look := func(s *session) {
		s.mu.Lock()
		defer s.mu.Unlock()
		any = any || !s.holds.Empty()
		if holds := s.holds.before(before); len(holds) > 0 {
			sessions[s] = holds
		}
	}
	for _, s := range d.sessions {
		look(s)
	}
	for s := range d.retired {
		look(s)
	}
	return sessions, d.fixed.before(before), any || !d.fixed.Empty()
}

// checkSession looks whether the keys of holds still hang on the lease of their session.
func (d *Driver) checkSession(s *session, holds []*hold) {
	ctx, cancel := d.background(requestFor)
	defer cancel()
	answer, err := d.timeToLive(ctx, s.id, clientv3.WithAttachedKeys())
	if isLeaseGone(err) || err == nil && answer.TTL < 0 {
		s.die(driver.ErrSessionEnded)
		return
	}
	if err != nil {
		return // the session ends if this goes on
	}
	of := make(map[string]int, len(holds)) // a key's place in holds: to look for the keys of the answer takes no copies of them
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

// checkFixed looks whether the keys of holds are there.
func (d *Driver) checkFixed(holds []*hold) {
	ctx, cancel := d.background(requestFor)
	defer cancel()
	gets := make([]clientv3.Op, len(holds))
	for i, h := range holds {
		gets[i] = clientv3.OpGet(h.key, clientv3.WithSerializable())
	}
	answer, err := d.transact(ctx, nil, gets, nil)
	if err != nil {
		return // the next look tells, or the end of the leases
	}
	for i, h := range holds {
		if kvs := answer.Responses[i].GetResponseRange().Kvs; len(kvs) == 0 || !h.isOf(kvs[0]) {
			d.verify(ctx, h)
		}
	}
}
