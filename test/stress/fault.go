package stress

import (
	"fmt"
	"slices"
	"time"

	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/conformance/wire"
)

// Fault is a kind of failure. Inject causes the failure, repairs it, and
// returns when everything works again, as far as it can determine.
type Fault struct {
	Name string
	What string // description for readers of the table

	kills   bool // kills workers and records each death
	removes bool // removes holds of live workers
	sleeps  bool // suspends the machine as a worker sees it, but not the server
	cuts    bool // cuts connections
	rare    bool // a fifth of the injections, because each takes long
	long    bool // in long runs only
	apart   bool // separates the hosts of servers, where a bed has hosts
	jumps   bool // moves the clock by which the server ends holds
	refuses bool // refuses requests, in the servers or in proxies
	bounded bool // no call of a worker may exceed its time limit
	inject  func(c *cell, i int)
}

// Faults lists all faults in the order of the table.
var Faults = []*Fault{
	{Name: "worker-kill", What: "SIGKILL of a process; another one takes its place", kills: true, inject: killWorker},
	{Name: "worker-freeze", What: "SIGSTOP of a process for longer than the TTL, usually one that holds a lock", inject: freezeWorker},
	{Name: "worker-clock", What: "the wall clock of a process jumps by an hour, forward and back", inject: jumpWorker},
	{Name: "worker-sleep", What: "by the clocks of a process that holds a lock, the machine has slept for longer than the TTL", sleeps: true, inject: sleepWorker},
	{Name: "cut", What: "all connections of a process are reset, and new ones refused for up to 400 ms", cuts: true, inject: cutLinks},
	{Name: "slow", What: "everything between a process and the servers is late by up to 60 ms, for 2 s", inject: slowLinks},
	{Name: "black-hole", What: "nothing arrives from a process, or at it, or both, for longer than the TTL; then everything arrives, or is lost",
		cuts: true, inject: blackHole},
	{Name: "lost-answers", What: "requests of a process are carried out, their answers are discarded, and the connections reset",
		cuts: true, inject: loseAnswers},
	{Name: "half-open", What: "the connections of a process silently lose everything, and new ones work", cuts: true, bounded: true,
		inject: halfOpen},
	{Name: "one-address", What: "a replica takes over behind the address that clients have, and open connections stay with the old server",
		cuts: true, inject: moveAddress},
	{Name: "refused-commands", What: "a server refuses one kind of request after the other, with each error that it can return",
		cuts: true, refuses: true, inject: refuseCommands},
	{Name: "partition", What: "a process cannot reach one node of several for longer than the TTL", inject: partition},
	{Name: "starved", What: "servers and processes get the CPU for 3 ms out of 30 to 60 ms, for 2 s", inject: starve},
	{Name: "server-restart", What: "SIGKILL of the server, started again with its disk after up to 1 s", cuts: true, inject: restartServer},
	{Name: "server-freeze", What: "SIGSTOP of the server, or of the leader, for longer than the TTL", inject: freezeServer},
	{Name: "node-loss", What: "SIGKILL of fewer than half of the nodes for 1 to 3 s", inject: loseNodes},
	{Name: "majority-loss", What: "SIGKILL of more than half of the nodes for 1 to 3 s", inject: loseMajority},
	{Name: "servers-apart", What: "traffic between one server's host, usually that of the leader or of a holder's session, and the other servers is cut " +
		"in one or both directions for longer than the TTL; clients still reach every server", apart: true, inject: keepApart},
	{Name: "leader-change", What: "another node becomes the leader, or the primary", inject: changeLeader},
	{Name: "session-kill", What: "the server ends sessions: lease revoke, close of the session, pg_terminate_backend, CLIENT KILL",
		removes: true, inject: killSessions},
	{Name: "disk-loss", What: "the server, or all nodes one after the other, restarted without the data on disk", removes: true, inject: loseDisk},
	{Name: "flush", What: "FLUSHALL on the server, or on fewer than half of the nodes", removes: true, inject: flush},
	{Name: "flush-majority", What: "FLUSHALL on more than half of the nodes", removes: true, inject: flushMajority},
	{Name: "evict", What: "memory runs short, and the server evicts keys", removes: true, inject: evict},
	{Name: "clock", What: "the wall clock of the server, or of fewer than half of the nodes, jumps by 40 s or an hour, forward and back",
		removes: true, jumps: true, inject: jumpServer},
	{Name: "clock-majority", What: "the wall clock of more than half of the nodes", removes: true, jumps: true, inject: jumpMajority},
	{Name: "crowd-leaves", What: "1,500 calls of Lock of one client end at once, canceled or by their deadline; no client loses a lock, and the server " +
		"has little to do", rare: true, inject: crowdLeaves},
	{Name: "outage-canceled", What: "a process that waits is out of reach for eight times the TTL, and its calls are canceled in the meantime",
		cuts: true, rare: true, inject: outage(8*TTL, true)},
	{Name: "outage-long", What: "a process that waits is out of reach for longer than a minute", cuts: true, rare: true, long: true,
		inject: outage(65*time.Second, false)},
	{Name: "removed", What: "ForceUnlock of all names", removes: true, inject: inside("remove")},
	{Name: "inside-cut", What: "a client cannot reach the backend for longer than the TTL", inject: insideFor("cut")},
	{Name: "inside-hang", What: "requests of a client hang for longer than the TTL", inject: insideFor("hang")},
	{Name: "inside-lost-answers", What: "requests of a client are carried out but the answers are lost, for longer than the TTL",
		inject: insideFor("lose")},
}

// killWorker kills a process and starts another process. Every other time, the
// new process queues with all workers before the holder is killed. Then no
// newcomer sends a request after the holder's death, because such a request
// could help the waiters.
func killWorker(c *cell, i int) {
	begin := func() {
		next := c.spawn()
		c.ready(next)
		c.workers = append(c.workers, next)
	}
	if i%2 == 0 {
		begin()
		c.sleep(100 * time.Millisecond)
	}
	victim := c.victim()
	if holder := c.holder(); i%2 == 0 && holder >= 0 {
		victim = holder
	}
	w := c.workers[victim]
	off := c.own.Fault(history.FaultKill, w.label)
	w.Kill()
	for _, l := range w.links {
		l.Cut()
	}
	off()
	c.workers = slices.Delete(c.workers, victim, victim+1)
	if i%2 == 1 {
		begin()
	}
}

func freezeWorker(c *cell, _ int) {
	w := c.workers[c.victim()]
	w.Stop() // returns when the worker has stopped
	c.sleep(c.outlasts())
	w.Cont()
}

// jumpWorker moves the wall clock of a process, and moves it back after more
// than the TTL.
func jumpWorker(c *cell, i int) {
	w := c.workers[c.victim()]
	hour := int64([]int{3600, -3600}[i%2])
	for _, seconds := range []int64{hour, 0} {
		before := c.askWorker(w, fmt.Sprint("time ", 0))
		c.askWorker(w, fmt.Sprint("clock ", seconds))
		after := c.askWorker(w, fmt.Sprint("time ", 0))
		if jumped := after - before; jumped < 1800 && jumped > -1800 {
			c.invalid("the clock of %s should have jumped by an hour, but jumped by %d s", w.label, jumped)
		}
		if seconds != 0 {
			c.sleep(c.outlasts())
		}
	}
}

// sleepWorker makes a process with a lock believe that its machine has slept
// for longer than the TTL. The process must report immediately that its leases
// have ended. Only the clocks of the worker show the sleep. No time passes on
// the servers, so they end nothing.
func sleepWorker(c *cell, _ int) {
	told := int64(0)
	c.require(func() bool {
		told = c.askWorker(c.workers[c.victim()], fmt.Sprint("sleep ", int(3*TTL/2/time.Second)))
		return told != 0
	}, "no worker held a lock when its machine was about to sleep")
	if told < 0 {
		c.result.Failed = append(c.result.Failed, "a lease was held after a sleep that was longer than its TTL; see the standard error of its worker")
	}
}

// askWorker gives a worker an order and returns its response.
func (c *cell) askWorker(w *running, order string) (answer int64) {
	w.Send(order)
	if _, err := fmt.Sscan(w.Line(), &answer); err != nil {
		c.t.Fatalf("%s does not answer %q with a number: %v", w.label, order, err)
	}
	return answer
}

func connected(l *wire.Wire) bool { return l.Traffic().Open > 0 }

// linked returns a victim with traffic on its links. After the last fault a
// client may take a while to reconnect.
func (c *cell) linked() *running {
	w := c.workers[c.victim()]
	c.require(w.connected, "%s had no connection when its links were about to fail", w.label)
	return w
}

func (w *running) connected() bool { return slices.ContainsFunc(w.links, connected) }

// dropped returns the number of bytes that the links have lost.
func (w *running) dropped() (n int64) {
	w.each(func(l *wire.Wire) { n += l.Traffic().Dropped })
	return n
}

func (w *running) each(do func(l *wire.Wire)) {
	for _, l := range w.links {
		do(l)
	}
}

func cutLinks(c *cell, _ int) {
	w := c.linked()
	w.each((*wire.Wire).Cut)
	c.sleep(c.upTo(400 * time.Millisecond))
	w.each((*wire.Wire).Heal)
}

func slowLinks(c *cell, _ int) {
	w := c.linked()
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		w.each(func(l *wire.Wire) { l.Hold(wire.Both) })
		c.sleep(c.upTo(60 * time.Millisecond))
		w.each((*wire.Wire).Heal)
		c.sleep(c.upTo(3 * time.Millisecond))
	}
}

func blackHole(c *cell, i int) {
	w := c.linked()
	d := []wire.Direction{wire.Both, wire.Requests, wire.Replies}[i%3]
	w.each(func(l *wire.Wire) { l.Hold(d) })
	c.sleep(c.outlasts())
	if c.random.IntN(2) == 0 {
		w.each((*wire.Wire).Cut)
	}
	w.each((*wire.Wire).Heal)
}

func loseAnswers(c *cell, _ int) {
	w := c.linked()
	before := w.dropped()
	w.each(func(l *wire.Wire) { l.Drop(wire.Replies) })
	c.sleep(20*time.Millisecond + c.upTo(200*time.Millisecond))
	c.require(func() bool { return w.dropped() > before }, "%s got no responses that could be lost", w.label)
	w.each((*wire.Wire).Cut)
	w.each((*wire.Wire).Heal)
}

// partition separates a process from a node to which it is connected. Some
// clients connect to only one of the nodes.
func partition(c *cell, i int) {
	w := c.linked()
	first := (i + c.random.IntN(2)) % len(w.links)
	order := slices.Concat(w.links[first:], w.links[:first])
	l := order[max(slices.IndexFunc(order, connected), 0)]
	l.Hold(wire.Both)
	c.sleep(c.outlasts())
	l.Cut()
	l.Heal()
}

// starve gives all processes little CPU time, like a quota.
func starve(c *cell, _ int) {
	type stopped struct{ stop, cont func() }
	var all []stopped
	for _, n := range c.bed.nodes {
		all = append(all, stopped{n.Freeze, n.Thaw})
	}
	for _, w := range c.workers {
		all = append(all, stopped{w.Stop, w.Cont})
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		for _, p := range all {
			p.stop()
		}
		c.sleep(30*time.Millisecond + c.upTo(30*time.Millisecond))
		for _, p := range all {
			p.cont()
		}
		c.sleep(3 * time.Millisecond)
	}
}
