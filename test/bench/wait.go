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
