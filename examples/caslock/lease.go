//go:build unix

package caslock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// lease is a record that this driver wrote.
type lease struct {
	driver *Driver
	name   string
	first  uint64
	tokens int

	turn    chan struct{} // full while a request for it is under way
	record  record        // guarded by turn, as is version
	version uint64        // of the record, as far as answers tell

	mu   sync.Mutex
	end  time.Time
	dead bool // released
}

func (l *lease) Tokens() (uint64, int) { return l.first, l.tokens }

func (l *lease) Expires() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

func (l *lease) Renew(ctx context.Context, ttl time.Duration) error {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	until := time.Now().Add(ttl)
	l.mu.Lock()
	if l.dead || !time.Now().Before(l.end) {
		l.mu.Unlock()
		return driver.ErrNotHeld
	}
	if until.Before(l.end) {
		l.end = until // before the request: contenders may go by the shorter TTL although its answer never comes
	}
	l.mu.Unlock()
	next := l.record
	next.TTL = ttl
	if err := l.change(ctx, next); err != nil {
		if errors.Is(err, driver.ErrNotHeld) {
			l.driver.leases.Delete(l) // nobody releases it any more
		}
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !time.Now().Before(l.end) {
		return driver.ErrNotHeld // the answer came too late to count
	}
	l.end = until
	return nil
}

func (l *lease) Release(ctx context.Context) error {
	l.mu.Lock()
	again, over := l.dead, !time.Now().Before(l.end)
	l.dead = true
	l.mu.Unlock()
	if again {
		return driver.ErrNotHeld
	}
	defer l.driver.leases.Delete(l)
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		l.driver.clean(ghost{name: l.name, hold: l.record.Hold})
		return unanswered(ctx, driver.ErrUnknown, ctx.Err())
	}
	err := l.change(ctx, record{Token: l.record.Token})
	switch {
	case err == nil && over:
		return driver.ErrNotHeld
	case err != nil && !errors.Is(err, driver.ErrNotHeld):
		l.driver.clean(ghost{l.name, l.record.Hold, l.version})
		return unanswered(ctx, driver.ErrUnknown, err)
	}
	return err
}

// change replaces the record if it is still that of this hold, whichever of its versions: an earlier request may have been carried out
// although its answer was lost. It is called with turn.
func (l *lease) change(ctx context.Context, next record) error {
	for {
		version, err := l.driver.put(ctx, l.name, next, l.version)
		if err == nil {
			l.record, l.version = next, version
		}
		if !errors.Is(err, errConflict) {
			return err
		}
		now, version, err := l.driver.get(ctx, l.name)
		switch {
		case err != nil:
			return err
		case now.Hold != l.record.Hold:
			return driver.ErrNotHeld
		}
		l.version = version
	}
}
