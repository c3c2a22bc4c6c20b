package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync"
)

// The price list has two prices, which change together. A Java thread writes it
// under the write lock of Redisson's RReadWriteLock, and goroutines read it
// under dsync.Read.
const (
	pricesName       = "shop:prices"
	netKey, grossKey = "shop:net", "shop:gross"
	changes          = 40
	lookers          = 3
)

// look contains the totals over all reads of the price list.
type look struct{ changes, reads, torn int64 }

// showPrices makes goroutines read the list while a Java thread changes it.
// If there is no lock name, they use no lock.
func (s *shop) showPrices(ctx context.Context, lock string, out io.Writer, title string) (look, error) {
	for _, key := range []string{netKey, grossKey} {
		if err := s.redis.Do(ctx, s.redis.B().Set().Key(key).Value("0").Build()).Error(); err != nil {
			return look{}, err
		}
	}
	var reads, torn atomic.Int64
	var done atomic.Bool
	errs := make([]error, lookers+1)
	var wg sync.WaitGroup
	for i := range lookers {
		wg.Go(func() {
			for !done.Load() && errs[i] == nil {
				var whole bool
				if whole, errs[i] = s.readPrices(ctx, lock); !whole {
					torn.Add(1)
				}
				reads.Add(1)
				// Redisson lets readers overtake its writers, so readers must
				// pause
				time.Sleep(moment + rand.N(2*moment))
			}
		})
	}
	_, errs[lookers] = s.java.call("prices", "reprice", lock, netKey, grossKey, strconv.Itoa(changes), strconv.FormatInt(moment.Milliseconds(), 10))
	done.Store(true)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return look{}, err
	}
	price, err := s.redis.Do(ctx, s.redis.B().Get().Key(grossKey).Build()).AsInt64()
	result := look{price, reads.Load(), torn.Load()}
	if err == nil {
		fmt.Fprintf(out, "%s: changes=%d reads=%d torn=%d\n", title, result.changes, result.reads, result.torn)
	}
	return result, err
}

// readPrices reports whether the two prices belong to the same list.
func (s *shop) readPrices(ctx context.Context, lock string) (whole bool, err error) {
	if lock != "" {
		lease, err := s.client.Lock(ctx, lock, dsync.Read())
		if err != nil {
			return false, err
		}
		defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
	}
	a, err1 := s.redis.Do(ctx, s.redis.B().Get().Key(netKey).Build()).AsInt64()
	b, err2 := s.redis.Do(ctx, s.redis.B().Get().Key(grossKey).Build()).AsInt64()
	return a == b, errors.Join(err1, err2)
}
