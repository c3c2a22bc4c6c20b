package redisson

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.RunRole(roles)
	testenv.NoLeaks(m,
		// The library lets these two sleep for seconds and has no way to end
		// them.
		"github.com/redis/rueidis.(*call).DelayDo.func1",
		"github.com/redis/rueidis.(*clusterClient)._refresh.func1",
		"github.com/redis/rueidis.(*clusterClient)._refresh.func2",
	)
}

// hangGuard is not an expectation of how long something takes.
const hangGuard = 30 * time.Second

// testTTL is the TTL of requests, unless a test sets another. Close may need to
// wait for it if a connection broke.
const testTTL = 10 * time.Second

var holds atomic.Int64

// events counts the events that a driver reports for a request.
type events struct {
	tokens  int
	asked   atomic.Int64
	waiting chan struct{} // closed by Waiting: a second call panics
	lost    chan error
}

func (e *events) Waiting() { close(e.waiting) }
func (e *events) Tokens() int {
	e.asked.Add(1)
	return max(e.tokens, 1)
}
func (e *events) Lost(cause error) { e.lost <- cause }

func newEvents() *events {
	return &events{waiting: make(chan struct{}), lost: make(chan error, 1)}
}

// request returns a request with its own hold.
func request(name string) *driver.Request {
	hold := fmt.Sprintf("00000000-0000-4000-8000-000000000000:%d", holds.Add(1))
	return &driver.Request{Name: name, Hold: hold, Owner: "somebody", TTL: testTTL, Events: newEvents()}
}

// valueOf returns the value in the lock for the hold of a lease with tokens.
func valueOf(l *lease) string {
	return fmt.Sprintf("#%d", l.first+uint64(l.tokens)-1) + holderText(l.request)
}

// forLong returns a request for a hold that outlives a failover, or a delay on
// a busy machine.
func forLong(name string) *driver.Request {
	r := request(name)
	r.TTL = time.Minute
	return r
}

func noWait(name string) *driver.Request {
	r := request(name)
	r.NoWait = true
	return r
}

// openURL opens a driver that is closed gracefully when the test ends.
func openURL(tb testing.TB, format string, args ...any) *Driver {
	tb.Helper()
	d, err := tryOpen(tb, fmt.Sprintf(format, args...))
	if err != nil {
		tb.Fatal(err)
	}
	closeLater(tb, d)
	return d
}

func tryOpen(tb testing.TB, url string) (*Driver, error) {
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	d, _, err := driver.Open(ctx, url)
	if err != nil {
		tb.Log(err) // the log is searched for passwords
		return nil, err
	}
	return d.(*Driver), nil
}

func closeLater(tb testing.TB, d *Driver) {
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
		defer cancel()
		if err := d.Close(ctx); err != nil && err != driver.ErrClosed {
			tb.Errorf("Close: %v", err)
		}
	})
}

// userClient returns a client as a user would make it.
func userClient(tb testing.TB, o rueidis.ClientOption) rueidis.Client {
	tb.Helper()
	o.DisableCache = true
	client, err := rueidis.NewClient(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(client.Close)
	return client
}

func acquire(tb testing.TB, d *Driver, r *driver.Request) *lease {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	l, err := d.Acquire(ctx, r)
	if err != nil {
		tb.Fatalf("Acquire %q: %v", r.Name, err)
	}
	return l.(*lease)
}

func release(tb testing.TB, l driver.Lease) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	if err := l.Release(ctx); err != nil {
		tb.Errorf("Release: %v", err)
	}
}

// waiter is a call to Acquire in another goroutine.
type waiter struct {
	request *driver.Request
	events  *events
	cancel  context.CancelFunc
	done    chan struct{}
	lease   *lease
	err     error
}

// wait begins an Acquire and returns when it waits.
func wait(tb testing.TB, d *Driver, r *driver.Request) *waiter {
	tb.Helper()
	w := begin(d, r)
	select {
	case <-w.events.waiting:
	case <-w.done:
		tb.Fatalf("Acquire of a lock that is taken: got %v, %v, want a wait", w.lease, w.err)
	case <-time.After(hangGuard):
		tb.Fatal("Acquire neither waits nor returns")
	}
	return w
}

func begin(d *Driver, r *driver.Request) *waiter {
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	w := &waiter{request: r, events: r.Events.(*events), cancel: cancel, done: make(chan struct{})}
	go func() { // ends when ctx ends
		defer close(w.done)
		l, err := d.Acquire(ctx, r)
		if w.err = err; err == nil {
			w.lease = l.(*lease)
		}
	}()
	return w
}

// granted returns the lease that a waiter gets.
func (w *waiter) granted(tb testing.TB) *lease {
	tb.Helper()
	<-w.done
	if w.err != nil {
		tb.Fatalf("Acquire after a wait: %v", w.err)
	}
	return w.lease
}

// subscribers waits until the wanted number of connections listen for the end
// of holds of name.
func subscribers(tb testing.TB, s *testenv.RedisServer, name string, want int64) {
	tb.Helper()
	channel := prefixName(channelPrefix, name)
	testenv.Eventually(tb, func() bool { return s.SubscriberCount(channel) == want }, fmt.Sprintf("%d subscribers of %s", want, channel))
}

// keysOf returns all keys of a server except tokens and lines.
func keysOf(s *testenv.RedisServer) []string {
	var keys []string
	for _, key := range s.Do("KEYS", "*").([]any) {
		key := key.(string)
		if !strings.HasPrefix(key, fencePrefix) && !strings.HasPrefix(key, tokenPrefix) && !strings.HasPrefix(key, turnPrefix) {
			keys = append(keys, key)
		}
	}
	return keys
}

// counted returns how often the server ran each command while f ran.
func counted(s *testenv.RedisServer, f func(), commands ...string) map[string]int64 {
	before := s.Commands()
	f()
	after := s.Commands()
	counts := make(map[string]int64)
	for _, c := range commands {
		counts[c] = after[c] - before[c]
	}
	return counts
}

// parallel runs f n times in parallel.
func parallel(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}
