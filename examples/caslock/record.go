//go:build unix

package caslock

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// record is the value of a name in the store.
type record struct {
	Hold, Owner, Note string // of the holder; empty if the name is free
	Since             time.Time
	TTL               time.Duration
	Token             uint64 // the last token given

	// Of a record that was read.
	version uint64
	left    time.Duration // for how long the holder may still renew
}

func (d *Driver) get(ctx context.Context, name string) (r record, err error) {
	b, version, err := d.store.Get(ctx, name)
	if err == nil && b != nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		return record{}, fmt.Errorf("%w: %w", driver.ErrUnavailable, cmp.Or(ctx.Err(), err))
	}
	r.version, r.left = version, r.TTL-d.unchanged(name, version)
	return r, nil
}

// change replaces the record of name by the result of to, unless to returns an error. If somebody else changes the record in between, change
// looks again. After ErrUnknown the record may be replaced, now or later, while it has the version that is returned.
func (d *Driver) change(ctx context.Context, name string, to func(now record) (record, error)) (version uint64, err error) {
	for {
		now, err := d.get(ctx, name)
		if err != nil {
			return 0, err
		}
		next, err := to(now)
		if err != nil {
			return 0, err
		}
		b, err := json.Marshal(next)
		if err != nil {
			return 0, err
		}
		switch _, err = d.store.Put(ctx, name, b, now.version); {
		case err == nil:
			return now.version, nil
		case !errors.Is(err, errConflict):
			return now.version, fmt.Errorf("%w: %w", driver.ErrUnknown, cmp.Or(ctx.Err(), err))
		}
	}
}

// sight is a record that a driver has seen, and since when the record has not changed.
type sight struct {
	version uint64
	since   time.Time // when the first answer with this version arrived: the record was written before
}

// maxSights bounds how many records are remembered although nobody may ask for them any more.
const maxSights = 1000

// unchanged returns for how long the driver has seen no other version of a record.
func (d *Driver) unchanged(name string, version uint64) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.sights) > maxSights {
		clear(d.sights) // to begin anew makes others wait for longer, and nobody for less
	}
	if d.sights[name].version < version {
		d.sights[name] = sight{version, time.Now()}
	}
	return time.Since(d.sights[name].since)
}
