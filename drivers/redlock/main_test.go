package redlock

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.RunRole(roles)
	testenv.NoLeaks(m)
}

// hangGuard is not an expectation of how long something takes.
const hangGuard = 30 * time.Second

// testTTL is the TTL of requests, unless a test sets another.
const testTTL = 10 * time.Second

// servers are the nodes of a test.
type servers []*testenv.RedisServer

// startNodes starts independent servers. Tests that do not restart their nodes
// set durable=true and need not wait for them.
func startNodes(tb testing.TB, n int, args ...string) servers {
	tb.Helper()
	var all servers
	for range n {
		all = append(all, testenv.Redis(tb, args...))
	}
	return all
}

func (s servers) url() string {
	var addresses []string
	for _, server := range s {
		addresses = append(addresses, server.Addr)
	}
	if len(addresses) == 1 {
		return singleScheme + "://" + addresses[0]
	}
	return "redlock://" + strings.Join(addresses, ",")
}

// through returns a link to all nodes, and their URL over the link.
func (s servers) through(tb testing.TB) (link *wire.Wire, url string) {
	tb.Helper()
	link = &wire.Wire{}
	tb.Cleanup(link.Close)
	var addresses []string
	for _, server := range s {
		addr, err := link.Listen(server.Addr)
		if err != nil {
			tb.Fatal(err)
		}
		addresses = append(addresses, addr)
	}
	return link, "redlock://" + strings.Join(addresses, ",")
}

const settled = "?durable=true"

// do sends a command to every node and returns all answers.
func (s servers) do(args ...string) []any {
	var answers []any
	for _, server := range s {
		answers = append(answers, server.Do(args...))
	}
	return answers
}

// commands returns how often the nodes together ran each command.
func (s servers) commands() map[string]int64 {
	sum := make(map[string]int64)
	for _, server := range s {
		for name, n := range server.Commands() {
			sum[name] += n
		}
	}
	return sum
}

// counted returns how often the nodes together ran each command while f ran.
func (s servers) counted(f func(), commands ...string) map[string]int64 {
	before := s.commands()
	f()
	after := s.commands()
	counts := make(map[string]int64)
	for _, c := range commands {
		counts[c] = after[c] - before[c]
	}
	return counts
}

var holds atomic.Int64

// events counts the events that a driver reports for a request.
type events struct {
	waiting chan struct{} // closed by Waiting: a second call panics
	lost    chan error
}

func (e *events) Waiting()         { close(e.waiting) }
func (e *events) Tokens() int      { return 1 }
func (e *events) Lost(cause error) { e.lost <- cause }

// request returns a request with its own hold.
func request(name string) *driver.Request {
	hold := fmt.Sprintf("00000000-0000-4000-8000-000000000000:%d", holds.Add(1))
	return &driver.Request{Name: name, Hold: hold, Owner: "somebody", TTL: testTTL,
		Events: &events{waiting: make(chan struct{}), lost: make(chan error, 1)}}
}

func noWait(name string) *driver.Request {
	r := request(name)
	r.NoWait = true
	return r
}

// openURL opens a driver that is closed gracefully when the test ends.
func openURL(tb testing.TB, format string, args ...any) *Driver {
	tb.Helper()
	d, err := tryOpen(fmt.Sprintf(format, args...))
	if err != nil {
		tb.Fatal(err)
	}
	closeLater(tb, d)
	return d
}

func tryOpen(url string) (*Driver, error) {
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	d, _, err := driver.Open(ctx, url)
	if err != nil {
		return nil, err
	}
	if s, ok := d.(*Single); ok {
		return s.Driver, nil
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

// awaitClear waits until no node has a key.
func (s servers) awaitClear(tb testing.TB) {
	tb.Helper()
	testenv.Eventually(tb, func() bool {
		for _, server := range s {
			if server.Do("DBSIZE") != int64(0) {
				return false
			}
		}
		return true
	}, "all keys are gone")
}

// parallel runs f n times in parallel.
func parallel(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}
