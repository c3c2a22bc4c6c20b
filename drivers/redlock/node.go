package redlock

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/cleaner"
	"github.com/go-dsync/dsync/internal/redisdial"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

const (
	maxTasks = 64 // in one batch
	// weight of one batch, so that an Acquire does not wait for thousands of
	// renewals
	maxWeight  = 1024
	maxBacklog = 1024 // votes that are handed to a node that is unlikely to answer
	firstDown  = 10 * time.Millisecond
	lastDown   = 500 * time.Millisecond
	maxGhosts  = 10_000 // on one node; beyond that, the ghost that ends first is left to expire
)

// task is one request to a node. Only the node's goroutine calls its methods.
type task interface {
	// command returns the request, or false if the request is no longer needed
	// or the node does not count.
	command(n *node, at int64) (rueidis.Completed, bool)

	// answer handles the result. An error of kind NotSent means that the node
	// has not seen the request and never will.
	answer(n *node, result rueidis.RedisResult, err error)
}

// question is a task that is the same for each node. take receives the results.
type question struct {
	build func(b rueidis.Builder) rueidis.Completed
	take  func(n *node, result rueidis.RedisResult, err error)
}

func (q question) command(n *node, _ int64) (rueidis.Completed, bool) {
	return q.build(n.client.B()), true
}

func (q question) answer(n *node, result rueidis.RedisResult, err error) { q.take(n, result, err) }

// reply is a node's answer to a request.
type reply struct {
	node   *node
	result rueidis.RedisResult
	err    error
	unfit  error // why the node cannot keep locks
}

// askEach sends a request to each node. It returns when all nodes have
// answered, when a majority has answered and the patience for the other nodes
// has ended, or when ctx ends.
func (d *Driver) askEach(ctx context.Context, patience time.Duration, build func(b rueidis.Builder) rueidis.Completed) (replies []reply, err error) {
	answers := make(chan reply, len(d.nodes))
	take := func(n *node, result rueidis.RedisResult, err error) { answers <- reply{n, result, err, n.server.err} }
	for _, n := range d.nodes {
		if !n.add(question{build, take}) {
			return nil, driver.ErrClosed
		}
	}
	var late <-chan time.Time
	for reached := 0; len(replies) < len(d.nodes); {
		select {
		case r := <-answers:
			if replies = append(replies, r); r.err == nil {
				reached++
			}
		case <-late:
			return replies, nil
		case <-ctx.Done():
			return replies, ctx.Err()
		case <-d.life.Open().Done():
			return nil, driver.ErrClosed
		}
		if reached >= d.quorum && late == nil {
			timer := time.NewTimer(patience)
			defer timer.Stop()
			late = timer.C
		}
	}
	return replies, nil
}

// node is one of the servers. A goroutine executes the tasks, one batch after
// the other over one connection. So requests arrive in the order of add, and
// callers never wait for a node that they do not need.
type node struct {
	driver *Driver
	index  int
	option rueidis.ClientOption
	dialer *redisdial.Dialer

	wake   chan struct{}
	ended  chan struct{} // closed by end
	ghosts *cleaner.Cleaner[*ghost]

	flight  atomic.Int64 // the time since which a batch is on its way, or 0
	took    atomic.Int64 // the time that the last answers took
	hung    atomic.Bool  // the node kept an answer waiting for too long, and has not answered since
	trouble atomic.Bool  // the last attempt to reach the node failed
	counts  atomic.Int64 // the time from which answers from the node count; see check.go

	mu      sync.Mutex
	queue   []task
	working int // tasks in the batch on its way
	closed  bool

	// Owned by the goroutine.
	client   rueidis.Client
	commands []rueidis.Completed
	// the connection, as numbered by Dialer.Made, over which look has checked
	// the server; 0: none
	known     uint64
	cleared   uint64 // the last connection from which no more requests can arrive
	server    identity
	lookedAt  int64
	downUntil int64
	down      time.Duration
	downErr   error
}

// ghost is a value whose deletion has failed. The deletion is repeated until
// the node answers, or the value would have expired.
type ghost struct {
	cleaner.Ghost
	vote  *vote
	until int64           // the time by which the value is gone
	asked *sync.WaitGroup // of the ghosts that are settled together
	gone  bool
}

func newNode(d *Driver, index int, o rueidis.ClientOption) *node {
	n := &node{driver: d, index: index, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	n.dialer = redisdial.New(o.DialCtxFn)
	o.DialCtxFn = n.dialer.Dial
	n.option = o
	n.ghosts = cleaner.New(d.life.Lifecycle, cleaner.Policy[*ghost]{Settle: n.settle, Batch: maxTasks, Calls: 1, Max: maxGhosts, Forget: forgetSoonest})
	return n
}

func (n *node) address() string { return n.option.InitAddress[0] }

// impaired reports whether the node is unlikely to answer.
func (n *node) impaired() bool { return n.hung.Load() || n.trouble.Load() }

// patience returns least, or a longer time while a majority of the nodes answer
// slowly, so that clients on a busy machine do not give up on each other's
// nodes.
func (d *Driver) patience(least time.Duration) time.Duration {
	took := make([]int64, len(d.nodes))
	for i, n := range d.nodes {
		took[i] = n.took.Load()
	}
	slices.Sort(took)
	return max(least, min(slowFactor*time.Duration(took[d.quorum-1]), longestVote/2))
}

// slowFactor is the ratio of a slow node's answer time to the answer time of a
// majority of the nodes.
const slowFactor = 8

// add queues a task for execution, unless the driver is closed.
func (n *node) add(t task) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	n.queue = append(n.queue, t)
	if len(n.queue) == 1 {
		select {
		case n.wake <- struct{}{}:
		default:
		}
	}
	return true
}

// settle requests the deletion of the values of ghosts once, and returns the
// ghosts that are not gone.
func (n *node) settle(ghosts []*ghost) (left []*ghost) {
	var asked sync.WaitGroup
	asked.Add(len(ghosts))
	for _, g := range ghosts {
		g.asked = &asked
		if !n.add(g) {
			asked.Done()
		}
	}
	asked.Wait()
	return slices.DeleteFunc(ghosts, func(g *ghost) bool { return g.gone })
}

// forgetSoonest leaves the value that ends soonest to its TTL.
func forgetSoonest(ghosts []*ghost) int {
	soonest := slices.MinFunc(ghosts, func(a, b *ghost) int { return cmp.Compare(a.until, b.until) })
	soonest.vote.abandon()
	return slices.Index(ghosts, soonest)
}

// backlog returns the number of waiting tasks.
func (n *node) backlog() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.queue)
}

// idle reports whether there is nothing left to do.
func (n *node) idle() bool {
	n.mu.Lock()
	busy := len(n.queue) + n.working
	n.mu.Unlock()
	return busy == 0 && n.ghosts.Left() == 0 // ghosts come from tasks
}

// end ends the goroutine and fails all remaining tasks.
func (n *node) end() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	close(n.ended)
	n.dialer.End()
}

// run executes tasks until end is called.
func (n *node) run() {
	defer n.stop()
	var batch []task
	for {
		if batch = n.dequeue(batch[:0]); len(batch) > 0 {
			n.carryOut(batch)
			clear(batch)
			runtime.Gosched() // let callers with answers try again, to make a larger batch
			continue
		}
		select {
		case <-n.wake:
		case <-n.ended:
			return
		}
	}
}

// stop fails the remaining tasks.
func (n *node) stop() {
	n.mu.Lock()
	queue := n.queue
	n.queue = nil
	n.mu.Unlock()
	for _, t := range queue {
		t.answer(n, rueidis.RedisResult{}, redisdriver.NotSent{Why: driver.ErrClosed})
	}
	if n.client != nil {
		n.client.Close()
	}
}

// dequeue removes a batch from the queue.
func (n *node) dequeue(batch []task) []task {
	n.mu.Lock()
	defer n.mu.Unlock()
	count := 0
	for sum := 0; count < min(len(n.queue), maxTasks); count++ {
		weight := 1 // the number of leases that the task is about
		if r, ok := n.queue[count].(*renewal); ok {
			weight = len(r.leases)
		}
		if sum += weight; sum > maxWeight && count > 0 {
			break
		}
	}
	batch = append(batch, n.queue[:count]...)
	n.queue = slices.Delete(n.queue, 0, count)
	n.working = len(batch)
	return batch
}

// carryOut sends a batch and hands out the answers.
func (n *node) carryOut(batch []task) {
	if err := n.ready(); err != nil {
		for _, t := range batch {
			t.answer(n, rueidis.RedisResult{}, err)
		}
		return
	}
	at := n.driver.life.Now()
	n.flight.Store(at)
	commands := n.commands[:0]
	sent := batch[:0]
	for _, t := range batch {
		if c, ok := t.command(n, at); ok {
			commands, sent = append(commands, c.Pin()), append(sent, t) // do may send the command again
		}
	}
	n.commands = commands
	if len(sent) == 0 {
		n.flight.Store(0)
		return
	}
	results := n.do(commands)
	err := n.transportError(results)
	n.flight.Store(0)
	if err == nil {
		n.hung.Store(false)
		n.took.Store(n.driver.life.Now() - at)
	} else {
		n.fail(err)
	}
	// Answers over a connection that look has not checked may come from a
	// server that has forgotten locks. They count only if look succeeds.
	var unseen error
	if err == nil && n.known != n.dialer.Made() {
		unseen = n.look()
	}
	if slices.ContainsFunc(results, func(r rueidis.RedisResult) bool { return redisdial.IsDemoted(r.Error()) }) {
		n.leaveServer()
	}
	for i, t := range sent {
		if unseen != nil {
			t.answer(n, rueidis.RedisResult{}, unseen)
		} else {
			t.answer(n, results[i], results[i].Error())
		}
	}
}

// do sends commands. A server that does not know a script gets the scripts, and
// the commands that need them again.
func (n *node) do(commands []rueidis.Completed) []rueidis.RedisResult {
	results := n.client.DoMulti(context.Background(), commands...)
	var which []int
	for i, r := range results {
		if redisdial.IsNoScript(r.Error()) {
			which = append(which, i)
		}
	}
	if which == nil {
		return results
	}
	again := n.loads(n.client.B())
	loads := len(again)
	for _, i := range which {
		again = append(again, commands[i])
	}
	for i, r := range n.client.DoMulti(context.Background(), again...)[loads:] {
		results[which[i]] = r
	}
	return results
}

// transportError returns why answers are missing, or nil.
func (n *node) transportError(results []rueidis.RedisResult) error {
	for _, r := range results {
		if err := r.NonRedisError(); err != nil {
			return err
		}
	}
	return nil
}

// fail records that the node is unreachable.
func (n *node) fail(err error) {
	n.trouble.Store(true)
	n.down = min(max(2*n.down, firstDown), lastDown)
	n.downUntil = n.driver.life.Now() + int64(n.down)
	n.downErr = err
}

// ready ensures a connection to a server that look has checked, or returns an
// error with the reason why there is none.
func (n *node) ready() error {
	unfit := n.counts.Load() == never && n.driver.life.Now()-n.lookedAt > int64(lookAgain)
	if n.known == n.dialer.Made() && n.dialer.Connected() && n.client != nil && !n.trouble.Load() && !unfit {
		return nil
	}
	if n.driver.life.Now() < n.downUntil {
		return redisdriver.NotSent{Why: n.downErr}
	}
	if unfit {
		n.leaveServer()
	}
	n.flight.Store(n.driver.life.Now())
	defer n.flight.Store(0)
	if err := n.look(); err != nil {
		return redisdriver.NotSent{Why: err}
	}
	return nil
}

// leaveServer closes the connections to an unfit server. Another server may now
// be behind the address.
func (n *node) leaveServer() {
	n.dialer.Break()
	n.driver.ears[n.index].dialer.Break()
}

// connect makes the client, which then connects when needed.
func (n *node) connect() (err error) {
	if n.client == nil {
		n.client, err = rueidis.NewClient(n.option)
	}
	return err
}

// of adds the name of the node to an error.
func (n *node) of(err error) error { return fmt.Errorf("node %s: %w", n.address(), err) }

func (g *ghost) command(n *node, at int64) (rueidis.Completed, bool) {
	c, ok := g.vote.command(n, at)
	if !ok {
		g.gone = true
		g.asked.Done()
	}
	return c, ok
}

func (g *ghost) answer(n *node, result rueidis.RedisResult, err error) {
	g.gone = g.vote.deleted(n, result, err)
	g.asked.Done()
}

//go:embed *.lua
var luaFiles embed.FS

func lua(name string) *redisdriver.Script {
	return redisdriver.NewScript(redisdriver.Lua(luaFiles, name))
}

var (
	inspectScript = lua("inspect")
	loosenScript  = lua("loosen")
	releaseScript = lua("release")
	renewScript   = lua("renew")
	sealScript    = lua("seal")
	takeScript    = lua("take")
)

// loads returns the commands that load the scripts that a node later runs by
// name.
func (n *node) loads(b rueidis.Builder) rueidis.Commands {
	loads := rueidis.Commands{releaseScript.Load(b), renewScript.Load(b)}
	if n.driver.single() {
		loads = append(loads, takeScript.Load(b))
	}
	return loads
}

// refusal translates the error of a request to a node into the errors of
// package driver. An error that the node returned means that it did nothing.
func refusal(err error) error {
	if known(err) {
		return err
	}
	var answer *rueidis.RedisError
	if errors.As(err, &answer) {
		if err, _ = redisdriver.Refusal("", answer); known(err) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
}

// known reports whether an error is one of the errors of package driver.
func known(err error) bool {
	return errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrClosed) || errors.Is(err, fs.ErrPermission)
}
