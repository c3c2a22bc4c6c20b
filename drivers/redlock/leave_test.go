package redlock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestCloseDuringLeaveKeepsTheName closes the driver while the requests of
// Leave are on their way.
func TestCloseDuringLeaveKeepsTheName(t *testing.T) {
	nodes := startNodes(t, 3)
	link, slow := nodes.through(t)
	other := openURL(t, "%s", nodes.url()+settled)
	d, err := tryOpen(slow + settled)
	if err != nil {
		t.Fatal(err)
	}
	r := request("x")
	r.Fixed = true
	l := acquire(t, d, r)
	link.Hold(wire.Requests)
	left := make(chan error, 1)
	go func() { left <- d.Leave(t.Context(), l, testTTL) }()
	testenv.Eventually(t, func() bool {
		return !slices.ContainsFunc(d.nodes, func(n *node) bool { return n.flight.Load() == 0 })
	}, "the requests are on their way")
	time.AfterFunc(50*time.Millisecond, link.Heal)
	if err := d.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := <-left; err != nil {
		t.Errorf("Leave: %v, want nil", err)
	}
	if _, err := other.Acquire(t.Context(), noWait("x")); !errors.Is(err, driver.ErrLocked) {
		t.Errorf("Acquire of another client: %v, want ErrLocked", err)
	}
}

// TestCloseBesideUnlockKeepsTheName closes clients at some moment during an
// Unlock with HoldAtLeast.
func TestCloseBesideUnlockKeepsTheName(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, 3)
	other := openURL(t, "%s", nodes.url()+settled)
	for i := range 20 {
		c, err := dsync.Open(t.Context(), nodes.url()+settled, nil)
		if err != nil {
			t.Fatal(err)
		}
		lease, err := c.Lock(t.Context(), "x", dsync.ExpireAfter(testTTL), dsync.HoldAtLeast(testTTL))
		if err != nil {
			t.Fatal(err)
		}
		unlocked := make(chan error, 1)
		go func() { unlocked <- lease.Unlock(t.Context()) }()
		time.Sleep(time.Duration(i) * 50 * time.Microsecond)
		if err := c.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := <-unlocked; err != nil && !errors.Is(err, dsync.ErrUnknown) && !errors.Is(err, dsync.ErrClosed) {
			t.Errorf("Unlock: %v", err)
		}
		if _, err := other.Acquire(t.Context(), noWait("x")); !errors.Is(err, driver.ErrLocked) {
			t.Errorf("Acquire of another client: %v, want ErrLocked", err)
		}
		nodes.do("DEL", "x")
	}
}

// TestCloseSaysWhatIsLeft closes clients whose nodes are frozen.
func TestCloseSaysWhatIsLeft(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		nodes := startNodes(t, n)
		c, err := dsync.Open(t.Context(), nodes.url()+settled, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Lock(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		for _, node := range nodes {
			node.Freeze()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err = c.Close(ctx)
		cancel()
		for _, node := range nodes {
			node.Thaw()
		}
		if !errors.Is(err, dsync.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "left behind") {
			t.Errorf("%d nodes: Close: %v, want ErrUnknown, the deadline, and what is left", n, err)
		}
	}
}

// TestNodesWithoutACommand: nodes without EVALSHA grant nothing on one server.
// On several nodes a value stays until its TTL.
func TestNodesWithoutACommand(t *testing.T) {
	for _, n := range []int{1, 3} {
		c, err := dsync.Open(t.Context(), startNodes(t, n, "--rename-command", "EVALSHA", "").url()+settled, nil)
		if err != nil {
			t.Fatal(err)
		}
		l, err := c.TryLock(t.Context(), "x")
		if err == nil {
			err = l.Unlock(t.Context())
		}
		if err == nil || n == 1 && !strings.HasSuffix(err.Error(), "does not know the command EVALSHA") {
			t.Errorf("%d nodes: %v, want an error that the command is missing", n, err)
		}
		begun := time.Now()
		if err := c.Close(t.Context()); err != nil || time.Since(begun) > 4*time.Second {
			t.Errorf("%d nodes: Close: %v after %v, want nil immediately", n, err, time.Since(begun))
		}
	}
}

// TestKeyThatSomebodyOverwrote: the holder of a lock whose key is overwritten
// by hand has lost it, and a waiter is granted the lock when the key is
// removed.
func TestKeyThatSomebodyOverwrote(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		for _, write := range [][]string{{"SET", "x", "other"}, {"EVAL", "redis.call('DEL', KEYS[1]) return redis.call('HSET', KEYS[1], 'a', 'b')", "1", "x"}} {
			for _, opts := range [][]dsync.LockOption{nil, {dsync.ExpireAfter(20 * time.Second)}} {
				nodes := startNodes(t, n)
				c, err := dsync.Open(t.Context(), nodes.url()+settled, nil)
				if err != nil {
					t.Fatal(err)
				}
				l, err := c.Lock(t.Context(), "x", opts...)
				if err != nil {
					t.Fatal(err)
				}
				w := drivertest.Wait(t, openURL(t, "%s", nodes.url()+settled), drivertest.Request("x"))
				nodes.do(write...)
				if err := l.Unlock(t.Context()); !errors.Is(err, dsync.ErrNotHeld) || errors.Is(err, dsync.ErrUnknown) {
					t.Errorf("%d nodes, %v: Unlock: %v, want ErrNotHeld", n, write, err)
				}
				begun := time.Now()
				if err := c.Close(t.Context()); err != nil || time.Since(begun) > 4*time.Second {
					t.Errorf("%d nodes, %v: Close: %v after %v, want nil immediately", n, write, err, time.Since(begun))
				}
				if !w.Waits() {
					t.Errorf("%d nodes, %v: the waiter does not wait", n, write)
				}
				nodes.do("DEL", "x")
				release(t, w.Granted(t))
			}
		}
	}
}
