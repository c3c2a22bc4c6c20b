package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

// The checks of names with many readers, or one writer. Most of them call
// drivers, because package dsync would hide a driver's failures.
var sharingChecks = []check{
	{"sharing/readers", "Any number of clients can read a name at the same time, even if one client has many holds.", manyRead},
	{"sharing/read-write", "While a client reads a name, no other client writes or locks it. While a client writes or locks it, no other client holds it in any mode.", modesExclude},
	{"sharing/last-reader", "A client that waits to write or lock a name is granted it when the last reader has released it, but not before.", lastReader},
	{"sharing/all-readers", "All waiting readers are granted the name when its writer or locker releases it.", allReaders},
	{"sharing/writer-waits", "If there is an order, a new reader does not overtake a request that waits to write or to lock.", readersDoNotOvertake},
	{"sharing/reader-waits", "If there is an order, a later request to write or to lock does not overtake a request that waits to read.", writersDoNotOvertake},
	{"sharing/writer-first", "A waiting writer is granted the name even during an endless stream of readers. If there is an order, it is granted the name before all readers that arrive later.", writerFirst},
	{"sharing/canceled-writer", "A waiting writer that gives up no longer delays other clients.", canceledWriter},
	{"sharing/dead-reader", "A vanished reader blocks for its own TTL, no matter how long other clients read.", deadReader},
	{"sharing/own-renewal", "A renewal keeps no other hold alive: if only one of two readers of a client is renewed, the other ends in time.", ownRenewal},
	{"sharing/shorter-reader", "Neither the grant, nor the renewal, nor the release of a reader shortens the hold of another reader.", shorterReader},
	{"sharing/reader-removed", "The removal of one reader's hold is reported to that reader and to no other reader.", readerRemoved},
	{"sharing/force-unlock", "ForceUnlock ends the holds of all readers of a name and wakes a waiting writer.", forceUnlockReaders},
	{"sharing/inspect", "Inspect of a name that is read reports the number of Read holds, and the token of the last grant or no token.", inspectReaders},
	{"sharing/list", "List yields a name as long as any of its readers holds it.", listReaders},
	{"sharing/tokens", "The token of a reader is above the tokens of earlier writers and below the tokens of later writers.", readersTokens},
	{"sharing/join", "Readers of one client share a hold while it is young, and later readers do not join it.", readersJoin},
	{"sharing/nested", "A writer may also read, a reader that requests more gets ErrDeadlock, and a nested reader does not wait for a waiting writer.", modesNest},
	{"sharing/closed-writer", "When a client that waits to write with several requests is closed, these requests no longer delay the readers behind them.", closedWriter},
	{"sharing/equal-owners", "Holds with the same owner exclude each other like holds of different owners, in every mode.", equalOwnersExcludeInAllModes},
	{"sharing/clean-up", "The cleanup after an unanswered Read request does not affect another hold of the name.", readersCleanUp},
	{"sharing/sealed", "A sealed name is refused in every mode, even to waiters.", sealedForAll},
}

var (
	sharing = capability{
		name:    "to be read by many and written by one",
		claimed: func(c *client) bool { return c.tap.Info().ReadWrite.Offered },
		refused: func(c *client) error {
			for _, o := range []dsync.LockOption{dsync.Read(), dsync.Write()} {
				if _, err := c.try(c.env.name(), o); !errors.Is(err, errors.ErrUnsupported) {
					return err
				}
			}
			return c.requires(driver.Require{RW: true})
		},
	}
	sharingOrder = capability{
		name:    "a fair order of readers and writers",
		claimed: func(c *client) bool { return c.tap.Info().ReadWrite.Order != driver.Unordered },
		refused: func(c *client) error { return c.requires(driver.Require{RW: true, Fair: true}) },
	}
	sharingTokens = capability{
		name:    "fencing tokens of readers and writers",
		claimed: func(c *client) bool { return c.tap.Info().ReadWrite.Fencing != driver.None },
		refused: func(c *client) error { return c.requires(driver.Require{RW: true, Fenced: true}) },
	}
)

// modes are the modes in which a name can have several holds. alone are the
// modes in which a name can have only one hold.
var (
	allModes   = []driver.Mode{driver.Exclusive, driver.Read, driver.Write, driver.Permit}
	modes      = []driver.Mode{driver.Exclusive, driver.Read, driver.Write}
	aloneModes = []driver.Mode{driver.Exclusive, driver.Write}
)

// offered returns the modes that the driver offers.
func (e *env) offered(all []driver.Mode) []driver.Mode {
	return slices.DeleteFunc(slices.Clone(all), func(m driver.Mode) bool { return !e.driverInfo().Offers(m) })
}

// in is a request option. A request for permits requests all permits, so such
// requests exclude each other, and a permit that is left behind is detected.
func in(m driver.Mode) option {
	return func(r *driver.Request) {
		if r.Mode = m; m == driver.Permit {
			r.Permits, r.Limit = 2, 2
		}
	}
}

var reading, writing = in(driver.Read), in(driver.Write)

func manyRead(e *env) error {
	e.claims(sharing)
	name := e.name()
	for range 3 {
		d := e.driver()
		for range 2 {
			if r := d.acquire(name, reading, noWait); r.lease == nil {
				return fmt.Errorf("%s was not granted %q to read, which other clients read: %w", d.label, name, r.err)
			}
			d.hold(name, reading)
		}
	}
	return nil
}

func modesExclude(e *env) error {
	e.claims(sharing)
	a, b := e.driver(), e.driver()
	for _, held := range modes {
		for _, asked := range modes {
			if !held.Excludes(asked) {
				continue
			}
			name := e.name()
			h := a.hold(name, in(held))
			for range 5 {
				for _, d := range []*rawDriver{a, b} {
					if err := d.refused(name, in(asked)); err != nil {
						return fmt.Errorf("the hold is %v, the request is %v: %w", held, asked, err)
					}
				}
			}
			h.release()
			if err := e.isFree(name); err != nil {
				return fmt.Errorf("after the release of a hold (%v) during which requests (%v) were refused: %w", held, asked, err)
			}
		}
	}
	return nil
}

func lastReader(e *env) error {
	e.claims(sharing)
	for _, m := range aloneModes {
		a, b, c, name := e.driver(), e.driver(), e.driver(), e.name()
		readers := []*request{a.hold(name, reading), b.hold(name, reading), a.hold(name, reading)}
		w := c.start(name, in(m)).waits()
		for i, r := range readers {
			if err := e.outsider().refused(name); err != nil {
				return fmt.Errorf("while %d holds read the name: %w", len(readers)-i, err)
			}
			if w.isDone() {
				return fmt.Errorf("%s, which requested %q as %v, was granted it while %d holds read it: %s", c.label, name, m, len(readers)-i, outcome(w.err))
			}
			r.release()
		}
		w.granted().release()
		if err := e.isFree(name); err != nil {
			return err
		}
	}
	return nil
}

func allReaders(e *env) error {
	e.claims(sharing)
	for _, m := range aloneModes {
		name := e.name()
		w := e.driver().hold(name, in(m))
		readers := make([]*request, 4)
		for i := range readers {
			readers[i] = e.driver().start(name, reading).waits()
		}
		w.release()
		for _, r := range readers {
			r.granted()
		}
		for _, r := range readers {
			r.release()
		}
		if err := e.isFree(name); err != nil {
			return err
		}
	}
	return nil
}

func readersDoNotOvertake(e *env) error {
	e.claims(sharing)
	e.claims(sharingOrder)
	for _, m := range aloneModes {
		a, b, c, d, name := e.driver(), e.driver(), e.driver(), e.driver(), e.name()
		h := a.hold(name, reading)
		w := b.start(name, in(m)).waits().queued(1)
		for _, newcomer := range []*rawDriver{a, c} {
			if r := newcomer.acquire(name, reading, noWait); r.lease != nil || !errors.Is(r.err, driver.ErrLocked) {
				return fmt.Errorf("%s, which tried to read %q while another client waited for it, got %q, want ErrLocked", newcomer.label, name, outcome(r.err))
			}
		}
		r := d.start(name, reading).waits().queued(2)
		h.release()
		w.granted()
		if err := e.outsider().refused(name, reading); err != nil {
			return err
		}
		if r.isDone() {
			return fmt.Errorf("%s, which arrived later to read %q, was not kept waiting: %s", d.label, name, outcome(r.err))
		}
		w.release()
		r.granted().release()
	}
	return nil
}

// writerFirst makes three clients read a name. Each client releases a Read only
// when its next Read has been granted or refused.
func writerFirst(e *env) error {
	e.claims(sharing)
	w, name := e.driver(), e.name()
	var waiting, granted atomic.Bool // of the writer
	var overtook atomic.Int64        // readers that arrived while it waited
	stream := make([]*goroutine, 3)
	for i := range stream {
		d := e.driver()
		r := d.hold(name, reading)
		stream[i] = e.run(func() {
			for !granted.Load() {
				e.sleep(5*time.Millisecond + rand.N(20*time.Millisecond))
				late := waiting.Load()
				if r = d.readsOn(r); late && !granted.Load() {
					overtook.Add(1)
				}
			}
			r.release()
		})
	}
	ordered := e.driverInfo().ReadWrite.Order != driver.Unordered
	r := w.start(name, writing)
	r.waitsOrEnds() // it does not wait if no reader holds the name at that moment
	if ordered {
		r.queued(1)
	}
	waiting.Store(true)
	r.granted()
	granted.Store(true)
	r.release()
	for _, g := range stream {
		e.await("a stream of readers", g)
	}
	if n := overtook.Load(); n > 0 && ordered {
		return fmt.Errorf("%d readers that arrived later held %q before a waiting writer", n, name)
	}
	return nil
}

// readsOn acquires and releases another Read of the name of r.
func (d *rawDriver) readsOn(r *request) *request {
	next := d.acquire(r.Name, reading, noWait)
	r.release()
	if next.lease == nil {
		return d.hold(r.Name, reading)
	}
	return next
}

func canceledWriter(e *env) error {
	e.claims(sharing)
	ordered := e.driverInfo().ReadWrite.Order != driver.Unordered
	for _, m := range aloneModes {
		a, b, c, d, name := e.driver(), e.driver(), e.driver(), e.driver(), e.name()
		h := a.hold(name, reading)
		w := b.start(name, in(m)).waits().queued(1)
		r := c.start(name, reading)
		if ordered {
			r.waits()
		}
		w.cancel()
		if err := w.result().endedBy(context.Canceled); err != nil {
			return err
		}
		r.granted()
		e.poll(fmt.Sprintf("%q, which other clients read, can be read by a newcomer after a waiter has given up", name), func() error {
			next := d.acquire(name, reading, noWait)
			if next.lease != nil {
				next.release()
			}
			return next.err
		})
		h.release()
		r.release()
		e.awaitFree(name)
	}
	return nil
}

func readersTokens(e *env) error {
	e.claims(sharing)
	e.claims(sharingTokens)
	a, b, name := e.driver(), e.driver(), e.name()
	var written, read uint64 // the highest tokens so far
	rises := func(r *request) error {
		first, n := r.lease.Tokens()
		last := first + uint64(n) - 1
		above := max(written, read)
		if r.Mode == driver.Read {
			above = written
			read = max(read, last)
		} else {
			written = max(written, last)
		}
		if n < 1 || first <= above {
			return fmt.Errorf("%s, whose request was %v, got %d tokens from %d, want tokens above %d", r.driver.label, r.Mode, n, first, above)
		}
		return nil
	}
	for i := range 6 {
		m := aloneModes[i%2]
		w := a.hold(name, in(m), block(1+i*7))
		if err := rises(w); err != nil {
			return err
		}
		waiting := b.start(name, reading).waits()
		w.release()
		readers := []*request{waiting.granted(), a.hold(name, reading), b.hold(name, reading)}
		for _, r := range readers {
			if err := rises(r); err != nil {
				return err
			}
		}
		next := b.start(name, in(m)).waits()
		for _, r := range readers {
			r.release()
		}
		if err := rises(next.granted()); err != nil {
			return err
		}
		next.release()
	}
	return nil
}

func sealedForAll(e *env) error {
	e.claims(sharing)
	e.claims(sealing)
	a, name := e.driver(), e.name()
	h := a.hold(name)
	waiters := []*request{e.driver().start(name, writing).waits(), e.driver().start(name, reading).waits()}
	if err := h.seal(); err != nil {
		return fmt.Errorf("the seal of a hold: %w", err)
	}
	for _, r := range waiters {
		if err := r.sealed(); err != nil {
			return fmt.Errorf("a waiting request (%v): %w", r.Mode, err)
		}
	}
	for _, d := range []*rawDriver{a, e.driver()} {
		for _, m := range modes {
			for _, opts := range [][]option{{noWait}, nil} {
				if err := d.start(name, append(opts, in(m))...).sealed(); err != nil {
					return fmt.Errorf("a request (%v): %w", m, err)
				}
			}
		}
	}
	return nil
}

func equalOwnersExcludeInAllModes(e *env) error {
	e.claims(sharing)
	a, b := e.driver(), e.driver()
	same := owner("the same " + e.id)
	for _, held := range modes {
		for _, asked := range modes {
			if !held.Excludes(asked) {
				continue
			}
			name := e.name()
			h := a.hold(name, in(held), same)
			for _, d := range []*rawDriver{a, b} {
				if err := d.refused(name, in(asked), same); err != nil {
					return fmt.Errorf("the hold is %v, the request is %v, and both have the same owner: %w", held, asked, err)
				}
			}
			w := b.start(name, in(asked), same).waits()
			h.release()
			w.granted().release()
		}
	}
	return nil
}

func writersDoNotOvertake(e *env) error {
	e.claims(sharing)
	e.claims(sharingOrder)
	for _, m := range aloneModes {
		a, b, c, name := e.driver(), e.driver(), e.driver(), e.name()
		h := a.hold(name, in(m))
		r := b.start(name, reading).waits().queued(1)
		w := c.start(name, in(m)).waits().queued(2)
		h.release()
		e.until("one of two waiters is granted the name", func() bool { return r.isDone() || w.isDone() })
		if !r.isDone() || w.isDone() {
			return fmt.Errorf("%s, which requested %q as %v while %s waited to read it, was granted it first, or together with %s: %s",
				c.label, name, m, b.label, b.label, outcome(w.result().err))
		}
		r.granted()
		if err := e.outsider().refused(name); err != nil {
			return err
		}
		r.release()
		w.granted().release()
	}
	drivers, name := make([]*rawDriver, 8), e.name()
	for i := range drivers {
		drivers[i] = e.driver()
		drivers[i].mode = driver.Write
	}
	h := e.driver().hold(name, writing)
	waiters := e.lineOf(name, drivers)
	h.release()
	if err := e.inOrder(waiters); err != nil {
		return fmt.Errorf("of %d waiting writers: %w", len(waiters), err)
	}
	return nil
}

// readersCleanUp loses the answer to a reader's request while another client
// holds the name as a reader.
func readersCleanUp(e *env) error {
	e.claims(sharing)
	a, b := e.driver(), e.driver()
	e.need(b.link.LoseAnswers != nil, "Link.LoseAnswers")
	b.hold(e.name()).release() // the connection is established
	h := a.hold(e.name(), reading, fixed)
	b.loseAnswers()
	r := b.briefly(h.Name, reading, noWait).result()
	b.heal()
	if r.lease != nil {
		r.release()
	}
	next := e.outsider().start(h.Name, writing).waits()
	e.poll("a request to read whose answer was lost leaves nothing behind", func() error { return e.oneHolds(h, next) })
	if causes := h.lost(); len(causes) > 0 {
		return fmt.Errorf("%s, which reads, lost its hold after the answer to a request by %s was lost: %w", a.label, b.label, causes[0])
	}
	if next.isDone() {
		return fmt.Errorf("%s was granted %q together with %s after the answer to a request by %s was lost", next.driver.label, h.Name, a.label, b.label)
	}
	if err := h.tryRelease(e.ctx); err != nil {
		return fmt.Errorf("the release by %s after the answer to a request by %s was lost: %w", a.label, b.label, err)
	}
	next.granted().release()
	return nil
}

// oneHolds checks, until next is granted, that Inspect counts exactly one hold.
func (e *env) oneHolds(h, next *request) error {
	o := e.outsider()
	i, ok := o.driver.(driver.Inspector)
	if !ok || next.isDone() {
		return nil
	}
	s, err := i.Inspect(e.ctx, h.Name)
	if err == nil && s.Holders != 1 && s.Held {
		err = fmt.Errorf("Inspect counts %d holds", s.Holders)
	}
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return err
}

// allAreTold creates many holds of a name: 300 in fake time, in which they cost
// little.
func allAreTold(e *env) error {
	e.claims(sharing)
	e.claims(forceUnlock)
	n := 9
	if e.fakeTime {
		n = 300
	}
	shared := []driver.Mode{driver.Read}
	if e.driverInfo().Offers(driver.Permit) {
		shared = append(shared, driver.Permit)
	}
	admin := e.client()
	e.together("ForceUnlock of many holds", len(shared), func(i int) error {
		m, name := shared[i], e.name()
		by := []*rawDriver{e.driver(), e.driver(), e.driver()}
		held := make([]*request, n)
		e.together("holds of one name", n, func(i int) error {
			opts := []option{in(m)}
			if m == driver.Permit {
				opts = append(opts, permits(1, n))
			}
			held[i] = by[i%len(by)].hold(name, opts...)
			return nil
		})
		e.must(admin.ForceUnlock(e.ctx, name))
		if e.driverInfo().Detect > 0 {
			told := func() (n int) {
				for _, r := range held {
					if len(r.lost()) > 0 {
						n++
					}
				}
				return n
			}
			deadline := time.Now().Add(e.hangs() / 2)
			e.poll(fmt.Sprintf("all %d holders in mode %v are notified of ForceUnlock", n, m), func() error {
				if got := told(); got < n && time.Now().After(deadline) {
					e.endf("of %d holders of %q in mode %v, %d were notified of ForceUnlock within %v", n, name, m, got, e.hangs()/2)
				} else if got < n {
					return fmt.Errorf("%d were", got)
				}
				return nil
			})
		}
		if err := e.areRemoved(held...); err != nil {
			return fmt.Errorf("after ForceUnlock of a name with %d holds in mode %v: %w", n, m, err)
		}
		if s := by[0]; m == driver.Read {
			return e.isFree(name)
		} else if r := s.acquire(name, permits(n, n), noWait); r.lease == nil {
			return fmt.Errorf("%d of %d permits cannot be acquired after ForceUnlock: %w", n, n, r.err)
		}
		return nil
	})
	return nil
}

func closedWriter(e *env) error {
	e.claims(sharing)
	ordered := e.driverInfo().ReadWrite.Order != driver.Unordered
	for _, m := range aloneModes {
		a, b, c, name := e.driver(), e.driver(), e.driver(), e.name()
		h := a.hold(name, reading)
		first := b.start(name, in(m)).waits().queued(1)
		r := c.start(name, reading)
		if ordered {
			r.waits().queued(2)
		}
		last := b.start(name, in(m)).waits()
		b.shut()
		for _, w := range []*request{first, last} {
			if err := isClosed("a wait of a closed client", w.result().err); err != nil {
				return err
			}
		}
		r.granted().release()
		h.release()
		e.awaitFree(name)
	}
	return nil
}

// The checks of the end of one reader's hold while other clients read.

// over returns when the hold of r, which no client renews, has ended on the
// backend.
func (r *request) over() time.Time {
	return r.lease.Expires().Add(r.driver.env.driverInfo().LateFor(r.TTL))
}

// renewUntil renews a lease repeatedly until a given time has passed.
func (r *request) renewUntil(over time.Time) error {
	e := r.driver.env
	for {
		last := time.Now().After(over)
		if err := r.renew(e.long()); err != nil {
			return fmt.Errorf("the renewal of a reader's live lease: %w", err)
		}
		if b, ok := r.driver.driver.(driver.BatchRenewer); ok && !e.driverInfo().KeepsAlive {
			e.within("RenewAll", func() { b.RenewAll(e.ctx, []driver.Lease{r.lease}, func(_ int, err error) { e.failed(err) }) })
		}
		if last {
			return nil
		}
		e.sleep(e.brief() / 5)
	}
}

func deadReader(e *env) error {
	e.claims(sharing)
	return e.inOutages(func(outage func(*connection)) error {
		a, b, c, name := e.driver(), e.driver(), e.driver(), e.name()
		live := b.hold(name, reading, fixed)
		dead := a.hold(name, reading, ttl(e.brief()))
		outage(a.connection)
		w := c.start(name, writing).waits()
		if err := live.renewUntil(dead.over()); err != nil {
			return err
		}
		live.release()
		if err := w.granted().after(dead); err != nil {
			return err
		}
		w.release()
		return nil
	})
}

func ownRenewal(e *env) error {
	e.claims(sharing)
	d, name := e.driver(), e.name()
	renewed := d.hold(name, reading, fixed)
	other := d.hold(name, reading, fixed, ttl(e.brief()))
	if err := renewed.renewUntil(other.over()); err != nil {
		return err
	}
	renewed.release()
	e.awaitFree(name)
	return isNotHeld("the release of a reader's expired lease while another lease was renewed", other.tryRelease(e.ctx))
}

func shorterReader(e *env) error {
	e.claims(sharing)
	how := []struct {
		what  string
		other func(d *rawDriver, name string) *request // nil if the hold is released
	}{
		{"the grant of a shorter lease", func(d *rawDriver, name string) *request { return d.hold(name, reading, fixed, ttl(e.brief())) }},
		{"the renewal of another lease for less", func(d *rawDriver, name string) *request {
			r := d.hold(name, reading, fixed)
			e.must(r.renew(e.brief()))
			return r
		}},
		{"the release of another lease", func(d *rawDriver, name string) *request {
			d.hold(name, reading, fixed).release()
			return nil
		}},
	}
	e.together("readers, one of which continues", len(how), func(i int) error {
		a, b, name := e.driver(), e.driver(), e.name()
		h := a.hold(name, reading, fixed)
		if other := how[i].other(b, name); other != nil {
			e.sleepUntil(other.lease.Expires().Add(e.driverInfo().LateFor(e.brief())))
		}
		if err := e.outsider().refused(name); err != nil {
			return fmt.Errorf("after %s: %w", how[i].what, err)
		}
		if err := h.renew(e.long()); err != nil {
			return fmt.Errorf("the renewal of a lease after %s: %w", how[i].what, err)
		}
		if err := h.tryRelease(e.ctx); err != nil {
			return fmt.Errorf("the release of a lease after %s: %w", how[i].what, err)
		}
		e.awaitFree(name)
		return nil
	})
	return nil
}

func readerRemoved(e *env) error {
	e.claims(sharing)
	e.need(e.backend.ExpireHold != nil, "Backend.ExpireHold")
	a, b, name, detect := e.driver(), e.driver(), e.name(), e.driverInfo().Detect
	removed, others := a.hold(name, reading, fixed), []*request{a.hold(name, reading, fixed), b.hold(name, reading, fixed)}
	e.events.add("", "one hold of %q is ended without notice to its holder", name)
	e.harness("Backend.ExpireHold", func() { e.backend.ExpireHold(e.tb, name, removed.Hold) })
	if err := isNotHeld("the renewal of a reader's hold that was removed", removed.renew(e.long())); err != nil {
		return err
	}
	e.sleep(detect)
	for _, r := range others {
		if causes := r.lost(); len(causes) > 0 {
			return fmt.Errorf("%s was notified that it lost %q when the hold of another reader was removed: %w", r.driver.label, name, causes[0])
		}
		if err := e.outsider().refused(name); err != nil {
			return fmt.Errorf("after the removal of another reader's hold: %w", err)
		}
		if err := r.renew(e.long()); err != nil {
			return fmt.Errorf("the renewal of a reader's lease after the removal of another reader's hold: %w", err)
		}
		if err := r.tryRelease(e.ctx); err != nil {
			return fmt.Errorf("the release of a reader's lease after the removal of another reader's hold: %w", err)
		}
	}
	return e.isFree(name)
}

func forceUnlockReaders(e *env) error {
	e.claims(sharing)
	e.claims(forceUnlock)
	a, b, c, d, name := e.driver(), e.driver(), e.driver(), e.client(), e.name()
	readers := []*request{a.hold(name, reading), b.hold(name, reading), a.hold(name, reading)}
	w := c.start(name, writing).waits()
	e.must(d.ForceUnlock(e.ctx, name))
	w.granted()
	e.must(d.ForceUnlock(e.ctx, name))
	if err := e.areRemoved(append(readers, w)...); err != nil {
		return err
	}
	if err := d.ForceUnlock(e.ctx, name); !errors.Is(err, driver.ErrNotHeld) {
		return fmt.Errorf("ForceUnlock of a free name returned %q, want ErrNotHeld", outcome(err))
	}
	return e.isFree(name)
}

func inspectReaders(e *env) error {
	e.claims(sharing)
	e.claims(inspection)
	readers, name := []*rawDriver{e.driver(), e.driver(), e.driver()}, e.name()
	var last uint64
	for i, d := range readers { // a backend may report only one of several holds of a client
		h := d.hold(name, reading)
		if first, n := h.lease.Tokens(); n > 0 {
			last = first + uint64(n) - 1
		}
		for _, asks := range append(readers, e.outsider()) {
			s := asks.status(name)
			if !s.Held || s.Mode != driver.Read || s.Holders != i+1 || s.Waiters > 0 {
				return fmt.Errorf("Inspect by %s: held %t, %v, %d holds and %d waiters, want %d Read holds and no waiters",
					asks.label, s.Held, s.Mode, s.Holders, s.Waiters, i+1)
			}
			if s.Token != 0 && s.Token != last {
				return fmt.Errorf("Inspect by %s: the token is %d, want %d, the token of the last grant, or 0", asks.label, s.Token, last)
			}
		}
	}
	return nil
}

func listReaders(e *env) error {
	e.claims(sharing)
	a, b, name := e.driver(), e.driver(), e.name()
	listed := func(want bool, when string) error {
		for _, d := range []*rawDriver{a, e.outsider()} {
			if got := slices.Contains(d.list(name), name); got != want {
				return fmt.Errorf("%s: List by %s yields %q: %t, want %t", when, d.label, name, got, want)
			}
		}
		return nil
	}
	first := a.hold(name, reading, fixed, ttl(e.brief()))
	last, released := b.hold(name, reading, fixed), a.hold(name, reading, fixed)
	released.release()
	if err := listed(true, "after the release of one of three readers"); err != nil {
		return err
	}
	e.expired(first)
	if err := listed(true, "after the end of one of two readers"); err != nil {
		return err
	}
	last.release()
	e.poll("a name without readers is not listed", func() error { return listed(false, "after the last release") })
	return nil
}

// The checks of how package dsync combines a client's calls.

// youth is how long after the grant of a reader's hold other readers can join
// it.
const youth = 100 * time.Millisecond

func readersJoin(e *env) error {
	e.claims(sharing)
	c, name := e.client(), e.name()
	readers := []*user{c.owner(), c.owner(), c.owner()}
	var held []*holding
	for young := false; !young; { // the hold gets older while the machine stands still
		for _, h := range held {
			h.unlock()
		}
		held = nil
		before, _ := c.tap.requests(name)
		begun := time.Now()
		for _, u := range readers {
			held = append(held, u.lock(name, dsync.Read()))
		}
		young = time.Since(begun) < youth
		if n, _ := c.tap.requests(name); young && n-before != 1 {
			return fmt.Errorf("%d requests for %q when %d callers of one client read it within %v, want 1", n-before, name, len(readers), time.Since(begun))
		}
		if time.Since(begun) > 2*youth {
			break
		}
	}
	e.sleep(youth + time.Millisecond)
	before, _ := c.tap.requests(name)
	held = append(held, c.owner().lock(name, dsync.Read()))
	if n, _ := c.tap.requests(name); n == before {
		return fmt.Errorf("a reader of %q joined a hold that other readers of its client had held for more than %v", name, youth)
	}
	for _, h := range held {
		if err := e.outsider().refused(name); err != nil {
			return fmt.Errorf("while other readers of the client read: %w", err)
		}
		h.unlock()
	}
	return e.isFree(name)
}

func modesNest(e *env) error {
	e.claims(sharing)
	c, name := e.client(), e.name()
	o := c.owner()
	outer := o.lock(name, dsync.Write())
	inner := o.lock(name, dsync.Read())
	outer.unlock()
	if err := e.outsider().refused(name, reading); err != nil {
		return fmt.Errorf("while an owner reads a name that it writes: %w", err)
	}
	inner.unlock()
	if err := e.isFree(name); err != nil {
		return err
	}
	outer = o.lock(name, dsync.Read())
	for _, more := range [][]dsync.LockOption{{dsync.Write()}, nil} {
		if _, err := o.ask(e.ctx, false, name, more...); !errors.Is(err, dsync.ErrDeadlock) {
			return fmt.Errorf("%s, which reads %q, tried to write it and got %q, want ErrDeadlock", o.label, name, outcome(err))
		}
		if _, err := o.try(name, more...); !errors.Is(err, dsync.ErrLocked) {
			return fmt.Errorf("%s, which reads %q, tried once to write it and got %q, want ErrLocked", o.label, name, outcome(err))
		}
	}
	e.sleep(youth + time.Millisecond)
	w := e.client().start(name, dsync.Write()).waits()
	o.lock(name, dsync.Read()).unlock()
	if w.isDone() {
		return fmt.Errorf("%s was granted %q, which %s reads: %s", w.user.label, name, o.label, outcome(w.err))
	}
	outer.unlock()
	w.granted().unlock()
	return e.isFree(name)
}
