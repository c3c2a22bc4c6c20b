package conformance

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/driver"
)

// The checks of all operations together. Many clients lock at random, and
// history.Judge decides whether the outcomes were legal.
var stormChecks = []check{
	{"storm/calm", "Under any load, claims never overlap, tokens rise, the order is kept, and no client waits forever.", calmStorm},
	{"storm/faults", "The same is true while clients are cut off, hang, are slow and lose answers.", faultyStorm},
	{"storm/server", "The same is true while the server stops answering for longer than the TTL. After the server restarts, every client can lock again.", serverStorm},
}

var seedFlag = flag.Uint64("conformance.seed", 0, "seed of the storms; 0 means a new seed in each run")

// storm is one run of many clients on few names.
type storm struct {
	env     *env
	seed    uint64
	history *history.History
	names   []string
	// the modes in which a name is requested, each as often as it is listed
	modes   map[string][]driver.Mode
	ttl     time.Duration
	expire  bool          // holders have their holds removed without notice
	pause   time.Duration // how long a lock is held at most
	ended   atomic.Bool   // the workers finish their current operations
	granted atomic.Bool
}

func (e *env) storm() *storm {
	s := &storm{env: e, seed: *seedFlag, history: history.New(), ttl: e.ttl(), pause: e.ttl() / 25}
	for s.seed == 0 {
		s.seed = rand.Uint64()
	}
	s.draw()
	s.history.Note(fmt.Sprintf("seed %d", s.seed))
	e.events.add("", "storm: seed %d", s.seed)
	return s
}

// stormModes are the modes in which a name of a storm may be requested.
var stormModes = [][]driver.Mode{
	{driver.Exclusive},
	append(slices.Repeat([]driver.Mode{driver.Read}, 9), driver.Write),
	modes,
	{driver.Permit},
}

// stormPermits is the limit of the permits of a storm.
const stormPermits = 4

// draw creates the names, with the modes of each. The first is always a lock.
func (s *storm) draw() {
	s.modes = map[string][]driver.Mode{}
	random := s.random(-2)
	offered := slices.DeleteFunc(slices.Clone(stormModes), func(all []driver.Mode) bool {
		return slices.ContainsFunc(all, func(m driver.Mode) bool { return !s.env.driverInfo().Offers(m) })
	})
	for i := range 3 {
		name, m := s.env.name(), stormModes[0]
		if i > 0 {
			m = offered[random.IntN(len(offered))]
		}
		s.names, s.modes[name] = append(s.names, name), m
		s.env.events.add("", "storm: %q is requested in the modes %v", name, m)
	}
}

// random returns the source of randomness for a worker's decisions.
func (s *storm) random(worker int) *rand.Rand { return rand.New(rand.NewPCG(s.seed, uint64(worker))) }

// bounds are the judge's bounds for the storm.
func (s *storm) bounds() history.Bounds {
	i := s.env.driverInfo()
	rw := i.ReadWrite
	b := history.Bounds{
		Fenced:     i.Fencing != driver.None && (!rw.Offered || rw.Fencing != driver.None),
		FIFO:       i.Order == driver.FIFO && (!rw.Offered || rw.Order == driver.FIFO) && (!i.Permits.Offered || i.Permits.Order == driver.FIFO),
		Linger:     s.ttl + i.LateFor(s.ttl),
		Wake:       s.env.hangs() / 2,
		Stuck:      s.env.hangs(),
		Recover:    s.env.hangs() / 2,
		MaxUnknown: 0.9,
	}
	if s.expire || i.KeepsAlive {
		b.Detect = 2*s.ttl + i.Detect // notified by a renewal at the latest; a machine may be busy
	}
	return b
}

var ruleNumber = regexp.MustCompile(`(?m)^V\d+ `)

// inWords returns an error of package history without the numbers of the rules.
func inWords(err error) error { return errors.New(ruleNumber.ReplaceAllString(err.Error(), "")) }

// judge ends the storm and returns the violations of all rules except the given
// ones.
func (s *storm) judge(except ...history.Rule) error {
	e := s.env
	e.must(s.history.Close())
	v := history.Judge(s.history.Events(), s.bounds())
	e.events.add("", "%s", v)
	v.Violations = slices.DeleteFunc(v.Violations, func(x history.Violation) bool { return slices.Contains(except, x.Rule) })
	if err := v.Err(); err != nil {
		return fmt.Errorf("seed %d (-conformance.seed=%[1]d makes the same decisions again): %w", s.seed, inWords(err))
	}
	return nil
}

// stormUser is one worker, which is a client or an owner of a client.
type stormUser struct {
	*storm
	*user
	attempt history.Attempt
	random  *rand.Rand
	// the pending Lock of the client, if it has only one user; otherwise nil
	asks *atomic.Pointer[history.Op]
}

// run makes each worker do the given number of operations. With 0, workers
// continue until the storm ends. Then each worker locks every name one more
// time.
func (s *storm) run(operations int, clients []*client) []*goroutine {
	var users []*stormUser
	add := func(u *user, a history.Attempt) *stormUser {
		su := &stormUser{storm: s, user: u, attempt: a, random: s.random(len(users))}
		users = append(users, su)
		return su
	}
	for _, c := range clients[1:] {
		u := add(&c.user, history.Attempt{Client: c.label})
		u.asks = new(atomic.Pointer[history.Op])
		c.tap.onWait = func() {
			if op := u.asks.Load(); op != nil {
				op.Waiting()
			}
		}
	}
	shared := clients[0]
	for range 2 {
		add(&shared.user, history.Attempt{Client: shared.label})
		o := shared.owner()
		add(o, history.Attempt{Client: shared.label, Owner: o.label})
	}
	all := make([]*goroutine, len(users))
	for i, u := range users {
		all[i] = s.env.run(func() { s.env.failed(u.work(operations)) })
	}
	return all
}

func (u *stormUser) work(operations int) error {
	for i := 0; i < operations || operations == 0 && !u.ended.Load(); i++ {
		if err := u.step(u.names[u.random.IntN(len(u.names))], 0); err != nil {
			return err
		}
	}
	for _, name := range u.names {
		if err := u.last(name); err != nil {
			return err
		}
	}
	return nil
}

// step locks name in one of many ways and unlocks it.
func (u *stormUser) step(name string, depth int) error {
	r := u.random
	ctx, cancel := u.env.ctx, context.CancelFunc(func() {})
	a, opts := u.asksFor(name)
	a.NoWait = r.IntN(4) == 0
	if a.NoWait || r.IntN(3) == 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.Int64N(int64(u.ttl/4)))+time.Millisecond)
	}
	defer cancel()
	fixed := r.IntN(4) == 0
	if fixed {
		opts = append(opts, dsync.ExpireAfter(u.ttl))
	}
	op, l, err := u.lock(ctx, a, opts...)
	if err != nil {
		u.rest()
		if depth > 0 && errors.Is(err, dsync.ErrDeadlock) { // the user reads the name already
			return nil
		}
		return illegal(err)
	}
	if depth < 2 && a.Owner != "" && a.Mode != driver.Permit && r.IntN(2) == 0 {
		// two users with permits that request more could wait for each other
		if err := u.step(name, depth+1); err != nil {
			return err
		}
	}
	switch n := r.IntN(40); {
	case fixed && n < 16:
		for range 1 + n%2 {
			if l.Extend(u.env.ctx, u.ttl) == nil {
				op.Renewed()
			}
		}
	case n == 20 && depth == 0 && !fixed && a.Owner == "" && a.Mode.Excludes(a.Mode) && u.expire:
		// if there are several holds, Expire would end the wrong ones
		u.env.expire(name)
		u.outlive(op, l)
		return nil
	case n == 21 && depth == 0 && fixed && u.expire:
		u.outlive(op, l)
	}
	u.rest()
	_ = op.Check()
	return u.unlock(op, l)
}

// asksFor returns the next request of u for name.
func (u *stormUser) asksFor(name string) (history.Attempt, []dsync.LockOption) {
	a, m := u.attempt, u.modes[name]
	a.Name, a.Mode = name, m[u.random.IntN(len(m))]
	switch a.Mode {
	case driver.Read:
		return a, []dsync.LockOption{dsync.Read()}
	case driver.Write:
		return a, []dsync.LockOption{dsync.Write()}
	case driver.Permit:
		a.Permits, a.Limit = 1+u.random.IntN(3), stormPermits
		return a, []dsync.LockOption{dsync.Permits(a.Permits, a.Limit)}
	}
	return a, nil
}

// rest lets other users proceed.
func (u *stormUser) rest() { u.env.sleep(1 + time.Duration(u.random.Int64N(int64(u.pause)))) }

// lock is a recorded Lock or TryLock.
func (u *stormUser) lock(ctx context.Context, a history.Attempt, opts ...dsync.LockOption) (*history.Op, lease, error) {
	op := u.history.Begin(a)
	if u.asks != nil && !a.NoWait {
		u.asks.Store(op)
	}
	l, err := u.locker.lock(ctx, a.NoWait, a.Name, opts...)
	if u.asks != nil {
		u.asks.Store(nil)
	}
	if err != nil {
		op.Returned(nil, err)
		return op, nil, err
	}
	op.Returned(l, nil)
	u.granted.Store(true)
	return op, l, nil
}

// begun waits for the first grant, because a fault before it would prove
// nothing.
func (s *storm) begun() { s.env.until("the storm has begun", s.granted.Load) }

// outlive keeps a lease until it has ended.
func (u *stormUser) outlive(op *history.Op, l lease) {
	select {
	case <-l.Done():
		op.Lost()
	case <-u.env.ctx.Done():
	}
}

func (u *stormUser) unlock(op *history.Op, l lease) error {
	err := l.Unlock(op.Releasing(u.env.ctx))
	op.Released(err)
	return illegal(err)
}

// last locks name after the storm. Every user must be granted it.
func (u *stormUser) last(name string) error {
	a, opts := u.asksFor(name)
	op, l, err := u.lock(u.env.ctx, a, opts...)
	if err != nil {
		return err
	}
	return u.unlock(op, l)
}

// illegal returns err, or nil if the error may happen in a storm.
func illegal(err error) error {
	for _, legal := range []error{dsync.ErrLocked, dsync.ErrNotHeld, dsync.ErrUnknown, dsync.ErrUnavailable, context.DeadlineExceeded} {
		if errors.Is(err, legal) {
			return nil
		}
	}
	return err
}

// finish ends the storm and waits until the workers are done.
func (s *storm) finish(workers []*goroutine) {
	s.ended.Store(true)
	for _, g := range workers {
		s.env.await("a worker of the storm", g)
	}
	s.env.mu.Lock()
	err := s.env.err
	s.env.mu.Unlock()
	s.env.must(err)
}

func (s *storm) clients() []*client {
	all := make([]*client, 4)
	for i := range all {
		all[i] = s.env.clientWith(&dsync.Options{TTL: s.ttl})
	}
	return all
}

func calmStorm(e *env) error {
	for _, removals := range []bool{false, true} {
		// names whose holds may be removed are judged less strictly
		if removals && e.backend.Expire == nil {
			break
		}
		s := e.storm()
		s.expire, s.pause = removals, 2*time.Millisecond
		operations := 80
		if removals {
			operations = 30
		}
		s.finish(s.run(e.part(operations), s.clients()))
		if err := s.judge(); err != nil {
			return err
		}
	}
	return nil
}

// fault is a fault that a storm injects.
type fault struct {
	name string
	on   func()
}

// faults returns all faults that the harness has for the link of c.
func (c *client) faults(late time.Duration) []fault {
	var all []fault
	add := func(name string, able bool, on func()) {
		if able {
			all = append(all, fault{name, on})
		}
	}
	add("cut", c.link.Cut != nil, c.cut)
	add("hang", c.link.Hang != nil, c.hang)
	add("lose answers", c.link.LoseAnswers != nil, c.loseAnswers)
	add("delay", c.link.Delay != nil, func() { c.delay(late) })
	c.env.need(len(all) > 0, "Link")
	return all
}

func faultyStorm(e *env) error {
	s := e.storm()
	clients, random := s.clients(), s.random(-1)
	for _, c := range clients {
		c.faults(0)
	}
	workers := s.run(0, clients)
	s.begun()
	first := random.IntN(4)
	for i := range 2 * e.part(5) {
		e.sleep(time.Duration(random.Int64N(int64(s.ttl / 4))))
		lasts := s.ttl / 4
		if random.IntN(3) == 0 {
			lasts = s.ttl * 3 / 2
		}
		late := time.Duration(random.Int64N(int64(s.ttl)))
		var heal []func()
		for _, n := range random.Perm(len(clients))[:1+random.IntN(len(clients)-1)] {
			c := clients[n]
			all := c.faults(late)
			f := all[(first+i)%len(all)]
			off := s.history.Fault(f.name, c.label)
			f.on()
			heal = append(heal, func() {
				c.heal()
				off()
			})
		}
		e.sleep(time.Duration(random.Int64N(int64(lasts))))
		for _, f := range heal {
			f()
		}
	}
	s.finish(workers)
	return s.judge()
}

func serverStorm(e *env) error {
	b := e.backend
	freezes := b.Freeze != nil && b.Thaw != nil
	e.need(freezes || b.Restart != nil, "Backend.Restart")
	e.stalls.onPurpose()
	if freezes {
		e.mu.Lock()
		e.undo = func() { b.Thaw(e.tb) }
		e.mu.Unlock()
		err := e.serverStorm("freeze", func(ttl time.Duration) {
			e.harness("Backend.Freeze", func() { b.Freeze(e.tb) })
			e.sleep(ttl * 5 / 4)
			e.harness("Backend.Thaw", func() { b.Thaw(e.tb) })
		})
		if err != nil {
			return err
		}
	}
	if b.Restart == nil {
		return nil
	}
	// Holds may be lost with the server.
	return e.serverStorm("restart", func(time.Duration) { e.harness("Backend.Restart", func() { b.Restart(e.tb) }) },
		history.RuleOverlap, history.RuleLoss, history.RuleTokens, history.RuleOrder, history.RuleResult)
}

// serverStorm is a storm over one fault of the server.
func (e *env) serverStorm(name string, fault func(ttl time.Duration), except ...history.Rule) error {
	s := e.storm()
	workers := s.run(0, s.clients())
	s.begun()
	e.sleep(s.ttl / 2)
	off := s.history.Fault(name, "server")
	e.events.add("server", "%s", name)
	fault(s.ttl)
	e.events.add("server", "%s has ended", name)
	off()
	e.sleep(s.ttl / 2)
	s.finish(workers)
	return s.judge(except...)
}
