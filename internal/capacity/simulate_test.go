package capacity

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
)

// simulated is the result of a simulation.
type simulated struct {
	perSecond float64       // hand-overs
	mean      time.Duration // the measured durations, if it measures durations
	requests  float64       // per hand-over
	busy      float64       // the share of the time in which the server was busy
}

// inBubble runs f in fake time, with n clients of a new server.
func inBubble(t *testing.T, m model, roundTrip time.Duration, n int, f func(t *testing.T, w *world, clients []*dsync.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{model: m, roundTrip: roundTrip}
		server := memory.NewServer(&memory.Options{Order: memory.FIFOByClient})
		clients := make([]*dsync.Client, n)
		for i := range clients {
			c, err := dsync.New(process{server.NewDriver(), w}, &dsync.Options{
				TracerProvider: tracenoop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider(),
			})
			if err != nil {
				t.Fatal(err)
			}
			clients[i] = c
		}
		f(t, w, clients)
		for _, c := range clients {
			if err := c.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
}

// freeLock simulates uncontended locks, one after another.
func freeLock(t *testing.T, m model, roundTrip time.Duration) (s simulated) {
	t.Helper()
	inBubble(t, m, roundTrip, 1, func(t *testing.T, _ *world, clients []*dsync.Client) {
		const times = 10
		start := time.Now()
		for range times {
			l, err := clients[0].Lock(t.Context(), "free")
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		s.mean = time.Since(start) / times
	})
	return s
}

// handOver simulates the time from the release of one client to the grant of a
// waiting one.
func handOver(t *testing.T, m model, roundTrip time.Duration) (s simulated) {
	t.Helper()
	m.beside = 0 // there is no other client
	inBubble(t, m, roundTrip, 2, func(t *testing.T, _ *world, clients []*dsync.Client) {
		held, err := clients[0].Lock(t.Context(), "name")
		if err != nil {
			t.Fatal(err)
		}
		var released time.Time
		var next sync.WaitGroup
		next.Go(func() {
			l, err := clients[1].Lock(t.Context(), "name")
			if err != nil {
				t.Error(err)
				return
			}
			s.mean = time.Since(released)
			if err := l.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(time.Second) // it waits
		released = time.Now()
		if err := held.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		next.Wait()
	})
	return s
}

// crowd simulates n clients, each with callers goroutines. All of them
// repeatedly acquire one name, hold it, and release it. The simulation lasts d
// after each of them has had a turn.
func crowd(t *testing.T, m model, roundTrip time.Duration, n, callers int, hold, d time.Duration) (s simulated) {
	t.Helper()
	inBubble(t, m, roundTrip, n, func(t *testing.T, w *world, clients []*dsync.Client) {
		ctx, stop := context.WithCancel(t.Context())
		var grants atomic.Int64
		var all sync.WaitGroup
		for i, c := range clients {
			for range callers {
				all.Go(func() { // ends when ctx ends
					for ctx.Err() == nil {
						l, err := c.Lock(ctx, "hot")
						if err != nil {
							if !errors.Is(err, context.Canceled) {
								t.Error(err)
							}
							return
						}
						grants.Add(1)
						time.Sleep(hold + w.passed)
						if err := l.Unlock(ctx); err != nil {
							t.Error(err)
						}
					}
				})
			}
			if w.alive > 0 {
				all.Go(func() { // ends when ctx ends
					pause := time.NewTimer(w.alive * time.Duration(i+1) / time.Duration(n)) // they began at different times
					defer pause.Stop()
					for {
						select {
						case <-pause.C:
							w.request(false)
							pause.Reset(w.alive)
						case <-ctx.Done():
							return
						}
					}
				})
			}
		}
		for grants.Load() < int64(n*callers) {
			time.Sleep(10 * time.Millisecond)
		}
		grants.Store(0)
		w.requests.Store(0)
		w.server.mu.Lock()
		w.server.busy = 0
		w.server.mu.Unlock()
		time.Sleep(d)
		s.perSecond = float64(grants.Load()) / d.Seconds()
		s.requests = float64(w.requests.Load()) / float64(max(1, grants.Load()))
		w.server.mu.Lock()
		s.busy = w.server.busy.Seconds() / d.Seconds()
		w.server.mu.Unlock()
		stop()
		all.Wait()
	})
	return s
}
