package dsync

import (
	"context"
	"slices"

	"github.com/go-dsync/dsync/driver"
)

// Read takes the name together with all others who read it, and with nobody else. If the backend does not offer modes (Info.ReadWrite),
// Lock returns errors.ErrUnsupported.
//
// Reads of one Client share one hold of the backend: a Read joins another one's hold for 100 ms after its grant, without a request, and
// all Reads that wait are granted together. A Read with ExpireAfter has a hold of its own. The loss of a hold is the loss of all its leases.
//
// Under a lease of the same name, of the same [Owner] or with the context of the lease (see Lease.Context), a Read is granted at once
// and without a request, whoever waits, and the name is held until both have ended. Under a Read nobody can Write or lock: Lock returns
// ErrDeadlock, and TryLock ErrLocked. Pass the context of the lease to code that reads the same name again: without it the second Read may
// wait behind a writer, who waits for the first.
func Read() LockOption { return LockOption{mode: driver.Read} }

// Write takes the name alone, as Lock does without a mode, and also keeps out users of the read-write lock of the backend's own libraries,
// such as RReadWriteLock of Redisson. Use Write where others use Read: between clients of dsync, Write, Read and Lock without either exclude
// each other. If the backend does not offer modes (Info.ReadWrite), Lock returns errors.ErrUnsupported.
func Write() LockOption { return LockOption{mode: driver.Write} }

// With returns a Locker that locks through l with these options, followed by those of the call. Do, LockAll and LockOn work with it as
// with any other.
func With(l Locker, opts ...LockOption) Locker { return &optioned{l, slices.Clone(opts)} }

// optioned is a Locker with options.
type optioned struct {
	locker Locker
	opts   []LockOption
}

// Lock implements Locker.
func (o *optioned) Lock(ctx context.Context, name string, opts ...LockOption) (*Lease, error) {
	return o.locker.Lock(ctx, name, slices.Concat(o.opts, opts)...)
}

// TryLock implements Locker.
func (o *optioned) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lease, error) {
	return o.locker.TryLock(ctx, name, slices.Concat(o.opts, opts)...)
}
