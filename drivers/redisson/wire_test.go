package redisson

import (
	"fmt"
	"reflect"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestWireFormatIsRedissons(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	for _, test := range []struct{ name, channel, fence string }{
		{"orders", "redisson_lock__channel:{orders}", "dsync_fence:{orders}"},
		{"{t}:orders", "redisson_lock__channel:{t}:orders", "dsync_fence:{t}:orders"},
		{"a{b", "redisson_lock__channel:a{b", "dsync_fence:a{b"},
		{"a}b", "redisson_lock__channel:{a}b}", "dsync_fence:{a}b}"},
		{"日本 über/x y", "redisson_lock__channel:{日本 über/x y}", "dsync_fence:{日本 über/x y}"},
	} {
		t.Run(test.name, func(t *testing.T) {
			spy := spyOn(t, s, test.channel)
			r := request(test.name)
			l := acquire(t, d, r)
			if got, want := s.Do("HGETALL", test.name), []any{r.Hold, "1"}; !reflect.DeepEqual(got, want) {
				t.Errorf("hash: got %v, want %v", got, want)
			}
			if ttl := s.Do("PTTL", test.name).(int64); ttl <= 0 || ttl > r.TTL.Milliseconds() {
				t.Errorf("TTL: got %d ms, want more than 0 and at most %v", ttl, r.TTL)
			}
			first, n := l.Tokens()
			last, err := strconv.ParseUint(s.Do("GET", test.fence).(string), 10, 64)
			if err != nil || last != first+uint64(n)-1 {
				t.Errorf("token key: got %d, %v, want the last of %d tokens from %d", last, err, n, first)
			}
			if ttl := time.Duration(s.Do("PTTL", test.fence).(int64)) * time.Millisecond; ttl > fenceTTL || ttl < fenceTTL-hangGuard {
				t.Errorf("TTL of the token key: got %v, want %v", ttl, fenceTTL)
			}
			release(t, l)
			if got := s.Do("EXISTS", test.name); got != int64(0) {
				t.Error("the key is left after the release")
			}
			if got, want := spy.next(t), "0"; got != want {
				t.Errorf("message: got %q, want %q", got, want)
			}
		})
	}
	if keys := keysOf(s); len(keys) > 0 {
		t.Errorf("keys left: %q", keys)
	}
}

func TestFreeLockTakesOneRequestEachWay(t *testing.T) {
	s := testenv.Redis(t)
	for _, parameters := range []string{"", "?fenced=false", "?fence=redisson"} {
		d := openURL(t, "redisson://%s/%s", s.Addr, parameters)
		release(t, acquire(t, d, request("warm"))) // the scripts are known from here on
		var l *lease
		var e *events
		commands := []string{"evalsha", "eval", "subscribe", "publish"}
		got := counted(s, func() {
			r := request("free")
			l, e = acquire(t, d, r), r.Events.(*events)
		}, commands...)
		if want := map[string]int64{"evalsha": 1, "eval": 0, "subscribe": 0, "publish": 0}; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: commands of Acquire: got %v, want %v", parameters, got, want)
		}
		select {
		case <-e.waiting:
			t.Errorf("%s: Waiting was called for a free lock", parameters)
		default:
		}
		got = counted(s, func() { release(t, l) }, commands...)
		if want := map[string]int64{"evalsha": 1, "eval": 0, "subscribe": 0, "publish": 1}; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: commands of Release: got %v, want %v", parameters, got, want)
		}
	}
}

func TestSameHoldAsksTwice(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	r := request("x")
	first := acquire(t, d, r)
	again := acquire(t, d, r)
	if got, want := s.Do("HGETALL", "x"), []any{r.Hold, "1"}; !reflect.DeepEqual(got, want) {
		t.Errorf("hash after the second Acquire: got %v, want %v", got, want)
	}
	a, _ := first.Tokens()
	b, _ := again.Tokens()
	if b <= a {
		t.Errorf("token of the second Acquire: got %d, want more than %d", b, a)
	}
	release(t, again)
	if got := s.Do("EXISTS", "x"); got != int64(0) {
		t.Error("the key is left after one release")
	}
}

func TestForeignHoldIsRespected(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	s.Do("HSET", "java", "8743c9c0-0795-4907-87fd-6c719a6b4586:41", "3")
	for _, ttl := range []string{"100000", ""} {
		if ttl != "" {
			s.Do("PEXPIRE", "java", ttl)
		} else {
			s.Do("PERSIST", "java")
		}
		if _, err := d.Acquire(t.Context(), noWait("java")); err != driver.ErrLocked {
			t.Errorf("Acquire with a foreign hold of TTL %q: got %v, want ErrLocked", ttl, err)
		}
	}
	if got, want := s.Do("HGETALL", "java"), []any{"8743c9c0-0795-4907-87fd-6c719a6b4586:41", "3"}; !reflect.DeepEqual(got, want) {
		t.Errorf("hash: got %v, want %v", got, want)
	}
}

func TestTokensOfABlock(t *testing.T) {
	s := testenv.Redis(t)
	for _, parameters := range []string{"", "?fence=redisson"} {
		d := openURL(t, "redisson://%s/%s", s.Addr, parameters)
		name := "block" + parameters
		last := uint64(0)
		for i, want := range []int{1, 64, 7, 1, 1000} {
			r := request(name)
			r.Events.(*events).tokens = want
			l := acquire(t, d, r)
			first, n := l.Tokens()
			if first <= last || n < 1 || n > min(want, maxTokens) || parameters != "" && n != min(want, maxTokens) {
				t.Errorf("%s: grant %d: got %d tokens from %d, want up to %d from above %d", name, i, n, first, want, last)
			}
			last = first + uint64(n) - 1
			release(t, l)
		}
	}
	if got, want := s.Do("GET", "redisson_lock_token:{block?fence=redisson}"), fmt.Sprint(1+64+7+1+64); got != want {
		t.Errorf("token key of Redisson: got %v, want %v", got, want)
	}
	if got := s.Do("PTTL", "redisson_lock_token:{block?fence=redisson}"); got != int64(-1) {
		t.Errorf("TTL of Redisson's token key: got %v, want none", got)
	}
}

// TestTokensRiseWhenTheLastAreForgotten puts the token key back to what it was some grants ago: what a replica has that takes over and
// has not seen the last of them.
func TestTokensRiseWhenTheLastAreForgotten(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	const key = "dsync_fence:{x}"
	grant := func(tokens int) (first, last uint64) {
		r := request("x")
		r.Events.(*events).tokens = tokens
		l := acquire(t, d, r)
		first, n := l.Tokens()
		release(t, l)
		return first, first + uint64(n) - 1
	}
	grant(1)
	for i, tokens := range []int{1, 1, 64, 1, 64, 1} {
		before := s.Do("GET", key).(string)
		_, last := grant(tokens)
		s.Do("SET", key, before, "KEEPTTL")
		if first, _ := grant(1); first <= last {
			t.Errorf("grant %d: got token %d, want one above the %d that was forgotten", i, first, last)
		}
	}
	if left := s.Do("PTTL", key).(int64); left <= 0 {
		t.Errorf("TTL of the token key: got %d, want that it ends", left)
	}
}

func TestTokensRiseOverDriversAndFlushes(t *testing.T) {
	s := testenv.Redis(t)
	const grants, drivers = 10_000, 8
	var mu sync.Mutex // the lock under test is lost at each flush
	last, n := uint64(0), 0
	parallel(drivers, func(i int) {
		d := openURL(t, "redisson://%s", s.Addr)
		for j := range grants / drivers {
			r := request("x")
			r.Events.(*events).tokens = 1 + (i+j)%maxTokens
			l := acquire(t, d, r)
			first, count := l.Tokens()
			mu.Lock()
			if n++; first <= last || count < 1 {
				t.Errorf("grant %d: got %d tokens from %d, want them above %d", n, count, first, last)
			}
			last = first + uint64(count) - 1
			flush := n%1000 == 0
			mu.Unlock()
			if flush {
				s.Do("FLUSHALL")
			}
			if err := l.Release(t.Context()); err != nil && !(flush && err == driver.ErrNotHeld) {
				t.Errorf("Release: %v", err)
			}
		}
	})
}
