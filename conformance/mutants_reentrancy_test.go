package conformance

import (
	"context"
	"sync"
	"time"

	"github.com/go-dsync/dsync"
)

// What is reentrant are the owners of package dsync, on any driver. So these mutants are owners.
var reentrancyMutants = []mutant{
	{
		check:  "reentrancy/nested",
		breaks: "a nested lock is the same lease",
		owner: breakNested(func(outer lease, nested func() (lease, error), _ bool) (lease, error) {
			return outer, nil
		}),
	},
	{
		check:  "reentrancy/other-owner",
		breaks: "all owners of a client are one",
		owner: func() func(*client, locker) locker {
			var first sync.Map
			return func(c *client, l locker) locker {
				one, _ := first.LoadOrStore(c, l)
				return one.(locker)
			}
		}(),
	},
	{
		check:  "reentrancy/shorter",
		breaks: "a nested lease that ends takes the outer one with it",
		owner: breakNested(func(outer lease, nested func() (lease, error), ends bool) (lease, error) {
			inner, err := nested()
			if err != nil || !ends {
				return inner, err
			}
			fatal := &fatalLease{lease: inner, done: make(chan struct{})}
			go func() { // ends with the lease, at the latest with the client
				defer close(fatal.done)
				<-inner.Done()
				_ = outer.Unlock(context.Background())
			}()
			return fatal, nil
		}),
	},
	{
		check:  "reentrancy/renewal",
		breaks: "unlocking a nested lease stops the renewal",
		owner: breakNested(func(outer lease, nested func() (lease, error), _ bool) (lease, error) {
			inner, err := nested()
			return lastRenewal{inner, outer}, err
		}),
	},
	{
		check:  "reentrancy/loss",
		breaks: "a nested lease does not hear of the loss",
		owner: breakNested(func(_ lease, nested func() (lease, error), ends bool) (lease, error) {
			inner, err := nested()
			if err == nil && !ends {
				return deaf{inner}, nil
			}
			return inner, err
		}),
	},
}

// breakNested returns a mutation of owners that replaces a nested lock. ends says that it is one with ExpireAfter.
func breakNested(f func(outer lease, nested func() (lease, error), ends bool) (lease, error)) func(*client, locker) locker {
	return func(_ *client, l locker) locker { return &brokenOwner{locker: l, nested: f} }
}

type brokenOwner struct {
	locker
	nested func(outer lease, nested func() (lease, error), ends bool) (lease, error)

	mu   sync.Mutex
	held map[string]lease
}

func (o *brokenOwner) lock(ctx context.Context, try bool, name string, opts ...dsync.LockOption) (lease, error) {
	o.mu.Lock()
	outer := o.held[name]
	o.mu.Unlock()
	if outer != nil && outer.Err() == nil {
		return o.nested(outer, func() (lease, error) { return o.locker.lock(ctx, try, name, opts...) }, len(opts) > 0)
	}
	l, err := o.locker.lock(ctx, try, name, opts...)
	if err == nil {
		o.mu.Lock()
		o.held = map[string]lease{name: l}
		o.mu.Unlock()
	}
	return l, err
}

// fatalLease is a nested lease that is not done before it has ended the outer one.
type fatalLease struct {
	lease
	done chan struct{}
}

func (l *fatalLease) Done() <-chan struct{} { return l.done }

// lastRenewal is a nested lease whose Unlock lets the outer one run out.
type lastRenewal struct {
	lease
	outer lease
}

func (l lastRenewal) Unlock(ctx context.Context) error {
	time.AfterFunc(time.Second, func() { _ = l.outer.Unlock(ctx) })
	return l.lease.Unlock(ctx)
}

// deaf is a lease that is never over.
type deaf struct{ lease }

func (deaf) Err() error            { return nil }
func (deaf) Done() <-chan struct{} { return nil }
