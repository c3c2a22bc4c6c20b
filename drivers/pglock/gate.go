package pglock

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-dsync/dsync/driver"
)

// gate orders the requests of this driver for one key: the server would grant a session its own lock once more. There is a gate per key
// and not per name, for two names may have one key.
//
// At most one request for the key is under way on the sessions of many locks. Waiting attempts stand in line, and only the first of them
// asks the server.
type gate struct {
	key    AdvisoryKey
	uses   int
	holder *lease  // until its end at the server, as far as known
	busy   bool    // a request is under way
	tries  []*turn // with NoWait: each asks once, as soon as no request is under way
	line   []*turn // the others; the first one asks, or waits at the server
}

// turn is an attempt at a gate.
type turn struct {
	ready   chan struct{} // closed when the attempt may ask, or need not: see refused
	called  bool          // ready is closed
	refused bool          // the lock is held by this driver
	asked   bool          // the first in line has asked
}

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

// queue takes an attempt to the gate, and reports whether the attempt may ask at once.
func (d *Driver) queue(g *gate, noWait bool) (*turn, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := &turn{}
	if noWait {
		if g.holder == nil && !g.busy {
			g.busy = true
			return t, true
		}
		t.ready = make(chan struct{})
		g.tries = append(g.tries, t)
		g.advance()
		return t, false
	}
	g.line = append(g.line, t)
	if len(g.line) == 1 && g.holder == nil && !g.busy {
		g.busy, t.called, t.asked = true, true, true
		return t, true
	}
	t.ready = make(chan struct{})
	return t, false
}

// await waits until the turn has come to ask.
func (d *Driver) await(ctx context.Context, g *gate, t *turn) error {
	var err error
	select {
	case <-t.ready:
	case <-ctx.Done():
		err = fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
	case <-d.life.Open().Done():
		err = driver.ErrClosed
	}
	if err == nil && t.refused {
		return driver.ErrLocked
	}
	if err == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if t.called && !t.refused { // its turn came at this very moment
		g.busy = false
	}
	if i := slices.Index(g.tries, t); i >= 0 {
		g.tries = slices.Delete(g.tries, i, i+1)
		if errors.Is(err, driver.ErrLocked) {
			err = ctx.Err() // nobody said that the lock is held
		}
	}
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
	if i := slices.Index(g.line, t); i >= 0 {
		g.line = slices.Delete(g.line, i, i+1)
	}
	g.advance()
}

// advance lets the next attempt ask. advance is called with Driver.mu held when anything has changed.
func (g *gate) advance() {
	if g.holder != nil {
		for _, t := range g.tries {
			t.called, t.refused = true, true
			close(t.ready)
		}
		g.tries = nil
		return
	}
	if g.busy {
		return
	}
	var t *turn
	if len(g.tries) > 0 {
		t = g.tries[0]
		g.tries = g.tries[1:]
	} else if len(g.line) > 0 && !g.line[0].asked {
		t = g.line[0]
		t.asked = true
	}
	if t != nil {
		g.busy, t.called = true, true
		close(t.ready)
	}
}
