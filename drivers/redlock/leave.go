package redlock

import (
	"context"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// Leave implements driver.Leaver: the last renewal of a lease, which the driver then forgets.
func (d *Driver) Leave(ctx context.Context, granted driver.Lease, ttl time.Duration) error {
	l := granted.(*lease)
	err := l.Renew(ctx, ttl)
	l.mu.Lock()
	l.phase = over
	l.mu.Unlock()
	d.forget(l)
	return err
}
