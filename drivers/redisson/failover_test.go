package redisson

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
)

// In these tests servers fail while many callers acquire locks. The results of
// the calls are judged together: whether two callers believed that they held a
// lock at the same time, whether a caller waited forever, and whether an error
// was not a dsync error.

func sentinelURL(s *testenv.Sentinel) string {
	return fmt.Sprintf("redisson://%s?mode=sentinel&master=%s", strings.Join(s.SentinelAddrs(), ","), s.Master)
}

// someNames returns names such that each master of a cluster has at least two.
func someNames(c *testenv.Cluster) []string {
	var names []string
	has := make(map[*testenv.RedisServer]int)
	for i := 0; len(names) < 6; i++ {
		name := fmt.Sprint("load", i)
		if owner := c.Owner(name); has[owner] < 2 {
			has[owner]++
			names = append(names, name)
		}
	}
	return names
}

// masterIn reports whether a server other than not accepts writes to the slot
// of a name.
func masterIn(c *testenv.Cluster, name string, not *testenv.RedisServer) func() bool {
	return func() bool {
		i := slices.IndexFunc(c.Nodes, func(node *testenv.RedisServer) bool {
			if node == not {
				return false
			}
			role, err := node.Try("ROLE")
			if err != nil || role.([]any)[0] != "master" {
				return false
			}
			_, err = node.Try("SET", "{"+name+"}probe", "1", "PX", "1")
			return err == nil
		})
		return i >= 0
	}
}

func TestClusterUnderLoad(t *testing.T) {
	t.Parallel()
	c := testenv.RedisCluster(t, 3, 1)
	names := someNames(c)
	t.Run("slots move", func(t *testing.T) {
		l := startLoad(t, clusterURL(c), append([]string{"{move}a", "{move}b"}, names...)...)
		for range 3 {
			l.disturb(t, "a slot moves", func() { moveSlot(t, c, "{move}a") })
		}
		l.judge(t, 0)
	})
	t.Run("subscriptions are cut", func(t *testing.T) {
		l := startLoad(t, clusterURL(c), names...)
		for range 5 {
			l.disturb(t, "subscriptions are cut", func() {
				for _, node := range c.Nodes {
					node.Do("CLIENT", "KILL", "TYPE", "pubsub")
				}
			})
		}
		l.judge(t, 0)
	})
	t.Run("a master is frozen, and answers when it is no longer a master", func(t *testing.T) {
		l := startLoad(t, clusterURL(c), names...)
		old := c.Owner(names[0])
		l.disturb(t, "freeze", func() {
			old.Freeze()
			testenv.Eventually(t, masterIn(c, names[0], old), "a replica takes over")
			old.Thaw()
		})
		l.judge(t, detectLoss)
	})
	t.Run("a master is killed", func(t *testing.T) {
		l := startLoad(t, clusterURL(c), names...)
		old := c.Owner(names[1])
		l.disturb(t, "kill", func() {
			old.Kill()
			testenv.Eventually(t, masterIn(c, names[1], old), "a replica takes over")
		})
		old.Start()
		l.judge(t, detectLoss)
	})
}

// moveSlot moves the slot of a name to another master.
func moveSlot(t *testing.T, c *testenv.Cluster, name string) {
	t.Helper()
	from := c.Owner(name)
	to := c.Owner("other") // at least one of the three is not from
	for i := 0; to == from; i++ {
		to = c.Owner(fmt.Sprint("other", i))
	}
	c.MoveSlot(name, to)
}

// TestClusterUnderLoadReplicated puts a cluster under a load whose grants a
// replica must confirm. If the only replica takes over, nothing may be lost, so
// no holder may ever lose its lock.
func TestClusterUnderLoadReplicated(t *testing.T) {
	t.Parallel()
	c := testenv.RedisCluster(t, 3, 1)
	names := someNames(c)
	l := startLoad(t, clusterURL(c)+"&waitreplicas=1", names...)
	old := c.Owner(names[0])
	l.disturb(t, "kill", func() {
		old.Kill()
		testenv.Eventually(t, masterIn(c, names[0], old), "a replica takes over")
		old.Start() // as a replica: without one there would be no grants
	})
	next := c.Owner(names[0])
	l.disturb(t, "freeze", func() {
		next.Freeze()
		testenv.Eventually(t, masterIn(c, names[0], next), "a replica takes over")
		next.Thaw()
	})
	l.judge(t, 0)
}

func TestSentinelUnderLoad(t *testing.T) {
	t.Parallel()
	s := testenv.RedisSentinel(t, 1)
	t.Run("failover back and forth", func(t *testing.T) {
		l := startLoad(t, sentinelURL(s), "x", "y")
		for range 2 {
			l.disturb(t, "failover", func() { failOver(t, s) })
		}
		l.judge(t, detectLoss)
	})
	t.Run("the primary is frozen, and answers when it is no longer the primary", func(t *testing.T) {
		s.AwaitPrimary()
		l := startLoad(t, sentinelURL(s), "x", "y")
		old := s.Primary()
		l.disturb(t, "freeze", func() {
			old.Freeze()
			testenv.Eventually(t, func() bool { return s.Primary() != old }, "the sentinels name the other server")
			old.Thaw()
		})
		l.judge(t, detectLoss)
	})
	t.Run("the primary is killed", func(t *testing.T) {
		s.AwaitPrimary()
		l := startLoad(t, sentinelURL(s), "x", "y")
		old := s.Primary()
		l.disturb(t, "kill", func() {
			old.Kill()
			testenv.Eventually(t, func() bool { return s.Primary() != old }, "the sentinels name the other server")
		})
		old.Start()
		l.judge(t, detectLoss)
	})
}

// failOver has the sentinels make the replica the primary. The old primary
// lives on, as a replica that refuses writes. A sentinel gives up if the
// replica is not ready in time, for example just after another failover. The
// request must then be repeated.
func failOver(t *testing.T, s *testenv.Sentinel) {
	t.Helper()
	old := s.Primary()
	testenv.Eventually(t, func() bool {
		if s.Primary() != old {
			return true
		}
		_, _ = s.Sentinels[0].Try("SENTINEL", "FAILOVER", s.Master) // refused while a failover is in progress
		return false
	}, "the sentinels name the other server")
}

// TestRestartUnderLoad: the server keeps its data and forgets the scripts.
func TestRestartUnderLoad(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	for _, parameters := range []string{"?fenced=true", "?fair=true"} {
		l := startLoad(t, "redisson://"+server.Addr+parameters, "x", "y")
		for range 3 {
			l.disturb(t, "restart", server.Restart)
			l.disturb(t, "scripts are forgotten", func() { server.Do("SCRIPT", "FLUSH") })
			l.disturb(t, "subscriptions are cut", func() { server.Do("CLIENT", "KILL", "TYPE", "pubsub") })
		}
		l.judge(t, 0)
	}
}

// stale has a replica follow no server, as if the network had cut it off, while
// it considers itself a replica.
func stale(t *testing.T, replica, primary *testenv.RedisServer) {
	t.Helper()
	replica.Do("CONFIG", "SET", "masterauth", "wrong")
	replica.Do("CONFIG", "SET", "masteruser", "nobody")
	primary.Do("CLIENT", "KILL", "TYPE", "replica")
	testenv.Eventually(t, func() bool { return !slices.Contains(replica.Do("ROLE").([]any), "connected") }, "the replica is cut off")
}

// cutOff is the TTL of holds during a failover. It is longer than the
// failover, so that the hold does not expire.
const cutOff = "&ttl=20s"

// TestFailOverThatLosesALock: the replica that takes over has one grant and
// lacks the other. The holder of the lost grant is notified at its next
// renewal, and the waiter is granted the lock.
func TestFailOverThatLosesALock(t *testing.T) {
	t.Parallel()
	t.Run("cluster", func(t *testing.T) {
		c := testenv.RedisCluster(t, 3, 1)
		owner := c.Owner("{x}")
		replica := c.Nodes[3+slices.Index(c.Nodes, owner)]
		loseALock(t, clusterURL(c), owner, replica, func() {
			owner.Kill()
			testenv.Eventually(t, masterIn(c, "x", owner), "the replica takes over")
		})
	})
	t.Run("sentinel", func(t *testing.T) {
		s := testenv.RedisSentinel(t, 1)
		old := s.Primary()
		loseALock(t, sentinelURL(s), old, s.Nodes[1], func() {
			old.Kill()
			testenv.Eventually(t, func() bool { return s.Primary() != old }, "the sentinels name the other server")
		})
	})
}

func loseALock(t *testing.T, url string, primary, replica *testenv.RedisServer, failOver func()) {
	a, b, careful := clientOf(t, url+cutOff), clientOf(t, url+cutOff), clientOf(t, url+cutOff+"&waitreplicas=1&waitlimit=200ms")
	kept := lock(t, a, "{x}kept")
	primary.AwaitReplicas(1)
	stale(t, replica, primary)
	lost := lock(t, a, "{x}lost")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if lease, err := careful.Lock(ctx, "{x}careful"); !errors.Is(err, ErrNotReplicated) && !errors.Is(err, dsync.ErrUnknown) {
		t.Errorf("Lock that no replica confirms: got %v, %v, want ErrNotReplicated, or ErrUnknown if ctx ended during a try", lease, err)
	}
	waiter := make(chan *dsync.Lease)
	go func() { waiter <- lock(t, b, "{x}lost") }()
	testenv.Eventually(t, func() bool { return primary.SubscriberCount(prefixName(channelPrefix, "{x}lost")) == 1 }, "the client waits")
	failOver()
	lostByRenewal(t, lost)
	if err := lost.Unlock(t.Context()); !errors.Is(err, dsync.ErrLost) {
		t.Errorf("Unlock: got %v, want ErrLost", err)
	}
	next := <-waiter
	if err := kept.Err(); err != nil {
		t.Errorf("Err of the lease that the replica had: %v", err)
	}
	for _, lease := range []*dsync.Lease{kept, next} {
		if err := lease.Unlock(t.Context()); err != nil {
			t.Errorf("Unlock: %v", err)
		}
	}
}
