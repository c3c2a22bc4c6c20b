package redisson

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// refusals is a Driver that notes whether the last Acquire was refused while it
// waited.
type refusals struct {
	*Driver
	refused atomic.Bool
}

func (d *refusals) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	copied := *r
	copied.Events = refusedEvents{r.Events, d}
	return d.Driver.Acquire(ctx, &copied)
}

type refusedEvents struct {
	driver.Events
	driver *refusals
}

func (e refusedEvents) Waiting() {
	e.driver.refused.Store(true)
	e.Events.Waiting()
}

// TestDeadlinesOnABusyServer: a call that was refused reports this, regardless
// of which request its deadline cuts off. The server is frozen most of the
// time, and the waiters are notified repeatedly that the name may be free, so
// many deadlines end during a request.
func TestDeadlinesOnABusyServer(t *testing.T) {
	t.Parallel()
	const callers, refused = 6, 20
	s := testenv.Redis(t, "--hz", "200")
	s.Do("HSET", "x", "somebody:1", "1")
	t.Cleanup(keepBusy(t, s))
	var unknown atomic.Int64
	parallel(callers, func(int) {
		d := &refusals{Driver: openURL(t, "redisson://%s", s.Addr)}
		c, err := dsync.New(d, &dsync.Options{TTL: time.Second})
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close(context.Background())
		for n := 0; n < refused && !t.Failed(); {
			d.refused.Store(false)
			after := time.Millisecond + rand.N(120*time.Millisecond)
			ctx, cancel := context.WithTimeout(t.Context(), after)
			_, err := c.Lock(ctx, "x")
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a Lock with a deadline of %v: got %v, want an error that matches the deadline", after, err)
			}
			if !d.refused.Load() {
				continue
			}
			n++
			if !errors.Is(err, dsync.ErrLocked) {
				t.Errorf("a Lock that was refused, with a deadline of %v: got %v, want an error that matches ErrLocked", after, err)
			}
			if errors.Is(err, dsync.ErrUnknown) {
				unknown.Add(1)
			}
		}
	})
	t.Logf("%d of %d deadlines cut off a request", unknown.Load(), callers*refused)
}

// keepBusy freezes the server most of the time and notifies the waiters for x
// that it may be free, until the returned function is called.
func keepBusy(t *testing.T, s *testenv.RedisServer) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			default:
			}
			_, err1 := s.Try("PUBLISH", prefixName(channelPrefix, "x"), "0")
			_, err2 := s.Try("CLIENT", "PAUSE", fmt.Sprint(1+rand.N(20)))
			if err := errors.Join(err1, err2); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// TestKeyThatSomebodyOverwrote: the holder of a lock whose keys are overwritten
// by hand has lost it, in every mode.
func TestKeyThatSomebodyOverwrote(t *testing.T) {
	for _, query := range []string{"", "?fair=true"} {
		s := testenv.Redis(t)
		for mode := driver.Exclusive; mode <= driver.Permit; mode++ {
			for _, renew := range []bool{true, false} {
				d, err := tryOpen(t, "redisson://"+s.Addr+"/"+query)
				if err != nil {
					t.Fatal(err)
				}
				r := request("x")
				if r.Mode = mode; mode == driver.Permit {
					r.Permits, r.Limit = 2, 3
				}
				l, err := d.Acquire(t.Context(), r)
				if err != nil {
					t.Fatalf("%v: %v", mode, err)
				}
				s.Do("FLUSHALL")
				s.Do("SET", "x", "other")
				s.Do("SET", endsKey("x"), "other")
				if renew {
					err = l.Renew(t.Context(), r.TTL)
				} else {
					err = l.Release(t.Context())
				}
				if !errors.Is(err, driver.ErrNotHeld) {
					t.Errorf("%v%s, renewal %t: %v, want ErrNotHeld", mode, query, renew, err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
				if err := d.Close(ctx); err != nil {
					t.Errorf("%v%s: Close: %v", mode, query, err)
				}
				cancel()
				s.Do("FLUSHALL")
			}
		}
	}
}
