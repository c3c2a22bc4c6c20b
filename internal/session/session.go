// Package session is the common part of drivers whose locks are attached to
// sessions with a server, such as ephemeral nodes or keys with a lease. It
// manages the open sessions, their users and their end. The driver creates a
// session on the server, keeps it alive and ends it.
//
// A driver embeds Frame in its session, implements Member, and makes a Pool:
//
//	type session struct {
//		session.Frame
//		...
//	}
//
//	d.sessions = session.NewPool(d.life, d.now, d.newSession)
//	d.sessions.Idle = 5 * time.Minute
//
// A call to the driver boards a session, and leaves it when it has failed, or
// when its hold has ended:
//
//	s, err := d.sessions.Board(ctx, ttl, 0)
//	if err != nil {
//		return err
//	}
//	defer s.Leave(0)
//
// # The life of a session
//
//	being made  Board has begun it, and Start is running; callers wait for it
//	open        Board gives it to callers; Tend is called whenever it is due
//	retired     it takes no new users, and dies when the last has left
//	dead        Lose has taken its holds, and Over is closed
//	buried      Bury has returned, and Buried is closed
//
// A session dies when its End has passed, when it had no users for some time,
// or by Die. All times are on the driver's clock.
package session

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/lifecycle"
)

// Member is a driver's session: a pointer to a struct that embeds Frame.
type Member interface {
	// Start creates the session on the server and calls Begin of its End. Start
	// is called once, on the goroutine of the frame. Board returns its error.
	Start() error

	// Tend does the work that is due and returns the latest time at which it
	// must be called again. It is called on the goroutine of the frame, and
	// must not block until after the End of the session.
	Tend() time.Duration

	// Lose removes the holds from a session that has died, accepts no more
	// holds, and notifies their holders of the loss. A nil cause, which Close
	// passes, notifies no holder. Lose is called once, by Die, before Over is
	// closed.
	Lose(cause error)

	// Bury ends the session on the server, if the server can be reached. It is
	// called once, after Start has returned, on its own goroutine. A session
	// whose Start has failed is buried too.
	Bury()

	frame() *Frame
}

// Policy defines how long sessions without users are kept and how many users a
// session accepts. It must not change after the first Board.
type Policy struct {
	// Idle is how long a session without users is kept.
	Idle time.Duration

	// Usual, if not 0, is a TTL whose oldest session is kept even without
	// users.
	Usual time.Duration

	// MaxLoad, if not 0, limits the sum of the loads of a session's users.
	// More users board another session of the same TTL. A session without a
	// load has room for any user.
	MaxLoad int
}

// Pool manages the sessions of one driver. It owns one goroutine for each
// session, from Board until Over, and one until Buried.
type Pool[S Member] struct {
	pool
	newMember func(ttl time.Duration) S
}

// pool is the part of a Pool that its frames can access. Its mutex also guards
// the frames and is never held while a Member is called.
type pool struct {
	Policy
	life *lifecycle.Lifecycle
	now  func() int64

	mu   sync.Mutex
	open map[time.Duration][]*Frame // by TTL, the oldest first
	all  map[*Frame]struct{}        // all sessions until they are buried
}

// NewPool returns the Pool of a driver with this lifecycle and clock. The
// function must return sessions that have not been started.
func NewPool[S Member](life *lifecycle.Lifecycle, now func() int64, newMember func(ttl time.Duration) S) *Pool[S] {
	return &Pool[S]{
		pool:      pool{life: life, now: now, open: make(map[time.Duration][]*Frame), all: make(map[*Frame]struct{})},
		newMember: newMember,
	}
}

// Board returns an open session of a TTL, with the caller and its load as a
// user. It fails with the error of Start or with driver.ErrClosed. If ctx ends
// before the session has started, it returns the error of ctx and the session,
// which may know the reason.
func (p *Pool[S]) Board(ctx context.Context, ttl time.Duration, load int) (s S, err error) {
	for {
		f := p.assign(ttl, load)
		if f == nil {
			return s, driver.ErrClosed
		}
		select {
		case <-f.ready:
		case <-ctx.Done():
			f.Leave(load)
			return f.member.(S), ctx.Err()
		case <-p.life.Open().Done():
			f.Leave(load)
			return s, driver.ErrClosed
		}
		switch {
		case f.err == nil:
		case p.life.Open().Err() != nil:
			return s, driver.ErrClosed
		default:
			return s, f.err
		}
		if f.End.Passed(p.now()) {
			f.Die(driver.ErrSessionEnded)
		}
		if !f.IsDead() {
			return f.member.(S), nil
		}
		f.Leave(load)
	}
}

// assign returns the first open session with room for a load, or a new one,
// with the caller as a user. It returns nil if the driver is being closed.
func (p *Pool[S]) assign(ttl time.Duration, load int) *Frame {
	p.mu.Lock()
	defer p.mu.Unlock()
	var f *Frame
	for _, open := range p.open[ttl] {
		if p.MaxLoad == 0 || load == 0 || open.load == 0 || open.load+load <= p.MaxLoad {
			f = open
			break
		}
	}
	if f == nil {
		member := p.newMember(ttl)
		f = member.frame()
		f.begin(&p.pool, member, ttl)
		if p.life.Open().Err() != nil || !p.life.Go(f.run) {
			return nil
		}
		p.open[ttl] = append(p.open[ttl], f)
		p.all[f] = struct{}{}
	}
	f.users++
	f.load += load
	return f
}

// All returns the sessions that are not buried yet, in no particular order.
func (p *Pool[S]) All() (all []S) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for f := range p.all {
		all = append(all, f.member.(S))
	}
	return all
}

// strike removes a session from the list of open sessions. p.mu is held.
func (p *pool) strike(f *Frame) {
	left := slices.DeleteFunc(p.open[f.ttl], func(other *Frame) bool { return other == f })
	if len(left) == 0 {
		delete(p.open, f.ttl)
	} else {
		p.open[f.ttl] = left
	}
}

// Frame is the part of a session that is the same in all drivers.
type Frame struct {
	End End

	pool   *pool
	member Member
	ttl    time.Duration
	ready  chan struct{} // closed when Start has returned
	err    error         // the error of Start
	over   chan struct{}
	buried chan struct{}
	kick   chan struct{} // buffered; signaled when Tend must be called

	// Guarded by pool.mu.
	users   int
	load    int
	idle    int64 // the time since which there are no users
	retired bool
	dead    bool
}

func (f *Frame) frame() *Frame { return f }

func (f *Frame) begin(p *pool, m Member, ttl time.Duration) {
	f.pool, f.member, f.ttl = p, m, ttl
	f.ready, f.over, f.buried = make(chan struct{}), make(chan struct{}), make(chan struct{})
	f.kick = make(chan struct{}, 1)
	f.idle = p.now()
}

// Ready returns a channel that is closed when Start has returned. From then on
// Err returns the error of Start.
func (f *Frame) Ready() <-chan struct{} { return f.ready }

// Err is described at Ready.
func (f *Frame) Err() error { return f.err }

// Over returns a channel that is closed when the session is dead, after Lose.
func (f *Frame) Over() <-chan struct{} { return f.over }

// Buried returns a channel that is closed when Bury has returned.
func (f *Frame) Buried() <-chan struct{} { return f.buried }

// IsDead reports whether the session has died, perhaps just before Lose.
func (f *Frame) IsDead() bool {
	f.pool.mu.Lock()
	defer f.pool.mu.Unlock()
	return f.dead
}

// Leave ends what Board began.
func (f *Frame) Leave(load int) {
	f.pool.mu.Lock()
	defer f.pool.mu.Unlock()
	f.load -= load
	if f.users--; f.users == 0 {
		f.idle = f.pool.now()
		if f.retired {
			f.Look()
		}
	}
}

// AddLoad changes the load of the session, for nodes or keys that its users
// have left behind.
func (f *Frame) AddLoad(load int) {
	f.pool.mu.Lock()
	defer f.pool.mu.Unlock()
	f.load += load
}

// Look makes the frame call Tend soon.
func (f *Frame) Look() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// Retire lets no more users in. When the last user has left, the session dies,
// because nothing else is certain to end the effects of an unanswered request.
func (f *Frame) Retire() {
	f.pool.mu.Lock()
	defer f.pool.mu.Unlock()
	f.pool.strike(f)
	f.retired = true
	f.Look()
}

// Die ends a session, once. Its holds are lost with the cause, and its waiters
// see that Over is closed.
func (f *Frame) Die(cause error) {
	p := f.pool
	p.mu.Lock()
	p.strike(f)
	again := f.dead
	f.dead = true
	p.mu.Unlock()
	if again {
		return
	}
	f.member.Lose(cause)
	close(f.over)
	if !p.life.Go(f.bury) {
		f.bury() // Bury is called soon anyway, because the driver has ended
	}
}

func (f *Frame) bury() {
	<-f.ready
	f.member.Bury()
	close(f.buried)
	f.pool.mu.Lock()
	defer f.pool.mu.Unlock()
	delete(f.pool.all, f)
}

// run returns when the session ends or the driver is closed.
func (f *Frame) run() {
	f.err = f.member.Start()
	if f.err != nil {
		f.Retire() // so that no caller boards a session that has failed
	}
	close(f.ready)
	if f.err != nil {
		f.Die(driver.ErrSessionEnded)
		return
	}
	timer := time.NewTimer(f.member.Tend())
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-f.kick:
		case <-f.over:
			return
		case <-f.pool.life.Context().Done():
			return
		}
		if f.End.Passed(f.pool.now()) || f.isUseless() {
			f.Die(driver.ErrSessionEnded)
			return
		}
		timer.Reset(f.member.Tend())
	}
}

// isUseless reports whether the session is no longer needed. If so, it lets no
// more users in.
func (f *Frame) isUseless() bool {
	p := f.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	open := p.open[f.ttl]
	usual := f.ttl == p.Usual && len(open) > 0 && open[0] == f
	if f.dead { // the session died after Tend returned
		return true
	}
	if f.users > 0 || !f.retired && (usual || p.now()-f.idle < int64(p.Idle)) {
		return false
	}
	f.retired = true
	p.strike(f)
	return true
}

// End is the time until which a session is guaranteed to last, on the driver's
// clock. An end that was seen to have passed never moves again, so acting on it
// is safe. The zero End, of a session that does not exist yet, does not pass.
type End struct {
	at atomic.Int64 // odd once the end was seen to have passed
}

// Begin sets the end of a session that was created.
func (e *End) Begin(at int64) { e.at.Store(at &^ 1) }

// At returns the end. It is an even number, so that the end does not appear to
// move when it has passed.
func (e *End) At() int64 { return e.at.Load() &^ 1 }

// Extend moves the end to a later time and reports whether it had not passed.
func (e *End) Extend(now, to int64) bool {
	to &^= 1
	for {
		old := e.at.Load()
		switch {
		case old&1 != 0 || now >= old:
			return false
		case to <= old || e.at.CompareAndSwap(old, to):
			return true
		}
	}
}

// Passed reports whether the end has passed. From then on, an end that has
// passed can no longer be moved.
func (e *End) Passed(now int64) bool {
	for {
		end := e.at.Load()
		switch {
		case end&1 != 0:
			return true
		case end == 0, now < end:
			return false
		case e.at.CompareAndSwap(end, end|1):
			return true
		}
	}
}
