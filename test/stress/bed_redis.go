package stress

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

// redisBed returns a bed of one server that keeps everything on disk. The order
// of the waiters is "", "fair" or "fifo".
func redisBed(tb testing.TB, order string) *bed {
	dir := tb.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "snapshot"), 0o755); err != nil {
		// so that no file can be written
		tb.Fatal(err)
	}
	server, clock := testenv.RedisClock(tb, "--appendonly", "yes", "--appendfsync", "always", "--dir", dir, "--dbfilename", "snapshot",
		"--maxmemory-policy", "allkeys-random")
	b := &bed{name: "redisson", pace: 10 * time.Millisecond, nodes: []node{server}, links: true}
	parameters := map[string]string{"fair": "&fair=true", "fifo": "&fair=true&order=fifo"}[order]
	b.url = func(addrs []string) string {
		return "redisson://" + addrs[0] + "?evict=allow&ttl=" + TTL.String() + parameters
	}
	if order != "" {
		b.name += " " + order
		b.recover = 50 * time.Second // each dead waiter delays the others for 5 s
		b.rest = map[string]time.Duration{"worker-kill": 15 * time.Second}
	}
	b.left = func(names []string) []string { return leftOnRedis(names, server) }
	b.clock, b.clockOff = func(_ int, d time.Duration) { clock.Set(d) }, b.redisClock
	b.strain = redisStrain(server)
	b.wipe = func(...node) {
		if err := os.RemoveAll(filepath.Join(dir, "appendonlydir")); err != nil {
			tb.Fatal(err)
		}
	}
	b.endSessions = func() int { return killClients(server) }
	b.refusals = redisRefusals(tb, func(*rand.Rand) []*testenv.RedisServer { return []*testenv.RedisServer{server} }, true, true)
	b.refused = redisRefused(server)
	return b.ask(tb)
}

// oneAddressBed returns a bed in which a replica can take over the address of a
// server.
func oneAddressBed(tb testing.TB, scheme string, nodes int) *bed {
	b := &bed{name: scheme + " behind one address", votes: nodes > 1, links: true}
	var servers []*testenv.RedisServer
	for range nodes {
		s := testenv.Redis(tb)
		servers, b.nodes = append(servers, s), append(b.nodes, s)
	}
	b.url = func(addrs []string) string {
		options := "?ttl=" + TTL.String()
		if scheme != "redisson" {
			options += "&durable=true" // the replicas have the data of the servers
		}
		return scheme + "://" + strings.Join(addrs, ",") + options
	}
	replicas, takeOver := takeOverRedis(tb, servers)
	b.takeOver = takeOver
	b.left = func(names []string) []string { return leftOnRedis(names, slices.Concat(servers, replicas)...) }
	return b.ask(tb)
}

// redlockBed returns a bed of five servers without persistence.
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
	b.clock, b.clockOff = func(i int, d time.Duration) { clocks[i].Set(d) }, b.redisClock
	b.strain = redisStrain(servers...)
	b.wipe = func(...node) {} // nothing is on disk
	// new nodes do not count for their first TTL, in whole seconds
	b.rest = map[string]time.Duration{"majority-loss": TTL + 2*time.Second}
	b.endSessions = func() int { return killClients(servers...) }
	b.refusals = redisRefusals(tb, func(random *rand.Rand) []*testenv.RedisServer {
		// sometimes a majority
		some := slices.Clone(servers)
		random.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
		return some[:1+random.IntN(len(some))]
	}, true, false)
	b.refused = redisRefused(servers...)
	time.Sleep(TTL + time.Second)
	return b.ask(tb)
}

// sentinelBed returns a bed of a primary and its replicas, monitored by three
// sentinels.
func sentinelBed(tb testing.TB, s *testenv.Sentinel) *bed {
	b := &bed{name: "redisson sentinel"}
	for _, n := range s.Nodes {
		b.nodes = append(b.nodes, n)
	}
	turn := 0
	b.url = func([]string) string {
		// each client begins with another sentinel, which may be cut off from
		// the others
		sentinels := s.SentinelAddrs()
		turn = (turn + 1) % len(sentinels)
		sentinels = slices.Concat(sentinels[turn:], sentinels[:turn])
		return "redisson://" + strings.Join(sentinels, ",") + "?mode=sentinel&master=" + s.Master + "&ttl=" + TTL.String()
	}
	b.left = func(names []string) []string { return leftOnRedis(names, s.Primary()) }
	b.endSessions = func() int { return killClients(s.Primary()) }
	b.strain = redisStrain(s.Nodes...)
	b.leader = func() int { return slices.Index(s.Nodes, s.Primary()) }
	b.newLeader = func() {
		before := s.Primary()
		testenv.Eventually(tb, func() bool {
			if s.Primary() != before {
				return redisInfo(s.Primary(), "replication", "role") == "master"
			}
			// The command is refused while a failover is in progress, and sent
			// again after that failover was abandoned.
			_, _ = s.Sentinels[0].Try("SENTINEL", "FAILOVER", s.Master)
			return false
		}, "there is a new primary")
	}
	b.recover = 40 * time.Second
	b.refusals = redisRefusals(tb, func(*rand.Rand) []*testenv.RedisServer { return []*testenv.RedisServer{s.Primary()} }, false, false)
	b.refused = redisRefused(s.Nodes...)
	return b.ask(tb)
}

// clusterBed returns a bed of masters with one replica each.
func clusterBed(tb testing.TB, k *testenv.Cluster) *bed {
	b := &bed{name: "redisson cluster"}
	for _, n := range k.Nodes {
		b.nodes = append(b.nodes, n)
	}
	b.url = func([]string) string {
		return "redisson://" + strings.Join(k.Addrs(), ",") + "?mode=cluster&ttl=" + TTL.String()
	}
	b.left = func(names []string) []string { return leftOnRedis(names, k.Nodes...) }
	b.endSessions = func() int { return killClients(k.Nodes...) }
	b.strain = redisStrain(k.Nodes...)
	role := func(i int) string { return redisInfo(k.Nodes[i], "replication", "role") }
	b.leader = func() int { // any master will do
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
						_, _ = k.Nodes[i].Try("CLUSTER", "FAILOVER") // a coordinated switch; nothing is lost
						asked = time.Now()
					}
					return role(i) == "master" && role(old) == "slave"
				}, "the replica is the master")
				return
			}
		}
	}
	b.recover = 40 * time.Second
	b.refusals = redisRefusals(tb, func(random *rand.Rand) []*testenv.RedisServer {
		// one master, or all
		masters := slices.DeleteFunc(slices.Clone(k.Nodes), func(s *testenv.RedisServer) bool {
			return redisInfo(s, "replication", "role") != "master"
		})
		if random.IntN(2) == 0 && len(masters) > 0 {
			return masters[:1]
		}
		return masters
	}, false, false)
	b.refused = redisRefused(k.Nodes...)
	return b.ask(tb)
}

// sentinelApartBed returns a bed of a primary with replicas and sentinels on
// three hosts. If replicas must confirm grants, there is only one replica.
func sentinelApartBed(tb testing.TB, confirm bool) *bed {
	hosts := testenv.NewHosts(tb, 3)
	if !confirm {
		return sentinelBed(tb, testenv.RedisSentinelOn(hosts, 2)).apart(hosts)
	}
	return sentinelBed(tb, testenv.RedisSentinelOn(hosts, 1)).confirmed(tb).apart(hosts)
}

// clusterApartBed returns a bed of a cluster on three hosts. No replica is on
// the same host as its master.
func clusterApartBed(tb testing.TB, confirm bool) *bed {
	hosts := testenv.NewHosts(tb, 3)
	b := clusterBed(tb, testenv.RedisClusterOn(hosts, 1)).apart(hosts)
	if confirm {
		b = b.confirmed(tb)
	}
	return b
}

// confirmed returns the bed with clients that require a replica to confirm
// grants and renewals.
func (b *bed) confirmed(tb testing.TB) *bed {
	url := b.url
	b.name += ", waitreplicas"
	b.url = func(addrs []string) string { return url(addrs) + "&waitreplicas=1" }
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

// redisClock returns the offset of a server's clock.
func (b *bed) redisClock(i int) time.Duration {
	seconds, _ := strconv.ParseInt(asRedis(b.nodes[i]).Do("TIME").([]any)[0].(string), 10, 64)
	return time.Until(time.Unix(seconds, 0))
}

// redisStrain returns the strain of the servers. From now on, the servers
// record requests that take longer than a few milliseconds.
func redisStrain(servers ...*testenv.RedisServer) func() strain {
	var before int64
	for _, s := range servers {
		s.Do("CONFIG", "SET", "slowlog-log-slower-than", "5000", "slowlog-max-len", "1000")
	}
	return func() strain {
		var now strain
		for _, s := range servers {
			for _, n := range s.Commands() {
				now.requests += n
			}
			for _, entry := range s.Do("SLOWLOG", "GET", "-1").([]any) {
				now.longest = max(now.longest, time.Duration(entry.([]any)[2].(int64))*time.Microsecond)
			}
			s.Do("SLOWLOG", "RESET")
		}
		before, now.requests = now.requests, now.requests-before
		return now
	}
}

// killClients closes the connections of all clients and returns their number.
func killClients(servers ...*testenv.RedisServer) (n int) {
	for _, s := range servers {
		for _, kind := range []string{"normal", "pubsub"} {
			n += int(s.Do("CLIENT", "KILL", "TYPE", kind).(int64))
		}
	}
	return n
}

// isFullLimit reports whether a key belongs to permits that are all free. The
// backend keeps such a key for the limit.
func isFullLimit(s *testenv.RedisServer, key string) bool {
	return s.Do("TYPE", key) == "string" && s.Do("GET", key) == strconv.Itoa(permitLimit)
}

// leftOnRedis lists the clients and the remains of locks, except for the token
// counters.
func leftOnRedis(names []string, servers ...*testenv.RedisServer) (left []string) {
	ours := func(s string) bool {
		return !strings.HasPrefix(s, "dsync_turn:") && !strings.HasSuffix(s, ":dsync_turn") && slices.ContainsFunc(names, func(name string) bool { return strings.Contains(s, name) })
	}
	for _, s := range servers {
		if redisInfo(s, "replication", "role") != "master" {
			continue
		}
		for _, key := range s.Do("KEYS", "*").([]any) {
			if ours(key.(string)) && !isFullLimit(s, key.(string)) {
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
