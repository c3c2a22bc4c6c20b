package redisson

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

// modeField is the field that a read-write lock of Redisson has beside its holds.
const modeField = "mode"

// Inspect implements driver.Inspector. Status.Owner, Note and Process are known
// for holders of this driver with tokens, and Token for those that do not Read.
// Status.Waiters counts the clients
// that listen for the end of the hold, and, for a fair lock, the places in its
// queue. If the name is sealed, it does not count programs that have just been
// told so, and Inspect takes up to 1.5 s longer.
func (d *Driver) Inspect(ctx context.Context, name string) (driver.Status, error) {
	if err := d.admin(ctx, name); err != nil {
		return driver.Status{}, err
	}
	answer, err := d.query(ctx, inspectScript.Call([]string{name}, readPrefix(name))).ToArray()
	if isWrongType(err) {
		return d.inspectPermits(ctx, name)
	}
	if err != nil {
		err, _ := redisdriver.Fault(ctx, name, err)
		return driver.Status{}, err
	}
	status, err := readStatus(answer)
	if err != nil {
		return status, err
	}
	if d.options.Fair {
		status.Queue, err = d.queue(ctx, name)
		if status.Waiters = len(status.Queue); err != nil || status.Mode == driver.Exclusive {
			return status, err
		}
	}
	channels := []string{channelOf(status.Mode, name, false)}
	if status.Owner == sealOwner { // each kind of lock waits on its own
		channels = append(channels, channelOf(status.Mode, name, true))
	}
	listening, err := d.waiters(ctx, channels)
	if err == nil && listening > 0 && status.Owner == sealOwner && d.life.Sleep(ctx, leaveIn) {
		listening, err = d.waiters(ctx, channels)
	}
	if status.Waiters += listening; listening < 0 {
		status.Waiters = -1
	}
	return status, err
}

// leaveIn is within how long a process that was told of a seal leaves the channel.
// After that, a listener is a program that waits for the sealed name.
const leaveIn = 1500 * time.Millisecond

// readStatus reads the answer of the inspect script.
func readStatus(answer []rueidis.RedisMessage) (driver.Status, error) {
	var status driver.Status
	if len(answer) < 3 {
		return status, redisdriver.ErrAnswer
	}
	left, err1 := answer[0].ToInt64()
	fields, err2 := answer[1].AsStrSlice()
	mode, err3 := answer[2].ToString()
	if err := errors.Join(err1, err2, err3); err != nil {
		return status, err
	}
	var holds []string
	for i := 0; i < len(fields); i += 2 {
		if fields[i] != modeField {
			holds = append(holds, fields[i])
		}
	}
	if len(holds) == 0 {
		return status, nil
	}
	status.Held, status.Hold, status.Holders = true, slices.Min(holds), 1
	value := fields[slices.Index(fields, status.Hold)+1]
	switch {
	case status.Hold == sealField:
		status.Hold, status.Owner = "", sealOwner
	case mode == "read":
		status.Mode, status.Holders = driver.Read, len(holds)
		left, _ = strconv.ParseInt(value, 10, 64)
		value = ""
		if len(answer) > 3 {
			value, _ = answer[3].ToString() // nil if the hold is one of Java
		}
	case mode == "write":
		status.Mode = driver.Write
	}
	status.TTL = max(0, time.Duration(left)*time.Millisecond)
	status.Hold = strings.TrimSuffix(strings.TrimSuffix(status.Hold, writeSuffix), readSuffix)
	readValue(value, &status)
	return status, nil
}

// waiters returns how many clients listen on the channels on which the end of a hold is told, or -1: plain messages of a cluster reach listeners on nodes that
// cannot be counted here.
func (d *Driver) waiters(ctx context.Context, channels []string) (int, error) {
	mode := d.checked.pubSub
	if d.cluster && mode != PubSubSharded {
		return -1, nil
	}
	var cmds []rueidis.Completed
	for _, channel := range channels {
		if mode != PubSubSharded {
			cmds = append(cmds, d.client.B().Arbitrary("PUBSUB", "NUMSUB", channel).Build())
		}
		if mode != PubSubPlain {
			cmds = append(cmds, d.client.B().Arbitrary("PUBSUB", "SHARDNUMSUB").Keys(channel).Build())
		}
	}
	n := 0
	for _, result := range d.doMulti(ctx, d.client, cmds) {
		answer, err := result.ToArray()
		if err != nil || len(answer) != 2 {
			return -1, nil // not permitted, perhaps
		}
		count, err := answer[1].AsInt64()
		if err != nil {
			return -1, nil
		}
		n += int(count)
	}
	for _, channel := range channels {
		n -= d.topics.Unused(channel)
	}
	return max(n, 0), nil
}

// ForceUnlock implements driver.ForceUnlocker.
func (d *Driver) ForceUnlock(ctx context.Context, name string) error {
	if err := d.admin(ctx, name); err != nil {
		return err
	}
	args := append([]string{prefixName(channelPrefix, name), prefixName(readWritePrefix, name)}, d.checked.words...)
	if d.options.Fair {
		args = append(d.tellArgs(name, nil), prefixName(readWritePrefix, name))
	}
	ended, err := d.query(ctx, d.scripts.force.Call(d.fairKeys(name, []string{name}), args...)).ToInt64()
	if isWrongType(err) {
		ended, err = d.forcePermits(ctx, name)
	}
	if err != nil {
		err, _ := redisdriver.Fault(ctx, name, err)
		return err
	}
	switch ended {
	case 0:
		return driver.ErrNotHeld
	case -1:
		return driver.ErrSealed
	}
	d.tellRemoved(ctx, name)
	return nil
}

// admin begins a call about a name, and about no hold of this driver.
func (d *Driver) admin(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-d.life.Open().Done():
		return driver.ErrClosed
	default:
	}
	if err := d.checkName(name); err != nil {
		return err
	}
	return d.checkServer(ctx)
}
