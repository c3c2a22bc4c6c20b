package dsync_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
)

// TestRandomCalls lets callers of two clients lock one name in every way at
// random times. Some of them share an owner. Each call ends with a lease, or
// when its context does, and no call leaves anything behind.
func TestRandomCalls(t *testing.T) {
	for seed := range uint64(20) {
		forOrders(t, func(t *testing.T, a, b *dsync.Client) {
			var wg sync.WaitGroup
			for _, c := range []*dsync.Client{a, b} {
				owner := c.NewOwner()
				for i := range uint64(6) {
					r := rand.New(rand.NewPCG(seed, i))
					var l dsync.Locker = c
					if i%2 == 0 {
						l = owner
					}
					wg.Go(func() { callAtRandom(t, r, l) })
				}
			}
			wg.Wait()
			time.Sleep(time.Minute)
			synctest.Wait()
			if n, m := dsync.KnownNames(a), dsync.KnownNames(b); n+m > 0 {
				t.Errorf("the clients know %d and %d names", n, m)
			}
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		})
	}
}

func callAtRandom(t *testing.T, r *rand.Rand, l dsync.Locker) {
	for range 30 {
		wait, lock := time.Hour, l.Lock // an hour is forever
		var opts []dsync.LockOption
		switch r.IntN(5) {
		case 0:
			wait = time.Duration(r.Int64N(int64(3 * time.Millisecond)))
		case 1:
			lock = l.TryLock
		case 2:
			opts = append(opts, dsync.ExpireAfter(time.Second))
		}
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		lease, err := lock(ctx, "x", opts...)
		cancel()
		gaveUp := wait < time.Hour && errors.Is(err, context.DeadlineExceeded)
		refused := errors.Is(err, dsync.ErrLocked) && !errors.Is(err, context.DeadlineExceeded) // TryLock
		if err == nil {
			time.Sleep(time.Duration(r.IntN(2)) * time.Millisecond)
			err = lease.Unlock(t.Context())
		}
		if err != nil && !gaveUp && !refused {
			t.Error(err)
		}
		time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
	}
}
