//go:build unix

package caslock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// record is what the store keeps of a name.
type record struct {
	Hold, Owner, Note string // of the holder; empty if the name is free
	Since             time.Time
	TTL               time.Duration
	Token             uint64 // the last that was given
}

func (d *Driver) get(ctx context.Context, name string) (r record, version uint64, err error) {
	b, version, err := d.store.Get(ctx, name)
	if err == nil && b != nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		return r, 0, unanswered(ctx, driver.ErrUnavailable, err)
	}
	d.sights.see(name, version, r.TTL)
	return r, version, nil
}

// put replaces the record if it has the version, and returns the next one.
func (d *Driver) put(ctx context.Context, name string, r record, version uint64) (uint64, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return 0, err
	}
	next, err := d.store.Put(ctx, name, b, version)
	if err != nil && !errors.Is(err, errConflict) {
		err = unanswered(ctx, driver.ErrUnknown, err)
	}
	return next, err
}

func unanswered(ctx context.Context, kind, err error) error {
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// sights are the records that a driver has seen, and since when they have not changed.
type sights struct {
	mu  sync.Mutex
	all map[string]sight
}

type sight struct {
	version uint64
	since   time.Time // when the first answer with this version had arrived: it was written before
	ttl     time.Duration
}

// maxSights bounds how many records are remembered that nobody may ask for any more.
const maxSights = 1000

func (s *sights) see(name string, version uint64, ttl time.Duration) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil || len(s.all) > maxSights {
		s.all = map[string]sight{} // to begin anew makes others wait for longer, and nobody for less
	}
	if s.all[name].version < version {
		s.all[name] = sight{version, now, ttl}
	}
}

// left returns for how long the record that was seen last may still be renewed.
func (s *sights) left(name string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[name].ttl - time.Since(s.all[name].since)
}
