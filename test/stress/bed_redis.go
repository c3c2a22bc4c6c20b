package stress

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

// redisBed is one server that keeps everything on disk.
func redisBed(tb testing.TB, fair bool) *bed {
	dir := tb.TempDir()
	server, clock := testenv.RedisClock(tb, "--appendonly", "yes", "--appendfsync", "always", "--dir", dir, "--maxmemory-policy", "allkeys-random")
	b := &bed{name: "redisson", pace: 10 * time.Millisecond, nodes: []node{server}, links: true}
	b.url = func(addrs []string) string { return "redisson://" + addrs[0] + "?evict=allow&ttl=" + TTL.String() }
	if fair {
		b.name = "redisson fair"
		b.url = func(addrs []string) string {
			return "redisson://" + addrs[0] + "?evict=allow&fair=true&ttl=" + TTL.String()
		}
		b.recover = 50 * time.Second // each waiter that has died holds up the others for 5 s
		b.rest = map[string]time.Duration{"worker-kill": 15 * time.Second}
	}
	b.left = func(names []string) []string { return leftOnRedis(names, server) }
	b.clock = func(_ int, d time.Duration) { clock.Set(d) }
	b.wipe = func(...node) {
		if err := os.RemoveAll(filepath.Join(dir, "appendonlydir")); err != nil {
			tb.Fatal(err)
		}
	}
	b.endSessions = func() int { return killClients(server) }
	return b.ask(tb)
}

// redlockBed is five servers that keep nothing.
func redlockBed(tb testing.TB) *bed {
	b := &bed{name: "redlock", votes: true, links: true}
	var servers []*testenv.RedisServer
	var clocks []*testenv.Clock
	for range 5 {
		s, clock := testenv.RedisClock(tb)
		servers, clocks, b.nodes = append(servers, s), append(clocks, clock), append(b.nodes, s)
	}
	b.url = func(addrs []string) string {
		return "redlock://" + strings.Join(addrs, ",") + "?maxttl=" + TTL.String() + "&ttl=" + TTL.String()
	}
	b.left = func(names []string) []string { return leftOnRedis(names, servers...) }
	b.clock = func(i int, d time.Duration) { clocks[i].Set(d) }
	b.wipe = func(...node) {}                                               // they keep nothing
	b.rest = map[string]time.Duration{"majority-loss": TTL + 2*time.Second} // new nodes do not count for their first TTL, in whole seconds
	b.endSessions = func() int { return killClients(servers...) }
	time.Sleep(TTL + time.Second)
	return b.ask(tb)
}

// sentinelBed is a primary with two replicas that three sentinels watch.
func sentinelBed(tb testing.TB) *bed {
	s := testenv.RedisSentinel(tb, 2)
	b := &bed{name: "redisson sentinel"}
	for _, n := range s.Nodes {
		b.nodes = append(b.nodes, n)
	}
	b.url = func([]string) string {
		return "redisson://" + strings.Join(s.SentinelAddrs(), ",") + "?mode=sentinel&master=" + s.Master + "&ttl=" + TTL.String()
	}
	b.left = func(names []string) []string { return leftOnRedis(names, s.Primary()) }
	b.endSessions = func() int { return killClients(s.Primary()) }
	b.leader = func() int { return slices.Index(s.Nodes, s.Primary()) }
	b.newLeader = func() {
		before := s.Primary()
		testenv.Eventually(tb, func() bool {
			if s.Primary() != before {
				return redisInfo(s.Primary(), "replication", "role") == "master"
			}
			// Refused while one is under way, and asked for again when that was given up.
			_, _ = s.Sentinels[0].Try("SENTINEL", "FAILOVER", s.Master)
			return false
		}, "there is a new primary")
	}
	b.recover = 40 * time.Second
	return b.ask(tb)
}

// clusterBed is three masters with a replica each.
func clusterBed(tb testing.TB) *bed {
	k := testenv.RedisCluster(tb, 3, 1)
	b := &bed{name: "redisson cluster"}
	for _, n := range k.Nodes {
		b.nodes = append(b.nodes, n)
	}
	b.url = func([]string) string {
		return "redisson://" + strings.Join(k.Addrs(), ",") + "?mode=cluster&ttl=" + TTL.String()
	}
	b.left = func(names []string) []string { return leftOnRedis(names, k.Nodes...) }
	b.endSessions = func() int { return killClients(k.Nodes...) }
	role := func(i int) string { return redisInfo(k.Nodes[i], "replication", "role") }
	b.leader = func() int { // any master does
		for i, n := range k.Nodes {
			if state, err := n.Try("CLUSTER", "INFO"); err == nil && strings.Contains(state.(string), "cluster_state:ok") && role(i) == "master" {
				return i
			}
		}
		return -1
	}
	b.newLeader = func() {
		old := b.leader()
		for i := range k.Nodes {
			if role(i) == "slave" && redisInfo(k.Nodes[i], "replication", "master_port") == port(k.Nodes[old].Addr) {
				var asked time.Time
				testenv.Eventually(tb, func() bool {
					if time.Since(asked) > 6*time.Second { // the servers give up after 5 s
						_, _ = k.Nodes[i].Try("CLUSTER", "FAILOVER") // the two agree, and nothing is lost
						asked = time.Now()
					}
					return role(i) == "master" && role(old) == "slave"
				}, "the replica is the master")
				return
			}
		}
	}
	b.recover = 40 * time.Second
	return b.ask(tb)
}

func asRedis(n node) *testenv.RedisServer { return n.(*testenv.RedisServer) }

func port(addr string) string {
	_, port, _ := strings.Cut(addr, ":")
	return port
}

// redisInfo returns one line of INFO, or "".
func redisInfo(s *testenv.RedisServer, section, field string) string {
	text, err := s.Try("INFO", section)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(text.(string)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), field+":"); ok {
			return value
		}
	}
	return ""
}

// redisClock is how far a server's clock is off.
func redisClock(s *testenv.RedisServer) time.Duration {
	seconds, _ := strconv.ParseInt(s.Do("TIME").([]any)[0].(string), 10, 64)
	return time.Until(time.Unix(seconds, 0))
}

// killClients ends the connections of all clients, and says how many.
func killClients(servers ...*testenv.RedisServer) (n int) {
	for _, s := range servers {
		for _, kind := range []string{"normal", "pubsub"} {
			n += int(s.Do("CLIENT", "KILL", "TYPE", kind).(int64))
		}
	}
	return n
}

// leftOnRedis says what there is of locks, except what tokens are counted in, and of clients.
func leftOnRedis(names []string, servers ...*testenv.RedisServer) (left []string) {
	ours := func(s string) bool {
		return !strings.HasPrefix(s, "dsync_fence:") && slices.ContainsFunc(names, func(name string) bool { return strings.Contains(s, name) })
	}
	for _, s := range servers {
		if redisInfo(s, "replication", "role") != "master" {
			continue
		}
		for _, key := range s.Do("KEYS", "*").([]any) {
			if ours(key.(string)) {
				left = append(left, fmt.Sprintf("key %s on %s", key, s.Addr))
			}
		}
		for _, channel := range s.Do("PUBSUB", "CHANNELS").([]any) {
			if ours(channel.(string)) {
				left = append(left, fmt.Sprintf("subscription to %s on %s", channel, s.Addr))
			}
		}
		for line := range strings.Lines(s.Do("CLIENT", "LIST").(string)) {
			ours := strings.Contains(line, "lib-name=rueidis") || strings.Contains(line, "name=dsync")
			if strings.Contains(line, "flags=S") || strings.Contains(line, "flags=M") || strings.Contains(line, "cmd=client|list") || !ours {
				continue
			}
			left = append(left, "client "+strings.TrimSpace(line))
		}
	}
	return left
}
