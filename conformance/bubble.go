package conformance

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// bubbleFor is how long a check in fake time may take in real time. A check there never waits in real time, and takes a second or two.
const bubbleFor = 3 * time.Minute

// runInBubble runs a check in a bubble of testing/synctest. If the check leaves goroutines behind, the result is an error, and not the end
// of the process. A bubble that hangs in real time, since a goroutine waits for a mutex or never stops to run, is abandoned.
func runInBubble(t *testing.T, run func(tb testing.TB) result) result {
	return runInBubbleFor(t, bubbleFor, run)
}

func runInBubbleFor(t *testing.T, limit time.Duration, run func(tb testing.TB) result) result {
	var r result
	ended := make(chan error, 1)
	go func() { // ends with the bubble
		var err error
		defer func() { ended <- err }() // also when the goroutine exits, since the test in the bubble has failed
		err = inBubble(t, func(t *testing.T) { r = run(t) })
	}()
	hangs := time.NewTimer(limit)
	defer hangs.Stop()
	select {
	case err := <-ended:
		if err != nil && r.err == nil {
			r = result{err: err, events: r.events}
		}
		return r
	case <-hangs.C:
		return result{err: fmt.Errorf("still not done after %v in real time, for which fake time may have stood still: "+
			"a goroutine waits for what synctest does not know of, such as a mutex, or is never done. Goroutines in bubbles:\n%s",
			limit, stacks(func(header string) bool {
				return strings.Contains(header, "synctest bubble") && !strings.Contains(header, "durable")
			}))}
	}
}

// inBubble runs f in a bubble.
func inBubble(t *testing.T, f func(t *testing.T)) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = leftBehind(p)
		}
	}()
	synctest.Test(t, f)
	return nil
}
