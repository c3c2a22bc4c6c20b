package memory

import "fmt"

// Names returns the number of names for which s keeps any state.
func (s *Server) Names() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.names)
}

// Left returns the names, the watches and the latches for which s keeps any
// state.
func (s *Server) Left() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, e := range s.names {
		if !e.heldAt(s.now()) {
			continue // the next check drops the expired entry
		}
		all = append(all, fmt.Sprintf("%d holds and %d waiters of %q", len(e.holds), len(e.all()), name))
	}
	for _, w := range []watchers{s.watchers, s.latches.watchers} {
		for name := range w {
			all = append(all, fmt.Sprintf("watches of %q", name))
		}
	}
	for name := range s.latches.left {
		all = append(all, fmt.Sprintf("the latch %q", name))
	}
	return all
}

// Sessions returns the number of sessions that d keeps alive, and Behind the
// number of holds that d has yet to end.
func (d *Driver) Sessions() int {
	d.server.mu.Lock()
	defer d.server.mu.Unlock()
	return len(d.sessions)
}

func (d *Driver) Behind() int {
	d.server.mu.Lock()
	defer d.server.mu.Unlock()
	return len(d.behind)
}
