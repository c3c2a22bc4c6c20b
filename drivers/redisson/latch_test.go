package redisson

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// setLatch sets a latch that does not exist.
func setLatch(tb testing.TB, d *Driver, name, id string, n int) {
	tb.Helper()
	if set, err := d.SetLatch(tb.Context(), name, id, n); err != nil || !set {
		tb.Fatalf("SetLatch of %q: got %v, %v, want true", name, set, err)
	}
}

func countDown(tb testing.TB, d *Driver, name, id string) {
	tb.Helper()
	if err := d.CountDown(tb.Context(), name, id); err != nil {
		tb.Fatal(err)
	}
}

func TestLatchIsRedissons(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	for _, test := range []struct{ name, channel, changes string }{
		{"x", "redisson_countdownlatch__channel__{x}", "dsync_latch:{x}"},
		{"{t}:x", "redisson_countdownlatch__channel__{{t}:x}", "dsync_latch:{t}:x"},
		{"日本 über/x y", "redisson_countdownlatch__channel__{日本 über/x y}", "dsync_latch:{日本 über/x y}"},
	} {
		spy := spyOn(t, s, test.channel)
		wantMessage := func(want string) {
			t.Helper()
			if got := spy.next(t); got != want {
				t.Errorf("%q: message %q, want %q", test.name, got, want)
			}
		}
		wantValue := func(want any) {
			t.Helper()
			if got := s.Do("GET", test.name); !reflect.DeepEqual(got, want) {
				t.Errorf("value at %q: got %v, want %v", test.name, got, want)
			}
		}
		setLatch(t, d, test.name, "set", 2)
		wantMessage("1")
		wantValue("2")
		if ttl := s.Do("PTTL", test.name); ttl != int64(-1) {
			t.Errorf("TTL of %q: got %v, want none", test.name, ttl)
		}
		countDown(t, d, test.name, "first")
		wantValue("1")
		countDown(t, d, test.name, "last")
		wantMessage("0")
		wantValue(nil)
		setLatch(t, d, test.name, "again", 3)
		wantMessage("1")
		if err := d.DeleteLatch(t.Context(), test.name, "delete"); err != nil {
			t.Fatal(err)
		}
		wantMessage("0") // and not 1, as in Redisson: because its own waiters would wait forever
		if ttl := leftOf(s, test.changes); ttl > 2*time.Hour || ttl < 2*time.Hour-hangGuard {
			t.Errorf("TTL of %q: got %v, want two hours", test.changes, ttl)
		}
		s.Do("DEL", test.changes)
		wantNoKeys(t, s)
	}
}

// TestLatchForgets changes a latch for hours: each id is known for at least an
// hour, and for at most two.
func TestLatchForgets(t *testing.T) {
	const first, second = "dsync_latch:{x}", "dsync_latch2:{x}"
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	changes := 0
	wantNoted := func(when, key string, want int64) {
		t.Helper()
		changes++
		id := fmt.Sprint("change", changes)
		countDown(t, d, "x", id)
		countDown(t, d, "x", id)
		if ttl := leftOf(s, key); s.Do("HEXISTS", key, id) != int64(1) || s.Do("HLEN", key) != want || ttl < time.Hour {
			t.Errorf("%s: %q has %v ids, for %v, want %d, including the id of the change, for an hour or longer", when, key, s.Do("HLEN", key), ttl, want)
		}
	}
	passes := func(key string, d time.Duration) {
		s.Do("PEXPIRE", key, fmt.Sprint((leftOf(s, key) - d).Milliseconds()))
	}
	setLatch(t, d, "x", "set", 1000)
	wantNoted("at first", first, 2)
	passes(first, 50*time.Minute)
	wantNoted("in the first hour", first, 3)
	for round := range 2 {
		passes(first, 20*time.Minute)
		wantNoted("after an hour", second, 1)
		wantNoted("after an hour", second, 2)
		passes(second, 50*time.Minute)
		s.Do("DEL", first) // it ends before the second one has less than an hour left
		wantNoted("in the second hour", second, 3)
		passes(second, 20*time.Minute)
		wantNoted("after two hours", first, 1)
		passes(first, 50*time.Minute)
		s.Do("DEL", second)
		wantNoted("in the third hour", first, 2)
		if left, err := d.Latch(t.Context(), "x"); err != nil || left != 1000-changes {
			t.Errorf("round %d: got the count %d, %v, want %d", round, left, err, 1000-changes)
		}
	}
}

// TestLatchOverZero: trySetCount(0) of Redisson leaves a key that does not
// count as a latch.
func TestLatchOverZero(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	for i, value := range []string{"0", "-1"} {
		s.Do("SET", "x", value)
		if left, err := d.Latch(t.Context(), "x"); left != 0 || err != nil {
			t.Errorf("count of %s: got %d, %v, want 0", value, left, err)
		}
		countDown(t, d, "x", fmt.Sprint("idle", i))
		setLatch(t, d, "x", fmt.Sprint("set", i), 4)
		if got := s.Do("GET", "x"); got != "4" {
			t.Errorf("value at x: got %v, want 4", got)
		}
	}
}

func TestLatchOfAnotherKind(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	s.Do("SET", "text", "two")
	s.Do("HSET", "hash", "field", "1")
	for _, name := range []string{"text", "hash"} {
		_, err := d.Latch(t.Context(), name)
		for what, err := range map[string]error{"Latch": err, "CountDown": d.CountDown(t.Context(), name, "id")} {
			if err == nil || errors.Is(err, driver.ErrUnknown) || errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("%s of a %s: got %v, want a final error", what, name, err)
			}
		}
	}
	if n := s.Do("EXISTS", "dsync_latch:{text}", "dsync_latch:{hash}", "dsync_latch2:{text}", "dsync_latch2:{hash}"); n != int64(0) {
		t.Error("changes that failed are noted")
	}
}

func TestLatchInCluster(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{"a": true, "日本": true, "{a}": false, "{a}b": false, "a}b": false} {
		d := &Driver{cluster: true}
		if same := d.checkLatchName(name) == nil; same != ok {
			t.Errorf("%q: got accepted %t, want %t", name, same, ok)
		}
	}
	cluster := testenv.RedisCluster(t, 3, 0)
	d := openURL(t, "redisson://%s?mode=cluster", cluster.Addrs()[0])
	for i := range 8 { // on all nodes
		name := fmt.Sprint("latch", i)
		setLatch(t, d, name, "set", 1)
		called := make(chan struct{}, 10)
		stop, err := d.WatchLatch(name, func() { called <- struct{}{} })
		if err != nil {
			t.Fatal(err)
		}
		<-called // the watch has begun
		countDown(t, d, name, "down")
		select {
		case <-called:
		case <-time.After(hangGuard):
			t.Errorf("the end of %q is not reported", name)
		}
		stop()
	}
}

// TestLatchTakesOneRequest: each change and each query takes one request.
func TestLatchTakesOneRequest(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	setLatch(t, d, "warm", "warm", 1) // the script is known from here on
	got := counted(s, func() {
		setLatch(t, d, "x", "set", 2)
		countDown(t, d, "x", "down")
	}, "evalsha", "eval", "subscribe")
	if want := map[string]int64{"evalsha": 2, "eval": 0, "subscribe": 0}; !reflect.DeepEqual(got, want) {
		t.Errorf("commands of two changes: got %v, want %v", got, want)
	}
}
