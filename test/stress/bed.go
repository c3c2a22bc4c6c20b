package stress

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// bed describes the servers of one backend. All cells of the backend share it.
type bed struct {
	name   string
	faults map[string]string // applicable faults, each with the reason why exclusion is not promised, or ""
	info   driver.Info

	nodes   []node         // nodes that clients connect to
	hosts   *testenv.Hosts // hosts of the nodes, if each has its own
	links   bool           // workers reach them through links that can be disturbed
	pace    time.Duration  // longest pause between two attempts of a goroutine; 0 means pace
	clients int            // clients per process if the backend is inside the process, otherwise 0
	url     func(addrs []string) string
	left    func(names []string) []string // remains of these locks, and connected clients
	rest    map[string]time.Duration      // extra pause after a fault, by fault
	// time after a fault within which every name must be granted again
	recover time.Duration
	votes   bool          // two concurrent attempts may refuse each other
	tied    bool          // the server ends the holds of a connection as soon as it closes
	early   time.Duration // how early a session may end, as documented
	// the fault after which the backend may end sessions that were kept alive
	ends string

	leader      func() int          // number of the leading node, or -1
	newLeader   func()              // makes another node the leader
	endSessions func() int          // ends client sessions on the server and returns their number
	wipe        func(nodes ...node) // removes the data on disk of nodes that are down
	clock       func(i int, d time.Duration)
	clockOff    func(i int) time.Duration
	strain      func() strain

	refusals []refusal
	refused  func() int64 // requests refused so far
	// addresses of proxies that refuse requests, one for each node, if the
	// servers cannot refuse requests themselves
	front []string
	// takeOver makes another server take over from a node. It returns the
	// address of that server, and a function to call when the address has
	// moved.
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

// processes returns the number of workers of the bed.
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

// ask determines the promises of the driver.
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

// apart puts the bed's nodes on hosts.
func (b *bed) apart(hosts *testenv.Hosts) *bed {
	b.hosts = hosts
	return b
}

// oneAddress prepares a bed whose clients use one address for several servers.
// The server behind the address freezes, and another server takes over.
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

// leftBehind waits for the holds of killed workers to expire, and returns the
// remains.
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

// address returns the address at which clients connect to a server.
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
	case *testenv.MySQLServer:
		return s.Addr
	}
	panic("unknown server")
}
