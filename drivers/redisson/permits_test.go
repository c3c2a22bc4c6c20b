package redisson

import (
	"crypto/sha1"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// permits changes a request to n of limit permits.
func permits(n, limit int, r *driver.Request) *driver.Request {
	r.Mode, r.Permits, r.Limit = driver.Permit, n, limit
	return r
}

// ends returns the members and scores of a sorted set.
func ends(s *testenv.RedisServer, key string) map[string]int64 {
	all := make(map[string]int64)
	list := s.Do("ZRANGE", key, "0", "-1", "WITHSCORES").([]any)
	for i := 0; i < len(list); i += 2 {
		all[list[i].(string)], _ = strconv.ParseInt(list[i+1].(string), 10, 64)
	}
	return all
}

func wantFree(tb testing.TB, s *testenv.RedisServer, name string, want int) {
	tb.Helper()
	if got := s.Do("GET", name); got != strconv.Itoa(want) {
		tb.Errorf("free permits of %q: got %v, want %d", name, got, want)
	}
}

// timeOf returns the server's time in milliseconds.
func timeOf(s *testenv.RedisServer) int64 {
	now := s.Do("TIME").([]any)
	seconds, _ := strconv.ParseInt(now[0].(string), 10, 64)
	micros, _ := strconv.ParseInt(now[1].(string), 10, 64)
	return seconds*1000 + micros/1000
}

func TestPermitWireFormatIsRedissons(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	for _, test := range []struct{ name, channel, ends string }{
		{"orders", "redisson_sc:{orders}", "{orders}:timeout"},
		{"{t}:orders", "redisson_sc:{t}:orders", "{t}:orders:timeout"},
		{"日本 über/x y", "redisson_sc:{日本 über/x y}", "{日本 über/x y}:timeout"},
	} {
		t.Run(test.name, func(t *testing.T) {
			spy := spyOn(t, s, test.channel)
			r := permits(2, 5, during(time.Hour, request(test.name)))
			before := timeOf(s)
			l := acquire(t, d, r)
			after := timeOf(s)
			wantFree(t, s, test.name, 3)
			sum := sha1.Sum([]byte(r.Hold))
			all := ends(s, test.ends)
			for _, number := range []string{"\x00\x00\x00\x01", "\x00\x00\x00\x02"} {
				end, there := all[string(sum[:12])+number]
				if end -= time.Hour.Milliseconds(); !there || end < before || end > after+1 {
					t.Errorf("permit %q: got the end %d ms after the time before the request, want the time of the grant plus an hour", number, end-before)
				}
			}
			if len(all) != 2 {
				t.Errorf("permits: got %v, want two", all)
			}
			for _, key := range []string{test.name, test.ends} {
				if left := leftOf(s, key); left < time.Hour || left > time.Hour+20*time.Second {
					t.Errorf("TTL of %q: got %v, want a little more than the TTL of the hold", key, left)
				}
			}
			release(t, l)
			wantFree(t, s, test.name, 5)
			if all := ends(s, test.ends); len(all) > 0 {
				t.Errorf("permits left: %v", all)
			}
			if got, want := spy.next(t), "5"; got != want {
				t.Errorf("message: got %q, want %q", got, want)
			}
		})
	}
}

// TestPermitsBesideThoseOfJava has permits as Java makes them: with an end,
// expired, and without an end.
func TestPermitsBesideThoseOfJava(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	const never = "922337203685477"
	s.Do("SET", "x", "1")
	s.Do("ZADD", "{x}:timeout", never, "0123456789abcdef", strconv.FormatInt(timeOf(s)+3_600_000, 10), "fedcba9876543210", "5", "over............")
	status, err := d.Inspect(t.Context(), "x")
	if err != nil || !status.Held || status.Mode != driver.Permit || status.Used != 2 || status.Holders != 2 || status.Limit != 4 || status.TTL != 0 {
		t.Errorf("Inspect: got %+v and %v, want 2 of 4 held", status, err)
	}
	if _, err := d.Acquire(t.Context(), permits(1, 3, noWait("x"))); err != driver.ErrLimit {
		t.Errorf("Acquire with a limit other than Java's: got %v, want ErrLimit", err)
	}
	l := acquire(t, d, permits(2, 4, request("x"))) // with the expired permit
	wantFree(t, s, "x", 0)
	if _, err := d.Acquire(t.Context(), permits(1, 0, noWait("x"))); err != driver.ErrLocked {
		t.Errorf("Acquire of one permit too many: got %v, want ErrLocked", err)
	}
	w := wait(t, d, permits(1, 0, request("x")))
	if s.Do("ZREM", "{x}:timeout", "0123456789abcdef"); s.Do("INCR", "x") == int64(1) { // as Java releases it
		s.Do("PUBLISH", "redisson_sc:{x}", "1")
	}
	release(t, w.granted(t))
	release(t, l)
	wantFree(t, s, "x", 3)
	if left := leftOf(s, "x"); left >= 0 {
		t.Errorf("a permanent limit set by Java ends in %v", left)
	}
	if err := d.ForceUnlock(t.Context(), "x"); err != nil {
		t.Error(err)
	}
	wantFree(t, s, "x", 4)
}

// TestLimitsLastAsLongAsHolds: a limit that came with a grant exists as long as
// the longest hold, even if the hold is renewed.
func TestLimitsLastAsLongAsHolds(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	const month = 30 * 24 * time.Hour
	long := acquire(t, d, permits(1, 3, during(month, request("x"))))
	renewed := acquire(t, d, permits(1, 3, request("x")))
	for range 2 {
		for _, key := range []string{"x", "{x}:timeout"} {
			if left := leftOf(s, key); left < month {
				t.Errorf("%q lasts %v, and a hold %v", key, left, month)
			}
		}
		release(t, acquire(t, d, permits(1, 3, request("x")))) // does not change this
	}
	release(t, long)
	for _, key := range []string{"x", "{x}:timeout"} {
		s.Do("PEXPIRE", key, "20000")
	}
	if err := renewed.Renew(t.Context(), time.Minute); err != nil {
		t.Error(err)
	}
	for _, key := range []string{"x", "{x}:timeout"} {
		if left := leftOf(s, key); left < time.Minute {
			t.Errorf("%q lasts %v after a renewal, want more than the hold", key, left)
		}
	}
	if err := d.SetLimit(t.Context(), "x", 2); err != nil {
		t.Error(err)
	}
	for _, key := range []string{"x", "{x}:timeout"} {
		if left := leftOf(s, key); left >= 0 {
			t.Errorf("%q ends in %v after SetLimit, want never", key, left)
		}
	}
	release(t, renewed)
	wantFree(t, s, "x", 2)
}

func TestLostAnswersOfPermits(t *testing.T) {
	const limit = 4
	s := testenv.Redis(t)
	other := openURL(t, "redisson://%s", s.Addr)
	if err := other.SetLimit(t.Context(), "x", limit); err != nil {
		t.Fatal(err)
	}
	release(t, acquire(t, other, permits(1, limit, request("x")))) // the server knows the scripts
	d, link := overLink(t, s, "")
	r := permits(3, limit, during(3*time.Second, request("x")))
	sum := sha1.Sum([]byte(r.Hold))
	trap := link.LoseReply(string(sum[:12]))
	_, err := d.Acquire(t.Context(), r)
	if sprung(t, trap); !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("Acquire whose answer was lost: got %v, want ErrUnknown", err)
	}
	testenv.Eventually(t, func() bool { return s.Do("GET", "x") == strconv.Itoa(limit) }, "the permits are free")

	r = permits(3, limit, request("x"))
	l := acquire(t, d, r)
	sum = sha1.Sum([]byte(r.Hold))
	trap = link.LoseReply(string(sum[:12]))
	if err := l.Release(t.Context()); err != nil {
		t.Errorf("Release whose answer was lost: %v", err)
	}
	sprung(t, trap)
	wantFree(t, s, "x", limit)
	if all := ends(s, "{x}:timeout"); len(all) > 0 {
		t.Errorf("permits left: %v", all)
	}
}

// TestPermitsOfOneNameAreRenewedTogether counts requests and runs of the
// script.
func TestPermitsOfOneNameAreRenewedTogether(t *testing.T) {
	t.Parallel()
	const names, each = 3, 600
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	var leases []driver.Lease
	for i := range each {
		for j := range names {
			leases = append(leases, acquire(t, d, permits(1+i%2, each*2, forLong(fmt.Sprint("x", j)))))
		}
	}
	lock := acquire(t, d, forLong("lock"))
	leases = append(leases, lock)
	s.Do("ZREM", "{x1}:timeout", func() string { // a hold with two permits has lost one
		sum := sha1.Sum([]byte(leases[names+1].(*lease).request.Hold))
		return string(sum[:12]) + "\x00\x00\x00\x02"
	}())
	counts := counted(s, func() {
		told := make([]int, len(leases))
		d.RenewAll(t.Context(), leases, func(i int, err error) {
			told[i]++
			if want := error(nil); i == names+1 && err != driver.ErrNotHeld || i != names+1 && err != want {
				t.Errorf("renewal of lease %d: %v", i, err)
			}
		})
		for i, n := range told {
			if n != 1 {
				t.Errorf("the outcome of lease %d was reported %d times", i, n)
			}
		}
	}, "evalsha", "eval")
	const rest = 1 // the rest of the hold that has lost a permit is released
	if runs := counts["evalsha"] + counts["eval"]; runs > 2*(1+names*(1+each/renewKeys)+rest) {
		t.Errorf("%d leases were renewed by %d runs of scripts", len(leases), runs)
	}
	for i, l := range leases {
		if i != names+1 {
			release(t, l)
		}
	}
}

// TestManyPermitsAreRenewedAsLocksAre counts the cost of renewing 10,000 holds
// on the server.
func TestManyPermitsAreRenewedAsLocksAre(t *testing.T) {
	t.Parallel()
	const n = 10_000
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	for what, ask := range map[string]func(i int) *driver.Request{
		"permits": func(int) *driver.Request { return permits(1, n, forLong("x")) },
		"locks":   func(i int) *driver.Request { return forLong(fmt.Sprint("lock", i)) },
	} {
		leases := make([]driver.Lease, n)
		parallel(50, func(from int) {
			for i := from; i < n; i += 50 {
				leases[i] = acquire(t, d, ask(i))
			}
		})
		d.RenewAll(t.Context(), leases[:1], func(int, error) {}) // the server learns the script
		renewed := 0
		counts := counted(s, func() {
			d.RenewAll(t.Context(), leases, func(i int, err error) {
				if renewed++; err != nil {
					t.Errorf("%s: renewal of lease %d: %v", what, i, err)
				}
			})
		}, "evalsha", "eval")
		if runs := counts["evalsha"] + counts["eval"]; runs > n/renewKeys+1 || renewed != n {
			t.Errorf("%d %s were renewed by %d runs of scripts, want %d by %d", renewed, what, runs, n, n/renewKeys)
		}
	}
}

// TestLimitThatJavaMakesPermanent: Redisson's addPermits is a SET, which
// removes the TTL of a limit that a grant made.
func TestLimitThatJavaMakesPermanent(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	for what, use := range map[string]func(l *lease){
		"a renewal": func(l *lease) {
			if err := l.Renew(t.Context(), time.Hour); err != nil {
				t.Fatal(err)
			}
		},
		"a grant": func(*lease) { release(t, acquire(t, d, permits(1, 5, request("x")))) },
	} {
		l := acquire(t, d, permits(2, 4, request("x")))
		s.Do("SET", "x", "3")
		use(l)
		if left := leftOf(s, "{x}:timeout"); left >= 0 {
			t.Errorf("%s: the ends of permits are gone in %v", what, left)
		}
		release(t, l)
		wantFree(t, s, "x", 5)
		s.Do("DEL", "x")
	}
}

// TestHoldThatLostAPermit: Java may release a permit by its id, and the hold
// then keeps none of the others.
func TestHoldThatLostAPermit(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	for what, find := range map[string]func(l, other *lease) error{
		"Renew": func(l, _ *lease) error { return l.Renew(t.Context(), testTTL) },
		"RenewAll": func(l, other *lease) error {
			outcomes := make([]error, 2)
			d.RenewAll(t.Context(), []driver.Lease{l, other}, func(i int, err error) { outcomes[i] = err })
			if outcomes[1] != nil {
				t.Errorf("renewal of a hold that has all its permits: %v", outcomes[1])
			}
			return outcomes[0]
		},
		"Leave":   func(l, _ *lease) error { return d.Leave(t.Context(), l, testTTL) },
		"Release": func(l, _ *lease) error { return l.Release(t.Context()) },
	} {
		l, other := acquire(t, d, permits(3, 5, forLong("x"))), acquire(t, d, permits(1, 5, forLong("x")))
		sum := sha1.Sum([]byte(l.request.Hold))
		if s.Do("ZREM", "{x}:timeout", string(sum[:12])+"\x00\x00\x00\x02") != int64(1) {
			t.Fatal("the hold has no second permit")
		}
		s.Do("INCR", "x")
		w := wait(t, d, permits(4, 5, request("x")))
		settled(t, d)
		start := time.Now()
		if err := find(l, other); err != driver.ErrNotHeld {
			t.Errorf("%s: got %v, want ErrNotHeld", what, err)
		}
		release(t, w.granted(t))
		if took := time.Since(start); took > backstop/2 {
			t.Errorf("%s: a waiter for the remaining permits was granted them after %v", what, took)
		}
		release(t, other)
		wantFree(t, s, "x", 5)
	}
}

// TestMessageOfTwoPermits: no number of free permits has another meaning on
// their channel.
func TestMessageOfTwoPermits(t *testing.T) {
	s := testenv.Redis(t)
	a, b := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr)
	for n := 1; n <= 3; n++ {
		name := fmt.Sprint("x", n)
		l := acquire(t, a, permits(n, n, forLong(name)))
		w := wait(t, b, permits(n, n, forLong(name)))
		settled(t, b)
		start := time.Now()
		release(t, l)
		release(t, w.granted(t))
		if took := time.Since(start); took > backstop/2 {
			t.Errorf("%d permits were granted after %v", n, took)
		}
	}
}

func TestPermitsThatCannotBe(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	ctx := t.Context()
	if _, err := d.Acquire(ctx, permits(1001, 2000, noWait("many"))); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Acquire of 1001 permits: got %v, want errors.ErrUnsupported", err)
	}
	release(t, acquire(t, d, permits(1000, 2000, request("many"))))

	l := acquire(t, d, request("lock"))
	if _, err := d.Acquire(ctx, permits(1, 1, noWait("lock"))); err == nil || errors.Is(err, driver.ErrUnknown) || !strings.Contains(err.Error(), "used for something else") {
		t.Errorf("Acquire of a permit of the name of a lock: got %v, want an error that the name is used for something else", err)
	}
	release(t, l)
	p := acquire(t, d, permits(1, 1, request("permit")))
	for _, m := range modes {
		if _, err := d.Acquire(ctx, inMode(m, noWait("permit"))); err == nil || !strings.Contains(err.Error(), "used for something else") {
			t.Errorf("Acquire in mode %v of a name of permits: got %v, want an error that the name is used for something else", m, err)
		}
	}
	release(t, p)
	s.Do("SET", "text", "of somebody")
	for what, call := range map[string]func() error{
		"Acquire":     func() error { _, err := d.Acquire(ctx, permits(1, 1, noWait("text"))); return err },
		"SetLimit":    func() error { return d.SetLimit(ctx, "text", 1) },
		"Inspect":     func() error { _, err := d.Inspect(ctx, "text"); return err },
		"ForceUnlock": func() error { return d.ForceUnlock(ctx, "text") },
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), "used for something else") {
			t.Errorf("%s of a foreign key: got %v, want an error that the key is used for something else", what, err)
		}
	}
	if got := s.Do("GET", "text"); got != "of somebody" {
		t.Errorf("the foreign key is %v", got)
	}
}

func TestCloseGivesPermitsBack(t *testing.T) {
	s := testenv.Redis(t)
	for _, parameters := range []string{"", "?fair=true", "?fenced=false"} {
		d, other := openURL(t, "redisson://%s/%s", s.Addr, parameters), openURL(t, "redisson://%s", s.Addr)
		acquire(t, d, permits(2, 3, request("x")))
		held := acquire(t, other, permits(1, 3, request("x")))
		w := wait(t, d, permits(2, 3, request("x")))
		if err := d.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
		if <-w.done; !errors.Is(w.err, driver.ErrClosed) {
			t.Errorf("Acquire while Close began: got %v, want ErrClosed", w.err)
		}
		wantFree(t, s, "x", 2)
		release(t, held)
		release(t, acquire(t, other, permits(3, 3, noWait("x"))))
	}
}

// testClusterPermits waits for permits of names on all nodes, renews them
// together, lists and inspects them.
func testClusterPermits(t *testing.T, c *testenv.Cluster) {
	const n = 12
	for _, kind := range []string{"", "&pubsub=plain", "&pubsub=both"} {
		a, b := openURL(t, "%s%s", clusterURL(c), kind), openURL(t, "%s%s", clusterURL(c), kind)
		var leases []driver.Lease
		var waiters []*waiter
		for i := range n {
			name := fmt.Sprint("permits", i)
			leases = append(leases, acquire(t, a, permits(1, 3, forLong(name))), acquire(t, a, permits(2, 3, forLong(name))))
			waiters = append(waiters, wait(t, b, permits(2, 3, forLong(name))))
		}
		a.RenewAll(t.Context(), leases, func(i int, err error) {
			if err != nil {
				t.Errorf("renewal of lease %d: %v", i, err)
			}
		})
		names, err := drivertest.Listed(t, t.Context(), b, "permits")
		if err != nil || len(names) != n {
			t.Errorf("List: got %q and %v, want %d names", names, err, n)
		}
		if s, err := b.Inspect(t.Context(), "permits0"); err != nil || s.Used != 3 || s.Holders != 2 {
			t.Errorf("Inspect: got %+v and %v, want 3 permits of 2 holds", s, err)
		}
		for _, l := range leases {
			release(t, l)
		}
		for _, w := range waiters {
			release(t, w.granted(t))
		}
		for i := range n {
			name := fmt.Sprint("permits", i)
			wantFree(t, c.Owner(name), name, 3)
		}
	}
}
