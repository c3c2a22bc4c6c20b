package stress

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// anyNode returns the leader every other time, and otherwise a random node.
func (c *cell) anyNode(i int) node {
	if c.bed.leader != nil && i%2 == 0 {
		return c.bed.nodes[c.leader()]
	}
	return c.bed.nodes[c.random.IntN(len(c.bed.nodes))]
}

// leader returns the number of the leader.
func (c *cell) leader() int {
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if i := c.bed.leader(); i >= 0 {
			return i
		}
		if time.Now().After(end) {
			c.t.Fatalf("no node of %s leads", c.bed.name)
		}
	}
}

// down stops nodes for a while. It calls between before they start again.
func (c *cell) down(nodes []node, d time.Duration, between func()) {
	pids := make([]int, len(nodes))
	for i, n := range nodes {
		pids[i] = n.Pid()
		n.Kill()
	}
	c.sleep(d)
	if between != nil {
		between()
	}
	var all sync.WaitGroup // nodes of an ensemble answer only when enough of them run
	for _, n := range nodes {
		all.Go(n.Start)
	}
	all.Wait()
	for i, n := range nodes {
		if n.Pid() == pids[i] {
			c.invalid("a server should have been killed, but still has process ID %d", pids[i])
		}
	}
}

func restartServer(c *cell, i int) { c.down([]node{c.anyNode(i)}, c.upTo(time.Second), nil) }

func freezeServer(c *cell, i int) {
	n := c.anyNode(i)
	n.Freeze() // returns when the node is frozen
	c.sleep(c.outlasts())
	n.Thaw()
}

// some returns n nodes. Every other time, the first of them is the leader.
func (c *cell) some(n, i int) []node {
	order := c.random.Perm(len(c.bed.nodes))
	if c.bed.leader != nil && i%2 == 0 {
		leader := c.leader()
		order = append([]int{leader}, slices.DeleteFunc(order, func(k int) bool { return k == leader })...)
	}
	var nodes []node
	for _, k := range order[:n] {
		nodes = append(nodes, c.bed.nodes[k])
	}
	return nodes
}

func (c *cell) minority() int { return (len(c.bed.nodes) - 1) / 2 }

func loseNodes(c *cell, i int) {
	c.down(c.some(c.minority(), i), time.Second+c.upTo(2*time.Second), nil)
}

func loseMajority(c *cell, i int) {
	c.down(c.some(len(c.bed.nodes)/2+1, i), time.Second+c.upTo(2*time.Second), nil)
}

func changeLeader(c *cell, _ int) {
	before := c.leader()
	c.bed.newLeader()
	if after := c.leader(); after == before {
		c.invalid("node %d still leads after the change of the leader", after)
	}
}

func killSessions(c *cell, _ int) {
	// as long as no lock is held
	c.require(func() bool { return c.bed.endSessions() > 0 }, "there was no session to end")
}

// loseDisk restarts one server or, if there are several, all of them one after
// the other.
func loseDisk(c *cell, i int) {
	if len(c.bed.nodes) == 1 {
		n := c.bed.nodes[0]
		c.down([]node{n}, c.upTo(200*time.Millisecond), func() { c.bed.wipe(n) })
		return
	}
	n := c.bed.nodes[i%len(c.bed.nodes)]
	c.down([]node{n}, c.upTo(200*time.Millisecond), func() { c.bed.wipe(n) })
	c.sleep(TTL + time.Second) // until the server counts again
}

// flush flushes nodes when each of them has data.
func (c *cell) flush(nodes []node) {
	for _, n := range nodes {
		redis := asRedis(n)
		c.require(func() bool { return redis.Do("DBSIZE").(int64) > 0 }, "%s had no key when it was about to be flushed", redis.Addr)
	}
	for _, n := range nodes {
		asRedis(n).Do("FLUSHALL")
	}
}

func flush(c *cell, i int)         { c.flush(c.some(max(1, c.minority()), i)) }
func flushMajority(c *cell, i int) { c.flush(c.some(len(c.bed.nodes)/2+1, i)) }

// evict limits the memory of a server to less than it uses.
func evict(c *cell, _ int) {
	redis := asRedis(c.bed.nodes[0])
	before := redisInfo(redis, "stats", "evicted_keys")
	redis.Do("CONFIG", "SET", "maxmemory", "1")
	for end := time.Now().Add(patience); redisInfo(redis, "stats", "evicted_keys") == before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			c.invalid("no key was evicted")
			break
		}
	}
	redis.Do("CONFIG", "SET", "maxmemory", "0")
}

func (c *cell) jump(nodes int, i int) {
	order := c.random.Perm(len(c.bed.nodes))[:nodes]
	d := []time.Duration{40 * time.Second, -time.Hour, time.Hour}[i%3]
	set := func(d time.Duration) {
		for _, k := range order {
			c.bed.clock(k, d)
		}
	}
	set(d)
	for _, k := range order {
		if off := c.bed.clockOff(k); (off - d).Abs() > 10*time.Second {
			c.invalid("the clock of a server should be %v off, but is %v off", d, off)
		}
	}
	c.sleep(c.outlasts())
	set(0)
}

func jumpServer(c *cell, i int)   { c.jump(max(1, c.minority()), i) }
func jumpMajority(c *cell, i int) { c.jump(len(c.bed.nodes)/2+1, i) }

// inside is a fault that a process of the memory bed carries out itself.
func inside(order string) func(*cell, int) {
	return func(c *cell, i int) { c.askWorker(c.workers[0], fmt.Sprint(order, " ", i%c.bed.clients)) }
}

func insideFor(order string) func(*cell, int) {
	return func(c *cell, i int) {
		client := c.random.IntN(c.bed.clients)
		c.askWorker(c.workers[0], fmt.Sprint(order, " ", client))
		c.sleep(c.outlasts())
		c.askWorker(c.workers[0], fmt.Sprint("heal ", client))
	}
}
