package zk_test

import (
	"errors"
	"io/fs"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/zk"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestUserOverManyReconnects sends requests that bypass the library on
// connections on which the server does not know the user at first.
func TestUserOverManyReconnects(t *testing.T) {
	s := testenv.ZooKeeper(t)
	link, addr := testenv.Wire(t, s.Addr)
	user := "locker:" + testenv.Password()
	lockOverCuts(t, link, openURL(t, "zk://%s@%s/app", user, addr), openURL(t, "zk://%s@%s/app", user, s.Addr), fs.ErrPermission)
}

// lockOverCuts has clients acquire locks while the connection of the first
// client is cut repeatedly. The error never must not occur.
func lockOverCuts(t *testing.T, link *wire.Wire, cutOff, other *zk.Driver, never error) {
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
				if err == nil {
					grants.Add(1)
					err = l.Release(guard(t))
				}
				// The answer may be lost, and the node is removed in the
				// background.
				if never != nil && errors.Is(err, never) {
					t.Errorf("got error %v", err)
				}
			}
		})
	}
	for range testenv.Briefly(20, 60) {
		start := grants.Load()
		link.Cut()
		link.Heal()
		testenv.Eventually(t, func() bool { return grants.Load() > start+10 }, "locks are granted after a cut")
	}
	ended.Store(true)
	workers.Wait()
}

// TestWatchesOverManyReconnects cuts the connection repeatedly, at times when
// the library has no watch, gets its first, and has many to set again.
func TestWatchesOverManyReconnects(t *testing.T) {
	s := testenv.ZooKeeper(t)
	user := userClient(t, s.Addr)
	link, addr := testenv.Wire(t, s.Addr)
	cutOff, other := openURL(t, "zk://%s", addr), openURL(t, "zk://%s", s.Addr)
	lockOverCuts(t, link, cutOff, other, nil)

	r := request("held")
	acquire(t, cutOff, r)
	before := acquire(t, other, request("waited-for"))
	waiter := wait(t, cutOff, request("waited-for"))
	link.Cut()
	link.Heal()
	if err := user.Delete(first(t, user, "/held")[0], -1); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "loss", lostBy(t, r), driver.ErrRemoved)
	release(t, before)
	release(t, waiter.Granted(t))
}
