package redisson

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

var names = flag.Int("names", 1000, "how many names TestNothingRemainsOfNames uses with each URL")

// TestNothingRemainsOfNames uses names once, in each way, and checks all keys.
// An hour after the clients were closed no key is left.
func TestNothingRemainsOfNames(t *testing.T) {
	t.Parallel()
	s, clock := testenv.RedisClock(t)
	for _, parameters := range []string{"", "?fair=true", "?fenced=false"} {
		s.Do("FLUSHALL")
		clock.Set(0)
		begun := time.Now()
		d, other := openURL(t, "redisson://%s/%s", s.Addr, parameters), openURL(t, "redisson://%s/%s", s.Addr, parameters)
		modes := []driver.Mode{driver.Exclusive, driver.Read, driver.Write, driver.Permit}
		parallel(10, func(i int) {
			for n := i; n < *names; n += 10 {
				r := request(fmt.Sprint("x", n))
				if r.Mode = modes[n%len(modes)]; r.Mode == driver.Permit {
					permits(1, 3, r)
				}
				l := acquire(t, d, r)
				if n%100 < len(modes) && r.Mode != driver.Permit { // another client waits
					second := request(r.Name)
					if second.Mode = r.Mode; r.Mode == driver.Read {
						second.Mode = driver.Write
					}
					w := wait(t, other, second)
					release(t, l)
					l = w.granted(t)
				}
				release(t, l)
			}
		})
		forced := acquire(t, d, request("forced"))
		if err := other.ForceUnlock(t.Context(), "forced"); err != nil {
			t.Error(err)
		}
		if err := forced.Release(t.Context()); err != driver.ErrNotHeld {
			t.Errorf("Release after ForceUnlock: got %v, want ErrNotHeld", err)
		}
		sequences := 0
		for _, key := range s.Do("KEYS", "*").([]any) {
			key := key.(string)
			switch left := leftOf(s, key); {
			case strings.HasPrefix(key, d.sequences) && left > 0 && left <= time.Hour:
				sequences++
			case strings.HasPrefix(key, turnPrefix) && left > 0 && left <= 15*time.Second: // a line that was empty at the last grant
			default:
				t.Errorf("%s: %q is left, for %v", parameters, key, left)
			}
		}
		if limit := min(*names+1, clusterSlots); sequences > limit || parameters != "?fenced=false" && sequences == 0 {
			t.Errorf("%s: got %d sequences, want up to %d", parameters, sequences, limit)
		}
		keys, _, bytes := s.Kept()
		t.Logf("%d names%s in %v: %d keys in %d bytes", *names, parameters, time.Since(begun), keys, bytes)
		if err := errors.Join(d.Close(t.Context()), other.Close(t.Context())); err != nil {
			t.Error(err)
		}
		clock.Set(time.Hour + time.Second)
		testenv.Eventually(t, func() bool { return s.Do("DBSIZE") == int64(0) }, "no key is left after an hour")
	}
}

// TestLimitsAreForgotten: a limit is forgotten with the last hold, unless a
// client listens.
func TestLimitsAreForgotten(t *testing.T) {
	s := testenv.Redis(t)
	d, other := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr)
	a, b := acquire(t, d, permits(1, 2, request("x"))), acquire(t, d, permits(1, 2, request("x")))
	w := wait(t, other, permits(1, 0, request("x"))) // has the limit of the holders
	release(t, a)
	release(t, b)
	last := w.granted(t)
	if status, err := d.Inspect(t.Context(), "x"); err != nil || status.Limit != 2 || status.Used != 1 {
		t.Errorf("Inspect: got %+v, %v, want 1 of 2 permits", status, err)
	}
	testenv.Eventually(t, func() bool { return s.SubscriberCount(prefixName(permitPrefix, "x")) == 0 }, "no client listens")
	release(t, last)
	if keys := keysOf(s); len(keys) > 0 {
		t.Errorf("keys: got %q, want none", keys)
	}
	release(t, acquire(t, d, permits(1, 5, request("x"))))

	acquire(t, d, permits(1, 4, request("x")))
	if err := other.ForceUnlock(t.Context(), "x"); err != nil || slices.Contains(keysOf(s), "x") {
		t.Errorf("ForceUnlock: got %v and the keys %q, want none", err, keysOf(s))
	}

	lost := acquire(t, d, permits(1, 4, during(100*time.Millisecond, request("x"))))
	for _, key := range []string{"x", endsKey("x")} {
		if left := leftOf(s, key); left > 20*time.Second {
			t.Errorf("%q is kept for %v behind a hold of 100 ms", key, left)
		}
	}
	_ = lost.Release(t.Context()) // may have ended
}

func TestTenantsHaveSequencesOfTheirOwn(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	password := testenv.Password()
	s.Do("ACL", "SETUSER", "tenant", "on", ">"+password, "~x", "~y", "~dsync_fence:a:*", "~dsync_turn:*", "&*", "+@all")
	a := openURL(t, "redisson://tenant:%s@%s/?tenant=a", password, s.Addr)
	parallel(2, func(i int) { release(t, acquire(t, a, request([]string{"x", "y"}[i]))) })
	for _, key := range s.Do("KEYS", "*").([]any) {
		if !strings.HasPrefix(key.(string), "dsync_fence:a:{") {
			t.Errorf("got the key %q, want sequences of the tenant", key)
		}
	}
	for _, other := range []string{"", "?tenant=b"} {
		d := openURL(t, "redisson://tenant:%s@%s/%s", password, s.Addr, other)
		if _, err := d.Acquire(t.Context(), request("x")); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%q: got %v, want ErrPermission", other, err)
		}
	}
	for _, wrong := range []string{"?tenant={a}", "?tenant=a&fence=redisson", "?tenant=a&fenced=false"} {
		if _, err := tryOpen(t, "redisson://"+s.Addr+"/"+wrong); err == nil || !strings.Contains(err.Error(), "tenant") {
			t.Errorf("%q: got %v, want an error about the tenant", wrong, err)
		}
	}
}
