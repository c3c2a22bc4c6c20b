package interop

import (
	"context"
	"strconv"
	"testing"

	"github.com/go-dsync/dsync"
)

// latches are scenarios of getCountDownLatch.
var latches = []scenario{
	{"both count a latch down", true, latchCounted},
	{"the end of a latch is reported, in both directions", true, latchEndsAreTold},
	{"a deleted latch is reported, in both directions", true, latchDeletionsAreTold},
}

func latchChannel(name string) string { return "redisson_countdownlatch__channel__{" + name + "}" }

// sideOfLatch is one side's view of a latch. begin starts a wait and returns
// two functions. returned waits until the wait has ended, and waits reports
// whether it is still in progress.
type sideOfLatch struct {
	name      string
	set       func(tb testing.TB, n int) bool
	down, del func(tb testing.TB)
	count     func(tb testing.TB) int
	begin     func(tb testing.TB) (returned func(tb testing.TB), waits func() bool)
}

// javaLatch returns a latch in Java. A separate thread waits.
func (b *bed) javaLatch(name string) *sideOfLatch {
	does, waits := b.redisson.thread("does", "latch", name), b.redisson.thread("waits", "latch", name)
	return &sideOfLatch{
		name: "java",
		set:  func(tb testing.TB, n int) bool { return does.do(tb, "set", strconv.Itoa(n)) == "true" },
		down: func(tb testing.TB) { does.do(tb, "countDown") },
		del:  func(tb testing.TB) { does.do(tb, "delete") },
		count: func(tb testing.TB) int {
			n, err := strconv.Atoi(does.do(tb, "count"))
			if err != nil {
				tb.Fatal(err)
			}
			return n
		},
		begin: func(testing.TB) (func(testing.TB), func() bool) {
			c := waits.begin("await")
			return func(tb testing.TB) { c.ok(tb) }, func() bool { return !c.ended() }
		},
	}
}

// goLatch returns a latch in Go.
func goLatch(c *dsync.Client, name string) *sideOfLatch {
	l := c.Latch(name)
	must := func(tb testing.TB, err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	return &sideOfLatch{
		name: "go",
		set: func(tb testing.TB, n int) bool {
			set, err := l.Set(tb.Context(), n)
			must(tb, err)
			return set
		},
		down: func(tb testing.TB) { must(tb, l.CountDown(tb.Context())) },
		del:  func(tb testing.TB) { must(tb, l.Delete(tb.Context())) },
		count: func(tb testing.TB) int {
			n, err := l.Count(tb.Context())
			must(tb, err)
			return n
		},
		begin: func(tb testing.TB) (func(testing.TB), func() bool) {
			ctx, cancel := context.WithTimeout(tb.Context(), hangGuard)
			done := make(chan error, 1)
			go func() { // ends when ctx ends
				defer cancel()
				done <- l.Wait(ctx)
			}()
			return func(tb testing.TB) { must(tb, <-done) }, func() bool { return len(done) == 0 }
		},
	}
}

// bothWays runs a scenario on a new latch, as both sides see it, and again on
// another latch with the sides exchanged.
func (b *bed) bothWays(tb testing.TB, what string, run func(name string, first, second *sideOfLatch)) {
	c := b.client(tb, "")
	for i := range 2 {
		name := fresh(what)
		pair := [2]*sideOfLatch{b.javaLatch(name), goLatch(c, name)}
		run(name, pair[i], pair[1-i])
	}
}

func (l *sideOfLatch) wantCount(tb testing.TB, want int) {
	tb.Helper()
	if got := l.count(tb); got != want {
		tb.Errorf("%s sees the count %d, want %d", l.name, got, want)
	}
}

// latchCounted checks that both sides store the same data in Redis.
func latchCounted(t *testing.T, b *bed) {
	b.bothWays(t, "latch-counted", func(name string, first, second *sideOfLatch) {
		node := b.node(name)
		first.down(t) // nothing happens
		if !first.set(t, 4) || second.set(t, 7) || first.set(t, 7) {
			t.Errorf("%s did not set the latch, or the latch was set twice", first.name)
		}
		for n := 4; n > 0; n-- {
			if got, want := node.Do("GET", name), strconv.Itoa(n); got != want {
				t.Errorf("value at %q: got %v, want %s", name, got, want)
			}
			if got := node.Do("PTTL", name); got != int64(-1) {
				t.Errorf("TTL of %q: got %v, want none", name, got)
			}
			first.wantCount(t, n)
			second.wantCount(t, n)
			[]*sideOfLatch{first, second}[n%2].down(t)
		}
		if got := node.Do("EXISTS", name); got != int64(0) {
			t.Error("the key remains at 0")
		}
		first.wantCount(t, 0)
		second.wantCount(t, 0)
	})
}

func latchEndsAreTold(t *testing.T, b *bed) {
	b.bothWays(t, "latch-told", func(name string, counts, waits *sideOfLatch) {
		if !counts.set(t, 2) {
			t.Fatalf("%s cannot set the latch", counts.name)
		}
		returned, waiting := waits.begin(t)
		b.subscribed(t, latchChannel(name), 1)
		counts.down(t)
		waits.wantCount(t, 1)
		if !waiting() {
			t.Errorf("%s no longer waits at 1", waits.name)
		}
		counts.down(t)
		returned(t)
	})
}

func latchDeletionsAreTold(t *testing.T, b *bed) {
	b.bothWays(t, "latch-deleted", func(name string, deletes, waits *sideOfLatch) {
		if !waits.set(t, 2) {
			t.Fatalf("%s cannot set the latch", waits.name)
		}
		returned, _ := waits.begin(t)
		b.subscribed(t, latchChannel(name), 1)
		deletes.del(t)
		returned(t)
	})
}
