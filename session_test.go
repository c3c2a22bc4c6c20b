package dsync_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

// keeper is a driver that keeps sessions alive as directed by a test.
type keeper struct {
	stub
	told  func(error)
	lease *stubLease // the last lease
}

func (k *keeper) Acquire(_ context.Context, r *driver.Request) (driver.Lease, error) {
	k.requests = append(k.requests, r)
	k.lease = k.grant(r, time.Now())
	return k.lease, nil
}

func (k *keeper) OnKeepAlive(f func(error)) { k.told = f }

// TestCauseOfTheLossOfASession ends leases that are attached to a session, by
// time and by a report of the driver.
func TestCauseOfTheLossOfASession(t *testing.T) {
	away := fmt.Errorf("no route: %w", context.DeadlineExceeded)
	for _, test := range []struct {
		name    string
		happens func(k *keeper, r *driver.Request)
		want    string
	}{
		{"nothing failed", func(*keeper, *driver.Request) {}, "lock lost: expired"},
		{"a keep-alive failed", func(k *keeper, _ *driver.Request) { k.told(away) }, "lock lost: backend out of reach: backend unavailable"},
		{"a keep-alive failed before the session was kept alive", func(k *keeper, r *driver.Request) {
			k.told(away)
			k.told(nil)
			time.Sleep(time.Second)
			k.lease.setExpires(time.Now().Add(r.TTL))
		}, "lock lost: expired"},
		{"another session was kept alive", func(k *keeper, _ *driver.Request) {
			k.told(away)
			k.told(nil)
		}, "lock lost: backend out of reach"},
		{"the server ended the session", func(_ *keeper, r *driver.Request) {
			r.Events.Lost(fmt.Errorf("%w: by force", driver.ErrSessionEnded))
		}, "lock lost: session ended: by force"},
		{"the driver gave the session up", func(k *keeper, r *driver.Request) {
			k.told(errors.New("no route"))
			r.Events.Lost(driver.ErrSessionEnded)
		}, "lock lost: backend out of reach: no route"},
		{"removed in an outage", func(k *keeper, r *driver.Request) {
			k.told(away)
			r.Events.Lost(driver.ErrRemoved)
		}, "lock lost: removed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := &keeper{stub: stub{info: driver.Info{Name: "keeper", KeepsAlive: true}}}
				l := mustLock(t, newClient(t, k, &dsync.Options{TTL: 10 * time.Second}), "x")
				time.Sleep(time.Second)
				test.happens(k, k.asked()[0])
				<-l.Done()
				err := l.Err()
				if !errors.Is(err, dsync.ErrLost) || !strings.Contains(err.Error(), test.want) {
					t.Errorf("the lease ended with %v, want ErrLost and %q", err, test.want)
				}
				if errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v matches the error of a context that is not the user's", err)
				}
			})
		})
	}
}
