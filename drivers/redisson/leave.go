package redisson

import (
	"context"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// Leave implements driver.Leaver.
func (d *Driver) Leave(ctx context.Context, granted driver.Lease, ttl time.Duration) error {
	return d.life.Abandon(ctx, granted.(*lease), ttl)
}
