package redisson

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

// TestDroppedRequestIsNotUnderWay: a request whose caller left before it was
// sent does not count as in progress, which would close the direct way
// permanently.
func TestDroppedRequestIsNotUnderWay(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	release(t, acquire(t, d, request("x")))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.Freeze()
	var callers sync.WaitGroup
	waits := func() bool { // for a sender: all have requests in progress
		d.sender.mu.Lock()
		defer d.sender.mu.Unlock()
		return len(d.sender.queue) > 0 && d.sender.busy == maxSenders
	}
	const most = 2 * maxSenders * maxOps
	for i := 0; i < most && !waits(); i++ {
		callers.Go(func() { _, _ = d.Acquire(ctx, request(fmt.Sprint("x", i))) })
		testenv.Eventually(t, func() bool { return d.direct.busy.Load() == int32(i+1) }, "the request is under way")
	}
	if !waits() {
		t.Fatalf("of %d requests to a frozen server none waits", most)
	}
	cancel()
	callers.Wait()
	s.Thaw()
	testenv.Eventually(t, func() bool { return d.direct.busy.Load() == 0 }, "no request is under way")
}
