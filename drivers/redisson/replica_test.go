package redisson

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// replicated returns a server and a replica that follows it over a link that
// can be cut.
func replicated(tb testing.TB) (primary, replica *testenv.RedisServer, link *wire.Wire) {
	tb.Helper()
	primary = testenv.Redis(tb, "--repl-diskless-sync-delay", "0")
	link, addr := testenv.Wire(tb, primary.Addr)
	host, port, _ := strings.Cut(addr, ":")
	replica = testenv.Redis(tb, "--replicaof", host+" "+port)
	testenv.Eventually(tb, func() bool { return primary.Do("WAIT", "1", "10") == int64(1) }, "the replica follows")
	return primary, replica, link
}

func TestWaitReplicas(t *testing.T) {
	primary, replica, link := replicated(t)
	d := openURL(t, "redisson://%s?waitreplicas=1&waitlimit=%v", primary.Addr, hangGuard)
	l := acquire(t, d, request("x"))
	if got := replica.Do("HEXISTS", "x", l.request.Hold); got != int64(1) {
		t.Error("the replica does not have the grant")
	}
	if err := l.Renew(t.Context(), time.Hour); err != nil {
		t.Errorf("Renew: %v", err)
	}
	release(t, l)
	if got := replica.Do("PTTL", "x"); got == int64(-1) {
		t.Error("the replica has a hold without TTL")
	}

	// This driver does not wait long, so it may need several attempts even
	// while the replica is there.
	d = openURL(t, "redisson://%s?waitreplicas=1&waitlimit=100ms", primary.Addr)
	testenv.Eventually(t, func() bool {
		got, err := d.Acquire(t.Context(), request("x"))
		if err != nil && !errors.Is(err, ErrNotReplicated) {
			t.Fatalf("Acquire: %v", err)
		}
		if err == nil {
			l = got.(*lease)
		}
		return err == nil
	}, "the replica confirms in time")

	link.Hold(wire.Both)
	r := request("y")
	if _, err := d.Acquire(t.Context(), r); !errors.Is(err, ErrNotReplicated) || !errors.Is(err, driver.ErrUnavailable) ||
		errors.Is(err, driver.ErrUnknown) || !strings.Contains(err.Error(), "0 of 1") {
		t.Errorf("Acquire without the replica: got %v, want ErrNotReplicated with 0 of 1", err)
	}
	if got := primary.Do("EXISTS", "y"); got != int64(0) {
		t.Error("the grant that was not replicated still exists")
	}
	expires := l.Expires()
	if err := l.Renew(t.Context(), time.Hour); !errors.Is(err, ErrNotReplicated) || !l.Expires().Equal(expires) {
		t.Errorf("Renew without the replica: got %v and Expires moved by %v, want ErrNotReplicated and no move", err, l.Expires().Sub(expires))
	}
	d.RenewAll(t.Context(), []driver.Lease{l}, func(_ int, err error) {
		if !errors.Is(err, ErrNotReplicated) {
			t.Errorf("RenewAll without the replica: got %v, want ErrNotReplicated", err)
		}
	})
	release(t, l) // which needs no replica

	link.Heal()
	testenv.Eventually(t, func() bool {
		l, err := acquireOnce(t, d, "z")
		return err == nil && l.Release(t.Context()) == nil
	}, "the replica is back")
}

func TestWaitReplicasRefusedTry(t *testing.T) {
	primary, _, _ := replicated(t)
	d := openURL(t, "redisson://%s?waitreplicas=1", primary.Addr)
	l := acquire(t, d, request("x"))
	if _, err := acquireOnce(t, d, "x"); err != driver.ErrLocked {
		t.Errorf("Acquire: got %v, want ErrLocked", err)
	}
	w := wait(t, d, request("x"))
	release(t, l)
	release(t, w.granted(t))
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	s := testenv.RedisSentinel(t, 1)
	d := openURL(t, "redisson://%s?mode=sentinel&master=%s", strings.Join(s.SentinelAddrs(), ","), s.Master)
	if _, err := tryOpen(t, "redisson://"+s.SentinelAddrs()[0]+"?mode=sentinel&master=nobody"); err == nil || !strings.Contains(err.Error(), "master=") {
		t.Errorf("a primary that the sentinels do not know: got %v, want an error that says master=", err)
	}
	if _, err := tryOpen(t, "redisson://"+s.SentinelAddrs()[0]); err == nil {
		t.Error("mode=single at a sentinel: opened")
	}
	first, _ := acquire(t, d, forLong("token")).Tokens()
	l := acquire(t, d, forLong("x"))
	w := wait(t, d, request("x"))
	testenv.Eventually(t, func() bool { return d.topics.Own(prefixName(channelPrefix, "x")) == 1 }, "the waiter is subscribed")
	old := s.Primary()
	testenv.Eventually(t, func() bool { return s.Nodes[1].Do("HEXISTS", "x", l.request.Hold) == int64(1) }, "the replica has the hold")
	old.Kill()
	testenv.Eventually(t, func() bool { return s.Primary() != old }, "the sentinels name the other server")

	var err error
	testenv.Eventually(t, func() bool {
		err = l.Renew(t.Context(), time.Minute)
		return err == nil || errors.Is(err, driver.ErrNotHeld)
	}, "the lease is renewed at the new primary")
	if err != nil {
		t.Fatalf("Renew: %v: the replica had the hold", err)
	}
	w.cancel()
	if <-w.done; w.err == nil {
		t.Fatal("the waiter was granted a lock that is held")
	}
	w = waitOut(t, d, "x")
	testenv.Eventually(t, func() bool { return d.topics.Own(prefixName(channelPrefix, "x")) == 1 }, "the waiter is subscribed on the new primary")
	start := time.Now()
	release(t, l)
	next := w.granted(t)
	if took := time.Since(start); took > backstop/2 {
		t.Errorf("the waiter got the lock after %v", took)
	}
	release(t, next)
	if err := d.ForceUnlock(t.Context(), "token"); err != nil {
		t.Errorf("ForceUnlock: %v", err)
	}
	again, _ := acquire(t, d, request("token")).Tokens()
	if again <= first {
		t.Errorf("token after the failover: got %d, want more than %d", again, first)
	}
}

// TestSentinelDemotedPrimary is a failover in which the old primary lives on,
// as a replica that refuses writes.
func TestSentinelDemotedPrimary(t *testing.T) {
	t.Parallel()
	s := testenv.RedisSentinel(t, 1)
	d := openURL(t, "redisson://%s?mode=sentinel&master=%s", strings.Join(s.SentinelAddrs(), ","), s.Master)
	release(t, acquire(t, d, request("x")))
	old := s.Primary()
	testenv.Eventually(t, func() bool {
		_, err := s.Sentinels[0].Try("SENTINEL", "FAILOVER", s.Master)
		return err == nil
	}, "the sentinel begins a failover")
	testenv.Eventually(t, func() bool { return s.Primary() != old }, "the sentinels name the other server")
	testenv.Eventually(t, func() bool {
		role, err := old.Try("ROLE") // a server that is demoted breaks connections
		return err == nil && role.([]any)[0] == "slave"
	}, "the old primary is a replica")
	testenv.Eventually(t, func() bool {
		l, err := acquireOnce(t, d, "x")
		if err != nil && !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrUnknown) {
			t.Fatalf("Acquire: %v", err)
		}
		return err == nil && l.Release(t.Context()) == nil
	}, "locks are granted by the new primary")
}

// TestSubscriptionFollowsSentinels: after a planned failover the old primary
// lives on and does not close its connections for some 10 s.
func TestSubscriptionFollowsSentinels(t *testing.T) {
	t.Parallel()
	s := testenv.RedisSentinel(t, 1)
	d := openURL(t, "%s", sentinelURL(s))
	topic := d.topics.Join(prefixName(channelPrefix, "x"), 0)
	defer topic.Leave(false)
	<-topic.Wake
	before := addresses(d.client)
	failOver(t, s)
	testenv.Eventually(t, func() bool { return addresses(d.client) != before }, "the client uses the new primary")
	start := time.Now()
	select {
	case <-topic.Wake: // messages may have been missed
	case <-time.After(hangGuard):
		t.Fatal("the listener does not follow the client")
	}
	if took := time.Since(start); took > backstop {
		t.Errorf("the listener followed the client after %v", took)
	}
	if n := s.Primary().SubscriberCount("redisson_lock__channel:{x}"); n != 1 {
		t.Errorf("%d subscriptions at the new primary, want 1", n)
	}
}

// TestRenewalBehindOneAddress: a replica takes over the address of the server,
// and open connections stay with the old server. A holder that only renews
// reaches the new server.
func TestRenewalBehindOneAddress(t *testing.T) {
	permit := forLong("p")
	permit.Mode, permit.Permits, permit.Limit = driver.Permit, 1, 1
	read := forLong("r")
	read.Mode = driver.Read
	write := forLong("w")
	write.Mode = driver.Write
	requests := []*driver.Request{forLong("x"), read, write, permit}
	old, heir := testenv.Redis(t), testenv.Redis(t)
	host, port, _ := strings.Cut(old.Addr, ":")
	heir.Do("REPLICAOF", host, port)
	old.AwaitReplicas(1)
	var current atomic.Pointer[testenv.RedisServer]
	current.Store(old)
	option := rueidis.ClientOption{
		InitAddress: []string{"the-address:6379"}, ForceSingleClient: true,
		DialCtxFn: func(ctx context.Context, _ string, nd *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return nd.DialContext(ctx, "tcp", current.Load().Addr)
		},
	}
	var leases []*lease
	for _, r := range requests {
		d, err := Connect(t.Context(), option, nil)
		if err != nil {
			t.Fatal(err)
		}
		closeLater(t, d)
		leases = append(leases, acquire(t, d, r))
	}
	old.AwaitReplicas(1)
	current.Store(heir)
	heir.Do("REPLICAOF", "NO", "ONE")
	host, port, _ = strings.Cut(heir.Addr, ":")
	old.Do("REPLICAOF", host, port)
	for i, l := range leases {
		var err error
		testenv.Eventually(t, func() bool {
			if err = l.Renew(t.Context(), time.Minute); i%2 == 0 {
				l.driver.RenewAll(t.Context(), []driver.Lease{l}, func(_ int, e error) { err = e })
			}
			return err == nil || errors.Is(err, driver.ErrNotHeld)
		}, fmt.Sprintf("the lease of %q is renewed by the new server", l.request.Name))
		if err != nil {
			t.Errorf("%q: %v", l.request.Name, err)
		}
		release(t, l)
	}
}

// TestWaitReplicasOfALatch: a change that no replica confirms is executed, and
// is not repeated. A server that does not know the script does not cost a
// second wait.
func TestWaitReplicasOfALatch(t *testing.T) {
	t.Parallel()
	const limit = 2 * time.Second
	s := testenv.Redis(t)
	l := clientOf(t, fmt.Sprintf("redisson://%s/?waitreplicas=1&waitlimit=%v", s.Addr, limit)).Latch("x")
	ctx, cancel := context.WithTimeout(t.Context(), hangGuard)
	defer cancel()
	for _, change := range []func() error{
		func() error { _, err := l.Set(ctx, 3); return err },
		func() error { return l.CountDown(ctx) },
	} {
		begun := time.Now()
		err := change()
		if !errors.Is(err, ErrNotReplicated) || !errors.Is(err, dsync.ErrUnknown) {
			t.Errorf("without a replica: %v, want ErrNotReplicated and ErrUnknown", err)
		}
		if took := time.Since(begun); took > limit*7/4 {
			t.Errorf("it took %v, want %v", took, limit)
		}
	}
	if got := s.Do("GET", "x"); got != "2" {
		t.Errorf("the count is %v, want 2", got)
	}
}
