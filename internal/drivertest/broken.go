package drivertest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
	"github.com/go-dsync/dsync/internal/testenv"
)

// garbledCall bounds a call to a server with meaningless responses.
const garbledCall = 500 * time.Millisecond

// SurviveGarbled uses drivers while the link corrupts many or few bytes, from
// the start or later. The results of the calls are then meaningless, but no
// call panics, all calls return, and a new driver works once the servers do.
// The short form has two rounds.
func SurviveGarbled(t *testing.T, url string, rounds int, link *wire.Wire) {
	for seed := range uint64(testenv.Briefly(2, rounds)) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			defer link.Heal()
			garble := func() { link.Garble(seed, 16<<(seed/2%7)) }
			if seed%2 == 0 {
				garble()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 4*garbledCall)
			defer cancel()
			returns(t, "Open and the calls after it", func() {
				d, _, err := driver.Open(ctx, url)
				if err != nil {
					t.Logf("Open: %v", err)
					return
				}
				garble()
				for i := range 3 {
					CallAll(t, d, fmt.Sprintf("garbled-%d-%d", seed, i), garbledCall)
				}
				link.Heal()
				ctx, cancel := context.WithTimeout(t.Context(), 2*garbledCall)
				defer cancel()
				t.Logf("Close: %v", d.Close(ctx))
			})
		})
	}
	if link.Traffic().Garbled == 0 {
		t.Error("nothing was garbled")
	}
	d := Open(t, url)
	Release(t, Acquire(t, d, Request("sound")))
}

// SurviveAnswers uses a driver whose server sends meaningless responses. All
// calls return.
func SurviveAnswers(t *testing.T, url string) {
	const limit = 50 * time.Millisecond
	returns(t, "Open and the calls after it", func() {
		ctx, cancel := context.WithTimeout(t.Context(), 10*limit)
		defer cancel()
		d, _, err := driver.Open(ctx, url)
		if err != nil {
			t.Logf("Open: %v", err)
			return
		}
		CallAll(t, d, "x", limit)
		t.Logf("Close: %v", d.Close(ctx))
	})
}

// returns fails the test if f does not return.
func returns(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { // ends when f returns or the test binary ends
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(HangGuard):
		t.Fatalf("%s: does not return", what)
	}
}

// CallAll makes every kind of call to a driver, as far as its requests are
// granted. limit bounds each call. The caller decides which results are
// correct.
func CallAll(t *testing.T, d driver.Driver, name string, limit time.Duration) {
	call := func(what string, f func(ctx context.Context) error) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		t.Logf("%s of %q: %v", what, name, f(ctx))
	}
	var l driver.Lease
	call("Acquire", func(ctx context.Context) (err error) {
		l, err = d.Acquire(ctx, NoWait(name))
		return err
	})
	call("a second Acquire", func(ctx context.Context) error {
		second, err := d.Acquire(ctx, Request(name))
		if second != nil {
			return second.Release(ctx)
		}
		return err
	})
	if i, ok := d.(driver.Inspector); ok {
		call("Inspect", func(ctx context.Context) error {
			_, err := i.Inspect(ctx, name)
			return err
		})
	}
	if s, ok := d.(move.Sealer); ok {
		call("Sealed", func(ctx context.Context) error {
			_, _, err := s.Sealed(ctx, name)
			return err
		})
	}
	if l != nil {
		call("Renew", func(ctx context.Context) error { return l.Renew(ctx, time.Minute) })
		if b, ok := d.(driver.BatchRenewer); ok {
			call("RenewAll", func(ctx context.Context) (last error) {
				b.RenewAll(ctx, []driver.Lease{l}, func(_ int, err error) { last = err })
				return last
			})
		}
		call("Release", l.Release)
	}
	if f, ok := d.(driver.ForceUnlocker); ok {
		call("ForceUnlock", func(ctx context.Context) error { return f.ForceUnlock(ctx, name) })
	}
}
