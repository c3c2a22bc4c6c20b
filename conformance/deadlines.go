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

// The checks of calls of Lock whose contexts end, at any moment, while somebody else has the name.
var deadlineChecks = []check{
	{"deadlines/held", "A Lock whose context ends after its client was refused the name says ErrLocked too, whatever request its end cuts off.", deadlineTellsLocked},
	{"deadlines/silent", "WaitAtMost, a deadline and a cancellation end a Lock at their time, also if the backend falls silent during the wait.", silenceIsBounded},
}

// deadlines is how many waits end in a check, at moments drawn at random.
const deadlines = 40

// endsWithin calls Lock of a name that is held, with a deadline drawn at random, and returns the error.
func (u *user) endsWithin(name string) (after time.Duration, err error) {
	after = time.Millisecond + rand.N(60*time.Millisecond)
	ctx, cancel := context.WithTimeout(u.env.ctx, after)
	defer cancel()
	h, err := u.ask(ctx, false, name)
	switch {
	case err == nil:
		return after, fmt.Errorf("%s was granted %q, which is held", h.user.label, name)
	case !errors.Is(err, context.DeadlineExceeded):
		return after, fmt.Errorf("a Lock with a deadline of %v returned %q, want one that matches the deadline", after, outcome(err))
	}
	return after, err
}

func deadlineTellsLocked(e *env) error {
	c, name := e.client(), e.name()
	held := e.client().lock(name)
	o := c.owner()
	var refused atomic.Bool
	c.tap.mu.Lock()
	c.tap.onWait = func() { refused.Store(true) }
	c.tap.mu.Unlock()
	for range deadlines {
		refused.Store(false)
		after, err := o.endsWithin(name)
		if refused.Load() && !errors.Is(err, dsync.ErrLocked) || !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("a Lock that was refused, with a deadline of %v, returned %q, want one that matches ErrLocked", after, outcome(err))
		}
	}
	first := c.start(name).waits()
	for range deadlines {
		if after, err := o.endsWithin(name); !errors.Is(err, dsync.ErrLocked) {
			return fmt.Errorf("a Lock behind one that waits, with a deadline of %v, returned %q, want one that matches ErrLocked", after, outcome(err))
		}
	}
	held.unlock()
	first.granted().unlock()
	return nil
}

// overrun is by how much a Lock may outlast its bound when the backend is
// silent, beyond what it takes when the backend answers. Drivers that wait for
// the answer to a farewell take half a second or more.
const overrun = 250 * time.Millisecond

// waitBound is how long the waits last that a check bounds.
const waitBound = 200 * time.Millisecond

// bounds are the ways to bound a call of Lock by waitBound.
var bounds = map[string]func(u *user, name string, opts ...dsync.LockOption) *call{
	"WaitAtMost": func(u *user, name string, opts ...dsync.LockOption) *call {
		return u.start(name, append(opts, dsync.WaitAtMost(waitBound))...)
	},
	"a deadline": func(u *user, name string, opts ...dsync.LockOption) *call {
		ctx, cancel := context.WithTimeout(u.env.ctx, waitBound)
		return u.startWith(ctx, cancel, name, opts...)
	},
	"a cancellation": func(u *user, name string, opts ...dsync.LockOption) *call {
		ctx, cancel := context.WithCancel(u.env.ctx)
		time.AfterFunc(waitBound, cancel)
		return u.startWith(ctx, cancel, name, opts...)
	},
}

func silenceIsBounded(e *env) error {
	e.need(e.outsider().link.Hang != nil, "Link.Hang")
	var runs []func() error
	for what, bound := range bounds {
		for m, opts := range map[driver.Mode][]dsync.LockOption{
			driver.Exclusive: nil, driver.Write: {dsync.Write()}, driver.Read: {dsync.Read()}, driver.Permit: {dsync.Permits(2, 2)},
		} {
			if e.driverInfo().Offers(m) {
				runs = append(runs, func() error { return e.boundedInSilence(what, bound, m, opts) })
			}
		}
	}
	e.together("waits that are bounded, in silence", len(runs), func(i int) error { return runs[i]() })
	return nil
}

// boundedInSilence tries several times, since a busy machine is late at times.
func (e *env) boundedInSilence(what string, bound func(*user, string, ...dsync.LockOption) *call, m driver.Mode, opts []dsync.LockOption) error {
	holder, name := e.driver(), e.name()
	other := m
	if m == driver.Read {
		other = driver.Write
	}
	h := holder.hold(name, in(other))
	c := e.client()
	took := func(silent bool) (time.Duration, error) {
		began := time.Now()
		w := bound(&c.user, name, opts...)
		e.until("a call waits, or is over", func() bool { return w.isDone() || c.tap.waits(name) > 0 })
		if silent {
			c.hang()
			defer c.heal()
		}
		if _, err := w.result(); err == nil {
			return 0, fmt.Errorf("%s was granted %q, which is held", c.label, name)
		}
		return time.Since(began), nil
	}
	var usual, silent time.Duration
	for range tries {
		var err error
		if usual, err = took(false); err == nil {
			silent, err = took(true)
		}
		if err != nil {
			return err
		}
		if silent <= max(usual, waitBound)+overrun {
			h.release()
			e.outsider().start(name, in(other)).granted().release() // no wait is left
			return nil
		}
	}
	return fmt.Errorf("a Lock as %v that %s ended after %v took %v when the backend fell silent, and %v when not", m, what, waitBound, silent, usual)
}
