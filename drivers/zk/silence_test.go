package zk_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/zk"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestTriesOfASilentServer: 1,000 tries that give up while a server is silent keep no more goroutines than a bound, and leave nothing when
// the server answers again.
func TestTriesOfASilentServer(t *testing.T) {
	const callers, rounds = 50, 20
	s := testenv.ZooKeeper(t, "maxSessionTimeout=600000") // so that the session lasts
	c := userClient(t, s.Addr)
	link, addr := testenv.Wire(t, s.Addr)
	d := openURL(t, "zk://%s?ttl=10m", addr)
	try := func(ctx context.Context, name string) (driver.Lease, error) {
		return d.Acquire(ctx, withTTL(noWait(name), 10*time.Minute))
	}
	l, err := try(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	release(t, l)
	link.Hold(wire.Both)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for j := range rounds {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
				_, err := try(ctx, fmt.Sprintf("x%d-%d", i, j))
				cancel()
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a try of a silent server: got %v, want %v", err, context.DeadlineExceeded)
				}
			}
		})
	}
	all.Wait()
	if got, want := d.Underway(), zk.MaxUnderway+callers; got > want {
		t.Errorf("requests under way after %d tries that gave up: got %d, want at most %d", callers*rounds, got, want)
	}
	link.Heal()
	if l, err = try(guard(t), "x"); err != nil {
		t.Fatal(err)
	}
	release(t, l)
	testenv.Eventually(t, func() bool { return d.Underway() == 0 && len(children(t, c, "/")) == 1 }, "nothing is left of the tries")
}
