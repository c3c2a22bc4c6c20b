package redisson

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
)

// The clients are closed at a random moment of what their callers do: asking, being granted, releasing, giving up.
func TestClientCloseAmidstRequestsLeavesNothingLocked(t *testing.T) {
	s := testenv.Redis(t)
	const rounds, clients, callers = 40, 4, 25
	for round := range rounds {
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range clients {
			c := client(t, s, "")
			all.Go(func() { contendAndClose(t, ctx, c, callers) })
		}
		// Any moment will do, so there is no event to wait for.
		time.Sleep(time.Duration(rand.Int64N(int64(30 * time.Millisecond))))
		cancel()
		all.Wait()
		if keys := keysOf(s); len(keys) > 0 {
			t.Fatalf("round %d: keys left: %q, of the hold %v", round, keys, s.Do("HGETALL", keys[0]))
		}
	}
}

// contendAndClose has the callers hold one lock in turn until ctx ends, and then closes the client.
func contendAndClose(t *testing.T, ctx context.Context, c *dsync.Client, callers int) {
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			err := dsync.Do(ctx, c, "x", func(ctx context.Context) error {
				select {
				case <-time.After(5 * time.Millisecond):
				case <-ctx.Done():
				}
				return ctx.Err()
			})
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("Do: %v", err)
			}
		})
	}
	wg.Wait()
	if err := c.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
}
