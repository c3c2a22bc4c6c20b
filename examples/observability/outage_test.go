package main

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
)

// server has the faults that can happen to any kind of server.
type server interface {
	Start()
	Kill()
	Freeze()
	Thaw()
}

// lines is a log that is read line by line.
type lines struct {
	mu  sync.Mutex
	all []string
	new chan struct{} // buffered; signaled when there are more
}

func newLog() (*lines, *slog.Logger) {
	l := &lines{new: make(chan struct{}, 1)}
	return l, slog.New(slog.NewTextHandler(l, nil))
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(p))
	select {
	case l.new <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all, "")
}

// await waits for the first record with a text and returns its number. Only one
// goroutine may call it.
func (l *lines) await(t *testing.T, text string) int {
	t.Helper()
	guard := time.NewTimer(time.Minute)
	defer guard.Stop()
	for {
		l.mu.Lock()
		at := slices.IndexFunc(l.all, func(line string) bool { return strings.Contains(line, text) })
		l.mu.Unlock()
		if at >= 0 {
			return at
		}
		select {
		case <-l.new:
		case <-guard.C:
			t.Fatalf("no record with %q after a minute:\n%s", text, l.text())
		}
	}
}

// TestOutageOnRealBackends stops a server while one client holds a lock,
// another waits, and there are no other requests.
func TestOutageOnRealBackends(t *testing.T) {
	const ttl = 3 * time.Second
	for _, b := range []struct {
		name   string
		start  func(tb testing.TB) (s server, url string)
		killed string // the cause of a loss when the server is killed
	}{
		{"redisson", func(tb testing.TB) (server, string) {
			s := testenv.Redis(tb)
			return s, "redisson://" + s.Addr
		}, "unreachable"},
		{"etcd", func(tb testing.TB) (server, string) {
			s := testenv.Etcd(tb)
			return s, "etcd://" + s.Addr
		}, "unreachable"},
		{"zk", func(tb testing.TB) (server, string) {
			s := testenv.ZooKeeper(tb)
			return s, "zk://" + s.Addr
		}, "unreachable"},
		{"pglock", func(tb testing.TB) (server, string) {
			s := testenv.Postgres(tb)
			return s, "pglock://postgres@" + s.Addr + "/postgres"
		}, "unreachable"}, // with its connection, immediately
	} {
		for _, killed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, killed %t", b.name, killed), func(t *testing.T) {
				s, url := b.start(t)
				open := func() (*dsync.Client, *lines) {
					log, logger := newLog()
					c, err := dsync.Open(t.Context(), url, &dsync.Options{TTL: ttl, Logger: logger})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = c.Close(t.Context()) })
					return c, log
				}
				holder, held := open()
				waiter, waiting := open()
				lease, err := holder.Lock(t.Context(), "x")
				if err != nil {
					t.Fatal(err)
				}
				granted := make(chan error, 1)
				go func() { // ends when the test ends
					_, err := waiter.Lock(t.Context(), "x")
					granted <- err
				}()
				cause, end := "unreachable", s.Thaw
				if killed {
					cause, end = b.killed, s.Start
					s.Kill()
				} else {
					s.Freeze()
				}
				<-lease.Done()
				lost := held.await(t, `msg="dsync: lock lost"`)
				if warned := held.await(t, `msg="dsync: backend out of reach"`); warned > lost && cause == "unreachable" {
					t.Errorf("the loss was reported before the outage:\n%s", held.text())
				}
				if !strings.Contains(held.text(), "dsync.loss.cause="+cause) {
					t.Errorf("records:\n%swant the cause %s", held.text(), cause)
				}
				waiting.await(t, `msg="dsync: backend out of reach"`)
				end()
				held.await(t, `msg="dsync: backend in reach again"`)
				waiting.await(t, `msg="dsync: backend in reach again"`)
				if err := <-granted; err != nil {
					t.Error(err)
				}
				for _, log := range []*lines{held, waiting} {
					if n := strings.Count(log.text(), `msg="dsync: backend `); n != 2 {
						t.Errorf("%d records for one outage, want 2:\n%s", n, log.text())
					}
				}
			})
		}
	}
}
