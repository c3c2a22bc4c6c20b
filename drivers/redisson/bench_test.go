package redisson

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/redisdriver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// The floor: the minimum cost of Redisson's lock, without tokens, through the
// same client.
var (
	bareAcquire = redisdriver.NewScript(`if redis.call('EXISTS', KEYS[1]) == 1 then return redis.call('PTTL', KEYS[1]) end
redis.call('HSET', KEYS[1], ARGV[2], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return -1`)
	bareRelease = redisdriver.NewScript(`if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return -1 end
return redis.call('PUBLISH', KEYS[2], '0')`)
)

// barePair acquires and releases a lock by two scripts.
func barePair(ctx context.Context, d *Driver, r *driver.Request, channel string) error {
	b := d.client.B()
	got, err := d.client.Do(ctx, b.Evalsha().Sha1(bareAcquire.SHA).Numkeys(1).Key(r.Name).Arg("30000", r.Hold).Build()).ToInt64()
	if err != nil || got != -1 {
		return fmt.Errorf("bare acquire: %d, %v", got, err)
	}
	got, err = d.client.Do(ctx, b.Evalsha().Sha1(bareRelease.SHA).Numkeys(2).Key(r.Name, channel).Arg(r.Hold).Build()).ToInt64()
	if err != nil || got < 0 {
		return fmt.Errorf("bare release: %d, %v", got, err)
	}
	return nil
}

func pair(ctx context.Context, d *Driver, r *driver.Request) error {
	l, err := d.Acquire(ctx, r)
	if err != nil {
		return err
	}
	return l.Release(ctx)
}

func benchDriver(b *testing.B, parameters string) (*Driver, *testenv.RedisServer) {
	s := testenv.Redis(b)
	d := openURL(b, "redisson://%s/%s", s.Addr, parameters)
	for _, sc := range []*redisdriver.Script{bareAcquire, bareRelease} {
		s.Do("SCRIPT", "LOAD", sc.Text)
	}
	release(b, acquire(b, d, request("warm")))
	return d, s
}

var fences = []struct{ name, parameters string }{{"tokens", ""}, {"plain", "?fenced=false"}}

// BenchmarkFreeLock measures Acquire and Release of a free lock from one
// goroutine, and two bare scripts, in turn.
func BenchmarkFreeLock(b *testing.B) {
	for _, fence := range fences {
		b.Run(fence.name, func(b *testing.B) {
			d, _ := benchDriver(b, fence.parameters)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			r := request("bench")
			channel := prefixName(channelPrefix, r.Name)
			inTurn(b, func() error { return pair(ctx, d, r) }, func() error { return barePair(ctx, d, r, channel) })
		})
	}
}

// inTurn measures ours and bare in alternating slices, so that both see the
// same machine. Only ours counts for the benchmark; the metric p50/bare is the
// ratio of the medians.
func inTurn(b *testing.B, ours, bare func() error) {
	const slice = 50
	times := func(f func() error) (d [slice]time.Duration) {
		for i := range d {
			start := time.Now()
			if err := f(); err != nil {
				b.Fatal(err)
			}
			d[i] = time.Since(start)
		}
		return d
	}
	var our, their []time.Duration
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if n%slice > 0 {
			continue
		}
		d := times(ours)
		b.StopTimer()
		our = append(our, d[:]...)
		d = times(bare)
		their = append(their, d[:]...)
		b.StartTimer()
	}
	b.ReportMetric(float64(drivertest.Median(our))/float64(drivertest.Median(their)), "p50/bare")
	b.ReportMetric(float64(drivertest.Median(our)), "p50-ns")
}

// BenchmarkManyLocks measures many goroutines, each with its own name. The
// metric pairs/bare is the ratio of throughputs, measured in alternating
// slices.
func BenchmarkManyLocks(b *testing.B) {
	for _, fence := range fences {
		for _, goroutines := range []int{64, 512} {
			b.Run(fence.name+"/"+strconv.Itoa(goroutines), func(b *testing.B) {
				d, s := benchDriver(b, fence.parameters)
				testenv.Apart(b, s.Pid())
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				requests := make([]*driver.Request, goroutines)
				channels := make([]string, goroutines)
				for i := range requests {
					requests[i] = request("bench" + strconv.Itoa(i))
					channels[i] = prefixName(channelPrefix, requests[i].Name)
				}
				const slice = 20
				var ours, bare time.Duration
				run := func(n int, f func(i int) error) time.Duration {
					start := time.Now()
					var wg sync.WaitGroup
					for i := range goroutines {
						wg.Go(func() {
							for range n {
								if err := f(i); err != nil {
									b.Error(err)
									return
								}
							}
						})
					}
					wg.Wait()
					return time.Since(start)
				}
				rounds := 0
				for b.Loop() {
					rounds++
					ours += run(slice, func(i int) error { return pair(ctx, d, requests[i]) })
					bare += run(slice, func(i int) error { return barePair(ctx, d, requests[i], channels[i]) })
				}
				pairs := float64(rounds * slice * goroutines)
				b.ReportMetric(bare.Seconds()/ours.Seconds(), "pairs/bare")
				b.ReportMetric(pairs/ours.Seconds(), "pairs/s")
			})
		}
	}
}

// BenchmarkRenewAll measures 10,000 leases in one call.
func BenchmarkRenewAll(b *testing.B) {
	d, _ := benchDriver(b, "")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	const n = 10_000
	leases := make([]driver.Lease, n)
	parallel(100, func(i int) {
		for j := i; j < n; j += 100 {
			leases[j] = acquire(b, d, request("bench"+strconv.Itoa(j)))
		}
	})
	b.ReportAllocs()
	for b.Loop() {
		d.RenewAll(ctx, leases, func(i int, err error) {
			if err != nil {
				b.Errorf("lease %d: %v", i, err)
			}
		})
	}
}
