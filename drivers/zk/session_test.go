package zk

import (
	"context"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/lifecycle"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestSessionsEndBesideRequests has sessions expire and die while many requests are on their way: none is left.
func TestSessionsEndBesideRequests(t *testing.T) {
	s := testenv.ZooKeeper(t)
	opened, _, err := driver.Open(t.Context(), "zk://"+s.Addr+"?ttl=6s") // Close waits for as long if the server was too busy to end a session
	if err != nil {
		t.Fatal(err)
	}
	d := opened.(*Driver)
	for range testenv.Briefly(10, 30) {
		s, err := d.board(caller{ctx: t.Context(), stop: d.life.Open().Done()}, d.options.TTL)
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
		s.hasExpired(s.expires.Load()) // from now on
		s.die(driver.ErrSessionEnded)
		s.leave()
		select {
		case <-s.buried:
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

// TestReleaseBesideTheEndOfTheSession has a release whose request got no answer see the end of its session before the hold is told of it. The
// node may have gone with a session that ended, before the request was sent: then nobody says that the hold lasted until its release.
func TestReleaseBesideTheEndOfTheSession(t *testing.T) {
	for lost, want := range map[bool]error{true: driver.ErrNotHeld, false: nil} {
		d := &Driver{life: lifecycle.New(), epoch: time.Now()}
		s := newSession(d, time.Minute)
		close(s.ready)
		h := &hold{driver: d, session: s, request: new(driver.Request), phase: doubted, doubtedAt: d.now()}
		s.expires.Store(int64(time.Hour))
		h.end.Store(int64(time.Hour))
		s.kill(lost)
		if got := h.release(t.Context()); got != want {
			t.Errorf("lost %t: got %v, want %v", lost, got, want)
		}
		<-s.buried
	}
}
