package redisson

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
)

// WatchRemoval implements driver.RemovalWatcher. ForceUnlock sends the message on
// a channel that has no waiters, so a holder that listens counts as none.
func (l *lease) WatchRemoval(renew func()) (stop func()) {
	return l.driver.topics.Watch(removalChannel(l.request.Name), renew)
}

// removalChannel is a channel of no other name: a name has no NUL.
func removalChannel(name string) string { return prefixName(channelPrefix, name) + "\x00removed" }

// tellRemoved tells holders of a name that ForceUnlock removed their holds. A
// holder that misses the message learns of the removal from its next renewal.
func (d *Driver) tellRemoved(ctx context.Context, name string) { d.tell(ctx, removalChannel(name)) }

// tell sends the message of a release on a channel. Nothing depends on it.
func (d *Driver) tell(ctx context.Context, channel string) {
	var cmds []rueidis.Completed
	for _, word := range d.checked.words {
		cmds = append(cmds, d.client.B().Arbitrary(word).Keys(channel).Args(d.releaseMessage()).Build())
	}
	d.doMulti(ctx, d.client, cmds)
}

// tellShortened has waiters ask how long a hold lasts that ends before they
// would ask again.
func (d *Driver) tellShortened(ctx context.Context, r *driver.Request) {
	channel := channelOf(r.Mode, r.Name, false)
	if d.options.Fair && r.Mode == driver.Exclusive {
		first, err := d.do(ctx, d.client.B().Lindex().Key(prefixName(queuePrefix, r.Name)).Index(0).Build()).ToString()
		if err != nil {
			return // nobody waits
		}
		channel += ":" + first
	}
	d.tell(ctx, channel)
}

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
