package conformance

import (
	"context"
	"errors"
	"sync"
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

func TestDriverThatIsSlowToConnectPasses(t *testing.T) {
	for _, c := range Checks() {
		for _, d := range []time.Duration{defaultTTL * 2 / 3, defaultTTL * 5 / 4} {
			r := c.result(t, onMemory(nil, connectsIn(d)))
			if r.err != nil && !errors.As(r.err, new(*lateError)) {
				t.Errorf("%s, when it takes %v to connect: %v\n%s", c.Name, d, r.err, r.events)
			}
		}
	}
}
