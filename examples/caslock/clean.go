//go:build unix

package caslock

import (
	"context"
	"errors"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// ghost is what an unanswered request may have left, or may leave yet.
type ghost struct {
	name, hold string
	version    uint64 // an Acquire is carried out while the record has this version, or never
}

func (d *Driver) clean(g ghost) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ghosts = append(d.ghosts, g); len(d.ghosts) == 1 {
		d.cleaning.Go(d.settleAll)
	}
}

// settleAll settles ghosts, one after the other, for as long as it takes. It ends when none is left, or with the context of Close.
func (d *Driver) settleAll() {
	for left := 1; left > 0 && d.hope.Err() == nil; {
		d.mu.Lock()
		g := d.ghosts[0]
		d.mu.Unlock()
		err := d.settle(g)
		d.mu.Lock()
		if d.ghosts = d.ghosts[1:]; err != nil {
			d.ghosts = append(d.ghosts, g)
		}
		left = len(d.ghosts)
		d.mu.Unlock()
		if err != nil {
			select {
			case <-time.After(d.poll):
			case <-d.hope.Done():
			}
		}
	}
}

// settle makes sure that the ghost is gone and cannot come. It writes once more the record that the request may yet replace: then the
// request's condition never holds again. To see that the hold is not there would not be enough, since the request may be on its way.
func (d *Driver) settle(g ghost) error {
	ctx, cancel := context.WithTimeout(d.hope, time.Second)
	defer cancel()
	_, err := d.change(ctx, g.name, func(now record) (record, error) {
		if now.Hold != g.hold && now.version != g.version {
			return now, driver.ErrNotHeld
		}
		return record{Token: now.Token}, nil
	})
	if errors.Is(err, driver.ErrNotHeld) {
		return nil
	}
	return err
}
