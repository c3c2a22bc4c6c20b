package recipes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-dsync/dsync"
)

// AtMost runs fn, on any backend. At most n callers of AtMost with the same
// name, in all processes together, run fn at a time, because each holds one of
// n locks.
func AtMost(ctx context.Context, l dsync.Locker, name string, n int, fn func(context.Context) error) error {
	for {
		for _, slot := range rand.Perm(n) {
			ran := false
			err := dsync.TryDo(ctx, l, fmt.Sprintf("%s/%d", name, slot), func(ctx context.Context) error {
				ran = true
				return fn(ctx)
			})
			if ran || !errors.Is(err, dsync.ErrLocked) {
				return err
			}
		}
		select {
		case <-time.After(time.Second/2 + rand.N(time.Second)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
