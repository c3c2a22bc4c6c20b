package conformance

import (
	"context"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var contentionMutants = []mutant{
	{
		check:  "contention/clients",
		breaks: "who was woken in vain takes the name some time later",
		mutate: wakeByRelease(&sync.Map{}, func(d *memory.Driver, r *driver.Request) (driver.Lease, error) {
			try := *r
			try.NoWait = true
			for range 3 {
				time.Sleep(time.Millisecond)
				if l, err := d.Acquire(context.Background(), &try); err == nil {
					return l, nil
				}
			}
			return overwrite(d, r)
		}),
	},
	{
		check:  "contention/owners",
		breaks: "requests of one client that wait for one name are combined",
		mutate: func(d *memory.Driver) driver.Driver {
			var f flights
			return &broken{Driver: d, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				if r.NoWait {
					return d.Acquire(ctx, r)
				}
				return f.join(r, func() (driver.Lease, error) { return d.Acquire(ctx, r) })
			}}
		},
	},
}
