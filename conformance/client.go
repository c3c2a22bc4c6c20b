package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

// lease is the part of a *dsync.Lease that the checks use.
type lease interface {
	Token() uint64
	Deadline() time.Time
	Err() error
	Done() <-chan struct{}
	Extend(ctx context.Context, d time.Duration) error
	Unlock(ctx context.Context) error
}

// locker is the part of a dsync.Locker that the checks use.
type locker interface {
	lock(ctx context.Context, try bool, name string, opts ...dsync.LockOption) (lease, error)
}

type dsyncLocker struct{ dsync.Locker }

func (l dsyncLocker) lock(ctx context.Context, try bool, name string, opts ...dsync.LockOption) (lease, error) {
	f := l.Lock
	if try {
		f = l.TryLock
	}
	held, err := f(ctx, name, opts...)
	if err != nil {
		return nil, err
	}
	return held, nil
}

// connection is a new driver value of the backend.
type connection struct {
	env    *env
	label  string // in the events
	driver driver.Driver
	tap    *tap
	link   *Link
}

func (e *env) connect() *connection {
	var d driver.Driver
	var link *Link
	e.harness("Backend.New", func() { d, link = e.backend.New(e.tb) })
	if isNil(d) {
		e.end(&harnessError{"Backend.New returned no driver, and"})
	}
	c := &connection{env: e, label: e.label(), link: link}
	c.tap, c.driver = e.tap(c.label, d)
	e.onClose(func(context.Context) { <-c.tap.closed }) // Close in package dsync may return earlier
	info := d.Info()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.info == nil {
		e.info = &info
	}
	if link != nil {
		e.links = append(e.links, link)
	} else {
		c.link = &Link{}
	}
	return c
}

// disturb calls a function of the Link. If the harness does not have the
// function, the check ends.
func (c *connection) disturb(ability string, f func()) {
	c.env.need(f != nil, "Link."+ability)
	c.env.stalls.disturbed()
	c.env.events.add(c.label, "link: %s", ability)
	c.env.harness("Link."+ability, f)
	c.env.events.add(c.label, "link: %s is in force", ability)
}

func (c *connection) cut()         { c.disturb("Cut", c.link.Cut) }
func (c *connection) hang()        { c.disturb("Hang", c.link.Hang) }
func (c *connection) loseAnswers() { c.disturb("LoseAnswers", c.link.LoseAnswers) }
func (c *connection) drop()        { c.disturb("Drop", c.link.Drop) }
func (c *connection) loseOne()     { c.disturb("LoseOne", c.link.LoseOne) }
func (c *connection) holdOne()     { c.disturb("HoldOne", c.link.HoldOne) }
func (c *connection) heal()        { c.disturb("Heal", c.link.Heal) }

func (c *connection) delay(d time.Duration) {
	c.env.need(c.link.Delay != nil, "Link.Delay")
	c.disturb("Delay", func() { c.link.Delay(d) })
}

// client is a dsync.Client with its own driver.
type client struct {
	user
	dsync *dsync.Client
}

// client returns a new client whose leases do not run out.
func (e *env) client() *client { return e.clientWith(&dsync.Options{TTL: e.long()}) }

func (e *env) clientWith(o *dsync.Options) *client {
	conn := e.connect()
	d, err := dsync.New(conn.driver, o)
	if err != nil {
		e.onClose(func(ctx context.Context) { _ = conn.driver.Close(ctx) })
		e.end(err)
	}
	c := &client{user{conn, conn.label, dsyncLocker{d}}, d}
	// the checks of Close examine the error
	e.onClose(func(ctx context.Context) { _ = c.dsync.Close(ctx) })
	return c
}

func (e *env) clients(n int) []*client {
	all := make([]*client, n)
	for i := range all {
		all[i] = e.client()
	}
	return all
}

// owner returns a new dsync.Owner.
func (c *client) owner() *user {
	u := &user{c.connection, c.label + "/" + c.env.label(), dsyncLocker{c.dsync.NewOwner()}}
	if c.env.broken != nil {
		u.locker = c.env.broken(c, u.locker)
	}
	return u
}

// Inspect returns only whether the name could be inspected.
func (c *client) Inspect(ctx context.Context, name string) error {
	_, err := c.inspect(ctx, name)
	return err
}

func (c *client) inspect(ctx context.Context, name string) (s driver.Status, err error) {
	e := c.env
	e.within("Inspect", func() { s, err = c.dsync.Inspect(ctx, name) })
	e.events.add(c.label, "inspect %q: %s, held %t, %d waiters", name, outcome(err), s.Held, s.Waiters)
	return s, err
}

// ForceUnlock ends all holds of name.
func (c *client) ForceUnlock(ctx context.Context, name string) (err error) {
	e := c.env
	e.within("ForceUnlock", func() { err = c.dsync.ForceUnlock(ctx, name) })
	e.events.add(c.label, "force unlock %q: %s", name, outcome(err))
	return err
}

// user acquires locks. A user is either a client, whose calls are separate
// owners, or an owner.
type user struct {
	*connection
	label  string
	locker locker
}

// holding is a lease that a user was granted.
type holding struct {
	lease
	user *user
	name string
}

// lock waits until u holds name.
func (u *user) lock(name string, opts ...dsync.LockOption) *holding {
	h, err := u.ask(u.env.ctx, false, name, opts...)
	u.env.must(err)
	return h
}

// tryLock acquires name, which is free.
func (u *user) tryLock(name string, opts ...dsync.LockOption) *holding {
	h, err := u.try(name, opts...)
	if err != nil {
		u.env.endf("TryLock by %s of a free name: %w", u.label, err)
	}
	return h
}

// try calls TryLock for name once.
func (u *user) try(name string, opts ...dsync.LockOption) (*holding, error) {
	return u.ask(u.env.ctx, true, name, opts...)
}

func (u *user) ask(ctx context.Context, try bool, name string, opts ...dsync.LockOption) (*holding, error) {
	op := "Lock"
	if try {
		op = "TryLock"
	}
	u.env.events.add(u.label, "%s %q", op, name)
	var l lease
	var err error
	u.env.within(fmt.Sprintf("%s of %q by %s", op, name, u.label), func() { l, err = u.locker.lock(ctx, try, name, opts...) })
	if err != nil {
		u.env.events.add(u.label, "%s %q: %v", op, name, err)
		return nil, err
	}
	u.env.events.add(u.label, "%s %q: held, token %d", op, name, l.Token())
	return &holding{l, u, name}, nil
}

// unlock ends the lease.
func (h *holding) unlock() { h.user.env.must(h.tryUnlock(h.user.env.ctx)) }

func (h *holding) tryUnlock(ctx context.Context) (err error) {
	e := h.user.env
	e.events.add(h.user.label, "Unlock %q", h.name)
	e.within(fmt.Sprintf("Unlock of %q by %s", h.name, h.user.label), func() { err = h.lease.Unlock(ctx) })
	e.events.add(h.user.label, "Unlock %q: %s", h.name, outcome(err))
	return err
}

// refused returns an error unless a TryLock by u is refused.
func (u *user) refused(name string) error {
	if h, err := u.try(name); err == nil {
		return fmt.Errorf("%s was granted %q (token %d) while another owner held it", u.label, name, h.Token())
	} else if !errors.Is(err, dsync.ErrLocked) {
		return fmt.Errorf("%s got %q when another owner held %q, want an error that matches ErrLocked", u.label, err, name)
	}
	return nil
}

// call is a call to Lock that is under way.
type call struct {
	user   *user
	name   string
	cancel context.CancelFunc
	before int // how many requests for the name waited when the call began

	*goroutine // calls Lock; once it has returned, the fields below are its results

	held *holding
	err  error
}

// start begins a call to Lock for name.
func (u *user) start(name string, opts ...dsync.LockOption) *call {
	ctx, cancel := context.WithCancel(u.env.ctx)
	return u.startWith(ctx, cancel, name, opts...)
}

func (u *user) startWith(ctx context.Context, cancel context.CancelFunc, name string, opts ...dsync.LockOption) *call {
	c := &call{user: u, name: name, cancel: cancel, before: u.tap.waits(name)}
	u.env.events.add(u.label, "Lock %q", name)
	c.goroutine = u.env.run(func() { // ends when ctx ends, unless the driver is broken
		l, err := u.locker.lock(ctx, false, name, opts...)
		if c.err = err; err == nil {
			c.held = &holding{l, u, name}
		}
		u.env.events.add(u.label, "Lock %q: %s", name, outcome(err))
	})
	return c
}

// waits returns when the call is waiting on the backend.
func (c *call) waits() *call {
	e := c.user.env
	e.until(fmt.Sprintf("%s waits for %q", c.user.label, c.name), func() bool {
		if c.isDone() {
			e.endf("%s does not wait for %q, which another owner holds: %w", c.user.label, c.name, outcome(c.err))
		}
		return c.user.tap.waits(c.name) > c.before
	})
	return c
}

// result waits for the end of the call.
func (c *call) result() (*holding, error) {
	c.user.env.await(fmt.Sprintf("Lock of %q by %s", c.name, c.user.label), c.goroutine)
	return c.held, c.err
}

// granted waits until the call is granted.
func (c *call) granted() *holding {
	h, err := c.result()
	c.user.env.must(err)
	return h
}
