package redisson

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// manyGivenUp is the number of acquires of two permits that are given up in
// each of the two tests below.
const manyGivenUp, atATime = 1000, 50

// wantAllFree waits until all permits are free, long before the end of any
// hold, and nothing is left of a hold.
func wantAllFree(t *testing.T, s *testenv.RedisServer, name string, limit int) {
	t.Helper()
	testenv.Eventually(t, func() bool { return s.Do("GET", name) == strconv.Itoa(limit) }, "all permits are free")
	if all := ends(s, endsKey(name)); len(all) > 0 {
		t.Errorf("permits left: %v", all)
	}
	testenv.Eventually(t, func() bool { return s.SubscriberCount(prefixName(permitPrefix, name)) == 0 }, "no client listens")
}

// TestUnansweredAcquiresLeaveNoPermits: the server grants requests whose
// answers are lost, or, every other time, after the callers have given up.
func TestUnansweredAcquiresLeaveNoPermits(t *testing.T) {
	t.Parallel()
	const limit = 2 * atATime
	s := testenv.Redis(t)
	d, link := overLink(t, s, "")
	if err := d.SetLimit(t.Context(), "x", limit); err != nil {
		t.Fatal(err)
	}
	release(t, acquire(t, d, permits(2, limit, request("x")))) // the server knows the scripts
	for round := range manyGivenUp / atATime {
		late := round%2 == 1
		held, ghosts := link.Traffic().Held, ghostsOf(d)
		if late {
			link.Hold(wire.Requests)
		} else {
			link.Drop(wire.Replies)
		}
		var all []*waiter
		for range atATime {
			all = append(all, begin(d, permits(2, limit, forLong("x"))))
		}
		testenv.Eventually(t, func() bool {
			if late {
				return link.Traffic().Held > held
			}
			return s.Do("ZCARD", endsKey("x")) == int64(limit)
		}, "the requests are on their way, or all permits are granted")
		for _, w := range all {
			w.cancel()
		}
		for _, w := range all {
			if <-w.done; !errors.Is(w.err, context.Canceled) {
				t.Fatalf("round %d: got %v, want context.Canceled", round, w.err)
			}
			if !late && !errors.Is(w.err, driver.ErrUnknown) {
				t.Fatalf("round %d: got %v, want ErrUnknown", round, w.err)
			}
		}
		link.Heal()
		if late { // the answers arrive after all, and report the outcome
			testenv.Eventually(t, func() bool { return ghostsOf(d) <= ghosts }, "nothing more is left to be cleaned up")
		}
		wantAllFree(t, s, "x", limit)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // a request on a connection that broke may arrive for as long as the TTL
	defer cancel()
	if err := d.Close(ctx); err != nil && !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("Close: %v", err)
	}
}

// TestCanceledAcquiresLeaveNoPermits cancels waits while other callers release
// the wanted permits and acquire them again.
func TestCanceledAcquiresLeaveNoPermits(t *testing.T) {
	const limit = 3
	s := testenv.Redis(t)
	d, other := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr)
	if err := other.SetLimit(t.Context(), "x", limit); err != nil {
		t.Fatal(err)
	}
	var canceled, granted atomic.Int64
	var callers sync.WaitGroup
	for range atATime {
		callers.Go(func() {
			for canceled.Load() < manyGivenUp {
				w := begin(d, permits(2, limit, forLong("x")))
				stop := time.AfterFunc(rand.N(10*time.Millisecond), w.cancel)
				<-w.done
				stop.Stop()
				w.cancel()
				switch {
				case w.err == nil:
					granted.Add(1)
					release(t, w.lease)
				case errors.Is(w.err, context.Canceled):
					canceled.Add(1)
				default:
					t.Errorf("got %v, want context.Canceled", w.err)
					return
				}
			}
		})
	}
	var holder sync.WaitGroup
	var ended atomic.Bool
	holder.Go(func() {
		for !ended.Load() {
			release(t, acquire(t, other, permits(2, limit, forLong("x"))))
			time.Sleep(rand.N(2 * time.Millisecond)) // for the other callers
		}
	})
	callers.Wait()
	ended.Store(true)
	holder.Wait()
	t.Logf("%d canceled, %d granted", canceled.Load(), granted.Load())
	testenv.Eventually(t, func() bool { return ghostsOf(d) == 0 }, "nothing is left to be cleaned up")
	wantAllFree(t, s, "x", limit)
}
