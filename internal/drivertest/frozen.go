package drivertest

import (
	"context"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
)

// FrozenTTL is the TTL of locks on a server that is frozen for frozenFor.
const (
	FrozenTTL = 15 * time.Second
	frozenFor = 6 * time.Second // a renewal is due after a third of the TTL
)

// FrozenServerCostsNoLock stops the servers of a URL for less than the TTL. No
// lock is lost, a call in progress ends, and waiters are served afterwards. The
// locks of more leases, which have a TTL of at least FrozenTTL, are not lost
// either.
func FrozenServerCostsNoLock(t *testing.T, url string, freeze, thaw func(), more ...*dsync.Lease) {
	t.Helper()
	c, other := openTTL(t, url, FrozenTTL), openTTL(t, url, FrozenTTL)
	ctx, cancel := context.WithTimeout(t.Context(), HangGuard)
	defer cancel()
	leases := []*dsync.Lease{mustLead(t, c, "held"), mustLead(t, other, "held by another client")}
	fixed, err := c.Lock(ctx, "fixed", dsync.ExpireAfter(FrozenTTL))
	if err != nil {
		t.Fatal(err)
	}
	leases = append(append(leases, fixed), more...)
	lock := func(name string) <-chan *dsync.Lease {
		granted := make(chan *dsync.Lease, 1)
		go func() { // ends when ctx ends
			l, err := other.Lock(ctx, name)
			if err != nil {
				t.Errorf("Lock of %q: %v", name, err)
			}
			granted <- l
		}()
		return granted
	}
	waiter := lock("held")
	freeze()
	under := lock("new")
	time.Sleep(frozenFor)
	thaw()
	leases = append(leases, <-under)
	for _, l := range leases {
		if err := l.Unlock(ctx); err != nil {
			t.Errorf("Unlock of %q: %v", l.Name(), err)
		}
	}
	if err := (<-waiter).Unlock(ctx); err != nil {
		t.Errorf("Unlock after the wait: %v", err)
	}
}
