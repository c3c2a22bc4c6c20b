package zk

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestSessionsEndBesideRequests has sessions expire and die while many requests
// are on their way. No request is left.
func TestSessionsEndBesideRequests(t *testing.T) {
	s := testenv.ZooKeeper(t)
	opened, _, err := driver.Open(t.Context(), "zk://"+s.Addr+"?ttl=6s") // Close waits for as long if the server was too busy to end a session
	if err != nil {
		t.Fatal(err)
	}
	d := opened.(*Driver)
	for range testenv.Briefly(10, 30) {
		s, err := d.board(t.Context(), d.options.TTL, 0)
		if err != nil {
			t.Fatal(err)
		}
		for range 32 {
			send(s, func(c *gozk.Conn) (struct{}, error) {
				for {
					if _, _, err := c.Exists("/"); err != nil {
						return struct{}{}, err
					}
				}
			})
		}
		s.End.Passed(s.End.At()) // from now on
		s.Die(driver.ErrSessionEnded)
		s.Leave(0)
		select {
		case <-s.Buried():
		case <-time.After(30 * time.Second):
			t.Fatal("the session is still there")
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := d.Close(ctx); err != nil {
		t.Error(err)
	}
}

// TestContainersBesideTheEndOfTheSession has sessions end while containers are
// made. The race detector saw the library read the path of a container.
func TestContainersBesideTheEndOfTheSession(t *testing.T) {
	server := testenv.ZooKeeper(t)
	d := drivertest.Open(t, "zk://"+server.Addr).(*Driver)
	var made atomic.Int64
	for range 10 {
		s, err := d.board(t.Context(), d.options.TTL, 0)
		if err != nil {
			t.Fatal(err)
		}
		begun := make(chan struct{}, 1)
		var ended []<-chan reply[string]
		for range 64 {
			ended = append(ended, send(s, func(c *gozk.Conn) (string, error) {
				for {
					path, err := c.CreateContainer(fmt.Sprintf("/made-%d", made.Add(1)), nil, gozk.FlagContainer, d.options.ACL)
					if path != "" || err != nil && !errors.Is(err, gozk.ErrNodeExists) {
						return path, err
					}
					select {
					case begun <- struct{}{}:
					default:
					}
				}
			}))
		}
		<-begun
		s.Die(nil)
		s.Leave(0)
		for _, e := range ended {
			if r := <-e; r.value != "" {
				t.Fatalf("the library got the path %q", r.value)
			}
		}
		<-s.Buried()
	}
}

// TestReleaseBesideTheEndOfTheSession has an unanswered release see the end of
// its session before the hold is notified. The node may have disappeared with
// the session before the request was sent. Then nothing proves that the hold
// lasted until its release.
func TestReleaseBesideTheEndOfTheSession(t *testing.T) {
	server := testenv.ZooKeeper(t)
	for cause, want := range map[error]error{driver.ErrSessionEnded: driver.ErrNotHeld, nil: nil} {
		d := drivertest.Open(t, "zk://"+server.Addr).(*Driver)
		h := drivertest.Acquire(t, d, drivertest.Request("a")).(*hold)
		s := h.session
		s.mu.Lock()
		h.phase, h.doubtedAt = doubted, d.now()
		s.fresh.Remove(h)
		s.mu.Unlock()
		s.Die(cause)
		if got := h.release(t.Context()); got != want {
			t.Errorf("cause %v: got %v, want %v", cause, got, want)
		}
		s.Leave(0)
		<-s.Buried()
	}
}
