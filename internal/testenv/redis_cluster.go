package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Cluster is a private Redis Cluster.
type Cluster struct {
	// Nodes are the servers: first the masters, then the replicas in the order
	// of their masters.
	Nodes []*RedisServer

	tb testing.TB
}

// clusterSlots is the number of hash slots of a Redis Cluster.
const clusterSlots = 16384

// RedisCluster starts a cluster and returns when every node considers it
// complete. This takes more than two seconds because Redis makes a new master
// wait that long. A node counts as failed if it has not responded for two
// seconds. args are passed to each server.
func RedisCluster(tb testing.TB, masters, replicasPerMaster int, args ...string) *Cluster {
	tb.Helper()
	return redisCluster(tb, []host{loopback}, masters, replicasPerMaster, args)
}

// RedisClusterOn is like RedisCluster, but with a master on each host. Its
// replicas are on the following hosts.
func RedisClusterOn(h *Hosts, replicasPerMaster int, args ...string) *Cluster {
	h.tb.Helper()
	return redisCluster(h.tb, h.hosts, len(h.hosts), replicasPerMaster, args)
}

func redisCluster(tb testing.TB, hosts []host, masters, replicasPerMaster int, args []string) *Cluster {
	tb.Helper()
	c := &Cluster{tb: tb}
	for i := range masters * (1 + replicasPerMaster) {
		at := hosts[i%len(hosts)]
		if i >= masters { // this server is a replica
			at = hosts[((i-masters)/replicasPerMaster+(i-masters)%replicasPerMaster+1)%len(hosts)]
		}
		port := freePortPair(tb)
		c.Nodes = append(c.Nodes, startRedis(tb, at, port, nil, append([]string{
			"--port", strconv.Itoa(port),
			"--cluster-enabled", "yes",
			"--cluster-announce-ip", at.ip,
			"--cluster-node-timeout", "2000",
			"--cluster-replica-validity-factor", "0", // a lagging replica may take over anyway
		}, args...)))
	}
	for i, node := range c.Nodes[:masters] {
		slots := []string{"CLUSTER", "ADDSLOTS"}
		for slot := i * clusterSlots / masters; slot < (i+1)*clusterSlots/masters; slot++ {
			slots = append(slots, strconv.Itoa(slot))
		}
		node.Do(slots...)
		node.Do("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
	}
	for i, node := range c.Nodes {
		for _, other := range c.Nodes[:i] {
			host, port, _ := strings.Cut(other.Addr, ":")
			node.Do("CLUSTER", "MEET", host, port)
		}
	}
	Eventually(tb, func() bool { return c.everyNode(c.knowsAll) }, "all nodes of the cluster know each other")
	for i, replica := range c.Nodes[masters:] {
		replica.Do("CLUSTER", "REPLICATE", c.Nodes[i/replicasPerMaster].Do("CLUSTER", "MYID").(string))
	}
	Eventually(tb, func() bool {
		return c.everyNode(func(node *RedisServer) bool { return c.complete(node, masters) })
	}, "all nodes consider the cluster complete")
	return c
}

// Addrs returns the addresses of all nodes.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, node := range c.Nodes {
		addrs = append(addrs, node.Addr)
	}
	return addrs
}

// Owner returns the master of key, according to the first node that responds.
func (c *Cluster) Owner(key string) *RedisServer {
	c.tb.Helper()
	var errs []error
	for _, node := range c.Nodes {
		slot, err := node.Try("CLUSTER", "KEYSLOT", key)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, part := range node.Do("CLUSTER", "SLOTS").([]any) {
			part := part.([]any) // first slot, last slot, master, replicas
			if part[0].(int64) > slot.(int64) || slot.(int64) > part[1].(int64) {
				continue
			}
			owner := part[2].([]any) // host, port
			addr := fmt.Sprintf("%s:%d", owner[0], owner[1])
			i := slices.Index(c.Addrs(), addr)
			if i >= 0 {
				return c.Nodes[i]
			}
		}
		errs = append(errs, fmt.Errorf("%s knows no owner", node.Addr))
	}
	c.tb.Fatalf("owner of %q: %v", key, errors.Join(errs...))
	return nil
}

// MoveSlot moves the slot of key, with all its data, to another master, while
// clients may use it.
func (c *Cluster) MoveSlot(key string, to *RedisServer) {
	c.tb.Helper()
	from := c.Owner(key)
	slot := strconv.FormatInt(from.Do("CLUSTER", "KEYSLOT", key).(int64), 10)
	fromID, toID := from.Do("CLUSTER", "MYID").(string), to.Do("CLUSTER", "MYID").(string)
	to.Do("CLUSTER", "SETSLOT", slot, "IMPORTING", fromID)
	from.Do("CLUSTER", "SETSLOT", slot, "MIGRATING", toID)
	host, port, _ := strings.Cut(to.Addr, ":")
	for {
		keys := from.Do("CLUSTER", "GETKEYSINSLOT", slot, "100").([]any)
		if len(keys) == 0 {
			break
		}
		for _, key := range keys {
			// NOKEY is the response for a key that is gone
			from.Do("MIGRATE", host, port, key.(string), "0", "5000")
		}
	}
	to.Do("CLUSTER", "SETSLOT", slot, "NODE", toID)
	from.Do("CLUSTER", "SETSLOT", slot, "NODE", toID)
	for _, node := range c.Nodes {
		if node != to && node != from {
			// Replicas refuse the command, but learn of the change anyway.
			_, _ = node.Try("CLUSTER", "SETSLOT", slot, "NODE", toID)
		}
	}
}

func (c *Cluster) everyNode(cond func(*RedisServer) bool) bool {
	return !slices.ContainsFunc(c.Nodes, func(node *RedisServer) bool { return !cond(node) })
}

// knowsAll reports whether a node knows all other nodes.
func (c *Cluster) knowsAll(node *RedisServer) bool {
	view := node.clusterView()
	return len(view) == len(c.Nodes) && !slices.ContainsFunc(view, func(line []string) bool {
		return strings.Contains(line[2], "handshake") || line[7] != "connected"
	})
}

// complete reports whether a node considers all slots served and sees the
// others in their roles. A replica must also have its data.
func (c *Cluster) complete(node *RedisServer, masters int) bool {
	seen := 0
	for _, line := range node.clusterView() {
		if strings.Contains(line[2], "fail") {
			return false
		}
		if strings.Contains(line[2], "master") {
			seen++
		}
	}
	return seen == masters && node.clusterOK() && (slices.Contains(c.Nodes[:masters], node) || node.replicates())
}

// clusterView returns the fields of the lines of CLUSTER NODES: id, address,
// flags, master, two times, epoch, link, slots.
func (s *RedisServer) clusterView() [][]string {
	s.tb.Helper()
	var view [][]string
	for line := range strings.Lines(s.Do("CLUSTER", "NODES").(string)) {
		view = append(view, strings.Fields(line))
	}
	return view
}

func (s *RedisServer) clusterOK() bool {
	return s.info("CLUSTER", "INFO")["cluster_state"] == "ok"
}

// freePortPair returns a port p so that p and p+10000, the port of the cluster
// bus, belong to the test.
func freePortPair(tb testing.TB) int {
	tb.Helper()
	for range 100 {
		port := freePort(tb)
		if port > 65535-10000 {
			continue
		}
		if _, err := bind(tb, port+10000); err == nil {
			return port
		}
	}
	tb.Fatal("no two free ports at a distance of 10000")
	return 0
}

// Sentinel is a private Redis primary with replicas, watched by sentinels.
type Sentinel struct {
	// Master is the sentinels' name for the primary.
	Master string
	// Nodes are the data servers. Nodes[0] is the first primary.
	Nodes []*RedisServer
	// Sentinels are the three sentinels. Two of them must agree that a primary
	// is down.
	Sentinels []*RedisServer

	tb testing.TB
}

// RedisSentinel starts a primary with replicas and three sentinels. It returns
// when all sentinels know each other and the replicas. The sentinels consider a
// server down if it has not responded for two seconds. Args are passed to the
// data servers. With "--requirepass" they also need "--masterauth".
func RedisSentinel(tb testing.TB, replicas int, args ...string) *Sentinel {
	tb.Helper()
	return redisSentinel(tb, []host{loopback}, replicas, args)
}

// RedisSentinelOn is like RedisSentinel, but with a sentinel on each of the
// first three hosts. The primary and the replicas are on the first hosts.
func RedisSentinelOn(h *Hosts, replicas int, args ...string) *Sentinel {
	h.tb.Helper()
	return redisSentinel(h.tb, h.hosts, replicas, args)
}

func redisSentinel(tb testing.TB, hosts []host, replicas int, args []string) *Sentinel {
	tb.Helper()
	s := &Sentinel{Master: "main", tb: tb}
	primary := redisAt(tb, hosts[0], args)
	s.Nodes = append(s.Nodes, primary)
	for i := range replicas {
		s.Nodes = append(s.Nodes, redisAt(tb, hosts[(i+1)%len(hosts)],
			append([]string{"--replicaof", strings.Replace(primary.Addr, ":", " ", 1)}, args...)))
	}
	// Sentinels discover replicas by querying the primary, which they do
	// immediately and then rarely.
	Eventually(tb, func() bool {
		return primary.info("INFO", "replication")["connected_slaves"] == strconv.Itoa(replicas) &&
			!slices.ContainsFunc(s.Nodes[1:], func(node *RedisServer) bool { return !node.replicates() })
	}, "the replicas follow the primary")
	for i := range 3 {
		s.Sentinels = append(s.Sentinels, startSentinel(tb, hosts[i%len(hosts)], s.Master, primary))
	}
	for _, sentinel := range s.Sentinels {
		Eventually(tb, func() bool { return s.informed(sentinel, replicas) }, "the sentinel knows the replicas and the other sentinels")
	}
	return s
}

// Primary returns the primary, according to the first sentinel that responds.
func (s *Sentinel) Primary() *RedisServer {
	s.tb.Helper()
	for _, sentinel := range s.Sentinels {
		if primary := s.named(sentinel); primary != nil {
			return primary
		}
	}
	s.tb.Fatal("no sentinel knows the primary")
	return nil
}

// AwaitPrimary waits until all sentinels name the same server and it is a
// primary. Shortly after a failover, a sentinel that has not noticed it may
// turn the new primary into a replica again, until the other sentinels correct
// that.
func (s *Sentinel) AwaitPrimary() {
	s.tb.Helper()
	Eventually(s.tb, func() bool {
		primary := s.named(s.Sentinels[0])
		if primary == nil || primary.info("INFO", "replication")["role"] != "master" {
			return false
		}
		return !slices.ContainsFunc(s.Sentinels, func(sentinel *RedisServer) bool { return s.named(sentinel) != primary })
	}, "the sentinels name one primary")
}

// named returns the server that a sentinel names as the primary, or nil if the
// sentinel does not respond.
func (s *Sentinel) named(sentinel *RedisServer) *RedisServer {
	answer, err := sentinel.Try("SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.Master)
	if err != nil {
		return nil
	}
	addr := net.JoinHostPort(answer.([]any)[0].(string), answer.([]any)[1].(string))
	if i := slices.IndexFunc(s.Nodes, func(node *RedisServer) bool { return node.Addr == addr }); i >= 0 {
		return s.Nodes[i]
	}
	s.tb.Errorf("%s names %s, which is not one of the servers", sentinel.Addr, addr)
	return nil
}

// SentinelAddrs returns the addresses of the sentinels.
func (s *Sentinel) SentinelAddrs() []string {
	var addrs []string
	for _, sentinel := range s.Sentinels {
		addrs = append(addrs, sentinel.Addr)
	}
	return addrs
}

func startSentinel(tb testing.TB, at host, master string, primary *RedisServer) *RedisServer {
	tb.Helper()
	port := freePort(tb)
	// the sentinel writes its state to this file
	config := filepath.Join(tb.TempDir(), "sentinel.conf")
	text := fmt.Sprintf(`port %d
bind %s
protected-mode no
sentinel monitor %[3]s %s 2
sentinel down-after-milliseconds %[3]s 2000
sentinel failover-timeout %[3]s 5000
`, port, at.ip, master, strings.Replace(primary.Addr, ":", " ", 1))
	if primary.password != "" {
		text += fmt.Sprintf("sentinel auth-pass %s %s\n", master, primary.password)
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	s := newRedis(tb, at, "redis-sentinel", port, []string{config, "--sentinel"})
	s.ready = func(ctx context.Context) error {
		if err := s.ping(ctx); err != nil {
			return err
		}
		// This makes the sentinels find each other soon. Without it, a sentinel
		// would refuse to act for half a minute if this machine was busy for
		// two seconds. Servers before 7.0 lack the command and take longer.
		_, err := s.call(ctx, "SENTINEL", "DEBUG", "PUBLISH-PERIOD", "200", "INFO-PERIOD", "500", "TILT-PERIOD", "1000")
		if errors.As(err, new(RedisError)) {
			return nil
		}
		return err
	}
	s.launch()
	return s
}

// informed reports whether a sentinel knows enough to carry out a failover.
func (s *Sentinel) informed(sentinel *RedisServer, replicas int) bool {
	s.tb.Helper()
	master := pairs(sentinel.Do("SENTINEL", "MASTER", s.Master))
	if master["flags"] != "master" || master["num-other-sentinels"] != "2" || master["num-slaves"] != strconv.Itoa(replicas) {
		return false
	}
	for _, replica := range sentinel.Do("SENTINEL", "REPLICAS", s.Master).([]any) {
		if state := pairs(replica); state["flags"] != "slave" || state["master-link-status"] != "ok" {
			return false
		}
	}
	for _, other := range sentinel.Do("SENTINEL", "SENTINELS", s.Master).([]any) {
		if pairs(other)["flags"] != "sentinel" {
			return false
		}
	}
	return true
}

// pairs decodes a list of names and values.
func pairs(answer any) map[string]string {
	m := make(map[string]string)
	for pair := range slices.Chunk(answer.([]any), 2) {
		m[pair[0].(string)] = pair[1].(string)
	}
	return m
}
