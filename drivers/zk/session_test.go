package zk

import (
	"context"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestSessionsEndBesideRequests has sessions expire and die while many requests are on their way: none is left.
func TestSessionsEndBesideRequests(t *testing.T) {
	s := testenv.ZooKeeper(t)
	opened, _, err := driver.Open(t.Context(), "zk://"+s.Addr)
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
