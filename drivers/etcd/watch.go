package etcd

import "github.com/go-dsync/dsync/driver"

// watch is one call of Watch, which listens to a feed beside its waiters.
type watch struct{ changed func() }

// Watch implements driver.Watcher. The feed tells of all contenders, new ones too.
func (d *Driver) Watch(name string, changed func()) (stop func(), err error) {
	return d.watch(keyRange{dir: d.dir(name)}, changed)
}

// watch has changed called when the feed of a range begins, and by each event of the feed.
func (d *Driver) watch(keys keyRange, changed func()) (stop func(), err error) {
	if err := d.life.Context().Err(); err != nil {
		return nil, driver.ErrClosed
	}
	fs, w := d.feeds, &watch{changed}
	d.lines.wait()
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.feed(keys)
	if f.watches[w] = struct{}{}; f.active {
		changed()
	}
	return func() {
		fs.mu.Lock()
		defer fs.mu.Unlock()
		if _, watches := f.watches[w]; watches {
			d.lines.stop()
		}
		delete(f.watches, w)
		f.left()
	}, nil
}

// tellWatches is called with feeds.mu held.
func (f *feed) tellWatches() {
	for w := range f.watches {
		w.changed()
	}
}
