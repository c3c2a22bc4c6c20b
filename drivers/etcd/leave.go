package etcd

import (
	"context"
	"errors"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// Leave implements driver.Leaver: the last renewal of a hold with an expiry of its own, repeated like a release. Each lease that carries the
// key from then on, or may carry it, is left to run out.
//
// Close waits for a Leave under way and does not end its hold. The hold leaves
// the driver's list first, so Close spares it even if Close gives up waiting.
func (d *Driver) Leave(ctx context.Context, granted driver.Lease, ttl time.Duration) error {
	h := granted.(*hold)
	d.life.EnterLate()
	defer d.life.Leave()
	h.unlist()
	err := h.Renew(ctx, ttl)
	for wait := firstRelease; transient(err) && d.now() < h.expires() && d.life.Sleep(ctx, wait); wait = min(2*wait, lastRelease) {
		err = h.Renew(ctx, ttl)
	}
	h.mu.Lock()
	h.phase = over
	h.mu.Unlock()
	h.own.mu.Lock()
	h.own.ended = true
	h.own.mu.Unlock()
	return err
}

func transient(err error) bool {
	return errors.Is(err, driver.ErrUnknown) || errors.Is(err, driver.ErrUnavailable)
}
