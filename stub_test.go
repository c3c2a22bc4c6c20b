package dsync_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

// stub is a driver that is scripted by a test, for behavior that no good
// backend shows on demand. Without a script it grants every request
// immediately.
type stub struct {
	info    driver.Info
	acquire func(ctx context.Context, n int, r *driver.Request) (driver.Lease, error) // n counts from 1
	renew   func(ctx context.Context, l *stubLease) error
	release func(ctx context.Context, l *stubLease) error
	watch   func(renew func()) (stop func())
	looks   atomic.Int64 // number of renewals with a TTL of 0

	mu       sync.Mutex
	requests []*driver.Request
	released []*stubLease
	batches  [][]driver.Lease
	token    uint64
}

type stubLease struct {
	stub    *stub
	request *driver.Request
	token   uint64
	n       int
	mu      sync.Mutex
	expires time.Time
	freed   time.Time
}

func (d *stub) Info() driver.Info           { return d.info }
func (d *stub) Close(context.Context) error { return nil }

func (d *stub) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	d.mu.Lock()
	d.requests = append(d.requests, r)
	n := len(d.requests)
	d.mu.Unlock()
	if d.acquire != nil {
		return d.acquire(ctx, n, r)
	}
	return d.grant(r, time.Now()), nil
}

// grant makes a lease for a request that was sent at the given time.
func (d *stub) grant(r *driver.Request, sent time.Time) *stubLease {
	n := r.Events.Tokens()
	d.mu.Lock()
	defer d.mu.Unlock()
	l := &stubLease{stub: d, request: r, expires: sent.Add(r.TTL)}
	if d.info.Fencing != driver.None {
		l.token, l.n = d.token+1, n
		d.token += uint64(n)
	}
	return l
}

func (d *stub) RenewAll(ctx context.Context, leases []driver.Lease, done func(int, error)) {
	d.mu.Lock()
	d.batches = append(d.batches, slices.Clone(leases))
	d.mu.Unlock()
	for i, l := range leases {
		done(i, l.Renew(ctx, l.(*stubLease).request.TTL))
	}
}

func (d *stub) asked() []*driver.Request {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.requests)
}

func (d *stub) renewals() [][]driver.Lease {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.batches)
}

func (d *stub) gaveBack() []*stubLease {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.released)
}

func (l *stubLease) Tokens() (uint64, int) { return l.token, l.n }

func (l *stubLease) Expires() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.expires
}

func (l *stubLease) setExpires(t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expires = t
}

func (l *stubLease) Renew(ctx context.Context, ttl time.Duration) error {
	sent := time.Now()
	if ttl == 0 {
		l.stub.looks.Add(1)
	}
	if l.stub.renew != nil {
		if err := l.stub.renew(ctx, l); err != nil {
			return err
		}
	}
	if ttl > 0 {
		l.setExpires(sent.Add(ttl))
	}
	return nil
}

func (l *stubLease) WatchRemoval(renew func()) (stop func()) { return l.stub.watch(renew) }

func (l *stubLease) Release(ctx context.Context) error {
	l.stub.mu.Lock()
	l.stub.released = append(l.stub.released, l)
	l.freed = time.Now()
	l.stub.mu.Unlock()
	if l.stub.release != nil {
		return l.stub.release(ctx, l)
	}
	return nil
}

// unanswered blocks like a backend that does not answer and returns the error
// that a driver would return.
func unanswered(ctx context.Context) error {
	<-ctx.Done()
	return fmt.Errorf("%w: %w", driver.ErrUnknown, ctx.Err())
}

// newStub returns a client of d with a TTL of 10 s, which is closed at the end
// of the test.
func newStub(t *testing.T, d *stub) *dsync.Client {
	t.Helper()
	return newClient(t, d, &dsync.Options{TTL: 10 * time.Second})
}

func newClient(t *testing.T, d driver.Driver, o *dsync.Options) *dsync.Client {
	t.Helper()
	c, err := dsync.New(d, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return c
}

// mustLock locks, or fails the test.
func mustLock(t *testing.T, l dsync.Locker, name string, opts ...dsync.LockOption) *dsync.Lease {
	t.Helper()
	lease, err := l.Lock(t.Context(), name, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}
