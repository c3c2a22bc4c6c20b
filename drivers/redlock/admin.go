package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

// evalMajority runs a script on all nodes, outside of any vote, and returns the
// answers from a majority or more.
func (d *Driver) evalMajority(ctx context.Context, script *redisdriver.Script, name string, args ...string) (answers []rueidis.RedisResult, err error) {
	replies, ended := d.askEach(ctx, d.options.NodeTimeout, script.Call([]string{name}, args...).CommandByText)
	if ended == driver.ErrClosed {
		return nil, ended
	}
	doubt := ended != nil
	for _, r := range replies {
		if r.err == nil {
			answers = append(answers, r.result)
			continue
		}
		_, refused := rueidis.IsRedisErr(r.err)
		err, doubt = r.node.of(refusal(r.err)), doubt || !refused && !errors.As(r.err, new(redisdriver.NotSent))
	}
	switch {
	case len(answers) >= d.quorum:
		return answers, nil
	case doubt:
		return nil, fmt.Errorf("%w: %w", driver.ErrUnknown, cmp.Or(ended, err))
	}
	return nil, err
}

// holder returns the value that a majority of the nodes has for a name, or ""
// if there is no such value.
func (d *Driver) holder(ctx context.Context, name string) (value string, ttl time.Duration, err error) {
	answers, err := d.evalMajority(ctx, inspectScript, name)
	if err != nil {
		return "", 0, err
	}
	ttls := make(map[string][]int64) // by value
	for _, answer := range answers {
		pair, err := answer.ToArray()
		if err != nil || len(pair) != 2 {
			return "", 0, redisdriver.ErrAnswer
		}
		value, err := pair[0].ToString()
		ttl, notNumber := pair[1].AsInt64()
		if notNumber != nil {
			return "", 0, redisdriver.ErrAnswer
		}
		if err == nil { // a nil means that the node has no value
			ttls[value] = append(ttls[value], ttl)
		}
	}
	missing := len(d.nodes) - len(answers)
	for value, t := range ttls {
		if len(t) >= d.quorum {
			slices.SortFunc(t, func(a, b int64) int { return cmp.Compare(b, a) })
			return value, time.Duration(max(t[d.quorum-1], 0)) * time.Millisecond, nil
		}
		if len(t)+missing >= d.quorum {
			return "", 0, fmt.Errorf("%w: %d nodes did not answer, and %d nodes have a value for %q", driver.ErrUnavailable, missing, len(t), name)
		}
	}
	return "", 0, nil
}

// Inspect implements driver.Inspector. A name is held if a majority of the
// nodes has the same value for it. TTL is the time until there is no longer
// such a majority.
func (d *Driver) Inspect(ctx context.Context, name string) (driver.Status, error) {
	if err := d.life.Enter(); err != nil {
		return driver.Status{}, err
	}
	defer d.life.Leave()
	value, ttl, err := d.holder(ctx, name)
	if err != nil {
		return driver.Status{}, err
	}
	s := driver.Status{Held: value != "", TTL: ttl, Waiters: -1}
	s.Hold, _, _ = strings.Cut(value, attemptMark)
	if d.single() && isSeal(value) {
		s.Hold, s.Owner = "", "seal"
	}
	return s, nil
}

// ForceUnlock implements driver.ForceUnlocker. The holder learns of the loss at
// its next renewal.
func (d *Driver) ForceUnlock(ctx context.Context, name string) error {
	if err := d.life.Enter(); err != nil {
		return err
	}
	defer d.life.Leave()
	value, _, err := d.holder(ctx, name)
	switch {
	case err != nil:
		return err
	case value == "":
		return driver.ErrNotHeld
	case d.single() && isSeal(value):
		return driver.ErrSealed
	}
	if _, err = d.evalMajority(ctx, releaseScript, name, value, channel(name)); errors.Is(err, driver.ErrClosed) {
		return fmt.Errorf("%w: %w", err, driver.ErrUnknown)
	}
	if err == nil {
		_, _ = d.evalMajority(ctx, removedScript, removalChannel(name))
	}
	return err
}

// removedScript notifies holders that ForceUnlock removed their holds. Its key
// is the channel, because redlock nodes are not in a cluster.
var removedScript = redisdriver.NewScript("return redis.call('PUBLISH', KEYS[1], '')")

// removalChannel returns a channel that no other name can have, because a name
// has no NUL.
func removalChannel(name string) string { return channel(name) + "\x00removed" }

// WatchRemoval implements driver.RemovalWatcher. The channel has no waiters, so
// a listening holder does not count as a waiter.
func (l *lease) WatchRemoval(renew func()) (stop func()) {
	stops := make([]func(), len(l.driver.ears))
	for i, e := range l.driver.ears {
		stops[i] = e.Watch(renew, removalChannel(l.request.Name))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}
