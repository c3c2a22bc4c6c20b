package etcd_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/drivers/etcd"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestMain(m *testing.M) {
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
	seal       = drivertest.Seal
	mark       = drivertest.Mark
	unmark     = drivertest.Unmark
	loosen     = drivertest.Loosen
	unseal     = drivertest.Unseal
	isSealed   = drivertest.IsSealed
)

// openURL opens a driver that is closed gracefully when the test ends.
func openURL(tb testing.TB, format string, args ...any) *etcd.Driver {
	tb.Helper()
	return drivertest.Open(tb, fmt.Sprintf(format, args...)).(*etcd.Driver)
}

// userClient returns a client as a user would make it.
func userClient(tb testing.TB, addrs ...string) *clientv3.Client {
	tb.Helper()
	return newClient(tb, clientv3.Config{Endpoints: addrs, DialTimeout: hangGuard})
}

// clientOver returns a client whose connections can be disturbed, and that
// notices dead connections.
func clientOver(tb testing.TB, w *wire.Wire, addrs ...string) *clientv3.Client {
	tb.Helper()
	dial := func(ctx context.Context, addr string) (net.Conn, error) { return w.DialContext(ctx, "tcp", addr) }
	return newClient(tb, clientv3.Config{
		Endpoints:            addrs,
		DialOptions:          []grpc.DialOption{grpc.WithContextDialer(dial)},
		DialKeepAliveTime:    time.Second,
		DialKeepAliveTimeout: time.Second,
	})
}

func newClient(tb testing.TB, config clientv3.Config) *clientv3.Client {
	tb.Helper()
	config.Logger = zap.NewNop()
	client, err := clientv3.New(config)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { client.Close() })
	return client
}

// keys returns the keys on the server that begin with prefix, the oldest first.
func keys(tb testing.TB, c *clientv3.Client, prefix string) []string {
	tb.Helper()
	answer, err := c.Get(guard(tb), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		tb.Fatal(err)
	}
	var list []string
	for _, kv := range answer.Kvs {
		list = append(list, string(kv.Key))
	}
	return list
}

// remove deletes the key that holds a lock, or the keys of all its readers.
// Deleting their leases would end other holds as well.
func remove(tb testing.TB, c *clientv3.Client, name string) {
	tb.Helper()
	for i, key := range keys(tb, c, name+"/") {
		reads := strings.HasPrefix(key, name+"/+read-")
		if i > 0 && !reads {
			return
		}
		if removeKey(tb, c, key); !reads {
			return
		}
	}
}

// removeHold deletes the key of one reader.
func removeHold(tb testing.TB, c *clientv3.Client, name, hold string) {
	tb.Helper()
	answer, err := c.Get(guard(tb), name+"/", clientv3.WithPrefix())
	if err != nil {
		tb.Fatal(err)
	}
	for _, kv := range answer.Kvs {
		if strings.Contains(string(kv.Value), strconv.Quote(hold)) {
			removeKey(tb, c, string(kv.Key))
		}
	}
}

func removeKey(tb testing.TB, c *clientv3.Client, key string) {
	tb.Helper()
	if _, err := c.Delete(guard(tb), key); err != nil {
		tb.Fatal(err)
	}
}

// revision returns the number of transactions that have changed something so
// far, plus an offset.
func revision(tb testing.TB, c *clientv3.Client) int64 {
	tb.Helper()
	answer, err := c.Get(guard(tb), "no hold has this key")
	if err != nil {
		tb.Fatal(err)
	}
	return answer.Header.Revision
}
