package testenv

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Cluster is a private Redis Cluster.
type Cluster struct {
	// Nodes are the servers, at first the masters and then the replicas, in the order of their masters.
	Nodes []*RedisServer

	tb testing.TB
}

// clusterSlots is the number of hash slots of a Redis Cluster.
const clusterSlots = 16384

// RedisCluster starts a cluster and returns when every node finds it complete, which takes more than two seconds: Redis lets a new
// master wait that long. A node counts as failed after it has not answered for two seconds. Args are passed to each server.
func RedisCluster(tb testing.TB, masters, replicasPerMaster int, args ...string) *Cluster {
	tb.Helper()
	return redisCluster(tb, []host{loopback}, masters, replicasPerMaster, args)
}

// RedisClusterOn is RedisCluster with a master on each host, whose replicas are on the hosts that come next.
func RedisClusterOn(h *Hosts, replicasPerMaster int, args ...string) *Cluster {
	h.tb.Helper()
	return redisCluster(h.tb, h.hosts, len(h.hosts), replicasPerMaster, args)
}

func redisCluster(tb testing.TB, hosts []host, masters, replicasPerMaster int, args []string) *Cluster {
	tb.Helper()
	c := &Cluster{tb: tb}
	for i := range masters * (1 + replicasPerMaster) {
		at := hosts[i%len(hosts)]
		if i >= masters { // a replica
			at = hosts[((i-masters)/replicasPerMaster+(i-masters)%replicasPerMaster+1)%len(hosts)]
		}
		port := freePortPair(tb)
		c.Nodes = append(c.Nodes, startRedis(tb, at, port, nil, append([]string{
			"--port", strconv.Itoa(port),
			"--cluster-enabled", "yes",
			"--cluster-announce-ip", at.ip,
			"--cluster-node-timeout", "2000",
			"--cluster-replica-validity-factor", "0", // a replica that lags may take over all the same
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
	}, "the cluster is complete in the eyes of all nodes")
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

// Owner returns the master that serves key, in the eyes of the first node that answers.
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

// MoveSlot moves the slot of key, with all that is in it, to another master, while clients may use it.
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
			from.Do("MIGRATE", host, port, key.(string), "0", "5000") // NOKEY for one that is gone
		}
	}
	to.Do("CLUSTER", "SETSLOT", slot, "NODE", toID)
	from.Do("CLUSTER", "SETSLOT", slot, "NODE", toID)
	for _, node := range c.Nodes {
		if node != to && node != from {
			_, _ = node.Try("CLUSTER", "SETSLOT", slot, "NODE", toID) // replicas refuse; they learn it all the same
		}
	}
}

func (c *Cluster) everyNode(cond func(*RedisServer) bool) bool {
	return !slices.ContainsFunc(c.Nodes, func(node *RedisServer) bool { return !cond(node) })
}

// knowsAll reports whether a node has made the acquaintance of all others.
func (c *Cluster) knowsAll(node *RedisServer) bool {
	view := node.clusterView()
	return len(view) == len(c.Nodes) && !slices.ContainsFunc(view, func(line []string) bool {
		return strings.Contains(line[2], "handshake") || line[7] != "connected"
	})
}

// complete reports whether a node finds all slots served, sees the others in their roles, and has its data if it is a replica.
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

// clusterView returns the fields of the lines of CLUSTER NODES: id, address, flags, master, two times, epoch, link, slots.
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

// freePortPair returns a port p so that p and p+10000, where Redis puts the bus of a cluster, belong to the test.
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
