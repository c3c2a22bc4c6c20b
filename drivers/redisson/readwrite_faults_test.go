package redisson

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestLostAnswersOfReadersAndWriters: whatever a request may have left behind
// is removed.
func TestLostAnswersOfReadersAndWriters(t *testing.T) {
	s := testenv.Redis(t)
	other := openURL(t, "redisson://%s", s.Addr)
	for _, mode := range []driver.Mode{driver.Read, driver.Write} {
		release(t, acquire(t, other, inMode(mode, request("warm")))) // the server knows the scripts, so no lost answer is about an unknown script
	}
	for _, mode := range []driver.Mode{driver.Read, driver.Write} {
		d, link := overLink(t, s, "")
		r := during(3*time.Second, inMode(mode, request("x"))) // Close waits for it, since the request might still have been on its way
		trap := link.LoseReply(r.Hold)
		_, err := d.Acquire(t.Context(), r)
		if sprung(t, trap); !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("%v: Acquire whose answer was lost: got %v, want ErrUnknown", mode, err)
		}
		testenv.Eventually(t, func() bool { return len(keysOf(s)) == 0 }, "the hold is gone")
	}
	d, link := overLink(t, s, "")
	l := acquire(t, other, read("x"))
	r := during(3*time.Second, write("x"))
	trap := link.HoldReply(r.Hold)
	w := begin(d, r)
	sprung(t, trap)
	testenv.Eventually(t, func() bool { return s.Do("EXISTS", "dsync_intent:{x}") == int64(1) }, "the server has the intent")
	w.cancel()
	if <-w.done; !errors.Is(w.err, driver.ErrUnknown) {
		t.Errorf("Acquire of a writer that left before its answer: got %v, want ErrUnknown", w.err)
	}
	link.Heal()
	testenv.Eventually(t, func() bool { return s.Do("EXISTS", "dsync_intent:{x}") == int64(0) }, "the intent is gone")
	release(t, l)

	for _, mode := range []driver.Mode{driver.Read, driver.Write} {
		r := inMode(mode, request("x"))
		l := acquire(t, d, r)
		trap := link.LoseReply(r.Hold)
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("%v: Release whose answer was lost: %v", mode, err)
		}
		sprung(t, trap)
		wantNoKeys(t, s)
	}
}

func TestCloseEndsReadersAndWriters(t *testing.T) {
	s := testenv.Redis(t)
	for _, parameters := range []string{"", "?fair=true"} {
		d, other := openURL(t, "redisson://%s/%s", s.Addr, parameters), openURL(t, "redisson://%s", s.Addr)
		acquire(t, d, read("x"))
		acquire(t, d, read("x"))
		acquire(t, d, write("w"))
		acquire(t, d, request("e"))
		held := acquire(t, other, read("y"))
		w := wait(t, d, write("y"))
		if err := d.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
		if <-w.done; !errors.Is(w.err, driver.ErrClosed) {
			t.Errorf("Acquire while Close began: got %v, want ErrClosed", w.err)
		}
		release(t, held)
		wantNoKeys(t, s)
	}
}

func TestReadersAndWritersWaitForReplicas(t *testing.T) {
	primary, replica, link := replicated(t)
	d := openURL(t, "redisson://%s?waitreplicas=1&waitlimit=%v", primary.Addr, hangGuard)
	hasty := openURL(t, "redisson://%s?waitreplicas=1&waitlimit=100ms", primary.Addr)
	for _, mode := range []driver.Mode{driver.Read, driver.Write} {
		l := acquire(t, d, inMode(mode, request("x")))
		if got := replica.Do("HEXISTS", "x", fieldOf(mode, l.request.Hold)); got != int64(1) {
			t.Errorf("%v: the replica does not have the grant", mode)
		}
		if err := l.Renew(t.Context(), time.Hour); err != nil {
			t.Errorf("%v: Renew: %v", mode, err)
		}
		release(t, l)
	}
	link.Cut()
	for _, mode := range []driver.Mode{driver.Read, driver.Write} {
		if _, err := hasty.Acquire(t.Context(), inMode(mode, request("x"))); !errors.Is(err, ErrNotReplicated) {
			t.Errorf("%v without the replica: got %v, want ErrNotReplicated", mode, err)
		}
		wantNoKeys(t, primary)
	}
}

// TestReadersAndWritersInASlotThatMoves: a request that ends a hold completes,
// and a request to acquire waits until all keys are on one node.
func TestReadersAndWritersInASlotThatMoves(t *testing.T) {
	t.Parallel()
	c := testenv.RedisCluster(t, 3, 0)
	d, other := openURL(t, "%s", clusterURL(c)), openURL(t, "%s", clusterURL(c))
	t.Run("reader", func(t *testing.T) {
		l, beside := acquire(t, d, inMode(driver.Read, forLong("{reader}x"))), acquire(t, other, inMode(driver.Read, forLong("{reader}x")))
		w := wait(t, other, inMode(driver.Write, forLong("{reader}x")))
		settled(t, other)
		end := beginMove(c, "{reader}x")
		release(t, l)
		release(t, beside)
		end()
		release(t, w.granted(t))
	})
	t.Run("reader alongside a dead reader", func(t *testing.T) {
		l, dead := acquire(t, d, inMode(driver.Read, forLong("{dead}x"))), acquire(t, d, inMode(driver.Read, forLong("{dead}x")))
		d.life.Remove(dead)
		end := beginMove(c, "{dead}x")
		c.Owner("{dead}x").Do("DEL", timeoutKey(driver.Read, "{dead}x", dead.request.Hold))
		released := make(chan error, 1)
		go func() { released <- l.Release(t.Context()) }() // ends when the slot has moved
		testenv.Eventually(t, func() bool { return tryAgains(c.Owner("{dead}x")) > 0 }, "the reader was notified that the slot moves")
		end()
		if err := <-released; err != nil {
			t.Errorf("Release: %v", err)
		}
		if got := c.Owner("{dead}x").Do("EXISTS", "{dead}x"); got != int64(0) {
			t.Error("the lock is left")
		}
	})
	t.Run("writer", func(t *testing.T) {
		l := acquire(t, d, inMode(driver.Write, forLong("{writer}x")))
		w := wait(t, other, inMode(driver.Read, forLong("{writer}x")))
		end := beginMove(c, "{writer}x")
		release(t, l)
		end()
		release(t, w.granted(t))
	})
}

func TestReadWriteInCluster(t *testing.T) {
	t.Parallel()
	c := testenv.RedisCluster(t, 3, 0)
	d := openURL(t, "%s", clusterURL(c))
	const n = 200
	leases := make([]driver.Lease, 0, 3*n)
	for i := range n {
		leases = append(leases, acquire(t, d, inMode(driver.Read, forLong(fmt.Sprint("r", i)))),
			acquire(t, d, inMode(driver.Write, forLong(fmt.Sprint("w", i)))), acquire(t, d, forLong(fmt.Sprint("e", i))))
	}
	before := time.Now()
	d.RenewAll(t.Context(), leases, func(i int, err error) {
		if err != nil || leases[i].Expires().Before(before.Add(time.Minute)) {
			t.Errorf("lease %d: got %v, and Expires %v after the renewal", i, err, leases[i].Expires().Sub(before))
		}
	})
	for _, name := range []string{"a{b", "{}x", "a}b"} {
		if _, err := d.Acquire(t.Context(), read(name)); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("Read of %q: got %v, want errors.ErrUnsupported", name, err)
		}
	}
}

// TestRefusedRequestOfAWriterThatHasLeft: a writer whose last request is
// refused after the writer has left no longer blocks readers.
func TestRefusedRequestOfAWriterThatHasLeft(t *testing.T) {
	s := testenv.Redis(t)
	d, link := overLink(t, s, "")
	l := acquire(t, openURL(t, "redisson://%s", s.Addr), read("x"))
	defer release(t, l)
	w := wait(t, d, write("x"))
	d.direct.answered.Store(never) // so that the next request takes the sender's way
	trap := link.HoldRequest(w.request.Hold)
	s.Do("PUBLISH", prefixName(readWritePrefix, "x"), "0")
	sprung(t, trap)
	w.cancel()
	if <-w.done; !errors.Is(w.err, driver.ErrUnknown) {
		t.Fatalf("Acquire of a writer that left before its answer: got %v, want ErrUnknown", w.err)
	}
	s.Do("CONFIG", "SET", "maxmemory", "1")
	link.Heal()
	testenv.Eventually(t, func() bool { return strings.Contains(s.Do("INFO", "errorstats").(string), "errorstat_OOM") }, "the request is refused")
	s.Do("CONFIG", "SET", "maxmemory", "0")
	start := time.Now()
	testenv.Eventually(t, func() bool { return s.Do("EXISTS", "dsync_intent:{x}") == int64(0) }, "the intent is gone")
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("the intent is gone after %v", took)
	}
}
