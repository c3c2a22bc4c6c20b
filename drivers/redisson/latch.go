package redisson

import (
	"context"
	"fmt"
	"strconv"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

// Latches are Redisson's RCountDownLatch: a decimal number at the name, without
// a TTL, that is removed at 0. See latch.lua.
const (
	latchPrefix  = "dsync_latch"  // prefix of a key with the recent changes, a hash
	latchPrefix2 = "dsync_latch2" // prefix of the other such key, because the two alternate
	latchChannel = "redisson_countdownlatch__channel__"
)

// latchMemory is how long, at least, the server remembers the id of a change,
// in milliseconds.
var latchMemory = strconv.FormatInt((2 * driver.RepeatFor).Milliseconds(), 10)

// latchChannelOf returns the channel that reports the end of a latch. Redisson
// puts braces around any name here.
func latchChannelOf(name string) string { return latchChannel + "{" + name + "}" }

// SetLatch implements driver.Latcher.
func (d *Driver) SetLatch(ctx context.Context, name, id string, n int) (set bool, err error) {
	return d.changeLatch(ctx, name, id, "set", n)
}

// CountDown implements driver.Latcher.
func (d *Driver) CountDown(ctx context.Context, name, id string) error {
	_, err := d.changeLatch(ctx, name, id, "down", 0)
	return err
}

// DeleteLatch implements driver.Latcher.
func (d *Driver) DeleteLatch(ctx context.Context, name, id string) error {
	_, err := d.changeLatch(ctx, name, id, "delete", 0)
	return err
}

// changeLatch runs the script of a change and reports whether there was
// something to change.
func (d *Driver) changeLatch(ctx context.Context, name, id, change string, n int) (did bool, err error) {
	if err := d.checkLatch(ctx, name); err != nil {
		return false, err
	}
	args := []string{change, strconv.Itoa(n), id, latchMemory, latchChannelOf(name)}
	keys := []string{name, prefixName(latchPrefix, name), prefixName(latchPrefix2, name)}
	answer, lacking, err := d.runReplicated(ctx, name, latchScript.Call(keys, append(args, d.checked.words...)...))
	if lacking != nil {
		err = fmt.Errorf("%w: %w", driver.ErrUnknown, lacking)
	}
	return answer == 1, err
}

// Latch implements driver.Latcher.
func (d *Driver) Latch(ctx context.Context, name string) (left int, err error) {
	if err := d.checkLatch(ctx, name); err != nil {
		return 0, err
	}
	text, err := d.do(ctx, d.client.B().Get().Key(name).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return 0, nil
	}
	if err != nil {
		return 0, redisdriver.Explain(ctx, name, err)
	}
	if left, err = strconv.Atoi(text); err != nil {
		return 0, fmt.Errorf("key %q is used for something else: its value is not a number", name)
	}
	return max(0, left), nil
}

// WatchLatch implements driver.Latcher.
func (d *Driver) WatchLatch(name string, changed func()) (stop func(), err error) {
	return d.topics.Watch(changed, latchChannelOf(name)), nil
}

func (d *Driver) checkLatch(ctx context.Context, name string) error {
	if err := d.admin(ctx, name); err != nil {
		return err
	}
	return d.checkLatchName(name)
}

// checkLatchName returns an error for names whose channel would be in another
// slot of a cluster than the key.
func (d *Driver) checkLatchName(name string) error {
	if d.cluster && slotOf(name) != slotOf(latchChannelOf(name)) {
		return fmt.Errorf(errNameInClusters, name, errLatchBraces)
	}
	return nil
}
