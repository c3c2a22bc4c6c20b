package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/etcd"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// leaseOf returns the id of the lease to which a key is attached.
func leaseOf(tb testing.TB, c *clientv3.Client, key string) clientv3.LeaseID {
	tb.Helper()
	answer, err := c.Get(guard(tb), key)
	if err != nil || len(answer.Kvs) != 1 {
		tb.Fatalf("key %q: got %v, %v", key, answer, err)
	}
	return clientv3.LeaseID(answer.Kvs[0].Lease)
}

func revoke(tb testing.TB, c *clientv3.Client, id clientv3.LeaseID) {
	tb.Helper()
	if _, err := c.Revoke(guard(tb), id); err != nil {
		tb.Fatal(err)
	}
}

func TestRevokedLeaseOfHolders(t *testing.T) {
	t.Parallel()
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)
	r1, r2 := request("a"), request("b")
	l := acquire(t, a, r1)
	acquire(t, a, r2)
	w := wait(t, b, request("a"))
	revoke(t, c, leaseOf(t, c, keys(t, c, "a/")[0]))
	next := w.Granted(t)
	for _, r := range []*driver.Request{r1, r2} {
		wantErr(t, "loss", lostBy(t, r), driver.ErrSessionEnded)
	}
	wantErr(t, "Release", l.Release(t.Context()), driver.ErrNotHeld)
	release(t, next)
	release(t, acquire(t, a, request("a"))) // on a new session
}

func TestRevokedLeaseOfWaiters(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)
	l := acquire(t, a, request("a"))
	waiters := []*drivertest.Waiter{wait(t, b, request("a")), wait(t, b, fixed(request("a"), 30*time.Second))}
	old := keys(t, c, "a/")
	for _, key := range old[1:] {
		revoke(t, c, leaseOf(t, c, key))
	}
	testenv.Eventually(t, func() bool {
		now := keys(t, c, "a/")
		return len(now) == 3 && now[0] == old[0] && now[1] != old[1] && now[2] != old[2]
	}, "both wait again")
	release(t, l)
	<-either(waiters[0].Done, waiters[1].Done)
	for _, w := range waiters {
		select {
		case <-w.Done:
			release(t, w.Granted(t))
		default:
			defer func() { release(t, w.Granted(t)) }()
		}
	}
}

// either is closed when a or b is.
func either(a, b <-chan struct{}) <-chan struct{} {
	c := make(chan struct{})
	go func() { // ends when the first of them ends
		defer close(c)
		select {
		case <-a:
		case <-b:
		}
	}()
	return c
}

// TestCutOffHolder cuts a holder off permanently. It must learn of the loss
// before the next client is granted the lock.
func TestCutOffHolder(t *testing.T) {
	t.Parallel()
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	a, b := openURL(t, "etcd://%s", addr), openURL(t, "etcd://%s", s.Addr)
	for name, r := range map[string]*driver.Request{"kept alive": withTTL(request("a"), 2*time.Second), "fixed": fixed(request("b"), 2*time.Second)} {
		t.Run(name, func(t *testing.T) {
			l := acquire(t, a, r)
			w := wait(t, b, request(r.Name))
			link.Hold(wire.Both)
			next := w.Granted(t)
			if now := time.Now(); now.Before(l.Expires()) {
				t.Errorf("the next client was granted the lock %v before Expires", l.Expires().Sub(now))
			}
			if !r.Fixed {
				wantErr(t, "loss", lostBy(t, r), driver.ErrSessionEnded)
			}
			link.Heal()
			release(t, next)
		})
	}
}

// TestKeptAlive holds a lock for longer than its TTL, through a break of the
// connection.
func TestKeptAlive(t *testing.T) {
	t.Parallel()
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	a, b := openURL(t, "etcd://%s", addr), openURL(t, "etcd://%s", s.Addr)
	r := withTTL(request("a"), 2*time.Second)
	l := acquire(t, a, r)
	for first := l.Expires(); l.Expires().Before(first.Add(3 * time.Second)); {
		link.Cut()
		link.Heal()
		testenv.Eventually(t, func() bool { return l.Expires().After(time.Now().Add(time.Second)) }, "the lease is kept alive")
		before := l.Expires()
		testenv.Eventually(t, func() bool { return l.Expires().After(before) }, "the lease is kept alive again")
	}
	_, err := b.Acquire(t.Context(), noWait("a"))
	wantErr(t, "TryLock by another client", err, driver.ErrLocked)
	release(t, l)
}

func TestRenewFixed(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	r := fixed(request("a"), 2*time.Second)
	l := acquire(t, d, r)
	for _, ttl := range []time.Duration{60 * time.Second, 2 * time.Second, 30 * time.Second} {
		sent := time.Now()
		if err := l.Renew(t.Context(), ttl); err != nil {
			t.Fatalf("Renew(%v): %v", ttl, err)
		}
		if got := l.Expires(); got.Before(sent.Add(ttl)) || got.After(time.Now().Add(ttl)) {
			t.Errorf("Renew(%v): the lease lasts %v", ttl, got.Sub(sent))
		}
		left, err := c.TimeToLive(t.Context(), leaseOf(t, c, keys(t, c, "a/")[0]))
		if err != nil || left.GrantedTTL != int64(ttl/time.Second) {
			t.Errorf("Renew(%v): the key is attached to a lease of %+v, %v", ttl, left, err)
		}
	}
	w := wait(t, d, request("a"))
	if _, err := c.Delete(t.Context(), keys(t, c, "a/")[0]); err != nil {
		t.Fatal(err)
	}
	release(t, w.Granted(t))
	wantErr(t, "Renew of a removed hold", l.Renew(t.Context(), 2*time.Second), driver.ErrNotHeld)
	wantErr(t, "Release of a removed hold", l.Release(t.Context()), driver.ErrNotHeld)
	other := acquire(t, d, request("a"))
	wantErr(t, "Renew of a lease that is kept alive", other.Renew(t.Context(), time.Minute), errors.ErrUnsupported)
	release(t, other)
}

// TestLostAnswerOfRenewal loses the answer to a renewal, after which the key
// may be attached to either lease.
func TestLostAnswerOfRenewal(t *testing.T) {
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", addr)
	r := fixed(request("a"), 30*time.Second)
	l := acquire(t, d, r)
	key := keys(t, c, "a/")[0]
	old := leaseOf(t, c, key)
	sent := time.Now()
	held := link.HoldReply(key)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { failed <- l.Renew(ctx, 10*time.Second) }()
	<-held
	testenv.Eventually(t, func() bool { return leaseOf(t, c, key) != old }, "the key was moved")
	cancel()
	wantErr(t, "Renew", <-failed, driver.ErrUnknown, context.Canceled)
	link.Cut()
	link.Heal()
	if got := l.Expires(); got.After(time.Now().Add(10*time.Second)) || got.Before(sent) {
		t.Errorf("Expires: got in %v, want within the shorter TTL", time.Until(got))
	}
	testenv.Eventually(t, func() bool {
		sent = time.Now()
		err := l.Renew(guard(t), 20*time.Second)
		if err != nil && !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrUnknown) {
			t.Fatalf("the next Renew: %v", err)
		}
		return err == nil
	}, "the lease is renewed when the server can be reached again")
	if got := l.Expires(); got.Before(sent.Add(20 * time.Second)) {
		t.Errorf("Expires: got in %v, want 20s", got.Sub(sent))
	}
	release(t, l)
	testenv.Eventually(t, func() bool { return len(keys(t, c, "a/")) == 0 }, "the key is gone")
}

// TestLostAnswerOfAcquire loses the answer to the request for a free lock. The
// key that the request put must not stay.
func TestLostAnswerOfAcquire(t *testing.T) {
	t.Parallel()
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	c := userClient(t, s.Addr)
	a, b := openURL(t, "etcd://%s", addr), openURL(t, "etcd://%s", s.Addr)
	release(t, acquire(t, a, request("warm")))
	for name, r := range map[string]*driver.Request{
		"lock": request("a1"), "try": noWait("a2"), "fixed": fixed(request("a3"), 30*time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			held := link.HoldReply(r.Name + "/")
			w := begin(a, r)
			<-held
			testenv.Eventually(t, func() bool { return len(keys(t, c, r.Name+"/")) == 1 }, "the server has handled the request")
			link.Cut()
			_, err := w.End(t)
			wantErr(t, "Acquire", err, driver.ErrUnknown)
			link.Heal()
			release(t, acquire(t, b, request(r.Name)))
			if got := keys(t, c, r.Name+"/"); len(got) > 0 {
				t.Errorf("keys: got %q, want none", got)
			}
		})
	}
}

// TestLateRequest has a request reach the server long after its caller has
// left. Its key must not stay either.
func TestLateRequest(t *testing.T) {
	s := testenv.Etcd(t)
	slow, addr := testenv.Wire(t, s.Addr)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", addr)
	release(t, acquire(t, d, request("warm")))
	slow.Hold(wire.Requests)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := d.Acquire(ctx, request("a"))
	wantErr(t, "Acquire", err, driver.ErrUnknown, context.DeadlineExceeded)
	slow.Heal()
	release(t, acquire(t, d, request("a")))
	testenv.Eventually(t, func() bool { return len(keys(t, c, "a/")) == 0 }, "the key is gone")
}

// TestLostAnswerOfRelease loses the answer to a release. The repeat must report
// that this release ended the hold.
func TestLostAnswerOfRelease(t *testing.T) {
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", addr)
	for _, r := range []*driver.Request{request("a"), fixed(request("a"), 30*time.Second)} {
		l := acquire(t, d, r)
		held := link.HoldReply(keys(t, c, "a/")[0])
		released := make(chan error, 1)
		go func() { released <- l.Release(guard(t)) }()
		<-held
		testenv.Eventually(t, func() bool { return len(keys(t, c, "a/")) == 0 }, "the server has handled the request")
		link.Cut()
		link.Heal()
		if err := <-released; err != nil {
			t.Errorf("Release: got %v, want nil", err)
		}
		wantErr(t, "the next Release", l.Release(t.Context()), driver.ErrNotHeld)
	}
}

// TestCanceledWaitsLeaveNothing has many waits end at all stages.
func TestCanceledWaitsLeaveNothing(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	l := acquire(t, d, request("a"))
	var calls sync.WaitGroup
	for i := range 200 {
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*300*time.Microsecond)
			defer cancel()
			r := request("a")
			if i%4 == 0 {
				r = fixed(r, 30*time.Second)
			}
			// The server knows the deadline, and may be the first to report
			// that it has passed.
			if _, err := d.Acquire(ctx, r); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, driver.ErrUnknown) {
				t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
			}
		})
	}
	calls.Wait()
	testenv.Eventually(t, func() bool { return len(keys(t, c, "a/")) == 1 }, "only the key of the holder is left")
	release(t, l)
	release(t, acquire(t, d, noWait("a")))
}

// endpoints returns the hosts of a URL for all servers.
func endpoints(servers []*testenv.EtcdServer) string {
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr)
	}
	return strings.Join(addrs, ",")
}

// leader returns the index of the server that leads.
func leader(tb testing.TB, c *clientv3.Client, servers []*testenv.EtcdServer) int {
	tb.Helper()
	for i, s := range servers {
		status, err := c.Status(guard(tb), s.Addr)
		if err == nil && status.Leader == status.Header.MemberId {
			return i
		}
	}
	tb.Fatal("no server leads")
	return 0
}

// work locks a name repeatedly in several goroutines of each driver until the
// test ends them, and fails the test if two goroutines hold the lock at the
// same time. It returns a function that waits until each driver has held the
// lock n more times, and a function that ends the work.
func work(t *testing.T, drivers ...*etcd.Driver) (progress func(n int), end func()) {
	var inside atomic.Int32
	var mu sync.Mutex
	rounds := make([]int, len(drivers)) // guarded by mu
	ctx, cancel := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	for i, d := range drivers {
		for range 2 {
			workers.Go(func() {
				for ctx.Err() == nil {
					l, err := d.Acquire(ctx, withTTL(request("work"), 3*time.Second))
					if err != nil {
						if ctx.Err() == nil && !errors.Is(err, driver.ErrUnknown) && !errors.Is(err, driver.ErrUnavailable) {
							t.Errorf("Acquire: %v", err)
						}
						continue
					}
					if n := inside.Add(1); n > 1 && time.Now().Before(l.Expires()) {
						t.Errorf("%d goroutines hold the lock", n)
					}
					<-time.After(time.Millisecond) // hold it for a moment
					mu.Lock()
					rounds[i]++
					mu.Unlock()
					inside.Add(-1)
					l.Release(guard(t)) // the faults may leave it unknown
				}
			})
		}
	}
	progress = func(n int) {
		t.Helper()
		mu.Lock()
		before := append([]int(nil), rounds...)
		mu.Unlock()
		testenv.Eventually(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			for i := range rounds {
				if rounds[i] < before[i]+n {
					return false
				}
			}
			return true
		}, "all drivers get the lock")
	}
	return progress, func() {
		cancel()
		workers.Wait()
	}
}

func TestKilledLeader(t *testing.T) {
	t.Parallel()
	servers := testenv.EtcdCluster(t, 3)
	c := userClient(t, strings.Split(endpoints(servers), ",")...)
	a, b := openURL(t, "etcd://%s", endpoints(servers)), openURL(t, "etcd://%s", endpoints(servers))
	kept := withTTL(request("kept"), 10*time.Second)
	l := acquire(t, a, kept)
	progress, end := work(t, a, b)
	progress(5)
	dead := servers[leader(t, c, servers)]
	dead.Kill()
	progress(5)
	dead.Start()
	progress(5)
	end()
	_, err := b.Acquire(guard(t), noWait("kept"))
	wantErr(t, "TryLock of a lock that is kept", err, driver.ErrLocked)
	if err := l.Release(guard(t)); err != nil {
		t.Errorf("Release of a lock that was held through the election: %v", err)
	}
}

func TestFrozenNode(t *testing.T) {
	t.Parallel()
	servers := testenv.EtcdCluster(t, 3)
	c := userClient(t, strings.Split(endpoints(servers), ",")...)
	a, b := openURL(t, "etcd://%s", endpoints(servers)), openURL(t, "etcd://%s", endpoints(servers))
	progress, end := work(t, a, b)
	progress(5)
	frozen := servers[leader(t, c, servers)]
	frozen.Freeze()
	progress(3)
	frozen.Thaw()
	progress(5)
	end()
}

// TestLearnerAmongTheHosts has one of two servers refuse all requests as a
// learner does. The library uses the servers in turn.
func TestLearnerAmongTheHosts(t *testing.T) {
	s := testenv.Etcd(t)
	_, port, _ := strings.Cut(s.Addr, ":")
	learner := status.Error(codes.Unavailable, "etcdserver: rpc not supported for learner")
	var odd atomic.Bool
	refuse := func() bool { // every other request
		was := odd.Load()
		odd.Store(!was)
		return !was
	}
	dial := []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, request, answer any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
			if refuse() {
				return learner
			}
			return invoke(ctx, method, request, answer, c, o...)
		}),
	}
	d, err := etcd.New(newClient(t, clientv3.Config{Endpoints: []string{s.Addr, "localhost:" + port}, DialTimeout: hangGuard, DialOptions: dial}), nil)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, d)
	for _, r := range []*driver.Request{request("a"), noWait("a"), fixed(request("a"), 30*time.Second)} {
		l, err := d.Acquire(guard(t), r) // not repeated, as package dsync would
		if err != nil {
			t.Fatalf("Acquire: %v", err)
		}
		release(t, l)
	}
	setLatch(t, d, "a", "set", 2)
	countDown(t, d, "a", "down")
	wantLeft(t, d, "a", 1)
}

// TestTwoClusters has servers of two clusters in one URL.
func TestTwoClusters(t *testing.T) {
	a, b := testenv.Etcd(t), testenv.Etcd(t)
	ids := make(map[string]string)
	for _, s := range []*testenv.EtcdServer{a, b} {
		answer, err := userClient(t, s.Addr).Get(guard(t), "a")
		if err != nil {
			t.Fatal(err)
		}
		ids[s.Addr] = fmt.Sprintf("%x", answer.Header.ClusterId)
	}
	_, _, err := driver.Open(guard(t), fmt.Sprintf("etcd://%s,%s", a.Addr, b.Addr))
	wantText(t, "Open", err, ids[a.Addr], ids[b.Addr])
	if errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Open: got %v, want an error that is not worth a retry", err)
	}

	d, err := etcd.New(userClient(t, a.Addr, b.Addr), nil)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, d)
	var failed error
	for failed == nil { // the library may take a while to know both clusters
		r := request("a")
		l, err := d.Acquire(guard(t), r)
		if errors.Is(err, driver.ErrUnavailable) {
			continue
		}
		if failed = err; err == nil {
			_ = l.Release(guard(t)) // the next Acquire reports the error
		}
	}
	wantText(t, "Acquire", failed, ids[a.Addr], ids[b.Addr])
	for _, kind := range []error{driver.ErrUnavailable, driver.ErrUnknown, driver.ErrLocked} {
		if errors.Is(failed, kind) {
			t.Errorf("Acquire: %v matches %v", failed, kind)
		}
	}
	for _, s := range []*testenv.EtcdServer{a, b} {
		c := userClient(t, s.Addr)
		testenv.Eventually(t, func() bool { return len(keys(t, c, "a/")) == 0 }, "nothing is left locked")
	}
}

// TestOverwrittenKeys has another client put or replace the key of a contender.
func TestOverwrittenKeys(t *testing.T) {
	t.Parallel()
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	damage := map[string]func(key string) error{
		"overwritten": func(key string) error {
			_, err := c.Put(guard(t), key, "by hand")
			return err
		},
		"deleted": func(key string) error {
			_, err := c.Delete(guard(t), key)
			return err
		},
		"replaced": func(key string) error {
			if _, err := c.Delete(guard(t), key); err != nil {
				return err
			}
			_, err := c.Put(guard(t), key, "by hand")
			return err
		},
	}
	requests := map[string]func(name string) *driver.Request{
		"exclusive": request,
		"fixed":     func(name string) *driver.Request { return fixed(request(name), 30*time.Second) },
		"read":      func(name string) *driver.Request { return in(driver.Read, request(name)) },
		"write":     func(name string) *driver.Request { return in(driver.Write, request(name)) },
		"permits":   func(name string) *driver.Request { return permits(1, 1, request(name)) },
	}
	for how, hit := range damage {
		for mode, newRequest := range requests {
			t.Run(how+" "+mode, func(t *testing.T) {
				t.Parallel()
				d := openURL(t, "etcd://%s", s.Addr)
				name := how + mode
				l := acquire(t, d, newRequest(name))
				if err := hit(keys(t, c, name+"/")[0]); err != nil {
					t.Fatal(err)
				}
				wantErr(t, "Release", l.Release(guard(t)), driver.ErrNotHeld)
				told := newRequest(name)
				acquire(t, d, told)
				if err := hit(keys(t, c, name+"/")[0]); err != nil {
					t.Fatal(err)
				}
				wantErr(t, "the holder is notified", lostBy(t, told), driver.ErrRemoved)

				l = acquire(t, d, newRequest(name)) // nothing is left in the way
				if how == "replaced" {
					release(t, l) // a waiter may have a new key before the old one is put by hand, for use by any client
					return
				}
				waiting := newRequest(name)
				waiting.Mode, waiting.Permits, waiting.Limit = driver.Exclusive, 0, 0
				w := wait(t, d, waiting)
				if err := hit(keys(t, c, name+"/")[1]); err != nil {
					t.Fatal(err)
				}
				release(t, l)
				release(t, w.Granted(t))
				testenv.Eventually(t, func() bool { return len(keys(t, c, name+"/")) == 0 }, "nothing is left")
				if err := d.Close(guard(t)); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
		}
	}
}

// TestServerFallsSilentDuringAWait checks that the end of the context ends the
// call.
func TestServerFallsSilentDuringAWait(t *testing.T) {
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	a, d := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", addr)
	l := acquire(t, a, request("a"))
	for name, r := range map[string]*driver.Request{"kept alive": request("a"), "fixed": fixed(request("a"), 30*time.Second)} {
		t.Run(name, func(t *testing.T) {
			w := wait(t, d, r)
			link.Hold(wire.Both)
			canceled := time.Now()
			w.Cancel()
			_, err := w.End(t)
			if took := time.Since(canceled); took > 700*time.Millisecond { // it took a second
				t.Errorf("the call outlasted its context by %v", took)
			}
			wantErr(t, "Acquire", err, context.Canceled)
			link.Heal()
			c := userClient(t, s.Addr)
			testenv.Eventually(t, func() bool { return len(keys(t, c, "a/")) == 1 }, "the waiter has left the queue")
		})
	}
	release(t, l)
}

// TestRefusedUnlock takes a right away from a user that holds a lock. From then
// on the server refuses the release, and the name must not stay locked for as
// long as the client holds other locks.
func TestRefusedUnlock(t *testing.T) {
	t.Parallel()
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d, err := etcd.New(newClient(t, clientv3.Config{Endpoints: []string{s.Addr}, DialOptions: []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, request, answer any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
			if deletion, ok := request.(*pb.DeleteRangeRequest); ok && strings.HasPrefix(string(deletion.Key), "secret/") {
				return rpctypes.ErrGRPCPermissionDenied
			}
			return invoke(ctx, method, request, answer, c, o...)
		}),
	}}), nil)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, d)
	l := acquire(t, d, request("secret"))
	wantErr(t, "Release", l.Release(guard(t)), driver.ErrUnknown, fs.ErrPermission)
	testenv.Eventually(t, func() bool {
		release(t, acquire(t, d, request("other"))) // the client carries on
		return len(keys(t, c, "secret/")) == 0
	}, "the name is free")
}
