package bench

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"
)

const (
	retryAfter     = time.Millisecond       // of those that poll for want of anything better
	redislockPause = 100 * time.Millisecond // of the example in its README
)

var errLost = errors.New("the lock was not held any more")

// pause waits for d, or until ctx is done.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// newID returns an identity of 16 digits.
func newID() string {
	return strconv.FormatUint(rand.Uint64()|1<<63, 16)
}

// Until quiet, a process has work left that it does once, some of it when a hold has some age.
const (
	quietAfter = time.Second
	quietFor   = 250 * time.Millisecond
	quietMost  = 16 // times quietFor, for those who are never quiet: less than heldTTL
)

// settle waits until this process uses next to no CPU, or for as long as that may take.
func settle(ctx context.Context) error {
	if err := pause(ctx, quietAfter); err != nil {
		return err
	}
	for range quietMost {
		before := cpuTime()
		if err := pause(ctx, quietFor); err != nil {
			return err
		}
		if cpuTime()-before < quietFor/25 {
			return nil
		}
	}
	return nil
}
