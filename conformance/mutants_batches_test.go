package conformance

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var batchMutants = []mutant{
	{
		check:  "batches/ttls",
		breaks: "a batch is renewed for the TTL of its first lease",
		mutate: breakEach(func(ctx context.Context, batch []*brokenLease, i int) error {
			return batch[i].Lease.Renew(ctx, batch[0].r.TTL)
		}),
	},
	{
		check:  "batches/ttls",
		breaks: "the server renews a batch for its shortest TTL, and the driver does not know",
		mutate: breakEach(func(ctx context.Context, batch []*brokenLease, i int) error {
			shortest := batch[i].r.TTL
			for _, l := range batch {
				shortest = min(shortest, l.r.TTL)
			}
			end := time.Now().Add(batch[i].r.TTL)
			if shortest < batch[i].r.TTL {
				batch[i].expires = func() time.Time { return end }
			}
			return batch[i].Lease.Renew(ctx, shortest)
		}),
	},
	{
		check:  "batches/ttls",
		breaks: "the server renews a batch for its longest TTL",
		mutate: breakEach(func(ctx context.Context, batch []*brokenLease, i int) error {
			longest := batch[i].r.TTL
			for _, l := range batch {
				longest = max(longest, l.r.TTL)
			}
			if longest > batch[i].r.TTL {
				_ = batch[i].pretend()
			}
			return batch[i].Lease.Renew(ctx, longest)
		}),
	},
	{
		check:  "batches/same-name",
		breaks: "of several holds of one name in a batch the first alone is renewed",
		mutate: breakEach(func(ctx context.Context, batch []*brokenLease, i int) error {
			for _, l := range batch[:i] {
				if l.r.Name == batch[i].r.Name {
					return batch[i].pretend()
				}
			}
			return batch[i].Lease.Renew(ctx, batch[i].r.TTL)
		}),
	},
	{
		check:  "batches/many",
		breaks: "a hold that was removed is said to be renewed in a batch",
		mutate: breakEach(func(ctx context.Context, batch []*brokenLease, i int) error {
			err := batch[i].Lease.Renew(ctx, batch[i].r.TTL)
			if len(batch) > 4 && errors.Is(err, driver.ErrNotHeld) && time.Now().Before(batch[i].Lease.Expires()) {
				return batch[i].pretend()
			}
			return err
		}),
	},
	{
		check:  "batches/many",
		breaks: "from the 257th on the leases of a batch are said to be renewed, and are not",
		mutate: breakEach(func(ctx context.Context, batch []*brokenLease, i int) error {
			if i >= 256 {
				return batch[i].pretend()
			}
			return batch[i].Lease.Renew(ctx, batch[i].r.TTL)
		}),
	},
	{
		check:  "batches/many",
		breaks: "the leases behind one whose hold was removed are said to be over",
		mutate: breakEach(func(ctx context.Context, batch []*brokenLease, i int) error {
			if len(batch) > 4 && i > 0 && errors.Is(batch[i-1].Lease.Renew(ctx, batch[i-1].r.TTL), driver.ErrNotHeld) {
				return driver.ErrNotHeld
			}
			return batch[i].Lease.Renew(ctx, batch[i].r.TTL)
		}),
	},
	{
		check:  "batches/no-answer",
		breaks: "the leases of a batch that got no answer are said to be over",
		mutate: breakEach(func(ctx context.Context, batch []*brokenLease, i int) error {
			err := batch[i].Lease.Renew(ctx, batch[i].r.TTL)
			if i > 1 && err != nil {
				return driver.ErrNotHeld
			}
			return err
		}),
	},
	{
		check:  "batches/no-answer",
		breaks: "Expires moves with a batch of five, and not with its answer",
		mutate: breakEach(func(ctx context.Context, batch []*brokenLease, i int) error {
			err := batch[i].Lease.Renew(ctx, batch[i].r.TTL)
			if errors.Is(err, driver.ErrUnknown) && len(batch) == 5 {
				_ = batch[i].pretend()
			}
			return err
		}),
	},
	{
		check:  "batches/busy",
		breaks: "a lease whose Renew is under way is said to be renewed in a batch",
		mutate: func(d *memory.Driver) driver.Driver {
			b := &broken{Driver: d, lease: func(l *brokenLease) {
				var busy atomic.Int32
				l.renew = func(ctx context.Context, ttl time.Duration) error {
					if busy.Add(1) > 1 {
						busy.Add(-1)
						return nil
					}
					defer busy.Add(-1)
					return l.Lease.Renew(ctx, ttl)
				}
			}}
			return b
		},
	},
	{
		check:  "batches/empty",
		breaks: "a batch of no lease has an outcome",
		mutate: func(d *memory.Driver) driver.Driver {
			return breakRenewAll(d, func(ctx context.Context, leases []driver.Lease, done func(int, error)) {
				if len(leases) == 0 {
					done(0, nil)
				}
				d.RenewAll(ctx, leases, done)
			})
		},
	},
}

// breakEach returns a mutation that renews the leases of a batch one by one.
func breakEach(renew func(ctx context.Context, batch []*brokenLease, i int) error) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		b := &broken{Driver: d, lease: func(*brokenLease) {}}
		b.renewAll = func(ctx context.Context, leases []driver.Lease, done func(int, error)) {
			batch := make([]*brokenLease, len(leases))
			for i, l := range leases {
				batch[i] = l.(*brokenLease)
			}
			for i := range batch {
				done(i, renew(ctx, batch, i))
			}
		}
		return b
	}
}

// pretend moves Expires as if the lease had been renewed.
func (l *brokenLease) pretend() error {
	end := time.Now().Add(l.r.TTL)
	l.expires = func() time.Time { return end }
	return nil
}
