package conformance

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-dsync/dsync"
)

// The checks of what package dsync makes of the calls of one client.

// youth is how long after its grant a hold of a reader is joined by others, at most.
const youth = 100 * time.Millisecond

func readersJoin(e *env) error {
	e.claims(sharing)
	c, name := e.client(), e.name()
	readers := []*user{c.owner(), c.owner(), c.owner()}
	var held []*holding
	for young := false; !young; { // a machine that stands still may let the hold grow old
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
		return fmt.Errorf("a reader of %q joined a hold that others of its client have had for more than %v", name, youth)
	}
	for _, h := range held {
		if err := e.outsider().refused(name); err != nil {
			return fmt.Errorf("while others of the client read: %w", err)
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
		return fmt.Errorf("while an owner reads what it took to write: %w", err)
	}
	inner.unlock()
	if err := e.isFree(name); err != nil {
		return err
	}
	outer = o.lock(name, dsync.Read())
	for _, more := range [][]dsync.LockOption{{dsync.Write()}, nil} {
		if _, err := o.ask(e.ctx, false, name, more...); !errors.Is(err, dsync.ErrDeadlock) {
			return fmt.Errorf("%s, which reads %q, asked for more and got %q, want ErrDeadlock", o.label, name, outcome(err))
		}
		if _, err := o.try(name, more...); !errors.Is(err, dsync.ErrLocked) {
			return fmt.Errorf("%s, which reads %q, tried to get more and got %q, want ErrLocked", o.label, name, outcome(err))
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
