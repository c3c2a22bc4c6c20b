package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync"
)

// The checks of calls of Lock whose contexts end, at any moment, while somebody else has the name.
var deadlineChecks = []Check{
	{"deadlines/held", "A Lock whose context ends after its client was refused the name says ErrLocked too, whatever request its end cuts off.", deadlineTellsLocked},
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
