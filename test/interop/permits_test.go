package interop

import (
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
)

// permits are scenarios of getPermitExpirableSemaphore.
var permits = []scenario{
	{"both acquire permits of one limit", true, permitsShared},
	{"released permits wake waiters, in both directions", true, permitHandOvers},
	{"go's expired permits become free for java", false, goPermitsExpire},
	{"java's expired permits become free for go", false, javaPermitsExpire},
	{"a limit that java raises", true, javaRaisesLimit},
	{"a crowd of both acquires permits", true, permitCrowd},
}

func permitChannel(name string) string { return "redisson_sc:" + tagged(name) }

func (b *bed) wantFree(tb testing.TB, name string, want int) {
	tb.Helper()
	if got := b.node(name).Do("GET", name); got != strconv.Itoa(want) {
		tb.Errorf("free permits at %q: got %v, want %d", name, got, want)
	}
}

// permitsShared checks that both sides store the same data in Redis.
func permitsShared(t *testing.T, b *bed) {
	ctx := t.Context()
	c := b.client(t, "")
	for _, setter := range []string{"java", "go"} {
		name := fresh("permits")
		j := b.redisson.thread("permits", "permits", name)
		if setter == "java" {
			j.begin("set", "4").equals(t, "true")
		} else if err := c.SetLimit(ctx, name, 4); err != nil {
			t.Fatal(err)
		}
		id := j.do(t, "acquire", "60000")
		lease, err := c.TryLock(ctx, name, dsync.Permits(3, 4))
		if err != nil {
			t.Fatalf("go requests 3 of 4 permits while java holds one: %v", err)
		}
		b.wantFree(t, name, 0)
		ends := "{" + name + "}:timeout"
		for _, member := range b.node(name).Do("ZRANGE", ends, "0", "-1").([]any) {
			if n := len(member.(string)); n != 16 {
				t.Errorf("a permit has an id of %d bytes, want 16", n)
			}
		}
		if n := b.node(name).Do("ZCARD", ends); n != int64(4) {
			t.Errorf("%v permits are held, want 4", n)
		}
		j.begin("tryAcquire").equals(t, "none")
		j.begin("available").equals(t, "0")
		if _, err := c.TryLock(ctx, name, dsync.Permits(1, 0)); !errors.Is(err, dsync.ErrLocked) {
			t.Errorf("go requests one permit too many: got %v, want ErrLocked", err)
		}
		if _, err := c.TryLock(ctx, name, dsync.Permits(1, 5)); !errors.Is(err, dsync.ErrLimit) {
			t.Errorf("go passes another limit: got %v, want ErrLimit", err)
		}
		if s, err := c.Inspect(ctx, name); err != nil || s.Used != 4 || s.Limit != 4 || s.Holders != 2 {
			t.Errorf("Inspect: got %+v and %v, want 4 of 4 held by 2", s, err)
		}
		unlock(t, lease)
		j.begin("available").equals(t, "3")
		j.do(t, "release", id)
		b.wantFree(t, name, 4)
	}
}

func permitHandOvers(t *testing.T, b *bed) {
	name := fresh("permit-wake")
	j, c := b.redisson.thread(name, "permits", name), b.client(t, "")
	l := dsync.With(c, dsync.Permits(2, 2))
	if err := c.SetLimit(t.Context(), name, 2); err != nil {
		t.Fatal(err)
	}
	byMessage(t, func() time.Duration {
		ids := []string{j.do(t, "acquire", "-1"), j.do(t, "acquire", "-1")}
		w := lockLater(l, name)
		b.subscribed(t, permitChannel(name), 1)
		j.do(t, "release", ids[0])
		start := time.Now()
		if w.ended() {
			t.Fatalf("go got two permits while java holds one of two: %v, %v", w.lease, w.err)
		}
		j.do(t, "release", ids[1])
		lease := w.granted(t)
		took := time.Since(start)
		unlock(t, lease)
		return took
	})
	byMessage(t, func() time.Duration {
		lease, err := l.Lock(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		waits := j.begin("acquire", "-1")
		b.subscribed(t, permitChannel(name), 1)
		start := time.Now()
		unlock(t, lease)
		id := waits.ok(t)
		took := time.Since(start)
		j.do(t, "release", id)
		return took
	})
	b.wantFree(t, name, 2)
}

func goPermitsExpire(t *testing.T, b *bed) {
	const lasts = 2 * time.Second
	name := fresh("permit-expires")
	c := b.client(t, "")
	j := b.redisson.thread(name, "permits", name)
	began := time.Now()
	lease, err := c.Lock(t.Context(), name, dsync.Permits(2, 2), dsync.ExpireAfter(lasts))
	if err != nil {
		t.Fatal(err)
	}
	id := j.do(t, "acquire", "60000")
	if took := time.Since(began); took < lasts {
		t.Errorf("java got go's permit %v before its end", lasts-took)
	}
	if err := lease.Err(); err == nil {
		t.Error("java holds the permit, but go reports that it still holds it, too")
	}
	if err := lease.Unlock(t.Context()); !errors.Is(err, dsync.ErrLost) && !errors.Is(err, dsync.ErrNotHeld) && err != nil {
		t.Errorf("Unlock of permits that ran out: %v", err)
	}
	j.do(t, "release", id)
	b.wantFree(t, name, 2)
}

func javaPermitsExpire(t *testing.T, b *bed) {
	const lasts = 2 * time.Second
	name := fresh("permit-expires")
	c := b.client(t, "")
	if err := c.SetLimit(t.Context(), name, 1); err != nil {
		t.Fatal(err)
	}
	j := b.redisson.thread(name, "permits", name)
	began := time.Now()
	id := j.do(t, "acquire", strconv.FormatInt(lasts.Milliseconds(), 10))
	lease, err := c.Lock(t.Context(), name, dsync.Permits(1, 1))
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < lasts {
		t.Errorf("go got java's permit %v before its end", lasts-took)
	}
	j.begin("tryRelease", id).equals(t, "false")
	b.wantFree(t, name, 0)
	unlock(t, lease)
	b.wantFree(t, name, 1)
}

// javaRaisesLimit checks that a raised limit wakes the waiters, and that a call
// with the old limit fails.
func javaRaisesLimit(t *testing.T, b *bed) {
	name := fresh("permit-raised")
	c := b.client(t, "")
	j := b.redisson.thread(name, "permits", name)
	j.begin("set", "1").equals(t, "true")
	id := j.do(t, "acquire", "-1")
	w := lockLater(dsync.With(c, dsync.Permits(1, 0)), name)
	old := lockLater(dsync.With(b.client(t, ""), dsync.Permits(1, 1)), name)
	b.subscribed(t, permitChannel(name), 2)
	j.do(t, "add", "1")
	lease := w.granted(t)
	if <-old.done; !errors.Is(old.err, dsync.ErrLimit) {
		t.Errorf("a waiter that passed the old limit: got %v, want ErrLimit", old.err)
	}
	unlock(t, lease)
	j.do(t, "release", id)
	b.wantFree(t, name, 2)
}

// permitCrowd counts the holders of a permit with a number in Redis.
func permitCrowd(t *testing.T, b *bed) {
	const limit, threads, rounds = 3, 4, 60
	name := fresh("permit-crowd")
	inside := "inside-" + name
	c := b.client(t, "")
	if err := c.SetLimit(t.Context(), name, limit); err != nil {
		t.Fatal(err)
	}
	var calls []*call
	for i := range threads {
		calls = append(calls, b.redisson.thread("crowd"+strconv.Itoa(i), "permits", name).begin("crowd", inside, strconv.Itoa(rounds), strconv.Itoa(limit)))
	}
	var wg sync.WaitGroup
	for i := range threads {
		n := 1 + i%2
		wg.Go(func() {
			for range rounds {
				lease, err := c.Lock(t.Context(), name, dsync.Permits(n, limit))
				if err != nil {
					t.Error(err)
					return
				}
				if got := b.node(inside).Do("INCRBY", inside, strconv.Itoa(n)).(int64); got > limit {
					t.Errorf("%d permits are held, of %d", got, limit)
				}
				b.node(inside).Do("DECRBY", inside, strconv.Itoa(n))
				unlock(t, lease)
			}
		})
	}
	wg.Wait()
	for _, call := range calls {
		call.equals(t, "0")
	}
	b.wantFree(t, name, limit)
}
