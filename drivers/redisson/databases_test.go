package redisson

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/internal/testenv"
)

// TestDatabases: channels belong to all databases of a server. Waiters for a
// name in one database do not try because of releases in another database, and
// the line of one database does not disturb the line of another.
func TestDatabases(t *testing.T) {
	s := testenv.Redis(t)
	open := func(database int) *Driver { return openURL(t, "redisson://%s/%d", s.Addr, database) }
	ofUser := func(database int) *Driver {
		d, err := New(userClient(t, rueidis.ClientOption{
			InitAddress: []string{s.Addr}, SelectDB: database, ForceSingleClient: true,
			AlwaysPipelining: true, DisableRetry: true,
		}), nil)
		if err != nil {
			t.Fatal(err)
		}
		closeLater(t, d)
		return d
	}
	acquire(t, open(0), forLong("x"))
	bystanders := []*Driver{open(0), ofUser(0), open(0)}
	for _, d := range bystanders {
		wait(t, d, forLong("x"))
		testenv.Eventually(t, func() bool { return d.topics.Own(prefixName(channelPrefix, "x")) > 0 && placeOf(d) != 0 }, "the waiter has a place")
	}
	crowd := []*Driver{open(1), ofUser(1), open(1)}
	const n = 30
	l := acquire(t, crowd[0], forLong("x"))
	messages := spyOn(t, s, "redisson_lock__channel:{x}")
	start := time.Now()
	got := counted(s, func() {
		for i := range n {
			next := wait(t, crowd[(i+1)%len(crowd)], forLong("x"))
			release(t, l)
			l = next.granted(t)
		}
	}, "evalsha")
	took := time.Since(start)
	// Without the bystanders a hand-over takes a release, a grant, and one or
	// two requests before the grant.
	t.Logf("%d scripts for %d hand-overs", got["evalsha"], n)
	if limit := int64(4 * n); got["evalsha"] > limit {
		t.Errorf("scripts for %d hand-overs: got %d, want at most %d", n, got["evalsha"], limit)
	}
	if took > n*backstop/10 {
		t.Errorf("%d hand-overs took %v", n, took)
	}
	releases := 0
	for len(messages.messages) > 0 {
		switch m := messages.next(t); {
		case m == "00":
			releases++
		case !strings.HasPrefix(m, "-2") || len(m) != len("-2")+16:
			t.Errorf("message of the database 1: got %q", m)
		}
	}
	if releases != n {
		t.Errorf("messages of releases: got %d, want %d", releases, n)
	}
	release(t, l)
}
