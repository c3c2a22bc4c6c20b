package conformance

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// A mutant is a broken driver, or a broken owner on top of a good driver,
// together with the check that catches it.
type mutant struct {
	check  string // the first check in the table to fail
	breaks string // the broken promise
	mutate func(*memory.Driver) driver.Driver
	owner  func(*client, locker) locker // in place of mutate
	on     memory.Options               // the options of its backend
	clock  bool                         // the mutation shows only on a real clock, so the mutant runs on a real clock, with only its check
	mode   driver.Mode                  // the broken mode, for the checks that run again in each mode: only these are run on the mutant
}

// mutants returns all mutants, group by group.
func mutants() []mutant {
	return slices.Concat(
		exclusionMutants,
		waitingMutants,
		leaseMutants,
		ownershipMutants,
		reentrancyMutants,
		contentionMutants,
		capabilityMutants,
		lengthMutants,
		deadlineMutants,
		faultMutants,
		lostMutants,
		closingMutants,
		refusalMutants,
		expiryMutants,
		boundsMutants,
		watchdogMutants,
		keepAliveMutants,
		lossMutants,
		batchMutants,
		wakeupMutants,
		orderMutants,
		fencingMutants,
		inspectMutants,
		observeMutants,
		migrationMutants,
		migrationBackMutants,
		watchingMutants,
		leavingMutants,
		leftMutants,
		latchMutants,
		crossingMutants,
		singleMutants,
		namesMutants,
		scaleMutants,
		stormMutants,
		sharingMutants,
		permitMutants,
		modeMutants(),
	)
}

func TestMutants(t *testing.T) {
	caught := map[string]bool{}
	for _, m := range mutants() {
		caught[m.check] = true
		t.Run(fmt.Sprintf("%s, by %s", m.breaks, m.check), func(t *testing.T) {
			first, r := firstToFail(t, m)
			if first != m.check {
				t.Fatalf("caught by %q, want %q; it reported: %v\n%s", first, m.check, r.err, r.events)
			}
			t.Log(r.err)
		})
	}
	for _, c := range allChecks() {
		if !caught[c.Name] && !needsURL(c) { // see TestMutantsBetweenProcesses and TestMutantsOfURLs
			t.Errorf("no mutant is caught by %s, so nothing shows that it can fail", c.Name)
		}
	}
}

// firstToFail returns the name of the first check that a mutant fails, and how
// it fails. The short form only runs the check that should fail.
func firstToFail(t *testing.T, m mutant) (string, result) {
	if m.mutate == nil {
		m.mutate = good
	}
	h := onMemory(&m.on, m.mutate)
	h.breakOwner = m.owner
	if m.clock {
		h.FakeTime, h.hangs = false, 3*time.Second
	}
	for _, c := range allChecks() {
		if (m.clock || testing.Short()) && c.Name != m.check || m.mode != driver.Exclusive && !inMode(c) {
			continue
		}
		runs := 1
		if c.Name == m.check && strings.HasPrefix(c.Name, "storm/") {
			runs = 3 // a storm is random and may miss rare events
		}
		for range runs {
			if r := c.result(t, h); r.err != nil {
				return c.Name, r
			}
		}
	}
	return "", result{}
}

// inMode reports whether a check runs again in a mode.
func inMode(c check) bool {
	return slices.ContainsFunc(modeChecks, func(with check) bool { return c.Name == with.Name })
}

// broken is a memory driver with some methods replaced.
type broken struct {
	*memory.Driver
	info        func(driver.Info) driver.Info
	acquire     func(ctx context.Context, r *driver.Request) (driver.Lease, error)
	lease       func(l *brokenLease) // breaks a granted lease
	renewAll    func(ctx context.Context, leases []driver.Lease, done func(int, error))
	inspect     func(ctx context.Context, name string) (driver.Status, error)
	forceUnlock func(ctx context.Context, name string) error
	setLimit    func(ctx context.Context, name string, limit int) error
	seal        func(ctx context.Context, l driver.Lease) error
	sealed      func(ctx context.Context, name string) (uint64, bool, error)
	mark        func(ctx context.Context, l driver.Lease, floor uint64) error
	marked      func(ctx context.Context, l driver.Lease) (bool, error)
	loosen      func(ctx context.Context, name, id string, floor uint64) error
	unseal      func(ctx context.Context, name, id string) error
	unmark      func(ctx context.Context, l driver.Lease) error
	watch       func(name string, changed func()) (stop func(), err error)
	list        func(ctx context.Context, prefix string) iter.Seq2[string, error]
	leave       func(ctx context.Context, l driver.Lease, ttl time.Duration) error
	close       func(ctx context.Context) error
}

func (d *broken) Info() driver.Info {
	if d.info != nil {
		return d.info(d.Driver.Info())
	}
	return d.Driver.Info()
}

func (d *broken) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	f := d.acquire
	if f == nil {
		f = d.Driver.Acquire
	}
	l, err := f(ctx, r)
	if l == nil || d.lease == nil {
		return l, err
	}
	b := &brokenLease{Lease: l, r: r}
	d.lease(b)
	return b, err
}

// RenewAll implements driver.BatchRenewer.
func (d *broken) RenewAll(ctx context.Context, leases []driver.Lease, done func(int, error)) {
	if d.renewAll != nil {
		d.renewAll(ctx, leases, done)
		return
	}
	for i, l := range leases {
		switch l := l.(type) {
		case *brokenLease:
			done(i, l.Renew(ctx, l.r.TTL))
		case *passedOn:
			done(i, l.Renew(ctx, l.r.TTL))
		default:
			d.Driver.RenewAll(ctx, []driver.Lease{l}, func(_ int, err error) { done(i, err) })
		}
	}
}

// Inspect implements driver.Inspector.
func (d *broken) Inspect(ctx context.Context, name string) (driver.Status, error) {
	if d.inspect != nil {
		return d.inspect(ctx, name)
	}
	return d.Driver.Inspect(ctx, name)
}

// ForceUnlock implements driver.ForceUnlocker.
func (d *broken) ForceUnlock(ctx context.Context, name string) error {
	if d.forceUnlock != nil {
		return d.forceUnlock(ctx, name)
	}
	return d.Driver.ForceUnlock(ctx, name)
}

// SetLimit implements driver.Limiter.
func (d *broken) SetLimit(ctx context.Context, name string, limit int) error {
	if d.setLimit != nil {
		return d.setLimit(ctx, name, limit)
	}
	return d.Driver.SetLimit(ctx, name, limit)
}

// Seal implements move.Sealer.
func (d *broken) Seal(ctx context.Context, l driver.Lease) error {
	if d.seal != nil {
		return d.seal(ctx, l)
	}
	return d.Driver.Seal(ctx, unbroken(l))
}

// Sealed implements move.Sealer.
func (d *broken) Sealed(ctx context.Context, name string) (uint64, bool, error) {
	if d.sealed != nil {
		return d.sealed(ctx, name)
	}
	return d.Driver.Sealed(ctx, name)
}

// Mark implements move.Marker.
func (d *broken) Mark(ctx context.Context, l driver.Lease, floor uint64) error {
	if d.mark != nil {
		return d.mark(ctx, l, floor)
	}
	return d.Driver.Mark(ctx, unbroken(l), floor)
}

// Marked implements move.Marker.
func (d *broken) Marked(ctx context.Context, l driver.Lease) (bool, error) {
	if d.marked != nil {
		return d.marked(ctx, l)
	}
	return d.Driver.Marked(ctx, unbroken(l))
}

// Loosen implements move.Unsealer.
func (d *broken) Loosen(ctx context.Context, name, id string, floor uint64) error {
	if d.loosen != nil {
		return d.loosen(ctx, name, id, floor)
	}
	return d.Driver.Loosen(ctx, name, id, floor)
}

// Unseal implements move.Unsealer.
func (d *broken) Unseal(ctx context.Context, name, id string) error {
	if d.unseal != nil {
		return d.unseal(ctx, name, id)
	}
	return d.Driver.Unseal(ctx, name, id)
}

// Unmark implements move.Unmarker.
func (d *broken) Unmark(ctx context.Context, l driver.Lease) error {
	if d.unmark != nil {
		return d.unmark(ctx, l)
	}
	return d.Driver.Unmark(ctx, unbroken(l))
}

// unbroken returns the lease of the memory driver.
func unbroken(l driver.Lease) driver.Lease {
	switch b := l.(type) {
	case *brokenLease:
		return b.Lease
	case *passedBy:
		return b.Lease
	case *passedOn:
		return b.Lease
	}
	return l
}

// Watch implements driver.Watcher.
func (d *broken) Watch(name string, changed func()) (stop func(), err error) {
	if d.watch != nil {
		return d.watch(name, changed)
	}
	return d.Driver.Watch(name, changed)
}

// List implements driver.Lister.
func (d *broken) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	if d.list != nil {
		return d.list(ctx, prefix)
	}
	return d.Driver.List(ctx, prefix)
}

// Leave implements driver.Leaver.
func (d *broken) Leave(ctx context.Context, l driver.Lease, ttl time.Duration) error {
	if d.leave != nil {
		return d.leave(ctx, l, ttl)
	}
	return d.Driver.Leave(ctx, unbroken(l), ttl)
}

func (d *broken) Close(ctx context.Context) error {
	if d.close != nil {
		return d.close(ctx)
	}
	return d.Driver.Close(ctx)
}

// brokenLease is a lease with some methods replaced.
type brokenLease struct {
	driver.Lease
	r         *driver.Request
	tokens    func() (uint64, int)
	keep      func(ctx context.Context) error
	expires   func() time.Time
	session   func() (time.Time, time.Duration)
	renew     func(ctx context.Context, ttl time.Duration) error
	release   func(ctx context.Context) error
	contended func() bool
}

func (l *brokenLease) Tokens() (uint64, int) {
	if l.tokens != nil {
		return l.tokens()
	}
	return l.Lease.Tokens()
}

// KeepTokens implements driver.TokenKeeper.
func (l *brokenLease) KeepTokens(ctx context.Context) error {
	if l.keep != nil {
		return l.keep(ctx)
	}
	return nil
}

func (l *brokenLease) Expires() time.Time {
	if l.expires != nil {
		return l.expires()
	}
	return l.Lease.Expires()
}

// Session implements driver.SessionLease.
func (l *brokenLease) Session() (time.Time, time.Duration) {
	if l.session != nil {
		return l.session()
	}
	if s, ok := l.Lease.(driver.SessionLease); ok {
		return s.Session()
	}
	return time.Time{}, 0
}

func (l *brokenLease) Renew(ctx context.Context, ttl time.Duration) error {
	if l.renew != nil {
		return l.renew(ctx, ttl)
	}
	return l.Lease.Renew(ctx, ttl)
}

func (l *brokenLease) Release(ctx context.Context) error {
	if l.release != nil {
		return l.release(ctx)
	}
	return l.Lease.Release(ctx)
}

// Contended implements driver.ContentionReporter.
func (l *brokenLease) Contended() bool {
	if l.contended != nil {
		return l.contended()
	}
	c, ok := l.Lease.(driver.ContentionReporter)
	return !ok || c.Contended()
}

// breakLeases returns a mutation that breaks every lease of a driver.
func breakLeases(f func(d *memory.Driver, l *brokenLease)) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		return &broken{Driver: d, lease: func(l *brokenLease) { f(d, l) }}
	}
}

// renewalNotHeld returns a mutation in which a renewal returns ErrNotHeld if
// when returns true for its answer.
func renewalNotHeld(when func(context.Context, *memory.Driver, *brokenLease, error) bool) func(*memory.Driver) driver.Driver {
	return breakLeases(func(d *memory.Driver, l *brokenLease) {
		l.renew = func(ctx context.Context, ttl time.Duration) error {
			err := l.Lease.Renew(ctx, ttl)
			if when(ctx, d, l, err) {
				return driver.ErrNotHeld
			}
			return err
		}
	})
}

// releaseNotHeld is like renewalNotHeld, but for a release.
func releaseNotHeld(when func(context.Context, *memory.Driver, *brokenLease, error) bool) func(*memory.Driver) driver.Driver {
	return breakLeases(func(d *memory.Driver, l *brokenLease) {
		l.release = func(ctx context.Context) error {
			err := l.Lease.Release(ctx)
			if when(ctx, d, l, err) {
				return driver.ErrNotHeld
			}
			return err
		}
	})
}

// breakAcquire returns a mutation that replaces Acquire.
func breakAcquire(f func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error)) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		return &broken{Driver: d, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) { return f(d, ctx, r) }}
	}
}

// modeMutants contains, for each check that runs again in a mode, the first
// mutant of that check, broken only in this mode. Checks of the group sharing
// may also catch it.
func modeMutants() (all []mutant) {
	of := slices.Concat(waitingMutants, leaseMutants, ownershipMutants, capabilityMutants, faultMutants, lostMutants, expiryMutants, boundsMutants, lossMutants)
	for _, c := range modeChecks {
		for _, mode := range moreModes {
			base, ok := strings.CutSuffix(c.Name, "/"+mode.String())
			i := slices.IndexFunc(of, func(m mutant) bool { return m.check == base && m.mutate != nil && !m.clock })
			if ok && i >= 0 {
				all = append(all, of[i].inMode(mode))
			}
		}
	}
	return all
}

// inMode returns a mutant that is broken for requests in one mode.
func (m mutant) inMode(mode driver.Mode) mutant {
	mutate := m.mutate
	m.check += "/" + mode.String()
	m.mode = mode
	m.mutate = func(d *memory.Driver) driver.Driver { return &brokenInMode{broken: mutate(d).(*broken), mode: mode} }
	return m
}

type brokenInMode struct {
	*broken
	mode   driver.Mode
	leases sync.Map // in this mode
}

func (d *brokenInMode) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if r.Mode != d.mode {
		return d.Driver.Acquire(ctx, r)
	}
	l, err := d.broken.Acquire(ctx, r)
	d.leases.Store(l, true)
	return l, err
}

// RenewAll implements driver.BatchRenewer, for leases that are all in one mode.
func (d *brokenInMode) RenewAll(ctx context.Context, leases []driver.Lease, done func(int, error)) {
	if len(leases) == 0 {
		d.Driver.RenewAll(ctx, leases, done)
		return
	}
	if _, is := d.leases.Load(leases[0]); is {
		d.broken.RenewAll(ctx, leases, done)
		return
	}
	d.Driver.RenewAll(ctx, leases, done)
}

// TestModesAreRefusedTogether uses a driver without some modes. Each check
// reports only that these modes are refused.
func TestModesAreRefusedTogether(t *testing.T) {
	h := onMemory(nil, func(d *memory.Driver) driver.Driver {
		return &broken{Driver: d, info: func(i driver.Info) driver.Info {
			i.ReadWrite, i.Permits = driver.Support{}, driver.Support{}
			return i
		}}
	})
	for _, c := range slices.Concat(sharingChecks, permitChecks, modeChecks) {
		want := sharing.name
		if strings.HasPrefix(c.Name, "permits/") || strings.HasSuffix(c.Name, "/permit") {
			want = permitting.name
		}
		if r := c.result(t, h); r.refused != want || r.err != nil {
			t.Errorf("%s on a driver with only exclusive locks: got refused %q and %v, want %q", c.Name, r.refused, r.err, want)
		}
	}
}
