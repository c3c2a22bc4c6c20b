package migrate

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// renewal is one lease of RenewAll.
type renewal struct {
	l    *lease
	mu   sync.Mutex
	left int // the number of parts without an answer
	err  error
}

// share contains the leases that RenewAll renews on one backend.
type share struct {
	leases []driver.Lease
	parts  []*part
	index  []int // in the leases of RenewAll
}

// RenewAll implements driver.BatchRenewer. It renews concurrently on the two
// backends, in few requests on a backend that renews in batches.
func (d *Driver) RenewAll(ctx context.Context, leases []driver.Lease, done func(i int, err error)) {
	all := make([]renewal, len(leases))
	shares := map[*backend]*share{d.from: {}, d.to: {}}
	for i, x := range leases {
		l := x.(*lease)
		all[i].l = l
		if !l.renewable() {
			done(i, driver.ErrNotHeld)
			continue
		}
		for _, p := range l.parts {
			if p.renewed() {
				all[i].left++
				s := shares[p.b]
				s.leases, s.parts, s.index = append(s.leases, p.lease), append(s.parts, p), append(s.index, i)
			}
		}
		if all[i].left == 0 {
			done(i, nil)
		}
	}
	var wg sync.WaitGroup
	for b, s := range shares {
		if len(s.leases) == 0 {
			continue
		}
		wg.Go(func() {
			b.renewAll(ctx, s.leases, func(j int) time.Duration { return s.parts[j].request.TTL }, func(j int, err error) {
				x := &all[s.index[j]]
				if x.answered(s.parts[j], err) {
					done(s.index[j], x.err)
				}
			})
		})
	}
	wg.Wait()
}

// answered handles the answer for one part, and reports whether it was the
// last.
func (x *renewal) answered(p *part, err error) bool {
	err = x.l.answered(p, err)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.left--; x.err == nil || errors.Is(err, driver.ErrNotHeld) {
		x.err = err
	}
	return x.left == 0
}

// renewAll renews leases on the backend, in few requests if the backend renews
// in batches.
func (b *backend) renewAll(ctx context.Context, leases []driver.Lease, ttl func(i int) time.Duration, done func(i int, err error)) {
	if batches, ok := b.Driver.(driver.BatchRenewer); ok {
		batches.RenewAll(ctx, leases, done)
		return
	}
	for i, l := range leases {
		done(i, l.Renew(ctx, ttl(i)))
	}
}
