package recipes

import (
	"context"
	"time"

	"github.com/go-dsync/dsync"
)

// The code of dsync in docs/coming-from.md.

func scoped(ctx context.Context, client *dsync.Client) error {
	return dsync.Do(ctx, client, "orders/42", func(ctx context.Context) error {
		return pack(ctx, dsync.LeaseFrom(ctx).Token()) // ctx ends when the lock is lost
	}, dsync.WaitAtMost(10*time.Second))
}

func byHand(ctx context.Context, client *dsync.Client) error {
	lease, err := client.Lock(ctx, "orders/42", dsync.WaitAtMost(10*time.Second))
	if err != nil {
		return err // ErrLocked: another owner held it until the end of the wait
	}
	defer lease.Unlock(ctx) // also if ctx has ended
	under, cancel := lease.Context(ctx)
	defer cancel()
	return pack(under, lease.Token())
}

var _ = []any{scoped, byHand}

func pack(context.Context, uint64) error { return nil }
