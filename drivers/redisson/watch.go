package redisson

import (
	"errors"
	"fmt"

	"github.com/go-dsync/dsync/driver"
)

// Watch implements driver.Watcher. The server tells of the ends of holds, in all modes, and not of grants. The end of a fair lock is told
// to the next in line alone, so fair locks cannot be watched. Status.Waiters and the count at a release take a watcher for a waiter.
func (d *Driver) Watch(name string, changed func()) (stop func(), err error) {
	if d.options.Fair {
		return nil, fmt.Errorf("watching fair locks: %w", errors.ErrUnsupported)
	}
	exclusive := d.topics.Watch(channelOf(driver.Exclusive, name, false), changed)
	readWrite := d.topics.Watch(channelOf(driver.Write, name, false), changed)
	permits := d.topics.Watch(channelOf(driver.Permit, name, false), changed)
	return func() {
		exclusive()
		readWrite()
		permits()
	}, nil
}
