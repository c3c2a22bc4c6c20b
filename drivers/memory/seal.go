package memory

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
)

var (
	_ move.Sealer   = (*Driver)(nil)
	_ move.Marker   = (*Driver)(nil)
	_ move.Unsealer = (*Driver)(nil)
	_ move.Unmarker = (*Driver)(nil)
)

// seal is the stored state of a sealed name.
type seal struct {
	last uint64 // the last token of the name
	id   string // of the last Loosen
}

// maxFloor is the highest floor that leaves room for all later grants.
const maxFloor = 1 << 62

// Seal implements [move.Sealer].
func (d *Driver) Seal(ctx context.Context, held driver.Lease) error {
	l := held.(*lease)
	return d.change(ctx, l, func(s *Server, now int64) {
		for _, w := range l.entry.all() {
			l.entry.drop(w)
			w.ready <- driver.ErrSealed
		}
		s.seals[l.r.Name] = seal{last: l.last()}
		s.next(l, over, now)
	})
}

// Mark implements [move.Marker].
func (d *Driver) Mark(ctx context.Context, held driver.Lease, floor uint64) error {
	l := held.(*lease)
	if err := checkFloor(floor); err != nil {
		return err
	}
	n := l.wanted()
	return d.change(ctx, l, func(s *Server, _ int64) {
		s.marks[l.r.Name] = true
		s.token = max(s.token, floor)
		l.accept(n)
	})
}

func checkFloor(floor uint64) error {
	if floor > maxFloor {
		return fmt.Errorf("floor %d of the tokens leaves no room above it: %w", floor, errors.ErrUnsupported)
	}
	return nil
}

// change sends a request that changes the name of l, if l is held.
func (d *Driver) change(ctx context.Context, l *lease, f func(s *Server, now int64)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	lost, err := d.request(ctx, Seals)
	if err != nil {
		return err
	}
	s := d.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.now(); l.fate == held && !l.released && !l.lost && l.end() > now {
		f(s, now)
	} else if !lost {
		return driver.ErrNotHeld
	}
	if lost {
		return driver.ErrUnknown
	}
	return nil
}

// Sealed implements [move.Sealer].
func (d *Driver) Sealed(ctx context.Context, name string) (last uint64, sealed bool, err error) {
	lost, err := d.query(ctx, Queries)
	if err != nil {
		return 0, false, err
	}
	if lost {
		return 0, false, driver.ErrUnknown
	}
	s := d.server
	s.mu.Lock()
	defer s.mu.Unlock()
	x, sealed := s.seals[name]
	return x.last, sealed, nil
}

// Loosen implements [move.Unsealer].
func (d *Driver) Loosen(ctx context.Context, name, id string, floor uint64) error {
	if floor > 0 && d.server.options.NoTokens {
		return fmt.Errorf("no tokens to raise: %w", errors.ErrUnsupported)
	}
	if err := checkFloor(floor); err != nil {
		return err
	}
	return d.changeSeal(ctx, name, func(s *Server, x seal) error {
		x.id = id
		s.seals[name] = x
		s.token = max(s.token, floor)
		return nil
	})
}

// Unseal implements [move.Unsealer].
func (d *Driver) Unseal(ctx context.Context, name, id string) error {
	return d.changeSeal(ctx, name, func(s *Server, x seal) error {
		if x.id == "" || x.id != id {
			return driver.ErrNotHeld
		}
		delete(s.seals, name)
		return nil
	})
}

// changeSeal sends a request that changes the seal of name, if there is one.
func (d *Driver) changeSeal(ctx context.Context, name string, f func(s *Server, x seal) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d.life.Err() != nil {
		return driver.ErrClosed
	}
	lost, err := d.request(ctx, Seals)
	if err != nil {
		return err
	}
	s := d.server
	s.mu.Lock()
	defer s.mu.Unlock()
	err = driver.ErrNotHeld
	if x, sealed := s.seals[name]; sealed {
		err = f(s, x)
	}
	if lost {
		return driver.ErrUnknown
	}
	return err
}

// Unmark implements [move.Unmarker].
func (d *Driver) Unmark(ctx context.Context, held driver.Lease) error {
	l := held.(*lease)
	return d.change(ctx, l, func(s *Server, _ int64) { delete(s.marks, l.r.Name) })
}

// Marked implements [move.Marker].
func (d *Driver) Marked(_ context.Context, held driver.Lease) (bool, error) {
	s := d.server
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.marks[held.(*lease).r.Name], nil
}

// last returns the last token of l, or 0. Called with Server.mu held.
func (l *lease) last() uint64 {
	if l.tokens == 0 {
		return 0
	}
	return l.first + uint64(l.tokens) - 1
}
