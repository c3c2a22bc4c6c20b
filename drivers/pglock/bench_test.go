package pglock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/pglock"
	"github.com/go-dsync/dsync/internal/testenv"
)

// The benchmarks compare the driver with plain connections that call
// pg_advisory_lock and pg_advisory_unlock. The two alternate within a run.
// x/bare is the ratio of their pairs per second, as the median over all rounds.

const (
	benchRounds = 5
	benchRound  = 300 * time.Millisecond
)

func BenchmarkOneCaller(b *testing.B)       { compare(b, 1, false, "fsync=on") }
func BenchmarkDistinctNames64(b *testing.B) { compare(b, 64, false, "fsync=on") }
func BenchmarkHotName32(b *testing.B)       { compare(b, 32, true, "fsync=on") }

func compare(b *testing.B, callers int, hot bool, settings ...string) {
	pg := testenv.Postgres(b, settings...)
	if callers > 1 { // a single caller waits for the server anyway, and then waking another processor costs time
		testenv.Apart(b, pg.Pid())
	}
	name := func(i int) string {
		if hot {
			return "hot"
		}
		return fmt.Sprint("name", i)
	}
	conns := make([]*pgx.Conn, callers)
	for i := range conns {
		conn, err := pgx.Connect(b.Context(), pg.URL("postgres")+"?sslmode=disable")
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close(context.Background())
		conns[i] = conn
	}
	bare := func(ctx context.Context, i int) error {
		key := pglock.Key(name(i))
		if _, err := conns[i].Exec(ctx, "SELECT pg_advisory_lock($1)", key); err != nil {
			return err
		}
		_, err := conns[i].Exec(ctx, "SELECT pg_advisory_unlock($1)", key)
		return err
	}
	for _, tokens := range []pglock.Tokens{pglock.TokensNone, pglock.TokensFast, pglock.TokensDurable} {
		label := "tokens=durable"
		if tokens != pglock.TokensDurable {
			label = "tokens=" + string(tokens)
		}
		d := newDriver(b, pg.Addr, &pglock.Options{Tokens: tokens})
		client, err := dsync.New(d, nil)
		if err != nil {
			b.Fatal(err)
		}
		b.Run("driver/"+label, func(b *testing.B) {
			report(b, callers, bare, func(ctx context.Context, i int) error {
				l, err := d.Acquire(ctx, request(name(i), 30*time.Second))
				if err != nil {
					return err
				}
				return l.Release(ctx)
			})
		})
		b.Run("client/"+label, func(b *testing.B) {
			report(b, callers, bare, func(ctx context.Context, i int) error {
				l, err := client.Lock(ctx, name(i))
				if err != nil {
					return err
				}
				return l.Unlock(ctx)
			})
		})
	}
}

// report runs both alternately.
func report(b *testing.B, callers int, bare, ours func(context.Context, int) error) {
	for b.Loop() {
		var ratios, rates []float64
		for range benchRounds {
			floor := rate(b, callers, bare)
			rate := rate(b, callers, ours)
			ratios, rates = append(ratios, rate/floor), append(rates, rate)
		}
		slices.Sort(ratios)
		slices.Sort(rates)
		b.ReportMetric(ratios[benchRounds/2], "x/bare")
		b.ReportMetric(rates[benchRounds/2], "pairs/s")
	}
}

// rate returns the number of pairs per second.
func rate(b *testing.B, callers int, pair func(context.Context, int) error) float64 {
	counts := make([]int, callers)
	start := time.Now()
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for time.Since(start) < benchRound {
				if err := pair(b.Context(), i); err != nil {
					b.Error(err)
					return
				}
				counts[i]++
			}
		})
	}
	wg.Wait()
	n := 0
	for _, c := range counts {
		n += c
	}
	return float64(n) / time.Since(start).Seconds()
}
