package conformance

import (
	"context"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var exclusionMutants = []mutant{
	{
		check:  "exclusion/free",
		breaks: "a release does nothing",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			l.release = func(context.Context) error { return nil }
		}),
	},
	{
		check:  "exclusion/clients",
		breaks: "a try takes the name from its holder",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if r.NoWait {
				d.Server().Expire(r.Name)
			}
			return d.Acquire(ctx, r)
		}),
	},
}
