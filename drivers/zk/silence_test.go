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

// TestTriesOfASilentServer checks that 1,000 tries that give up while a server
// is silent keep no more goroutines than a limit, and leave nothing when the
// server answers again.
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

// TestWaitsOfASilentServer checks that a wait ends with its context, even if
// the server does not answer the request to leave the queue.
func TestWaitsOfASilentServer(t *testing.T) {
	const bound, late = 100 * time.Millisecond, 400 * time.Millisecond
	s := testenv.ZooKeeper(t)
	link, addr := testenv.Wire(t, s.Addr)
	d, other := openURL(t, "zk://%s", addr), openURL(t, "zk://%s", s.Addr)
	c := userClient(t, s.Addr)
	permit := func(r *driver.Request) *driver.Request {
		r.Mode, r.Permits, r.Limit = driver.Permit, 1, 1
		return r
	}
	acquire(t, other, request("x"))
	acquire(t, other, permit(request("p")))
	for what, r := range map[string]func() *driver.Request{
		"lock":   func() *driver.Request { return request("x") },
		"permit": func() *driver.Request { return permit(request("p")) },
	} {
		least := time.Hour
		for range 5 { // on a busy machine one of them may take longer
			ctx, cancel := context.WithCancel(t.Context())
			request := r()
			ended := make(chan error, 1)
			go func() { // ends when ctx ends
				_, err := d.Acquire(ctx, request)
				ended <- err
			}()
			testenv.Eventually(t, func() bool { return len(contenders(t, c, "/x"))+len(children(t, c, "/p/locks")) == 2 }, "the client waits")
			link.Hold(wire.Both)
			timer := time.AfterFunc(bound, cancel)
			<-ctx.Done()
			start := time.Now()
			wantErr(t, what, <-ended, driver.ErrUnknown, context.Canceled)
			least = min(least, time.Since(start))
			timer.Stop()
			link.Heal()
			testenv.Eventually(t, func() bool { return len(contenders(t, c, "/x")) == 1 && len(children(t, c, "/p/locks")) == 0 }, "nothing is left of the wait")
		}
		if least > late {
			t.Errorf("%s: the calls outlast their contexts by at least %v, want less than %v", what, least, late)
		}
	}
}
