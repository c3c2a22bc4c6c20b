package redisson

import (
	"context"
	"errors"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// Leave implements driver.Leaver: the last renewal of a lease, which the driver then forgets. The renewal is repeated like a release.
func (d *Driver) Leave(ctx context.Context, granted driver.Lease, ttl time.Duration) error {
	l := granted.(*lease)
	d.beginRelease(l)
	defer d.life.Leave()
	err := l.Renew(ctx, ttl)
	for wait := firstRetry; transient(err) && d.life.Sleep(ctx, wait); wait = min(2*wait, lastRetry) {
		err = l.Renew(ctx, ttl)
	}
	l.mu.Lock()
	l.phase = over
	l.mu.Unlock()
	return err
}

func transient(err error) bool {
	return errors.Is(err, driver.ErrUnknown) || errors.Is(err, driver.ErrUnavailable)
}
