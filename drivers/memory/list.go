package memory

import (
	"context"
	"iter"
	"strings"

	"github.com/go-dsync/dsync/driver"
)

// List implements [driver.Lister].
func (d *Driver) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		lost, err := d.query(ctx, Queries)
		if lost {
			err = driver.ErrUnknown
		}
		if err != nil {
			yield("", err)
			return
		}
		for _, name := range d.server.list(prefix) {
			if !yield(name, nil) {
				return
			}
		}
	}
}

// list returns the names with a prefix that are held or sealed.
func (s *Server) list(prefix string) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for name, e := range s.names {
		if strings.HasPrefix(name, prefix) && e.heldAt(now) {
			names = append(names, name)
		}
	}
	for name := range s.seals {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names
}
