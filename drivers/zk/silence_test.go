package zk_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/drivers/zk"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestCallsOfASilentServer: calls that gave up before a silent server has answered keep no more goroutines than a bound, and leave nothing
// when it answers again.
func TestCallsOfASilentServer(t *testing.T) {
	const callers, rounds = 100, 12
	s := testenv.ZooKeeper(t)
	c := userClient(t, s.Addr)
	proxy := testenv.NewProxy(t, s.Addr)
	d := openURL(t, "zk://%s", proxy.Addr)
	release(t, acquire(t, d, request("x")))
	proxy.Freeze(testenv.Both)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for j := range rounds {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				_, err := d.Acquire(ctx, request(fmt.Sprintf("x%d-%d", i, j)))
				cancel()
				if err == nil {
					t.Error("granted by a silent server")
				}
			}
		})
	}
	all.Wait()
	if got, want := d.Underway(), zk.MaxUnderway+callers; got > want {
		t.Errorf("requests under way after %d calls that gave up: got %d, want at most %d", callers*rounds, got, want)
	}
	proxy.Thaw(testenv.Both)
	release(t, acquire(t, d, request("x")))
	testenv.Eventually(t, func() bool { return d.Underway() == 0 && len(children(t, c, "/")) == 1 }, "nothing is left of the calls")
}
