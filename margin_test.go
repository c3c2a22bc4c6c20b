package dsync_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

// sessionLease is a lease whose session ends after the given time and has that
// TTL.
type sessionLease struct {
	*stubLease
	session time.Duration
	granted time.Time
}

func (l *sessionLease) Expires() time.Time {
	if end := l.granted.Add(l.session); end.Before(l.stubLease.Expires()) {
		return end
	}
	return l.stubLease.Expires()
}

func (l *sessionLease) Session() (time.Time, time.Duration) {
	return l.granted.Add(l.session), l.session
}

func TestMarginIsOfTheTTLThatExpiresWasCountedWith(t *testing.T) {
	for _, tt := range []struct{ ttl, session, want time.Duration }{
		{time.Hour, 10 * time.Second, 9895 * time.Millisecond},
		{time.Second, 10 * time.Second, 985 * time.Millisecond},
		{10 * time.Second, 10 * time.Second, 9895 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &stub{info: driver.Info{KeepsAlive: true}}
			d.acquire = func(_ context.Context, _ int, r *driver.Request) (driver.Lease, error) {
				return &sessionLease{d.grant(r, time.Now()), tt.session, time.Now()}, nil
			}
			l := mustLock(t, newStub(t, d), "x", dsync.ExpireAfter(tt.ttl))
			if got := time.Until(l.Deadline()); got != tt.want {
				t.Errorf("lease of %v, session of %v: the deadline is %v away, want %v", tt.ttl, tt.session, got, tt.want)
			}
		})
	}
}
