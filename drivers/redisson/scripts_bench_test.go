package redisson

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// BenchmarkOwnScripts measures a free lock, a Read and a permit, from one
// goroutine. It uses a client, the driver, and the same two scripts sent bare,
// in turn. The metrics are ratios of medians: the part above 1 is the cost
// outside the server and the connection.
func BenchmarkOwnScripts(b *testing.B) {
	for _, test := range []struct {
		name    string
		mode    driver.Mode
		options []dsync.LockOption
	}{
		{"lock", driver.Exclusive, nil},
		{"read", driver.Read, []dsync.LockOption{dsync.Read()}},
		{"permit", driver.Permit, []dsync.LockOption{dsync.Permits(1, 32)}},
	} {
		b.Run(test.name, func(b *testing.B) {
			d, s := benchDriver(b, "")
			c := client(b, s, "")
			testenv.Apart(b, s.Pid())
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			r := inMode(test.mode, request("bench"))
			r.Permits, r.Limit = 1, 32
			ways := []func() error{
				ownScripts(ctx, d, r),
				func() error { return pair(ctx, d, r) },
				func() error {
					l, err := c.Lock(ctx, "client", test.options...)
					if err != nil {
						return err
					}
					return l.Unlock(ctx)
				},
			}
			times := make([][]time.Duration, len(ways))
			for b.Loop() {
				for i, way := range ways {
					start := time.Now()
					if err := way(); err != nil {
						b.Fatal(err)
					}
					times[i] = append(times[i], time.Since(start))
				}
			}
			bare := float64(drivertest.Median(times[0]))
			b.ReportMetric(0, "ns/op") // of all three
			b.ReportMetric(bare, "bare-p50-ns")
			b.ReportMetric(float64(drivertest.Median(times[1]))/bare, "driver/bare")
			b.ReportMetric(float64(drivertest.Median(times[2]))/bare, "client/bare")
		})
	}
}

// ownScripts returns a function that sends the scripts that acquire and release
// a hold, which are the same each time.
func ownScripts(ctx context.Context, d *Driver, r *driver.Request) func() error {
	o := d.newOp(r, nil)
	if r.Mode != driver.Permit {
		o.tokens = 1
	}
	keys, scripts := o.keys(d, nil), d.scriptsOf(r.Mode)
	args := o.args(d, nil)
	keysBack, argsBack := d.releaseKeys(r, nil), d.releaseArgs(r, nil, r.Hold)
	return func() error {
		if n, err := d.eval(ctx, scripts.acquire, keys, args).ToInt64(); err != nil || n < 1 {
			return fmt.Errorf("acquire: %d, %v", n, err)
		}
		if n, err := d.eval(ctx, scripts.release, keysBack, argsBack).ToInt64(); err != nil || n < 0 {
			return fmt.Errorf("release: %d, %v", n, err)
		}
		return nil
	}
}
