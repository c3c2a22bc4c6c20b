package conformance

import (
	"fmt"
	"sync/atomic"
	"time"
)

var contentionChecks = []check{
	{"contention/clients", "Clients that contend for a name hold it one at a time, and each gets it.", contendingClients},
	{"contention/owners", "Owners of one client that contend for a name hold it one at a time, and each gets it.", contendingOwners},
}

func contendingClients(e *env) error {
	users := make([]*user, 8)
	for i := range users {
		users[i] = &e.client().user
	}
	return e.contend(users, 15)
}

func contendingOwners(e *env) error {
	c := e.client()
	users := make([]*user, 6)
	for i := range users {
		users[i] = c.owner()
	}
	return e.contend(users, 20)
}

// contend lets each user lock one name so many times, and add to a counter that would lose concurrent updates.
func (e *env) contend(users []*user, times int) error {
	name := e.name()
	var counter atomic.Int64
	var holder atomic.Pointer[user]
	e.together("Lock and Unlock", len(users), func(i int) error {
		u := users[i]
		for range times {
			h := u.lock(name)
			if other := holder.Swap(u); other != nil {
				return fmt.Errorf("%s and %s held %q at the same time", u.label, other.label, name)
			}
			n := counter.Load()
			e.sleep(time.Millisecond) // the work that the lock protects
			counter.Store(n + 1)
			holder.Store(nil)
			h.unlock()
		}
		return nil
	})
	if got, want := counter.Load(), int64(len(users)*times); got != want {
		return fmt.Errorf("%d updates under the lock left the counter at %d", want, got)
	}
	return nil
}
