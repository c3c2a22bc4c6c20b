package redlock

import (
	"context"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// Leave implements driver.Leaver. It renews the lease for the last time. The
// driver forgets the lease before the request, so Close waits for Leave and
// does not end the hold.
func (d *Driver) Leave(ctx context.Context, granted driver.Lease, ttl time.Duration) error {
	l := granted.(*lease)
	d.beginRelease(l)
	defer d.life.Leave()
	err := l.Renew(ctx, ttl)
	l.mu.Lock()
	l.phase = over
	l.mu.Unlock()
	return err
}
