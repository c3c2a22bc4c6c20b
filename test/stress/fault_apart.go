package stress

import (
	"slices"
	"time"
)

// keepApart blocks the packets from a host to others, from the others to the
// host, or both. Every other time the host is the leader's. Otherwise it is the
// host of a holder's session, if the holder has a session with a single node.
// The others are all other hosts, or only the leader's.
func keepApart(c *cell, i int) {
	leader := c.hostOf(c.leader())
	victim, peers := leader, slices.DeleteFunc([]int{0, 1, 2}, func(k int) bool { return k == leader })
	if i%2 == 0 {
		victim = c.follower(leader)
		peers = []int{leader}
		if i%4 == 0 {
			peers = slices.DeleteFunc([]int{0, 1, 2}, func(k int) bool { return k == victim })
		}
	}
	for _, peer := range peers {
		if i/2%3 != 1 {
			c.bed.hosts.Silence(victim, peer)
		}
		if i/2%3 != 2 {
			c.bed.hosts.Silence(peer, victim)
		}
	}
	reached := func() bool { // the first of the others
		node := slices.IndexFunc(c.bed.nodes, func(n node) bool { return c.bed.hosts.Of(address(n)) == peers[0] })
		return node < 0 || c.bed.hosts.Reaches(victim, address(c.bed.nodes[node]))
	}
	if reached() {
		c.invalid("hosts %d and %d should be apart, but are not", victim, peers[0])
	}
	c.sleep(TTL + c.outlasts())
	c.bed.hosts.Heal()
	c.require(reached, "hosts %d and %d are still apart", victim, peers[0])
}

// hostOf returns the host of a node.
func (c *cell) hostOf(node int) int { return c.bed.hosts.Of(address(c.bed.nodes[node])) }

// follower returns a host other than the leader's. If the most recent holder of
// the long lock is connected to only one node, follower returns the host of
// that node. If not, for example because clients are connected to all nodes, it
// returns any other host.
func (c *cell) follower(leader int) int {
	before := c.holder()
	for end := time.Now().Add(10 * time.Second); c.bed.links && time.Now().Before(end); c.sleep(10 * time.Millisecond) {
		holder := c.holder()
		if holder < 0 || holder == before {
			continue
		}
		before = holder
		node := slices.IndexFunc(c.workers[holder].links, connected)
		if node >= 0 && c.hostOf(node) != leader {
			return c.hostOf(node)
		}
	}
	others := slices.DeleteFunc([]int{0, 1, 2}, func(k int) bool { return k == leader })
	return others[c.random.IntN(len(others))]
}
