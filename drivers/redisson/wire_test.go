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
	for _, test := range []struct{ name, channel string }{
		{"orders", "redisson_lock__channel:{orders}"},
		{"{t}:orders", "redisson_lock__channel:{t}:orders"},
		{"a{b", "redisson_lock__channel:a{b"},
		{"a}b", "redisson_lock__channel:{a}b}"},
		{"日本 über/x y", "redisson_lock__channel:{日本 über/x y}"},
	} {
		t.Run(test.name, func(t *testing.T) {
			spy := spyOn(t, s, test.channel)
			r := request(test.name)
			l := acquire(t, d, r)
			if got, want := s.Do("HGETALL", test.name), []any{r.Hold, valueOf(l)}; !reflect.DeepEqual(got, want) {
				t.Errorf("hash: got %v, want %v", got, want)
			}
			if ttl := s.Do("PTTL", test.name).(int64); ttl <= 0 || ttl > r.TTL.Milliseconds() {
				t.Errorf("TTL: got %d ms, want more than 0 and at most %v", ttl, r.TTL)
			}
			first, n := l.Tokens()
			last, err := strconv.ParseUint(s.Do("GET", d.tokenKey(test.name)).(string), 10, 64)
			if err != nil || last != first+uint64(n)-1 {
				t.Errorf("token key: got %d, %v, want the last of %d tokens from %d", last, err, n, first)
			}
			if ttl := leftOf(s, d.tokenKey(test.name)); ttl > time.Hour || ttl < time.Hour-hangGuard {
				t.Errorf("TTL of the token key: got %v, want an hour", ttl)
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
	if got, want := s.Do("HGETALL", "x"), []any{r.Hold, valueOf(again)}; !reflect.DeepEqual(got, want) {
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

// TestTokensRiseWhenTheLastAreForgotten resets the token key to its value some
// grants ago, as on a replica that takes over and has not seen the last grants.
func TestTokensRiseWhenTheLastAreForgotten(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	key := d.tokenKey("x")
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
			t.Errorf("grant %d: got token %d, want a token above the forgotten %d", i, first, last)
		}
	}
	if left := s.Do("PTTL", key).(int64); left <= 0 {
		t.Errorf("TTL of the token key: got %d, want a TTL", left)
	}
}

func TestTokensRiseOverDriversAndFlushes(t *testing.T) {
	t.Parallel()
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

// TestNamesShareASequence takes tokens for several names of a slot at one
// moment of the server: blocks shrink rather than run ahead of the clock.
func TestNamesShareASequence(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	var ops []*op
	for i := range 18 {
		o := d.newOp(request(fmt.Sprint("{t}", i)), nil)
		o.tokens = maxTokens
		ops = append(ops, o)
	}
	together(d, ops...)
	next := ops[0].value
	for i, o := range ops {
		want := maxTokens
		switch {
		case i == 15:
			want = 1000 - 15*maxTokens
		case i > 15:
			want = 1
		}
		if o.err != nil || o.value != next || o.n != want {
			t.Errorf("name %d: got %d tokens from %d, %v, want %d from %d", i, o.n, o.value, o.err, want, next)
		}
		next += int64(o.n)
	}
	if keys := s.Do("KEYS", fencePrefix+"*").([]any); len(keys) != 1 {
		t.Errorf("sequences: got %q, want one sequence", keys)
	}
}

// TestSequencesAheadOfTheClock has sequences as after a step back of the clock,
// or a migration. Tokens rise, in whole blocks, and the sequence does not
// expire before the clock has passed it.
func TestSequencesAheadOfTheClock(t *testing.T) {
	s := testenv.Redis(t)
	const ahead = 24 * time.Hour
	for _, parameters := range []string{"", "?fair=true"} {
		d := openURL(t, "redisson://%s/%s", s.Addr, parameters)
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Write} {
			name := fmt.Sprint("x", mode)
			last := uint64(time.Now().Add(ahead).UnixMicro())
			s.Do("SET", d.tokenKey(name), strconv.FormatUint(last, 10), "PX", "5000")
			for range 3 {
				r := inMode(mode, request(name))
				r.Events.(*events).tokens = maxTokens
				l := acquire(t, d, r)
				if first, n := l.Tokens(); first != last+1 || n != maxTokens {
					t.Errorf("%s%v: got %d tokens from %d, want %d from %d", parameters, mode, n, first, maxTokens, last+1)
				}
				last += maxTokens
				if status, err := d.Inspect(t.Context(), name); err != nil || status.Token != last {
					t.Errorf("%s%v: Inspect: got the token %d, %v, want %d", parameters, mode, status.Token, err, last)
				}
				release(t, l)
				wantSequenceAbove(t, s, d, name, last)
			}
		}
	}
	d := openURL(t, "redisson://%s", s.Addr)
	for _, other := range []string{"no number", "-5", "9"} { // a lost sequence, or a value of another program
		s.Do("SET", d.tokenKey("y"), other)
		l := acquire(t, d, request("y"))
		if first, _ := l.Tokens(); first < uint64(time.Now().Add(-hangGuard).UnixMicro()) {
			t.Errorf("token behind %q: got %d, want the time", other, first)
		}
		release(t, l)
		if left := leftOf(s, d.tokenKey("y")); left <= 0 || left > time.Hour {
			t.Errorf("the sequence behind %q ends in %v, want an hour", other, left)
		}
	}
}
