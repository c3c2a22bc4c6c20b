package zk_test

import (
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestWatchesOverManyReconnects cuts the connection again and again, at times when the library has no watch, gets its first, and has many
// to set anew.
func TestWatchesOverManyReconnects(t *testing.T) {
	s := testenv.ZooKeeper(t)
	user := userClient(t, s.Addr)
	wire := new(conformance.Wire)
	t.Cleanup(wire.Close)
	addr, err := wire.Listen("tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	cutOff, other := openURL(t, "zk://%s", addr), openURL(t, "zk://%s", s.Addr)
	cutOff.CheckAfter(0)
	other.CheckAfter(0)
	var grants atomic.Int64
	var ended atomic.Bool
	var workers sync.WaitGroup
	for i := range 6 {
		d := cutOff
		if i%3 == 2 {
			d = other
		}
		name := "a" + strconv.Itoa(i%2)
		workers.Go(func() {
			for !ended.Load() {
				l, err := d.Acquire(guard(t), request(name))
				if err != nil {
					continue // the answer was lost, and the node is removed in the background
				}
				grants.Add(1)
				l.Release(guard(t)) // as may be what came of this
			}
		})
	}
	for range 60 {
		start := grants.Load()
		wire.Cut()
		testenv.Eventually(t, func() bool { return grants.Load() > start+10 }, "locks are granted after a cut")
	}
	ended.Store(true)
	workers.Wait()

	r := request("held")
	acquire(t, cutOff, r)
	before := acquire(t, other, request("waited-for"))
	w := wait(t, cutOff, request("waited-for"))
	wire.Cut()
	if err := user.Delete("/held/"+first(t, user, "/held")[0], -1); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "loss", lostBy(t, r), driver.ErrRemoved)
	release(t, before)
	release(t, w.Granted(t))
}
