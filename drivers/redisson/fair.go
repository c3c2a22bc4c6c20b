package redisson

import (
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

// departIn is how long a caller that gives up waits for the removal of its
// place.
const departIn = 50 * time.Millisecond

// scripts are the scripts that differ between kinds of locks.
type scripts struct{ acquire, release *redisdriver.Script }

// plainScripts and fairScripts are the scripts of each mode.
var (
	plainScripts = [...]scripts{
		driver.Exclusive: {acquireScript, releaseScript},
		driver.Read:      {readScript, readReleaseScript},
		driver.Write:     {writeScript, writeReleaseScript},
		driver.Permit:    {permitAcquireScript, permitReleaseScript},
	}
	fairScripts = [...]scripts{
		driver.Exclusive: {fairAcquireScript, fairReleaseScript},
		driver.Read:      {readScript, fairReadReleaseScript},
		driver.Write:     {writeScript, fairWriteReleaseScript},
		driver.Permit:    plainScripts[driver.Permit],
	}
)

func (d *Driver) scriptsOf(m driver.Mode) *scripts {
	if d.options.Fair {
		return &fairScripts[m]
	}
	return &plainScripts[m]
}

// fairKeys adds the keys of the waiters for a fair lock.
func (d *Driver) fairKeys(name string, keys []string) []string {
	if !d.options.Fair {
		return keys
	}
	return append(keys, prefixName(queuePrefix, name), prefixName(timesPrefix, name))
}

// fairArgs adds the arguments of the fair acquire script, except the arguments
// for tokens.
func (o *op) fairArgs(d *Driver, args []string) []string {
	r, how := o.request, "wait"
	switch {
	case r.NoWait:
		how = "try"
	case o.again:
		how = "again"
	}
	return d.tellArgs(r.Name, append(args, r.Hold, redisdriver.TTLText(r.TTL), how))
}

// tellArgs adds the arguments with which the fair scripts notify a waiter: the
// channel, the commands, and whether these commands count the listeners.
func (d *Driver) tellArgs(name string, args []string) []string {
	return append(d.wordArgs(append(args, prefixName(channelPrefix, name))), d.countText())
}

// countText returns "" if the commands that publish do not count all listeners.
func (d *Driver) countText() string {
	if d.cluster && d.checked.pubSub != PubSubSharded {
		return ""
	}
	return "1"
}

// queues reports whether a request that is not granted gets a place in the
// queue of a fair lock.
func (d *Driver) queues(r *driver.Request) bool {
	return d.options.Fair && r.Mode == driver.Exclusive && !r.NoWait
}

// depart gives up the place in the queue of the fair lock, or the intent to
// write, of a waiter without a grant, and returns err.
func (d *Driver) depart(r *driver.Request, err error) error {
	gone := make(chan struct{})
	d.ghosts.Add(&ghost{request: r, until: d.life.Now() + int64(r.TTL+late), granted: true, place: d.queues(r), gone: gone})
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
