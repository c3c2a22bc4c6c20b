package zk_test

import (
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestExtendBeyondTheSession extends a lease to 200 times its length. 1 % of
// that is longer than the TTL of its session.
func TestExtendBeyondTheSession(t *testing.T) {
	s := testenv.ZooKeeper(t, "maxSessionTimeout=600000")
	c, err := dsync.Open(guard(t), "zk://"+s.Addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(guard(t))
	const length = 2 * time.Second
	l, err := c.Lock(guard(t), "a", dsync.ExpireAfter(length))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Extend(guard(t), 200*length); err != nil {
		t.Fatal(err)
	}
	awaitTicks(t, int(2*length/(100*time.Millisecond)))
	if err := l.Err(); err != nil {
		t.Errorf("an extended lease: got %v after twice its first length", err)
	}
	if err := l.Unlock(guard(t)); err != nil {
		t.Error(err)
	}
}
