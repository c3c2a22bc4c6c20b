package stress

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// bed is the servers of one backend, for all its cells.
type bed struct {
	name   string
	faults map[string]string // those that apply, and why exclusion is not promised under them, or ""
	info   driver.Info

	nodes   []node         // that clients connect to
	hosts   *testenv.Hosts // of the nodes, if they have their own
	links   bool           // workers reach them through links that can be disturbed
	pace    time.Duration  // between two attempts of a goroutine, at most; 0 is pace
	clients int            // in one process, for a backend inside of it; otherwise 0
	url     func(addrs []string) string
	left    func(names []string) []string // what there is of locks with these names, and of clients
	rest    map[string]time.Duration      // after a fault, beside that after every fault
	// within which everybody is granted everything again after a fault
	recover time.Duration
	votes   bool          // two that ask at the same time may refuse each other
	tied    bool          // what has a connection ends with it, at the server, at once
	early   time.Duration // by which a session may end before its time, as documented
	// the fault after which the backend may end sessions that were kept alive
	ends string

	leader      func() int          // of nodes, or -1
	newLeader   func()              // makes another node the leader
	endSessions func() int          // of clients, at the server, and says how many
	wipe        func(nodes ...node) // removes what nodes that are down have on disk
	clock       func(i int, d time.Duration)
	clockOff    func(i int) time.Duration
	strain      func() strain

	refusals []refusal
	refused  func() int64 // requests so far
	// addresses of proxies that refuse requests, one for each node, where the
	// servers do not refuse by themselves
	front []string
	// takeOver makes another server take over from a node, and returns its
	// address, and what has to be done when the address has moved.
	takeOver func(c *cell, node int) (addr string, after func())
}

// node is a server.
type node interface {
	Start()
	Kill()
	Freeze()
	Thaw()
	Pid() int
}

// processes is how many workers the bed has.
func (b *bed) processes() int {
	if b.clients > 0 {
		return 1
	}
	return workers
}

func (b *bed) addrs() []string {
	var addrs []string
	for _, n := range b.nodes {
		addrs = append(addrs, address(n))
	}
	return addrs
}

// ask finds out what the driver promises.
func (b *bed) ask(tb testing.TB) *bed {
	b.faults = applicable[b.name]
	if b.recover == 0 {
		b.recover = 20 * time.Second
	}
	if b.pace == 0 {
		b.pace = pace
	}
	d, _, err := driver.Open(tb.Context(), b.url(b.addrs()))
	if err != nil {
		tb.Fatal(err)
	}
	b.info = d.Info()
	if err := d.Close(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return b
}

// apart is the bed with nodes on hosts.
func (b *bed) apart(hosts *testenv.Hosts) *bed {
	b.hosts = hosts
	return b
}

// oneAddress is the bed of clients that have one address for several servers.
// The server behind it freezes, and another one takes over.
func (b *bed) oneAddress(tb testing.TB, servers []node) *bed {
	b.nodes, b.front = servers[:1], nil
	active := 0
	b.takeOver = func(c *cell, _ int) (string, func()) {
		old := servers[active]
		active = (active + 1) % len(servers)
		old.Freeze()
		return address(servers[active]), func() {
			c.sleep(c.outlasts())
			old.Thaw()
		}
	}
	return b.ask(tb)
}

// leftBehind gives holds of those that were killed the time to run out, and
// says what is left then.
func (b *bed) leftBehind(names []string) []string {
	if b.left == nil {
		return nil
	}
	for end := time.Now().Add(2*TTL + b.info.Late + 10*time.Second); ; time.Sleep(50 * time.Millisecond) {
		left := b.left(names)
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}

func join(kind string, found []string) (left []string) {
	for _, f := range found {
		left = append(left, fmt.Sprintf("%s %s", kind, f))
	}
	return left
}

// address is where clients connect to a server.
func address(n node) string {
	switch s := n.(type) {
	case *testenv.RedisServer:
		return s.Addr
	case *testenv.EtcdServer:
		return s.Addr
	case *testenv.ZooKeeperServer:
		return s.Addr
	case *testenv.PostgresServer:
		return s.Addr
	}
	panic("unknown server")
}
