//go:build unix

package caslock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// lease is a record that this driver wrote.
type lease struct {
	driver *Driver
	name   string
	record record // as granted
	first  uint64
	tokens int
	turn   chan struct{} // full while a renewal is under way
	forget *time.Timer   // removes the lease from Driver.leases when it is over

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

// Renew carries out one renewal at a time, so the last answer is that of the
// last request. With a ttl of 0 it only looks whether the hold is there.
func (l *lease) Renew(ctx context.Context, ttl time.Duration) error {
	if ttl == 0 {
		now, err := l.driver.get(ctx, l.name)
		if err == nil && now.Hold != l.record.Hold {
			return driver.ErrNotHeld
		}
		return err
	}
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	until := time.Now().Add(ttl)
	if !l.move(until, false) {
		return driver.ErrNotHeld
	}
	next := l.record
	next.TTL = ttl
	err := l.change(ctx, next)
	if err == nil && !l.move(until, true) {
		return driver.ErrNotHeld // the answer came too late to count
	}
	return err
}

// move moves the end of a lease that is not over. Before the request is answered, move only makes the end earlier: contenders may go by the
// shorter TTL although the answer never comes.
func (l *lease) move(to time.Time, answered bool) (live bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	live = !l.dead && time.Now().Before(l.end)
	if live && (answered || to.Before(l.end)) {
		l.end = to
		l.forget.Reset(time.Until(to))
	}
	return live
}

// Release needs no turn: a renewal that is still on its way finds another version.
func (l *lease) Release(ctx context.Context) error {
	l.mu.Lock()
	again, over := l.dead, !time.Now().Before(l.end)
	l.dead = true
	l.mu.Unlock()
	if again {
		return driver.ErrNotHeld
	}
	l.driver.leases.Delete(l)
	err := l.change(ctx, record{Token: l.record.Token})
	switch {
	case err == nil && over:
		return driver.ErrNotHeld
	case err != nil && !errors.Is(err, driver.ErrNotHeld):
		l.driver.clean(ghost{name: l.name, hold: l.record.Hold})
		return fmt.Errorf("%w: %w", driver.ErrUnknown, err)
	}
	return err
}

// change replaces the record if it still is that of this hold.
func (l *lease) change(ctx context.Context, next record) error {
	_, err := l.driver.change(ctx, l.name, func(now record) (record, error) {
		if now.Hold != l.record.Hold {
			return now, driver.ErrNotHeld
		}
		return next, nil
	})
	return err
}
