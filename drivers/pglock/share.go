package pglock

import (
	"context"
	"errors"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// Reads of one driver share the lock of one session, which the server has once: the server would count the locks of a session, but a
// statement that failed may have been carried out, and to repeat it would take the lock from another Read. The server would also grant a
// session its own lock past all who wait. So another session asks whether a Read is admitted now, before the Read shares a lock.

// errLetGo: the session has no lock to share any more.
var errLetGo = errors.New("the other Reads have let go")

// sharer returns the session with the lock that a Read can share, and counts the Read there, as hub does. It returns nil if there is none.
func (d *Driver) sharer(l *lease, ttl time.Duration) (s *session) {
	if l.r.Mode != driver.Read {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for other := range l.gate.holders.All() {
		if !other.session.waiter && other.session.ttl == ttl && !other.session.hangs() {
			s = other.session // the last one is the latest to let go
		}
	}
	if s != nil {
		s.carried++
	}
	return s
}

// share lets a Read share the lock of a session. It returns nil and no error if the Read has to wait.
func (d *Driver) share(ctx context.Context, l *lease, s *session) (*operation, error) {
	if admitted, err := d.admits(ctx, l); err != nil || !admitted {
		d.drop(s)
		return nil, err
	}
	if op := d.start(s, stamp, l); op != nil {
		return op, nil
	}
	return nil, errLetGo
}

// admits asks the server whether it would grant a Read.
func (d *Driver) admits(ctx context.Context, l *lease) (bool, error) {
	op := newOperation(admit, l.key)
	op.shared = true
	if err := d.submit(ctx, op, l.gate); err != nil {
		return false, err
	}
	select {
	case <-op.done:
		return op.yes, wanted(op.err)
	case <-op.on.behind:
		return false, errHangs
	case <-ctx.Done():
		return false, d.settle(op, ctx.Err())
	case <-d.life.Open().Done():
		return false, d.settle(op, driver.ErrClosed)
	}
}

// letGo makes an operation give its lock back, or its share of a lock. Called with mu held.
func (s *session) letGo(op *operation) {
	op.step = unlock
	if !op.shared {
		return
	}
	if n := s.shares[op.key]; n > 1 {
		s.shares[op.key], op.kept = n-1, true
	} else {
		delete(s.shares, op.key)
	}
}
