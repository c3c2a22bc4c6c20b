package redisson

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// beginMove prepares the move of a key's slot: its node no longer creates
// missing keys, not even for scripts that have removed them. The function that
// it returns ends the move.
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

// TestReleaseInASlotThatMoves: a request that ends a hold, or a place in a
// queue, completes if the keys are there at its start, even if it removes them.
func TestReleaseInASlotThatMoves(t *testing.T) {
	t.Parallel()
	c := testenv.RedisCluster(t, 3, 0)
	t.Run("plain", func(t *testing.T) {
		d := openURL(t, "%s", clusterURL(c))
		l := acquire(t, d, forLong("{plain}x"))
		w := wait(t, d, request("{plain}x"))
		end := beginMove(c, "{plain}x")
		release(t, l)
		end()
		release(t, w.granted(t))
	})
	t.Run("permits", func(t *testing.T) {
		d := openURL(t, "%s", clusterURL(c))
		const name = "{permits}x"
		l := acquire(t, d, permits(2, 3, forLong(name)))
		node := c.Owner(name)
		node.Do("ZADD", endsKey(name), "1", "that of the dead") // and has expired
		node.Do("DECR", name)
		w := wait(t, d, permits(3, 3, request(name)))
		end := beginMove(c, name)
		release(t, acquire(t, d, permits(1, 3, request(name))))
		release(t, l)
		end()
		release(t, w.granted(t))
		release(t, acquire(t, d, permits(3, 3, noWait(name))))
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
				release(t, w.granted(t))
			}
		})
	}
	t.Run("fair, canceled waiter", func(t *testing.T) {
		d := openURL(t, "%s", fair)
		l := acquire(t, d, forLong("{leaver}x"))
		node := c.Owner("{leaver}x")
		before := node.Commands()["evalsha"]
		w := wait(t, d, request("{leaver}x"))
		testenv.Eventually(t, func() bool { return node.Commands()["evalsha"] == before+2 && d.direct.busy.Load() == 0 },
			"the waiter has sent two requests and received the answers")
		end := beginMove(c, "{leaver}x")
		w.cancel()
		if <-w.done; !errors.Is(w.err, driver.ErrLocked) || errors.Is(w.err, driver.ErrUnknown) {
			t.Errorf("canceled Acquire: got %v, want ErrLocked", w.err)
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

// tryAgains returns how often a server reported a moving slot.
func tryAgains(s *testenv.RedisServer) int {
	n := 0
	for _, line := range strings.Split(s.Do("INFO", "errorstats").(string), "\r\n") {
		if count, is := strings.CutPrefix(line, "errorstat_TRYAGAIN:count="); is {
			n, _ = strconv.Atoi(count)
		}
	}
	return n
}

// TestWaitersStayInASlotThatMoves: waiters whose request fails because the slot
// moves continue to wait, and keep their places in a queue.
func TestWaitersStayInASlotThatMoves(t *testing.T) {
	t.Parallel()
	c := testenv.RedisCluster(t, 3, 0)
	for kind, n := range map[string]int{"plain": 1, "fair": 3} {
		t.Run(kind, func(t *testing.T) {
			d := openURL(t, "%s&fair=%t", clusterURL(c), kind == "fair")
			name := "{" + kind + "}stays"
			other := openURL(t, "%s&fair=%t", clusterURL(c), kind == "fair") // whose release cannot hand the lock over
			held := acquire(t, other, forLong(name))
			waiters := make([]*waiter, n)
			for i := range waiters {
				waiters[i] = wait(t, d, forLong(name))
			}
			node := c.Owner(name)
			end, before := beginMove(c, name), tryAgains(node)
			release(t, held)
			testenv.Eventually(t, func() bool { return tryAgains(node) >= before+2 }, "a waiter was notified twice that the slot moves")
			end()
			for _, w := range waiters {
				release(t, w.granted(t))
			}
		})
	}
}
