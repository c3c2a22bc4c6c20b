package memory

import "slices"

// watcher is one call of Watch.
type watcher struct {
	d       *Driver
	changed func()
}

// Watch implements [driver.Watcher]. A hold that ends by its TTL while nobody waits is noticed by whoever asks next.
func (d *Driver) Watch(name string, changed func()) (stop func(), err error) {
	s := d.server
	w := &watcher{d, changed}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers[name] = append(s.watchers[name], w)
	w.tell()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		left := slices.DeleteFunc(s.watchers[name], func(other *watcher) bool { return other == w })
		if s.watchers[name] = left; len(left) == 0 {
			delete(s.watchers, name)
		}
	}, nil
}

// The methods below are called with Server.mu held.

// tell tells of a change, unless no message of the server arrives.
func (w *watcher) tell() {
	if !w.d.isDeaf() {
		w.changed()
	}
}

// tellWatchers tells the watchers of name of a change.
func (s *Server) tellWatchers(name string) {
	for _, w := range s.watchers[name] {
		w.tell()
	}
}

// tellWatchersOf tells the watchers of d that something may have changed unseen.
func (s *Server) tellWatchersOf(d *Driver) {
	for _, watchers := range s.watchers {
		for _, w := range watchers {
			if w.d == d {
				w.tell()
			}
		}
	}
}
