package redisson

import "github.com/go-dsync/dsync/driver"

// Watch implements driver.Watcher. The server tells of the end of holds, in whichever mode, and not of grants; of a fair lock that others
// wait for it tells these alone. A watcher counts among those who wait, as far as Status.Waiters and a release count them.
func (d *Driver) Watch(name string, changed func()) (stop func()) {
	exclusive := d.topics.Watch(channelOf(driver.Exclusive, name, false), changed)
	readWrite := d.topics.Watch(channelOf(driver.Write, name, false), changed)
	return func() {
		exclusive()
		readWrite()
	}
}
