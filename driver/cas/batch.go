package cas

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/parallel"
)

// renewal is a renewal in a batch. It owns the desk of the name.
type renewal struct {
	Write
	l     *lease
	i     int
	until time.Time
	next  *view
}

// RenewAll implements [driver.BatchRenewer]. If the store is a [Batcher],
// RenewAll renews leases in batches, except leases whose record is unknown to
// the driver or is being changed.
func (d *Driver) RenewAll(ctx context.Context, leases []driver.Lease, done func(i int, err error)) {
	if err := d.life.Enter(); err != nil {
		for i := range leases {
			done(i, err)
		}
		return
	}
	defer d.life.Leave()
	store, batches := d.store.(Batcher)
	var batch []*renewal
	var calls, alone []func()
	for i, l := range leases {
		l := l.(*lease)
		var r *renewal
		if batches {
			r = l.prepare(i)
		}
		if r == nil {
			alone = append(alone, func() { done(i, l.Renew(ctx, l.r.TTL)) })
		} else if batch = append(batch, r); len(batch) == d.Batch {
			full := batch
			calls = append(calls, func() { d.renew(ctx, store, full, done) })
			batch = nil
		}
	}
	if len(batch) > 0 {
		calls = append(calls, func() { d.renew(ctx, store, batch, done) })
	}
	calls = append(calls, alone...) // last, because they may wait for the desk of a renewal in a batch
	parallel.Each(len(calls), 128, func(i int) { calls[i]() })
}

// prepare returns the renewal of a lease, which owns the lease's turn and the
// desk, or nil if the lease must be renewed separately.
func (l *lease) prepare(i int) *renewal {
	select {
	case l.turn <- struct{}{}:
	default:
		return nil
	}
	k, until := l.desk, time.Now().Add(l.r.TTL)
	k.mu.Lock()
	v := k.known
	free := !k.busy && v != nil && l.move(until, false)
	if free {
		k.busy, k.known = true, nil
	}
	k.mu.Unlock()
	if !free {
		<-l.turn
		return nil
	}
	next := v.next()
	err := l.renewed(next, l.r.TTL)
	var value []byte
	if err == nil {
		value, err = l.d.encode(v, next)
	}
	if err != nil {
		k.giveBack(nil)
		<-l.turn
		return nil
	}
	return &renewal{Write: Write{Name: k.name, Value: value, Version: v.version}, l: l, i: i, until: until, next: next}
}

// giveBack ends a batch's use of the desk.
func (k *desk) giveBack(known *view) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.busy, k.known = false, known
	if len(k.jobs) > 0 {
		k.start()
	}
}

// renew writes a batch.
func (d *Driver) renew(ctx context.Context, store Batcher, batch []*renewal, done func(i int, err error)) {
	short, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	writes := make([]*Write, len(batch))
	for n, r := range batch {
		writes[n] = &r.Write
	}
	failed := store.WriteAll(short, writes)
	var again sync.WaitGroup
	for _, r := range batch {
		err := cmp.Or(failed, r.Err)
		r.next.version, r.next.written = r.Next, time.Time{}
		known := r.next
		if err != nil {
			known = nil
		}
		r.l.desk.giveBack(known)
		if err = d.outcome(ctx, err); err == nil && !r.l.move(r.until, true) {
			err = driver.ErrNotHeld // the answer came too late to count
		}
		<-r.l.turn
		if errors.Is(err, ErrChanged) { // other requests wait for the name
			again.Go(func() { done(r.i, r.l.Renew(ctx, r.l.r.TTL)) })
		} else {
			done(r.i, err)
		}
	}
	again.Wait()
}
