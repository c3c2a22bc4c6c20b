package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

// The checks of names with many readers or one writer. Most ask drivers, since package dsync would mend what a driver fails to do.
var sharingChecks = []check{
	{"sharing/readers", "Any number of clients read a name at once, also by many holds of one client.", manyRead},
	{"sharing/read-write", "While one reads a name nobody writes or locks it, and while one writes or locks it nobody else does anything with it, however often they ask.", modesExclude},
	{"sharing/last-reader", "Who waits to write or to lock a name is granted it when the last reader has let go, and not before.", lastReader},
	{"sharing/all-readers", "All who wait to read are granted the name when the one who writes or locks it lets go.", allReaders},
	{"sharing/writer-waits", "A newcomer that reads does not overtake one that waits to write or to lock, where there is an order.", readersDoNotOvertake},
	{"sharing/reader-waits", "One that comes later to write or to lock does not overtake one that waits to read, where there is an order.", writersDoNotOvertake},
	{"sharing/writer-first", "With an endless stream of readers, one that waits to write is granted the name, and where there is an order, before all that come later.", writerFirst},
	{"sharing/canceled-writer", "One that gives up waiting to write holds nobody up any more.", canceledWriter},
	{"sharing/dead-reader", "A reader that is gone blocks for its own TTL, however long others read.", deadReader},
	{"sharing/own-renewal", "A renewal keeps no other hold alive: of two readers of one client of which one is renewed the other ends in time.", ownRenewal},
	{"sharing/shorter-reader", "Neither the grant, nor the renewal, nor the release of a reader shortens the hold of another one.", shorterReader},
	{"sharing/reader-removed", "The removal of one reader's hold is told to that reader and to nobody else.", readerRemoved},
	{"sharing/force-unlock", "ForceUnlock ends the holds of all who read a name, and wakes who waits to write.", forceUnlockReaders},
	{"sharing/inspect", "Inspect of a name that is read reports how many holds read it, and the token of the last grant or none.", inspectReaders},
	{"sharing/list", "List yields a name for as long as one of its readers holds it, whichever of them has ended.", listReaders},
	{"sharing/tokens", "The token of a reader lies above those of the writers before it and below those of the writers after it.", readersTokens},
	{"sharing/join", "Readers of one client cost one hold while that is young, and later ones do not join it.", readersJoin},
	{"sharing/nested", "Who writes may read, who reads gets ErrDeadlock when it wants more, and a nested reader does not wait for one that waits to write.", modesNest},
	{"sharing/closed-writer", "A client that waits to write with several requests, and is closed, holds up no reader behind it any more.", closedWriter},
	{"sharing/equal-owners", "Holds with one owner exclude each other as those of different owners do, in every mode.", equalOwnersExcludeInAllModes},
	{"sharing/clean-up", "What is done about a Read request without an answer does not touch another hold of the name.", readersCleanUp},
	{"sharing/sealed", "A name that is sealed is refused in every mode, also to those who wait.", sealedForAll},
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

// modes are all modes, and alone are the modes in which a hold is the only one of its name.
var (
	modes      = []driver.Mode{driver.Exclusive, driver.Read, driver.Write}
	aloneModes = []driver.Mode{driver.Exclusive, driver.Write}
)

// in is an option of a request. Those for permits ask for all there are, so they exclude each other, and one that is left behind shows.
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
				return fmt.Errorf("%s was not granted %q to read, which others read: %w", d.label, name, r.err)
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
						return fmt.Errorf("the hold is %v, the request %v: %w", held, asked, err)
					}
				}
			}
			h.release()
			if err := e.isFree(name); err != nil {
				return fmt.Errorf("after the release of a hold that was %v, of which requests that were %v had been refused: %w", held, asked, err)
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
				return fmt.Errorf("while %d read: %w", len(readers)-i, err)
			}
			if w.isDone() {
				return fmt.Errorf("%s, which asked for %q to be %v, was granted it while %d read it: %s", c.label, name, m, len(readers)-i, outcome(w.err))
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
				return fmt.Errorf("%s, which came to read %q when another waited to have it, was told %q, want ErrLocked", newcomer.label, name, outcome(r.err))
			}
		}
		r := d.start(name, reading).waits().queued(2)
		h.release()
		w.granted()
		if err := e.outsider().refused(name, reading); err != nil {
			return err
		}
		if r.isDone() {
			return fmt.Errorf("%s, which came later to read %q, was not kept waiting: %s", d.label, name, outcome(r.err))
		}
		w.release()
		r.granted().release()
	}
	return nil
}

// writerFirst has three clients read a name so that each lets go only when its next Read is granted, or refused.
func writerFirst(e *env) error {
	e.claims(sharing)
	w, name := e.driver(), e.name()
	var waiting, granted atomic.Bool // the one that writes
	var overtook atomic.Int64        // readers that came when it waited
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
	r := w.start(name, writing).waits()
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
		return fmt.Errorf("%d readers that came later had %q before one that waited to write", n, name)
	}
	return nil
}

// readsOn takes and releases another Read of the name of r.
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
		e.poll(fmt.Sprintf("%q, which others read, can be read by a newcomer after one has given up waiting for it", name), func() error {
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
			return fmt.Errorf("%s, whose request was %v, got %d tokens from %d after %d, which it has to be above", r.driver.label, r.Mode, n, first, above)
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
			return fmt.Errorf("a request that was %v, and waited: %w", r.Mode, err)
		}
	}
	for _, d := range []*rawDriver{a, e.driver()} {
		for _, m := range modes {
			for _, opts := range [][]option{{noWait}, nil} {
				if err := d.start(name, append(opts, in(m))...).sealed(); err != nil {
					return fmt.Errorf("a request that was %v: %w", m, err)
				}
			}
		}
	}
	return nil
}
