package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/etcd"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.RunRole(roles)
	goleak.VerifyTestMain(m)
}

// hangGuard is no expectation of how long something takes.
const hangGuard = 60 * time.Second

var holds atomic.Int64

// events notes what a driver tells of a request.
type events struct {
	waiting chan struct{} // closed by Waiting: a second call panics
	lost    chan error
}

func (e *events) Waiting()         { close(e.waiting) }
func (e *events) Tokens() int      { return 1 }
func (e *events) Lost(cause error) { e.lost <- cause }

// request returns a request for 30 s, with a hold of its own.
func request(name string) *driver.Request {
	hold := fmt.Sprintf("00000000-0000-4000-8000-000000000000:%d", holds.Add(1))
	return &driver.Request{Name: name, Hold: hold, Owner: "owner of " + name, TTL: 30 * time.Second,
		Events: &events{waiting: make(chan struct{}), lost: make(chan error, 1)}}
}

func noWait(name string) *driver.Request {
	r := request(name)
	r.NoWait = true
	return r
}

func withTTL(r *driver.Request, ttl time.Duration) *driver.Request {
	r.TTL = ttl
	return r
}

func fixed(r *driver.Request, ttl time.Duration) *driver.Request {
	r.TTL, r.Fixed = ttl, true
	return r
}

// lostBy waits until the driver tells that a hold is lost.
func lostBy(tb testing.TB, r *driver.Request) error {
	tb.Helper()
	select {
	case cause := <-r.Events.(*events).lost:
		return cause
	case <-time.After(hangGuard):
		tb.Fatalf("the loss of %q is not told", r.Name)
		return nil
	}
}

func guard(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	tb.Cleanup(cancel)
	return ctx
}

// openURL opens a driver that is closed when the test ends, in good order.
func openURL(tb testing.TB, format string, args ...any) *etcd.Driver {
	tb.Helper()
	d, _, err := driver.Open(guard(tb), fmt.Sprintf(format, args...))
	if err != nil {
		tb.Fatal(err)
	}
	closeLater(tb, d.(*etcd.Driver))
	return d.(*etcd.Driver)
}

func closeLater(tb testing.TB, d *etcd.Driver) {
	tb.Cleanup(func() {
		if err := d.Close(guard(tb)); err != nil && err != driver.ErrClosed {
			tb.Errorf("Close: %v", err)
		}
	})
}

// userClient returns a client as a user would make it.
func userClient(tb testing.TB, addrs ...string) *clientv3.Client {
	tb.Helper()
	return newClient(tb, clientv3.Config{Endpoints: addrs, DialTimeout: hangGuard})
}

// clientOver returns a client whose connections can be disturbed, and that finds out when one is dead.
func clientOver(tb testing.TB, w *conformance.Wire, addrs ...string) *clientv3.Client {
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

func acquire(tb testing.TB, d *etcd.Driver, r *driver.Request) driver.Lease {
	tb.Helper()
	l, err := d.Acquire(guard(tb), r)
	if err != nil {
		tb.Fatalf("Acquire %q: %v", r.Name, err)
	}
	return l
}

func release(tb testing.TB, l driver.Lease) {
	tb.Helper()
	if err := l.Release(guard(tb)); err != nil {
		tb.Errorf("Release: %v", err)
	}
}

func token(l driver.Lease) uint64 {
	first, _ := l.Tokens()
	return first
}

// waiter is a call of Acquire in another goroutine.
type waiter struct {
	cancel context.CancelFunc
	done   chan struct{}
	lease  driver.Lease
	err    error
}

// begin begins an Acquire.
func begin(d *etcd.Driver, r *driver.Request) *waiter {
	ctx, cancel := context.WithCancel(context.Background())
	w := &waiter{cancel: cancel, done: make(chan struct{})}
	go func() { // ends with Acquire, which the cleanup of the driver ends at the latest
		defer close(w.done)
		w.lease, w.err = d.Acquire(ctx, r)
	}()
	return w
}

// wait begins an Acquire and returns when it waits.
func wait(tb testing.TB, d *etcd.Driver, r *driver.Request) *waiter {
	tb.Helper()
	w := begin(d, r)
	select {
	case <-r.Events.(*events).waiting:
	case <-w.done:
		tb.Fatalf("Acquire of a lock that is taken: got %v, %v, want a wait", w.lease, w.err)
	case <-time.After(hangGuard):
		tb.Fatal("Acquire neither waits nor returns")
	}
	return w
}

// end waits until the Acquire has returned.
func (w *waiter) end(tb testing.TB) (driver.Lease, error) {
	tb.Helper()
	select {
	case <-w.done:
		return w.lease, w.err
	case <-time.After(hangGuard):
		tb.Fatal("Acquire does not return")
		return nil, nil
	}
}

// granted waits until the Acquire is granted.
func (w *waiter) granted(tb testing.TB) driver.Lease {
	tb.Helper()
	l, err := w.end(tb)
	if err != nil {
		tb.Fatalf("Acquire: %v", err)
	}
	return l
}

// waits reports whether the Acquire has not returned yet.
func (w *waiter) waits() bool {
	select {
	case <-w.done:
		return false
	default:
		return true
	}
}

// keys returns the keys at the server that begin with prefix, the oldest first.
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

// revision is how many transactions have changed something so far, with an offset.
func revision(tb testing.TB, c *clientv3.Client) int64 {
	tb.Helper()
	answer, err := c.Get(guard(tb), "nobody has this key")
	if err != nil {
		tb.Fatal(err)
	}
	return answer.Header.Revision
}

func wantErr(tb testing.TB, what string, err error, want ...error) {
	tb.Helper()
	for _, target := range want {
		if !errors.Is(err, target) {
			tb.Errorf("%s: got %v, want an error that matches %q", what, err, target)
		}
	}
}

func wantText(tb testing.TB, what string, err error, parts ...string) {
	tb.Helper()
	if err == nil {
		tb.Errorf("%s: got no error", what)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			tb.Errorf("%s: got %q, want %q in it", what, err, part)
		}
	}
}
