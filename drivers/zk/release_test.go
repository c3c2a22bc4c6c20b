package zk

import (
	"context"
	"errors"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestReleaseThatWasNeverSent has a release that finds no connection, and
// another client that removes the node. The next release must not treat this as
// the success of the first.
func TestReleaseThatWasNeverSent(t *testing.T) {
	server := testenv.ZooKeeper(t)
	d := drivertest.Open(t, "zk://"+server.Addr).(*Driver)
	h := drivertest.Acquire(t, d, drivertest.Request("a")).(*hold)
	s := h.session
	s.mu.Lock()
	h.phase = ending // as Release does; the background, which would release the hold as well, is left out
	s.fresh.Remove(h)
	s.mu.Unlock()
	s.setUp(false)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := h.release(ctx); !errors.Is(err, driver.ErrUnknown) {
		t.Fatalf("release without a connection: got %v, want %v", err, driver.ErrUnknown)
	}
	s.setUp(true)
	if _, err := receive(caller{session: s, ctx: t.Context()}, send(s, func(c *gozk.Conn) (struct{}, error) { return remove(c, h.node) })); err != nil {
		t.Fatal(err)
	}
	if err := h.release(t.Context()); err != driver.ErrNotHeld {
		t.Errorf("release of a hold that another client removed: got %v, want %v", err, driver.ErrNotHeld)
	}
	s.Leave(0)
}
