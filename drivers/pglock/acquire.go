package pglock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
)

const (
	// settleFor is how long a canceled caller waits for its lock to be given back, if there is one. Two short requests do, and then
	// nothing is left in doubt. Nobody waits longer.
	settleFor = 50 * time.Millisecond

	// backstop is how often the driver asks the server whether a wait is still
	// known there, because the connection may hang.
	backstop = 1500 * time.Millisecond

	// A look takes the server about a microsecond for each of its connections,
	// so the driver looks less often where it takes long: clients that wait
	// together need a processor for each lookShare of them. longBackstop bounds
	// the pause.
	lookShare    = 3000
	longBackstop = 15 * time.Second
)

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := d.enter(); err != nil {
		return nil, err
	}
	l, err := d.acquire(ctx, r)
	d.leave(l)
	if err != nil {
		return nil, err
	}
	return l, nil
}

func (d *Driver) acquire(ctx context.Context, r *driver.Request) (*lease, error) {
	key, err := d.key(ctx, r.Name)
	if err != nil {
		return nil, err
	}
	l := &lease{d: d, r: r, key: key, gate: d.enterGate(key)}
	err = d.contend(ctx, l)
	d.mu.Lock()
	d.leaveGate(l.gate)
	d.mu.Unlock()
	if err == nil && d.life.Open().Err() != nil {
		err = driver.ErrClosed
		l.undo()
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

// contend asks for the lock, after the earlier attempts of this driver, and waits for the lock unless the request has NoWait.
func (d *Driver) contend(ctx context.Context, l *lease) error {
	g := l.gate
	waited := false
	t := d.queue(g, l.r)
	if !l.r.NoWait {
		defer d.quitLine(g, t)
	}
	if t.ready != nil {
		if !l.r.NoWait {
			waited = true
			l.r.Events.Waiting()
		}
		if err := d.await(ctx, g, t); err != nil {
			return err
		}
	}
	if t.verdict == ask {
		if granted, err := d.tryHub(ctx, l); err != nil || granted {
			return err
		}
	}
	if l.r.NoWait {
		return driver.ErrLocked
	}
	return d.waitAtServer(ctx, l, waited)
}

// maxClasses is how many TTLs of fixed leases have sessions of their own.
const maxClasses = 8

// carrier returns the TTL of the sessions for a request: its own. Fixed leases of ever new lengths would need ever new sessions; such
// leases share sessions of shorter TTLs, which the driver keeps alive until the lease ends here.
func (d *Driver) carrier(r *driver.Request) time.Duration {
	ttl := roundUp(r.TTL)
	if !r.Fixed {
		return ttl
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.classes[ttl] != nil || len(d.classes) < maxClasses {
		return ttl
	}
	if d.home <= ttl {
		return d.home
	}
	return time.Duration(1<<(bits.Len64(uint64(r.TTL/time.Millisecond))-1)) * time.Millisecond
}

func roundUp(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1) / time.Millisecond * time.Millisecond
}

// tryHub asks once, on a session of many locks. The gate is busy until the attempt is settled.
func (d *Driver) tryHub(ctx context.Context, l *lease) (granted bool, err error) {
	ttl := d.carrier(l.r)
	if s := d.sharer(l, ttl); s != nil {
		l.r.Events.Tokens()
		if op, err := d.share(ctx, l, s); op != nil {
			return d.outcome(ctx, s, op)
		} else if !errors.Is(err, errLetGo) {
			d.settled(l.gate)
			return false, err
		}
	}
	for range 3 {
		s, err := d.hub(ctx, ttl, l.gate)
		if err != nil {
			d.settled(l.gate)
			return false, err
		}
		l.r.Events.Tokens() // the block of a transaction id serves whatever is wanted
		if op := d.start(s, try, l); op != nil {
			return d.outcome(ctx, s, op)
		}
	}
	d.settled(l.gate)
	return false, errBreaks
}

// tried takes note of how an attempt ended: on a hub, where the gate was busy meanwhile, or on a session of its own.
func (l *lease) tried(op *operation, s *session) {
	d := l.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if !s.waiter && !op.passed {
		l.gate.busy = false
	}
	op.passed = true
	switch {
	case op.err != nil || !op.yes:
		if !s.waiter || !op.abandoned { // otherwise cancelWait still uses the session
			d.freeSession(s)
		}
		d.leaveGate(l.gate)
	case !l.over:
		l.gate.holders.Add(l)
	}
	l.gate.advance()
}

// outcome waits for what becomes of an attempt.
func (d *Driver) outcome(ctx context.Context, s *session, op *operation) (granted bool, err error) {
	s.readAnswer(op)
	select {
	case <-op.done:
		return op.yes, wanted(op.err)
	case <-s.behind:
		err = errHangs
	case <-ctx.Done():
		err = ctx.Err()
	case <-d.life.Open().Done():
		err = driver.ErrClosed
	}
	if !s.abandon(op) {
		<-op.done // settled at this very moment
		return op.yes, wanted(op.err)
	}
	if errors.Is(err, errHangs) {
		d.pass(op)
	}
	return false, d.settle(op, err)
}

// pass lets the next attempt for the key go on, on another session, before an
// attempt on a session that hangs is settled.
func (d *Driver) pass(op *operation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if g := op.lease.gate; !op.passed {
		op.passed, g.busy = true, false
		g.advance()
	}
}

// settle waits for a moment until an abandoned attempt has left nothing behind. If something may be left, err becomes ErrUnknown too.
func (d *Driver) settle(op *operation, err error) error {
	timer := time.NewTimer(settleFor)
	defer timer.Stop()
	select {
	case <-op.done:
		if !errors.Is(op.err, driver.ErrUnknown) {
			return err
		}
	case <-timer.C:
	}
	return fmt.Errorf("%w: %w", err, driver.ErrUnknown)
}

// wanted is the error of an attempt, for a caller that waited until the end of the attempt.
func wanted(err error) error {
	if err == nil {
		return nil
	}
	return refusal(err)
}

// waitAtServer waits in the server's queue for the key, on a session of its own.
func (d *Driver) waitAtServer(ctx context.Context, l *lease, waited bool) error {
	w, op, err := d.enqueue(ctx, l)
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", driver.ErrLocked, err)
		}
		return err
	}
	if !waited {
		l.r.Events.Waiting() // after the statement is sent: from now on the call has its place in the server's queue
	}
	err = d.watch(ctx, w, op)
	if err == nil {
		return wanted(op.err)
	}
	if !w.abandon(op) {
		<-op.done
		return wanted(op.err)
	}
	d.withdraw(w, op)
	return d.settle(op, err)
}

// enqueue begins to wait at the server.
func (d *Driver) enqueue(ctx context.Context, l *lease) (*session, *operation, error) {
	for range 3 {
		w, err := d.waiter(ctx, d.carrier(l.r))
		if err != nil {
			return nil, nil, err
		}
		if op := d.start(w, block, l); op != nil {
			return w, op, nil
		}
	}
	return nil, nil, errBreaks
}

// errBreaks: each session ended just when it was chosen.
var errBreaks = fmt.Errorf("%w: connections break again and again", driver.ErrUnavailable)

// start lets a session ask for the lock. If the session is over, start gives the session back and returns nil.
func (d *Driver) start(s *session, first step, l *lease) *operation {
	op := newOperation(first, l.key)
	op.lease, op.reads, op.shared = l, first != block, l.r.Mode == driver.Read
	op.after = func() { l.tried(op, s) }
	d.mu.Lock()
	l.gate.uses++ // of the operation, and then of the lease
	d.mu.Unlock()
	if s.submit(op) {
		return op
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leaveGate(l.gate)
	d.freeSession(s)
	return nil
}

// watch waits until the operation is settled, or returns why the wait ended
// before. It ends a session whose wait the server does not know: the connection
// may hang, and the lock may have been granted to nobody.
func (d *Driver) watch(ctx context.Context, w *session, op *operation) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.NewTimer(d.looks.pause())
	defer timer.Stop()
	looked := make(chan bool, 1)
	for missing := false; ; {
		select {
		case <-op.done:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
		case <-d.life.Open().Done():
			return driver.ErrClosed
		case <-timer.C:
			d.life.Go(func() { looked <- d.stillWaits(ctx, w) }) // ends with ctx
		case waits := <-looked:
			switch {
			case waits:
				missing = false
				timer.Reset(d.looks.pause())
			case !missing: // or granted at this very moment
				missing = true
				timer.Reset(answerIn)
			default:
				w.end(errors.New("the server does not know of the wait"))
				d.dropIdle()
			}
		}
	}
}

// stillWaits asks the server, over other sessions until one answers, whether w waits for a lock.
func (d *Driver) stillWaits(ctx context.Context, w *session) bool {
	for pause := firstDig; ; pause = min(2*pause, lastDig) {
		rows, err := d.ask(ctx, waitsQuery, int4(w.pid), []byte(w.id))
		if err == nil && len(rows) == 1 && len(rows[0]) == 2 && len(rows[0][1]) == 8 {
			d.looks.took(time.Duration(binary.BigEndian.Uint64(rows[0][1])) * time.Microsecond)
			return rows[0][0][0] != 0
		}
		if !d.life.Sleep(ctx, pause) {
			return true
		}
	}
}

// looks is how long the server takes for a look at a wait.
type looks struct{ cost atomic.Int64 }

// took notes the time of a look. A single slow one, on a busy machine, says
// little, so what is known at most doubles.
func (l *looks) took(cost time.Duration) {
	l.cost.Store(min(int64(cost), max(2*l.cost.Load(), int64(backstop/lookShare))))
}

// pause is the time until the next look.
func (l *looks) pause() time.Duration {
	return min(max(time.Duration(l.cost.Load()*lookShare), backstop), longBackstop)
}

// dropIdle ends the sessions for waits that nobody uses, because they may hang
// like one that did.
func (d *Driver) dropIdle() {
	for {
		d.mu.Lock()
		s := d.spareWaiter()
		d.mu.Unlock()
		if s == nil {
			return
		}
		s.end(errQuit)
	}
}

// undo ends the hold of a grant that Acquire does not return.
func (l *lease) undo() {
	s := l.session
	s.mu.Lock()
	if l.phase != held || s.over {
		s.mu.Unlock()
		return
	}
	l.phase = ending
	request := l.giveBack(false)
	s.mu.Unlock()
	s.write(request)
}
