package cas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/cleaner"
)

// read returns the record of a name.
func (d *Driver) read(ctx context.Context, name string) (*view, error) {
	short, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	e, err := d.store.Read(short, name)
	switch {
	case err == nil:
		return d.decode(name, e)
	case errors.Is(err, fs.ErrPermission):
		return nil, err
	}
	return nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, cmp.Or(ctx.Err(), err))
}

// errDone is returned by a function for Driver.change that has nothing to change.
var errDone = errors.New("nothing to change")

// change is the only way in which records change. It replaces the record of a
// name by what to makes of it, until nobody else changes it in between. Claims
// that are over are out of it, but for that of hold. A known record saves the
// first read, and has all claims. change returns the record that it wrote. With
// an error of to or of the write it returns the record as it was before.
//
// If the error matches driver.ErrUnknown, the write may be carried out as long
// as the record has the version before.
func (d *Driver) change(ctx context.Context, name, hold string, known *view, to func(v *view) error) (*view, error) {
	for tries := 0; ; tries++ {
		v := known
		if v == nil {
			var err error
			if v, err = d.read(ctx, name); err != nil {
				return nil, err
			}
		}
		next := v.next()
		if known == nil {
			next.prune(hold)
		}
		err := to(next)
		if err == nil {
			err = d.write(ctx, v, next)
		}
		switch {
		case err == nil:
			return next, nil
		case !errors.Is(err, ErrChanged):
			next.version = v.version
			return next, err
		}
		known = nil
		goesOn := false
		if tries == 0 {
			var leave func()
			if leave, goesOn = d.turns.enter(ctx, d.life.Context(), name); goesOn {
				defer leave()
			}
		} else {
			goesOn = d.life.Sleep(ctx, rand.N(time.Millisecond<<min(tries, 6)))
		}
		if !goesOn {
			return next, fmt.Errorf("%w: the record of %q changes all the time: %w", driver.ErrUnavailable, name, cmp.Or(ctx.Err(), driver.ErrClosed))
		}
	}
}

// write replaces v by next in the store, and sets the version of next.
func (d *Driver) write(ctx context.Context, v, next *view) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	short, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	var err error
	switch {
	case !next.deletable():
		var value []byte
		if value, err = d.encode(v, next); err != nil {
			return err
		}
		next.version, err = d.store.Write(short, next.Name, value, v.version)
		next.written = time.Time{}
	case v.version != "":
		err = d.store.Delete(short, next.Name, v.version)
		next.version = ""
	}
	switch {
	case err == nil, errors.Is(err, fs.ErrPermission), errors.Is(err, ErrChanged), errors.Is(err, driver.ErrUnavailable):
		return err
	}
	return fmt.Errorf("%w: %w", driver.ErrUnknown, cmp.Or(ctx.Err(), err))
}

// ghost is what a request may have left, or may leave yet.
type ghost struct {
	cleaner.Ghost
	name, hold string
	pending    bool   // a write may yet be carried out, while the record
	version    string // has this version
}

// settle makes sure that the ghost is gone and cannot come back. To see that it
// is not there would not be enough: a write without an answer may be on its
// way. So settle writes, too, where that write could still be carried out.
func (d *Driver) settle(ctx context.Context, g *ghost, known *view) error {
	_, err := d.change(ctx, g.name, "", known, func(v *view) error {
		there := v.remove(g.hold)
		if g.pending && g.version == "" { // there may be no record again
			v.keep(d.Clock, v.now.Add(linger).UnixMicro())
		} else if !there && !(g.pending && g.version == v.version) {
			return errDone
		}
		return nil
	})
	if errors.Is(err, errDone) {
		return nil
	}
	return err
}

// linger is how long a write may be on its way that demands that there is no
// record.
const linger = time.Hour

// settleAll is the Policy of the cleaner.
func (d *Driver) settleAll(ghosts []*ghost) (left []*ghost) {
	for _, g := range ghosts {
		if d.settle(d.life.Context(), g, nil) != nil {
			left = append(left, g)
		}
	}
	return left
}
