package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/go-dsync/dsync"
)

// lockName is the name of the lock. The part before the slash is its class.
const lockName = "coupons/summer"

// shop sells coupons.
type shop struct {
	locker             dsync.Locker
	left               int // guarded by the lock
	moment, slowMoment time.Duration
}

// buy makes one purchase in its own span. The spans of the lock become its
// children automatically, because they are created from its context.
func (s *shop) buy(ctx context.Context, buyer int) (sold bool, err error) {
	ctx, span := otel.Tracer("shop").Start(ctx, "purchase", trace.WithAttributes(attribute.Int("shop.buyer", buyer)))
	defer span.End()
	err = dsync.Do(ctx, s.locker, lockName, func(ctx context.Context) error {
		moment := s.moment
		if buyer == 0 {
			moment = s.slowMoment
		}
		select {
		case <-time.After(moment):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if sold = s.left > 0; sold {
			s.left--
		}
		return nil
	})
	span.SetAttributes(attribute.Bool("shop.sold", sold))
	return sold, err
}

// serve lets all buyers in together and returns the number of buyers that got a
// coupon.
func (s *shop) serve(ctx context.Context, buyers int) (sold int, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for buyer := range buyers {
		wg.Go(func() { // ends when its purchase ends
			got, e := s.buy(ctx, buyer)
			mu.Lock()
			defer mu.Unlock()
			if err = errors.Join(err, e); got {
				sold++
			}
		})
	}
	wg.Wait()
	return sold, err
}
