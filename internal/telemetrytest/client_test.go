package telemetrytest_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

// newClient returns a client that is closed when the test ends.
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
