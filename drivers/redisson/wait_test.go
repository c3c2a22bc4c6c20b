package redisson

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestWaiterIsWokenByTheMessage(t *testing.T) {
	s := testenv.Redis(t)
	a, b := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr)
	l := acquire(t, a, request("x"))
	w := wait(t, b, request("x"))
	subscribers(t, s, "x", 1)
	start := time.Now()
	release(t, l)
	if !l.Contended() {
		t.Error("Contended of a release that woke a waiter: got false")
	}
	release(t, w.granted(t))
	if took := time.Since(start); took > backstop/2 { // without the message it takes more
		t.Errorf("the waiter got the lock after %v", took)
	}
	if w.lease.Contended() {
		t.Error("Contended after a release without waiters: got true")
	}
}

func TestWaiterOfAForeignHoldIsWoken(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	s.Do("HSET", "java", "8743c9c0-0795-4907-87fd-6c719a6b4586:41", "1")
	w := wait(t, d, request("java")) // it has no TTL: only the message can wake the waiter
	subscribers(t, s, "java", 1)
	start := time.Now()
	s.Do("DEL", "java")
	s.Do("PUBLISH", "redisson_lock__channel:{java}", "0")
	release(t, w.granted(t))
	if took := time.Since(start); took > backstop/2 {
		t.Errorf("the waiter got the lock after %v", took)
	}
}

func TestWaiterTakesOverWhenTheTTLEnds(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	s.Do("HSET", "x", "dead:1", "1")
	s.Do("PEXPIRE", "x", "300")
	start := time.Now()
	release(t, wait(t, d, request("x")).granted(t))
	if took := time.Since(start); took > backstop/2 {
		t.Errorf("the waiter got the lock %v after the last 300 ms of the hold began", took)
	}
}

func TestLostMessageIsMadeUpForByTheTimer(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	for _, ttl := range []string{"100000", "-1"} {
		s.Do("HSET", "x", "other:1", "1")
		if ttl != "-1" {
			s.Do("PEXPIRE", "x", ttl)
		}
		w := wait(t, d, request("x"))
		subscribers(t, s, "x", 1)
		s.Do("DEL", "x") // and no message
		release(t, w.granted(t))
	}
}

func TestWaitingWithoutPermissionToSubscribe(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	password := testenv.Password()
	s.Do("ACL", "SETUSER", "deaf", "on", ">"+password, "~*", "+@all", "resetchannels", "-publish")
	d := openURL(t, "redisson://deaf:%s@%s", password, s.Addr)
	s.Do("HSET", "x", "other:1", "1")
	s.Do("PEXPIRE", "x", "500")
	got := counted(s, func() { acquire(t, d, request("x")) }, "evalsha")
	if got["evalsha"] > 3 {
		t.Errorf("scripts of a wait for the end of the TTL: got %v, want 2", got)
	}
	s.Do("DEL", "x") // it cannot be released
}

func TestWaitingDoesNotPoll(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	s.Do("HSET", "x", "other:1", "1")
	var w *waiter
	got := counted(s, func() {
		w = wait(t, d, request("x"))
		subscribers(t, s, "x", 1)
		time.Sleep(time.Second)
	}, "evalsha", "subscribe")
	if got["evalsha"] > 2 || got["subscribe"] != 1 { // before and after the subscription
		t.Errorf("commands of a second of waiting: got %v, want 2 evalsha and 1 subscribe", got)
	}
	w.cancel()
	<-w.done
}

func TestWaitersOfOneNameShareASubscription(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	const n = 20
	l := acquire(t, d, request("x"))
	var waiters []*waiter
	for range n {
		waiters = append(waiters, wait(t, d, request("x")))
	}
	subscribers(t, s, "x", 1)
	served := make(chan *waiter)
	for _, w := range waiters {
		go func() { // ends when the wait ends
			<-w.done
			served <- w
		}()
	}
	// One message, one attempt: besides the grants there are only the attempts
	// of the waiters' timers.
	got := counted(s, func() {
		for range n {
			release(t, l)
			l = (<-served).granted(t)
		}
		release(t, l)
	}, "evalsha")
	if got["evalsha"] > 3*n {
		t.Errorf("scripts for %d grants and %d releases: got %d", n, n+1, got["evalsha"])
	}
	subscribers(t, s, "x", 0)
}

func TestContendedCountsOthersOnly(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	l := acquire(t, d, request("x"))
	w := wait(t, d, request("x"))
	subscribers(t, s, "x", 1)
	testenv.Eventually(t, func() bool { return d.topics.Own(prefixName(channelPrefix, "x")) == 1 }, "the driver knows its subscription")
	release(t, l)
	if l.Contended() {
		t.Error("Contended: got true, with a waiter only in the same driver")
	}
	release(t, w.granted(t))
}

func TestCanceledWaitsLeaveNothing(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	l := acquire(t, d, request("x"))
	ctx, cancel := context.WithCancel(t.Context())
	errs := make([]error, 1000)
	time.AfterFunc(50*time.Millisecond, cancel)
	parallel(len(errs), func(i int) {
		name := "x"
		if i%2 == 0 {
			name = fmt.Sprint("free", i) // these cancel requests that the server may be about to grant
		}
		for first := true; first || ctx.Err() == nil; first = false {
			var got driver.Lease
			if got, errs[i] = d.Acquire(ctx, request(name)); errs[i] == nil {
				if err := got.Release(context.Background()); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		}
	})
	for i, err := range errs {
		if i%2 == 1 && !errors.Is(err, context.Canceled) {
			t.Fatalf("a wait that was canceled: got %v, want context.Canceled", err)
		}
	}
	release(t, l)
	testenv.Eventually(t, func() bool { return len(keysOf(s)) == 0 }, "no keys are left except keys of tokens")
	subscribers(t, s, "x", 0)
	testenv.Eventually(t, func() bool { return d.topics.Idle() }, "the driver forgets the names")
}

func TestWakeIsPassedOn(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	s.Do("HSET", "x", "other:1", "1")
	const n = 8
	var waiters []*waiter
	for range n {
		waiters = append(waiters, wait(t, d, request("x")))
	}
	subscribers(t, s, "x", 1)
	start := time.Now()
	go parallel(n-1, func(i int) { waiters[i].cancel() }) // races with the message
	s.Do("DEL", "x")
	s.Do("PUBLISH", "redisson_lock__channel:{x}", "0")
	for _, w := range waiters {
		if <-w.done; w.err == nil {
			release(t, w.lease)
		}
	}
	if err := waiters[n-1].err; err != nil {
		t.Errorf("the waiter that was not canceled: %v", err)
	}
	if took := time.Since(start); took > backstop/2 {
		t.Errorf("all were done after %v", took)
	}
}

func TestResubscribesAfterTheConnectionIsKilled(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	s.Do("HSET", "x", "other:1", "1")
	w := wait(t, d, request("x"))
	subscribers(t, s, "x", 1)
	start := time.Now()
	if got := s.Do("CLIENT", "KILL", "TYPE", "pubsub"); got != int64(1) {
		t.Fatalf("CLIENT KILL: got %v, want 1", got)
	}
	s.Do("DEL", "x") // no client receives the message
	s.Do("PUBLISH", "redisson_lock__channel:{x}", "0")
	release(t, w.granted(t))
	if took := time.Since(start); took > backstop/2 {
		t.Errorf("the waiter got the lock after %v, although a new subscription makes it send a request", took)
	}
}

func TestDeadSubscriptionIsNoticed(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	link, addr := testenv.Wire(t, s.Addr)
	d := openURL(t, "redisson://%s", addr)
	release(t, acquire(t, d, request("warm")))
	topic := d.topics.Join(prefixName(channelPrefix, "x"), 0)
	<-topic.Wake
	link.Hold(wire.Both)
	testenv.Eventually(t, func() bool { return d.topics.Own(prefixName(channelPrefix, "x")) == 0 }, "the driver takes the silent connection as dead")
	link.Heal()
	select {
	case <-topic.Wake:
	case <-time.After(hangGuard):
		t.Fatal("no client sends a request after the connection was lost")
	}
	if got := d.topics.Own(prefixName(channelPrefix, "x")); got != 1 {
		t.Errorf("subscriptions: got %d, want 1", got)
	}
	s.Do("PUBLISH", "redisson_lock__channel:{x}", "0")
	<-topic.Wake
	topic.Leave(false)
	subscribers(t, s, "x", 0)
}

func TestManySubscriptions(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	a, b := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr)
	const n = 1000
	leases, waiters := make([]*lease, n), make([]*waiter, n)
	parallel(50, func(i int) {
		for j := i; j < n; j += 50 {
			r := request(fmt.Sprint("x", j))
			r.TTL = 10 * time.Minute // however long it takes until all of them wait
			leases[j] = acquire(t, a, r)
			waiters[j] = wait(t, b, request(r.Name))
		}
	})
	start := time.Now()
	for _, l := range leases {
		release(t, l)
	}
	for _, w := range waiters {
		release(t, w.granted(t))
	}
	t.Logf("%d waiters woken in %v", n, time.Since(start))
	if clients := s.Do("CLIENT", "LIST", "TYPE", "pubsub").(string); strings.Count(clients, "\n") > 2 {
		t.Errorf("connections for subscriptions: got\n%s, want one connection, and one that will replace it", clients)
	}
}

// TestHoldBecomesShorter: waiters learn that a hold ends earlier than expected.
// A round that takes longer is repeated, since the machine may be busy.
func TestHoldBecomesShorter(t *testing.T) {
	t.Parallel()
	const rest = time.Second
	s := testenv.Redis(t)
	for _, test := range []struct {
		title, parameters string
		held, wants       driver.Mode
		leaves            bool
	}{
		{"exclusive", "", driver.Exclusive, driver.Exclusive, false},
		{"exclusive, left", "", driver.Exclusive, driver.Exclusive, true},
		{"exclusive, for a reader", "", driver.Exclusive, driver.Read, false},
		{"fair", "?fair=true", driver.Exclusive, driver.Exclusive, false},
		{"write", "", driver.Write, driver.Read, false},
		{"read", "", driver.Read, driver.Write, false},
		{"permit", "", driver.Permit, driver.Permit, false},
	} {
		t.Run(test.title, func(t *testing.T) {
			t.Parallel()
			d, other := openURL(t, "redisson://%s/%s", s.Addr, test.parameters), openURL(t, "redisson://%s/%s", s.Addr, test.parameters)
			for try := 1; ; try++ {
				held, wanted := inMode(test.held, forLong(test.title)), inMode(test.wants, forLong(test.title))
				for _, r := range []*driver.Request{held, wanted} {
					if r.Mode == driver.Permit {
						r.Permits, r.Limit = 1, 1
					}
				}
				l, w := acquire(t, d, held), wait(t, other, wanted)
				time.Sleep(100 * time.Millisecond) // a waiter tries again when it is subscribed, and no event reports this
				begun := time.Now()
				var err error
				if test.leaves {
					err = d.Leave(t.Context(), l, rest)
				} else {
					err = l.Renew(t.Context(), rest)
				}
				if err != nil {
					t.Fatal(err)
				}
				<-w.done
				took := time.Since(begun)
				if w.err != nil {
					t.Fatal(w.err)
				}
				release(t, w.lease)
				if took < rest+backstop/4 {
					return
				}
				if try == 5 {
					t.Fatalf("granted %v after the hold became shorter", took)
				}
			}
		})
	}
}
