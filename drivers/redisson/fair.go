package redisson

import (
	"context"
	"fmt"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

// Prefixes of the keys in which Redisson's fair lock keeps its waiters.
const (
	queuePrefix = "redisson_lock_queue"
	timesPrefix = "redisson_lock_timeout"
)

// departIn is how long a caller that gives up waits for the server to confirm that its place in the queue, or its intent to write, is gone.
const departIn = 50 * time.Millisecond

// scripts are the scripts that differ between kinds of locks.
type scripts struct{ acquire, release, force *redisdriver.Script }

var (
	plainScripts = scripts{acquireScript, releaseScript, forceScript}
	fairScripts  = scripts{fairAcquireScript, fairReleaseScript, fairForceScript}
)

// fairKeys adds the keys of the waiters for a fair lock.
func (d *Driver) fairKeys(name string, keys []string) []string {
	if !d.options.Fair {
		return keys
	}
	return append(keys, prefixName(queuePrefix, name), prefixName(timesPrefix, name))
}

// fairArgs adds the arguments of the fair acquire script, without the tokens'.
func (o *op) fairArgs(d *Driver, args []string) []string {
	r, how := o.request, "wait"
	switch {
	case r.NoWait:
		how = "try"
	case o.again:
		how = "again"
	}
	return d.tellArgs(r.Name, append(args, r.Hold, d.milliseconds(r.TTL), how))
}

// tellArgs adds the arguments by which the fair scripts tell a waiter: the channel, the commands, and whether these count the listeners.
func (d *Driver) tellArgs(name string, args []string) []string {
	return append(d.wordArgs(append(args, prefixName(channelPrefix, name))), d.countText())
}

// countText is "" where the commands that publish do not count all listeners.
func (d *Driver) countText() string {
	if d.cluster && d.checked.pubSub != PubSubSharded {
		return ""
	}
	return "1"
}

// queues reports whether a request that is not granted gets a place in the queue of a fair lock.
func (d *Driver) queues(r *driver.Request) bool {
	return d.options.Fair && r.Mode == driver.Exclusive && !r.NoWait
}

// depart gives back what a waiter without a grant has at the server, its place in the queue of the fair lock or its intent to write, and
// returns err. Callers that leave together do so by few requests of the cleaner.
func (d *Driver) depart(r *driver.Request, err error) error {
	gone := make(chan struct{})
	d.ghosts.Add(&ghost{request: r, until: d.now() + int64(r.TTL+late), granted: true, place: d.queues(r), gone: gone})
	timer := time.NewTimer(departIn)
	defer timer.Stop()
	select {
	case <-gone:
		return err
	case <-timer.C:
	case <-d.life.Context().Done():
	}
	return fmt.Errorf("%w: %w", driver.ErrUnknown, err)
}

// queue returns the holds of the waiters for a fair lock.
func (d *Driver) queue(ctx context.Context, name string) ([]string, error) {
	key := prefixName(queuePrefix, name)
	list, err := d.do(ctx, d.client.B().Lrange().Key(key).Start(0).Stop(-1).Build()).AsStrSlice()
	if err != nil {
		err, _ = redisdriver.Fault(ctx, name, err)
		return nil, err
	}
	return list, nil
}
