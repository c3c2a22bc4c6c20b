package testenv

import (
	"testing"
	"time"
)

// Eventually waits until cond holds, and fails the test with what if that does not happen within a time that only a hang takes. It
// is for the state of a server that tells nobody when it changes.
func Eventually(tb testing.TB, cond func() bool, what string) {
	tb.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(hangGuard); !cond(); <-tick.C {
		if time.Now().After(end) {
			tb.Fatalf("not within %v: %s", hangGuard, what)
		}
	}
}
