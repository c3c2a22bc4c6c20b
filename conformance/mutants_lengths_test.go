package conformance

import (
	"context"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var lengthMutants = []mutant{
	{
		check:  "lengths/renewed",
		breaks: "the backend renews leases for a year at most",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				return l.Lease.Renew(ctx, min(ttl, 365*24*time.Hour))
			}
		}),
	},
	{
		check:  "lengths/extended",
		breaks: "a lease does not tell of the session that carries it",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			l.session = func() (time.Time, time.Duration) { return time.Time{}, 0 }
		}),
		on: memory.Options{KeepsAlive: true},
	},
	{check: "lengths/many", breaks: "from the ninth length on, leases are those of a short session, and do not tell", mutate: fewLengths()},
}

// fewLengths is a mutation with one session for all fixed leases but those of the first lengths.
func fewLengths() func(*memory.Driver) driver.Driver {
	const session = 100 * time.Millisecond
	return func(d *memory.Driver) driver.Driver {
		var mu sync.Mutex
		lengths := map[time.Duration]bool{}
		ownSession := func(ttl time.Duration) bool {
			mu.Lock()
			defer mu.Unlock()
			if len(lengths) < 8 {
				lengths[ttl] = true
			}
			return lengths[ttl]
		}
		return &broken{Driver: d, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if l == nil || !r.Fixed || ownSession(r.TTL) {
				return l, err
			}
			return &brokenLease{Lease: l, r: r, expires: func() time.Time {
				end, own := time.Now().Add(session), l.Expires() // kept alive all the time
				if own.Before(end) {
					return own
				}
				return end
			}}, nil
		}}
	}
}
