package zk_test

import (
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestSessionsOfASlowServer has a server answer later than a connection may
// take at first, as after an outage when many clients reconnect. A request that
// is cut off and repeated costs the server another session, so the connections
// get more time, and one is enough in the end.
func TestSessionsOfASlowServer(t *testing.T) {
	s := testenv.ZooKeeper(t)
	link, addr := testenv.Wire(t, s.Addr)
	d := openURL(t, "zk://%s?ttl=2s", addr)
	link.Delay(wire.Replies, 600*time.Millisecond)
	var l driver.Lease
	testenv.Eventually(t, func() bool {
		var err error
		l, err = d.Acquire(guard(t), withTTL(request("x"), 3*time.Second))
		return err == nil
	}, "the lock is granted")
	link.Heal()
	release(t, l)
}
