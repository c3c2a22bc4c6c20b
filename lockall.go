package dsync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Leases are locks that were acquired together by [LockAll] or [LockOn]. They
// count as held only while all of them are held: if one is lost, all are lost.
// All methods may be called concurrently.
type Leases struct {
	all []*Lease

	mu     sync.Mutex
	done   <-chan struct{}
	cancel context.CancelFunc // of the context that Done made
}

// Target is a set of names on one [Locker], for [LockOn].
type Target struct {
	Locker Locker
	Names  []string
}

// LockAll waits until it holds all names, or ctx is done. It acquires the names
// in the order of their bytes, regardless of the order of the arguments, so
// concurrent calls to LockAll do not deadlock. While it waits for one name,
// LockAll keeps the others. If one of them is lost, LockAll returns its error.
//
// After an error nothing is held, as with Lock. LockAll without names, or with
// a name given twice, even in two modes, returns an error.
func LockAll(ctx context.Context, l Locker, names ...string) (*Leases, error) {
	return LockOn(ctx, Target{l, names})
}

// LockOn is [LockAll] across several Lockers, such as clients of independent
// backends. The lock is as available as the least available of them, and as
// safe as the safest. LockOn acquires the names in the order of the Lockers in
// its arguments, so all users of the same Lockers must pass them in the same
// order.
func LockOn(ctx context.Context, targets ...Target) (*Leases, error) {
	return lockOn(ctx, targets, func(ctx context.Context, l Locker, name string) (*Lease, error) { return l.Lock(ctx, name) })
}

// TryLockAll is like [LockAll], but does not wait. If another owner holds one
// of the names, the error matches [ErrLocked].
func TryLockAll(ctx context.Context, l Locker, names ...string) (*Leases, error) {
	return lockOn(ctx, []Target{{l, names}}, func(ctx context.Context, l Locker, name string) (*Lease, error) { return l.TryLock(ctx, name) })
}

func lockOn(ctx context.Context, targets []Target, lock func(context.Context, Locker, string) (*Lease, error)) (*Leases, error) {
	steps, err := inOrder(targets)
	if err != nil {
		return nil, err
	}
	g := &Leases{}
	under := ctx // also ends when one of the leases ends
	for _, s := range steps {
		l, err := lock(under, s.Locker, s.Names[0])
		if err == nil {
			g.all = append(g.all, l)
			var cancel context.CancelFunc
			under, cancel = l.Context(under)
			defer cancel()
		}
		if lost := g.Err(); lost != nil {
			err = lost // this loss ended the wait
		}
		if err != nil {
			return nil, errors.Join(err, g.rollBack(ctx))
		}
	}
	return g, nil
}

// inOrder splits targets into targets of one name each, in locking order.
func inOrder(targets []Target) ([]Target, error) {
	type key struct {
		client *Client
		name   string
	}
	var steps []Target
	seen := map[key]bool{}
	for i, t := range targets {
		if t.Locker == nil || len(t.Names) == 0 {
			return nil, fmt.Errorf("dsync: lock all: no locker or no names in target %d of %d", i+1, len(targets))
		}
		names := slices.Sorted(slices.Values(t.Names))
		for j, name := range names {
			of := key{clientOf(t.Locker), name}
			if j > 0 && name == names[j-1] || of.client != nil && seen[of] {
				return nil, fmt.Errorf("dsync: lock all: %q is given twice", name)
			}
			seen[of] = true
			steps = append(steps, Target{t.Locker, []string{name}})
		}
	}
	if len(steps) == 0 {
		return nil, errors.New("dsync: lock all: no names")
	}
	return steps, nil
}

// clientOf returns the client through which a Locker locks, or nil if that is
// not known.
func clientOf(l Locker) *Client {
	switch l := l.(type) {
	case *Client:
		return l
	case *Owner:
		return l.client
	case *optioned:
		return clientOf(l.locker)
	}
	return nil
}

// rollBack releases the leases after an error. A lease that was already lost
// adds no error.
func (g *Leases) rollBack(ctx context.Context) error {
	if err := g.Unlock(ctx); err != nil && !errors.Is(err, ErrNotHeld) {
		return err
	}
	return nil
}

// All returns the leases in the order of their grants, with their names and
// tokens. Unlocking one of them also ends these Leases.
func (g *Leases) All() []*Lease { return slices.Clone(g.all) }

// Deadline returns the earliest deadline of the leases.
func (g *Leases) Deadline() time.Time {
	earliest := g.all[0].Deadline()
	for _, l := range g.all[1:] {
		if d := l.Deadline(); d.Before(earliest) {
			earliest = d
		}
	}
	return earliest
}

// Err returns nil while all leases are held, and otherwise the Err of the first
// lease that is not. Err compares the clock, as Lease.Err does.
func (g *Leases) Err() error {
	for _, l := range g.all {
		if err := l.Err(); err != nil {
			return err
		}
	}
	return nil
}

// Done returns a channel that is closed when one of the leases ends.
func (g *Leases) Done() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.done == nil {
		var ctx context.Context
		ctx, g.cancel = g.Context(context.Background())
		g.done = ctx.Done()
	}
	return g.done
}

// Context returns a context that ends when parent or the first of the leases
// ends. It is otherwise like Lease.Context.
func (g *Leases) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx := parent
	cancels := make([]context.CancelFunc, len(g.all))
	for i, l := range g.all {
		ctx, cancels[i] = l.Context(ctx)
	}
	return ctx, func() {
		for _, cancel := range slices.Backward(cancels) {
			cancel()
		}
	}
}

// Unlock releases all leases, even after an error, and returns all errors. See
// Lease.Unlock.
func (g *Leases) Unlock(ctx context.Context) error {
	errs := make([]error, len(g.all))
	var wg sync.WaitGroup
	for i, l := range g.all {
		wg.Go(func() { errs[i] = l.Unlock(ctx) })
	}
	wg.Wait()
	g.mu.Lock()
	cancel := g.cancel
	g.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	return errors.Join(errs...)
}
