package redisson

import (
	"errors"
	"fmt"
	"testing"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// beginMove has the slot of a key be about to move: its node does not make keys any more that are missing, not for scripts either that
// have removed them. The function that it returns ends the move.
func beginMove(c *testenv.Cluster, key string) (end func()) {
	from, to := c.Owner(key), c.Nodes[0]
	if to == from {
		to = c.Nodes[1]
	}
	slot := fmt.Sprint(slotOf(key))
	to.Do("CLUSTER", "SETSLOT", slot, "IMPORTING", from.Do("CLUSTER", "MYID").(string))
	from.Do("CLUSTER", "SETSLOT", slot, "MIGRATING", to.Do("CLUSTER", "MYID").(string))
	return func() { c.MoveSlot(key, to) }
}

// afterMove takes the outcome of a waiter: it got the lock, or was told that the slot moves, and package dsync would ask again.
func (w *waiter) afterMove(tb testing.TB) {
	tb.Helper()
	<-w.done
	if w.err == nil {
		release(tb, w.lease)
	} else if !errors.Is(w.err, driver.ErrUnavailable) {
		tb.Errorf("Acquire after a wait: %v", w.err)
	}
}

// TestReleaseInASlotThatMoves: what ends a hold, or a place in a queue, runs to its end where the keys are there, also if they are not
// any more when it is done.
func TestReleaseInASlotThatMoves(t *testing.T) {
	c := testenv.RedisCluster(t, 3, 0)
	t.Run("plain", func(t *testing.T) {
		d := openURL(t, "%s", clusterURL(c))
		l := acquire(t, d, forLong("{plain}x"))
		w := wait(t, d, request("{plain}x"))
		end := beginMove(c, "{plain}x")
		release(t, l)
		end()
		w.afterMove(t)
	})
	fair := clusterURL(c) + "&fair=true"
	for _, dead := range []bool{false, true} {
		t.Run(fmt.Sprint("fair with a waiter that is dead ", dead), func(t *testing.T) {
			d := openURL(t, "%s", fair)
			name := fmt.Sprint("{fair}", dead)
			l := acquire(t, d, forLong(name))
			var w *waiter
			if dead {
				node := c.Owner(name)
				node.Do("RPUSH", prefixName(queuePrefix, name), "dead:1")
				node.Do("ZADD", prefixName(timesPrefix, name), "1", "dead:1")
			} else {
				w = wait(t, d, request(name))
			}
			end := beginMove(c, name)
			release(t, l)
			end()
			if w != nil {
				w.afterMove(t)
			}
		})
	}
	t.Run("fair, canceled waiter", func(t *testing.T) {
		d := openURL(t, "%s", fair)
		l := acquire(t, d, forLong("{leaver}x"))
		w := wait(t, d, request("{leaver}x"))
		testenv.Eventually(t, func() bool { return d.direct.busy.Load() == 0 }, "the waiter has asked again")
		end := beginMove(c, "{leaver}x")
		w.cancel()
		if <-w.done; !errors.Is(w.err, driver.ErrLocked) || errors.Is(w.err, driver.ErrUnknown) {
			t.Errorf("Acquire that is canceled: got %v, want ErrLocked", w.err)
		}
		end()
		release(t, l)
	})
	t.Run("fair, by force", func(t *testing.T) {
		d := openURL(t, "%s", fair)
		acquire(t, d, forLong("{forced}x"))
		node := c.Owner("{forced}x")
		node.Do("RPUSH", prefixName(queuePrefix, "{forced}x"), "dead:1")
		node.Do("ZADD", prefixName(timesPrefix, "{forced}x"), "1", "dead:1")
		end := beginMove(c, "{forced}x")
		if err := d.ForceUnlock(t.Context(), "{forced}x"); err != nil {
			t.Errorf("ForceUnlock: %v", err)
		}
		end()
	})
}
