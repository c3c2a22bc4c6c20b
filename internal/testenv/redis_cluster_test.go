package testenv

import (
	"fmt"
	"slices"
	"testing"
)

func TestRedisCluster(t *testing.T) {
	c := RedisCluster(t, 3, 0)
	keys := make(map[*RedisServer]string)
	for i := 0; len(keys) < len(c.Nodes); i++ {
		key := fmt.Sprint(i)
		keys[c.Owner(key)] = key
	}
	for node, key := range keys {
		node.Do("SET", key, node.Addr)
		if got := node.Do("GET", key); got != node.Addr {
			t.Errorf("GET %s: got %v, want %s", key, got, node.Addr)
		}
	}
	for _, node := range c.Nodes {
		if !node.clusterOK() {
			t.Errorf("%s: the cluster is not ok", node.Addr)
		}
	}

	// A returning node has its slots but no data.
	c.Nodes[0].Restart()
	Eventually(t, func() bool { return c.everyNode((*RedisServer).clusterOK) }, "the cluster is complete again")
	if got := c.Nodes[0].Do("GET", keys[c.Nodes[0]]); got != nil {
		t.Errorf("GET after a restart: got %v, want nothing", got)
	}
}

func TestRedisClusterFailover(t *testing.T) {
	c := RedisCluster(t, 3, 1)
	const key = "k"
	old := c.Owner(key)
	old.Do("SET", key, "v")
	old.AwaitReplicas(1)
	old.Kill()
	Eventually(t, func() bool {
		owner := c.Owner(key)
		return owner != old && owner.clusterOK()
	}, "the replica takes over")
	replica := c.Owner(key)
	if i := slices.Index(c.Nodes, replica); c.Nodes[i-3] != old {
		t.Errorf("node %d took over, want the replica of the master", i)
	}
	if got := replica.Do("GET", key); got != "v" {
		t.Errorf("GET after the failover: got %v, want v", got)
	}
	old.Start()
	Eventually(t, old.replicates, "the old master follows the new master")
}
