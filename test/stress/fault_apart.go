package stress

import (
	"slices"
	"time"
)

// keepApart lets a host be silent to others, them to it, or both. Every other
// time it is the leader's; otherwise one that a holder has its session with, if
// it has one with a single node. The others are all, or the leader alone.
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
		c.invalid("hosts %d and %d were to be apart, and are not", victim, peers[0])
	}
	c.sleep(TTL + c.outlasts())
	c.bed.hosts.Heal()
	c.require(reached, "hosts %d and %d are still apart", victim, peers[0])
}

// hostOf is the host of a node.
func (c *cell) hostOf(node int) int { return c.bed.hosts.Of(address(c.bed.nodes[node])) }

// follower is a host without the leader: that of the one node to which somebody
// is connected who has just been granted the long lock. It is any other if
// nobody is, as where clients are connected to all nodes.
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
