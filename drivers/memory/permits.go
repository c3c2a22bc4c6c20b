package memory

import (
	"context"
	"fmt"

	"github.com/go-dsync/dsync/driver"
)

// SetLimit implements [driver.Limiter].
func (d *Driver) SetLimit(ctx context.Context, name string, limit int) error {
	if limit < 1 {
		return fmt.Errorf("limit %d is not 1 or more", limit)
	}
	lost, err := d.query(ctx, Queries)
	if err != nil {
		return err
	}
	s := d.server
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limits[name] = limit
	if e := s.held(name, s.now()); e != nil {
		for _, w := range e.all() {
			if !fits(w.l.r, limit) && e.drop(w) {
				w.ready <- driver.ErrLimit
			}
		}
		s.serve(e, driver.Permit, s.now())
	}
	if lost {
		return driver.ErrUnknown
	}
	return nil
}

// fits reports whether a request passes the right limit. limit is 0 if the
// server has none.
func fits(r *driver.Request, limit int) bool {
	switch {
	case r.Mode != driver.Permit:
		return true
	case limit == 0:
		return r.Limit > 0
	}
	return (r.Limit == 0 || r.Limit == limit) && r.Permits <= limit
}

// The methods below are called with Server.mu held.

// kept returns the stored limit of the name of e, or 0 if there is none. e is
// nil if the name is free.
func (s *Server) kept(name string, e *entry) int {
	if limit := s.limits[name]; limit > 0 || e == nil {
		return limit
	}
	return e.limit
}

// limit returns the limit that applies to a request: the stored limit if there
// is one, otherwise the request's own.
func (s *Server) limit(e *entry, r *driver.Request) int {
	if r.Mode != driver.Permit {
		return 0
	}
	if limit := s.kept(r.Name, e); limit > 0 {
		return limit
	}
	return r.Limit
}

// admits reports whether a new request passes the right limit, and whether it
// can be granted. On a backend without an order, a request for permits may
// overtake waiters.
func (s *Server) admits(e *entry, r *driver.Request) (fit, granted bool) {
	switch {
	case r.Mode == driver.Permit && !fits(r, s.kept(r.Name, e)):
		return false, false
	case e == nil:
		return true, true
	}
	barges := r.Mode == driver.Permit && s.options.Order == Unordered
	return true, e.admits(r, s.limit(e, r)) && (barges || !e.overtakes(r))
}
