package etcd

import (
	"context"
	"errors"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// Leave implements driver.Leaver: the last renewal of a hold with an expiry of its own, repeated like a release. Each lease that carries the
// key from then on, or may carry it, is left to run out.
func (d *Driver) Leave(ctx context.Context, granted driver.Lease, ttl time.Duration) error {
	h := granted.(*hold)
	err := h.Renew(ctx, ttl)
	for wait := firstRelease; transient(err) && d.now() < h.expires() && d.life.Sleep(ctx, wait); wait = min(2*wait, lastRelease) {
		err = h.Renew(ctx, ttl)
	}
	h.mu.Lock()
	listed := h.phase == held
	h.phase = over
	h.mu.Unlock()
	h.own.mu.Lock()
	h.own.ended = true
	h.own.mu.Unlock()
	if listed {
		h.unlist()
	}
	return err
}

func transient(err error) bool {
	return errors.Is(err, driver.ErrUnknown) || errors.Is(err, driver.ErrUnavailable)
}
