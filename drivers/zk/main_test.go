package zk_test

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/drivers/zk"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestMain(m *testing.M) {
	conformance.RunWorker()
	testenv.RunRole(roles)
	testenv.NoLeaks(m)
}

// Shared by the tests of all drivers.
const hangGuard = drivertest.HangGuard

var (
	guard      = drivertest.Guard
	request    = drivertest.Request
	noWait     = drivertest.NoWait
	withTTL    = drivertest.WithTTL
	fixed      = drivertest.Fixed
	lostBy     = drivertest.LostBy
	closeLater = drivertest.CloseLater
	acquire    = drivertest.Acquire
	release    = drivertest.Release
	token      = drivertest.Token
	begin      = drivertest.Begin
	wait       = drivertest.Wait
	wantErr    = drivertest.WantErr
	wantText   = drivertest.WantText
	kinds      = drivertest.Kinds
	lastOf     = drivertest.Last
	seal       = drivertest.Seal
	mark       = drivertest.Mark
	unmark     = drivertest.Unmark
	loosen     = drivertest.Loosen
	unseal     = drivertest.Unseal
	isSealed   = drivertest.IsSealed
)

// openURL opens a driver that is closed gracefully when the test ends.
func openURL(tb testing.TB, format string, args ...any) *zk.Driver {
	tb.Helper()
	return drivertest.Open(tb, fmt.Sprintf(format, args...)).(*zk.Driver)
}

// impatient is a connection on which no read takes longer than 15 s. A server
// that is starting may never answer a client, and the library waits ten times
// its usual timeout for the first answer.
type impatient struct{ net.Conn }

func (c impatient) SetReadDeadline(t time.Time) error {
	if limit := time.Now().Add(15 * time.Second); t.IsZero() || t.After(limit) {
		t = limit
	}
	return c.Conn.SetReadDeadline(t)
}

// userClient returns a client as a user would make it.
func userClient(tb testing.TB, addr string) *gozk.Conn {
	tb.Helper()
	dial := func(network, address string, timeout time.Duration) (net.Conn, error) {
		c, err := net.DialTimeout(network, address, timeout)
		return impatient{c}, err
	}
	c, _, err := gozk.Connect([]string{addr}, 30*time.Second, gozk.WithLogInfo(false), gozk.WithDialer(dial))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// children returns the children of a path.
func children(tb testing.TB, c *gozk.Conn, path string) []string {
	tb.Helper()
	if _, err := c.Sync(path); err != nil { // the server of c may lag behind the driver's
		tb.Fatal(err)
	}
	list, _, err := c.Children(path)
	if err != nil && err != gozk.ErrNoNode {
		tb.Fatal(err)
	}
	return list
}

// contenders returns the paths of the children with a number.
func contenders(tb testing.TB, c *gozk.Conn, path string) (nodes []string) {
	tb.Helper()
	for _, child := range children(tb, c, path) {
		if len(child) > 10 {
			nodes = append(nodes, path+"/"+child)
		}
	}
	slices.SortFunc(nodes, func(a, b string) int { return strings.Compare(a[len(a)-10:], b[len(b)-10:]) })
	return nodes
}

// leases returns the paths of the permits of a path that are held, as seen from
// outside, in their order.
func leases(tb testing.TB, c *gozk.Conn, path string) []string {
	tb.Helper()
	return contenders(tb, c, path+"/leases")
}

// first returns the path of the child that holds the lock, if there is one.
func first(tb testing.TB, c *gozk.Conn, path string) []string {
	tb.Helper()
	nodes := contenders(tb, c, path)
	return nodes[:min(1, len(nodes))]
}

// removeFirst deletes the child of a path that holds the lock.
func removeFirst(tb testing.TB, c *gozk.Conn, path string) {
	tb.Helper()
	for _, node := range first(tb, c, path) {
		if err := c.Delete(node, -1); err != nil {
			tb.Fatal(err)
		}
	}
}

// awaitTicks waits for n ticks of the server, in which it would have reported a
// failure.
func awaitTicks(tb testing.TB, n int) {
	tb.Helper()
	timer := time.NewTimer(time.Duration(n) * 100 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-tb.Context().Done():
		tb.Fatal("the test has ended")
	}
}
