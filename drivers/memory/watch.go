package memory

import "slices"

// watchers are the calls to Watch, or to WatchLatch, by name. Guarded by
// Server.mu.
type watchers map[string][]*watcher

// watcher is one call to Watch or WatchLatch.
type watcher struct {
	d       *Driver
	changed func()
}

// Watch implements [driver.Watcher]. If a hold ends by its TTL and the name has
// no waiters, changed is called only after the next request for the name.
func (d *Driver) Watch(name string, changed func()) (stop func(), err error) {
	return d.watch(d.server.watchers, name, changed), nil
}

// watch adds a watcher and returns a function that removes it.
func (d *Driver) watch(all watchers, name string, changed func()) (stop func()) {
	s := d.server
	w := &watcher{d, changed}
	s.mu.Lock()
	defer s.mu.Unlock()
	all[name] = append(all[name], w)
	w.notify()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		left := slices.DeleteFunc(all[name], func(other *watcher) bool { return other == w })
		if all[name] = left; len(left) == 0 {
			delete(all, name)
		}
	}
}

// The methods below are called with Server.mu held.

// notify notifies w of a change, unless messages from the server do not arrive.
func (w *watcher) notify() {
	if !w.d.isDeaf() {
		w.changed()
	}
}

// notify notifies the watchers of name of a change.
func (all watchers) notify(name string) {
	for _, w := range all[name] {
		w.notify()
	}
}

// notifyDriver notifies the watchers of d that they may have missed a change.
func (all watchers) notifyDriver(d *Driver) {
	for _, some := range all {
		for _, w := range some {
			if w.d == d {
				w.notify()
			}
		}
	}
}
