package recipes

import (
	"context"

	"github.com/go-dsync/dsync"
)

// Results is where results stay: a table, or a cache.
type Results interface {
	Load(ctx context.Context, key string) (result string, ok bool, err error)
	Store(ctx context.Context, key, result string, token uint64) error
}

// Idempotent does the work for a key once, and gives its result to all who ask: to a client that repeats its request with the same
// Idempotency-Key, or to processes that want the same page at the same moment (singleflight).
func Idempotent(ctx context.Context, l dsync.Locker, r Results, key string,
	work func(context.Context) (string, error), opts ...dsync.LockOption) (result string, err error) {
	result, ok, err := r.Load(ctx, key)
	if ok || err != nil {
		return result, err // most calls end here, without a lock
	}
	err = dsync.Do(ctx, l, "once/"+key, func(ctx context.Context) (err error) {
		if result, ok, err = r.Load(ctx, key); ok || err != nil {
			return err // somebody else was faster
		}
		if result, err = work(ctx); err != nil {
			return err
		}
		return r.Store(ctx, key, result, dsync.LeaseFrom(ctx).Token())
	}, opts...)
	return result, err
}
