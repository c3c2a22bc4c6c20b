package zk_test

import (
	"testing"
)

// TestTransactions counts the server's writes to its log, because a write to a
// disk is usually the main cost of a lock there.
func TestTransactions(t *testing.T) {
	f := newFleet(t, 2, "?ttl=60s")
	const rounds = 20
	count := func(during func()) float64 {
		before := f.Logged()
		for range rounds {
			during()
		}
		return float64(f.Logged()-before) / rounds
	}
	for _, test := range []struct {
		what string
		most float64 // and half a transaction more for keeping the sessions alive
		of   func(t *testing.T) float64
	}{
		{"a free lock: two nodes created, two deleted", 2, func(t *testing.T) float64 {
			return count(func() { release(t, acquire(t, f.clients[0], request("free"))) })
		}},
		{"a name acquired when free: from its release to the grant to a client that has begun to wait", 1, func(t *testing.T) float64 {
			logged, first := int64(0), true
			count(func() {
				held := acquire(t, f.clients[0], request("taken"))
				waiter := wait(t, f.clients[1], request("taken"))
				before := f.Logged()
				release(t, held)
				next := waiter.Granted(t)
				if !first { // the first time it is not known that others wait
					logged += f.Logged() - before
				}
				first = false
				release(t, next)
			})
			return float64(logged) / (rounds - 1)
		}},
		{"handing over a name: one node created, one deleted", 2, func(t *testing.T) float64 {
			held, turn := acquire(t, f.clients[0], request("hot")), 0
			logged := count(func() {
				turn++
				waiter := wait(t, f.clients[turn%2], request("hot"))
				release(t, held)
				held = waiter.Granted(t)
			})
			release(t, held)
			return logged
		}},
	} {
		got := test.of(t)
		if t.Logf("%s: %.2f", test.what, got); got > test.most+0.5 {
			t.Errorf("%s: got %.2f transactions, want %.0f", test.what, got, test.most)
		}
	}
}
