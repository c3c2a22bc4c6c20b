package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// connectsIn returns a good driver that connects when it is first asked, and takes d for that, as on a busy machine.
func connectsIn(d time.Duration) func(*memory.Driver) driver.Driver {
	return func(m *memory.Driver) driver.Driver {
		connected := sync.OnceValue(func() time.Time { return time.Now().Add(d) })
		return &broken{Driver: m, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
			time.Sleep(time.Until(connected()))
			return m.Acquire(ctx, r)
		}}
	}
}

// grantsIn returns a good driver whose first five grants take d to arrive, as on a machine that is busy for a while. The outcome of a grant
// that is over when it arrives is unknown.
func grantsIn(d time.Duration) func(*memory.Driver) driver.Driver {
	return func(m *memory.Driver) driver.Driver {
		var late atomic.Int32
		return &broken{Driver: m, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := m.Acquire(ctx, r)
			if err != nil || late.Add(1) > 5 {
				return l, err
			}
			time.Sleep(d)
			if time.Now().Before(l.Expires()) {
				return l, nil
			}
			return nil, driver.ErrUnknown
		}}
	}
}

// givesUpOn returns a good driver whose first five requests take d to arrive. It does not wait for longer than half the TTL for an answer.
func givesUpOn(d time.Duration) func(*memory.Driver) driver.Driver {
	return func(m *memory.Driver) driver.Driver {
		var late atomic.Int32
		return &broken{Driver: m, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if late.Add(1) <= 5 {
				time.Sleep(min(d, r.TTL/2))
				if d > r.TTL/2 {
					return nil, driver.ErrUnavailable
				}
			}
			return m.Acquire(ctx, r)
		}}
	}
}

func TestSlowDriversPass(t *testing.T) {
	slow := map[string]func(*memory.Driver) driver.Driver{}
	for _, d := range []time.Duration{defaultTTL * 2 / 3, defaultTTL * 5 / 4} {
		slow[fmt.Sprintf("it takes %v to connect", d)] = connectsIn(d)
	}
	for _, d := range []time.Duration{defaultTTL * 5 / 16, defaultTTL * 5 / 8} {
		slow[fmt.Sprintf("the first grants take %v", d)] = grantsIn(d)
	}
	slow["it gives up on its first requests"] = givesUpOn(defaultTTL * 5 / 32)
	for _, c := range allChecks() {
		for when, d := range slow {
			r := c.result(t, onMemory(nil, d))
			if r.err != nil && !errors.As(r.err, new(*lateError)) {
				t.Errorf("%s, when %s: %v\n%s", c.Name, when, r.err, r.events)
			}
		}
	}
}
