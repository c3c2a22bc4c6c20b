package history

import (
	"context"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// Tap returns a driver for dsync.New that records the answers of d to releases ([Answered]). Where Bounds.Detect is not 0, Judge needs
// these records to see what happened shortly before the end of a hold. Of the optional interfaces
// of d it has driver.BatchRenewer alone.
func Tap(d driver.Driver) driver.Driver {
	if b, ok := d.(driver.BatchRenewer); ok {
		return batchTap{tap{d}, b}
	}
	return tap{d}
}

type tap struct{ driver.Driver }

// Acquire implements driver.Driver.
func (t tap) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	l, err := t.Driver.Acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	tl := &tapLease{l, r.Mode, time.Now()}
	if c, ok := l.(driver.ContentionReporter); ok {
		return contendedLease{tl, c}, nil
	}
	if p, ok := l.(driver.Passer); ok {
		return passedLease{tl, p}, nil
	}
	return tl, nil
}

type batchTap struct {
	tap
	inner driver.BatchRenewer
}

// RenewAll implements driver.BatchRenewer.
func (t batchTap) RenewAll(ctx context.Context, leases []driver.Lease, done func(i int, err error)) {
	inner := make([]driver.Lease, len(leases))
	for i, l := range leases {
		inner[i] = l.(interface{ untap() driver.Lease }).untap()
	}
	t.inner.RenewAll(ctx, inner, done)
}

type tapLease struct {
	driver.Lease
	mode    driver.Mode
	granted time.Time
}

func (l *tapLease) untap() driver.Lease { return l.Lease }

// KeepTokens implements driver.TokenKeeper, also for a lease without the interface.
func (l *tapLease) KeepTokens(ctx context.Context) error {
	if k, ok := l.Lease.(driver.TokenKeeper); ok {
		return k.KeepTokens(ctx)
	}
	return nil
}

// Session implements driver.SessionLease, also for a lease without the interface.
func (l *tapLease) Session() (time.Time, time.Duration) {
	if s, ok := l.Lease.(driver.SessionLease); ok {
		return s.Session()
	}
	return time.Time{}, 0
}

// Release implements driver.Lease.
func (l *tapLease) Release(ctx context.Context) error {
	err := l.Lease.Release(ctx)
	Answered(ctx, l.mode, l.granted, err)
	return err
}

type contendedLease struct {
	*tapLease
	driver.ContentionReporter
}

type passedLease struct {
	*tapLease
	driver.Passer
}
