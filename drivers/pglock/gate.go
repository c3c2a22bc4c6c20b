package pglock

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/linked"
)

// gate orders the requests of this driver for one key: the server would grant a session its own lock once more. There is a gate per key
// and not per name, for two names may have one key.
//
// At most one request for the key is under way on the sessions of many locks. Waiting attempts stand in line, and only the first of them
// asks the server.
type gate struct {
	key     AdvisoryKey
	uses    int
	holders linked.List[lease, *lease] // until their end at the server, as far as known; the first excludes what all exclude
	busy    bool                       // a request is under way
	tries   turns                      // with NoWait: each asks once, as soon as no request is under way
	line    turns                      // the others; the first one asks, or waits at the server
}

// turn is an attempt at a gate.
type turn struct {
	mode    driver.Mode
	verdict verdict
	ready   chan struct{} // closed with the verdict; nil if there was one at once
}

// turns are attempts in the order in which they came.
type turns []*turn

// remove reports whether the attempt was among them.
func (all *turns) remove(t *turn) bool {
	i := slices.Index(*all, t)
	if i >= 0 {
		*all = slices.Delete(*all, i, i+1)
	}
	return i >= 0
}

// verdict is what a gate says to an attempt.
type verdict uint8

const (
	wait    verdict = iota // in line
	ask                    // on a session of many locks, and the gate is busy until the attempt is settled
	enqueue                // at the server, behind reads of this driver, so that the server orders the attempt against those of others
	refuse                 // this driver holds the lock, or waits to write
)

// enterGate returns the gate of a key for one use.
func (d *Driver) enterGate(key AdvisoryKey) *gate {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := d.gates[key]
	if g == nil {
		g = &gate{key: key}
		d.gates[key] = g
	}
	g.uses++
	return g
}

// leaveGate is called with mu held.
func (d *Driver) leaveGate(g *gate) {
	if g.uses--; g.uses == 0 {
		delete(d.gates, g.key)
	}
}

// queue takes an attempt to the gate.
func (d *Driver) queue(g *gate, r *driver.Request) *turn {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := &turn{mode: r.Mode}
	if r.NoWait {
		if !g.judge(t, true) {
			t.ready = make(chan struct{})
			g.tries = append(g.tries, t)
		}
		return t
	}
	g.line = append(g.line, t)
	if len(g.line) > 1 || !g.judge(t, false) {
		t.ready = make(chan struct{})
	}
	return t
}

// await waits for the verdict.
func (d *Driver) await(ctx context.Context, g *gate, t *turn) error {
	var err error
	select {
	case <-t.ready:
		return nil
	case <-ctx.Done():
		err = fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
	case <-d.life.Open().Done():
		err = driver.ErrClosed
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if t.verdict == ask { // its turn came at this very moment
		g.busy = false
	}
	if g.tries.remove(t) && errors.Is(err, driver.ErrLocked) {
		err = ctx.Err() // nobody said that the lock is held
	}
	g.line.remove(t) // at once, or the turn could come to who has left
	g.advance()
	return err
}

// settled ends the request under way.
func (d *Driver) settled(g *gate) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g.busy = false
	g.advance()
}

// quitLine takes an attempt out of the line.
func (d *Driver) quitLine(g *gate, t *turn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g.line.remove(t)
	g.advance()
}

// advance lets the next attempts go on. advance is called with Driver.mu held when anything has changed.
func (g *gate) advance() {
	if len(g.line) > 0 && g.line[0].verdict == wait {
		g.judge(g.line[0], false)
	}
	g.tries = slices.DeleteFunc(g.tries, func(t *turn) bool { return g.judge(t, true) })
}

// judge gives an attempt its verdict, and reports whether there is one yet. Called with Driver.mu held.
func (g *gate) judge(t *turn, noWait bool) bool {
	switch holder := g.holders.First(); {
	case noWait && t.mode == driver.Read && slices.ContainsFunc(g.line, (*turn).writes):
		t.verdict = refuse // a Read does not pass a Write
	case holder == nil || !holder.r.Mode.Excludes(t.mode):
		if g.busy {
			return false
		}
		t.verdict, g.busy = ask, true
	case noWait:
		t.verdict = refuse
	case holder.r.Mode == driver.Read:
		t.verdict = enqueue
	default:
		return false
	}
	if t.ready != nil {
		close(t.ready)
	}
	return true
}

// writes reports whether the attempt is for a mode that no Read may pass.
func (t *turn) writes() bool { return t.mode != driver.Read }

// on reports whether a hold of the key is on the session. Called with Driver.mu held; g may be nil.
func (g *gate) on(s *session) bool {
	if g != nil {
		for l := range g.holders.All() {
			if l.session == s {
				return true
			}
		}
	}
	return false
}
