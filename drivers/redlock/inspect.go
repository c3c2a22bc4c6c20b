package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
)

var (
	_ driver.BatchRenewer       = (*Driver)(nil)
	_ driver.Inspector          = (*Driver)(nil)
	_ driver.ForceUnlocker      = (*Driver)(nil)
	_ driver.ContentionReporter = (*lease)(nil)
)

// poll is a script to run on all nodes, outside of any vote.
type poll struct {
	driver *Driver
	script string
	name   string
	args   []string
	done   chan struct{} // closed when all nodes have answered

	mu      sync.Mutex
	answers []rueidis.RedisResult
	pending int
	err     error // of a node
	doubt   bool  // an answer is missing
}

// ask runs a script on all nodes, and returns when they have answered or, beyond a majority of answers, are late.
func (d *Driver) ask(ctx context.Context, script, name string, args ...string) (answers []rueidis.RedisResult, err error) {
	p := &poll{driver: d, script: script, name: name, args: args, done: make(chan struct{}), pending: len(d.nodes)}
	for _, n := range d.nodes {
		if !n.add(p) {
			return nil, driver.ErrClosed
		}
	}
	timer := d.timer(d.options.NodeTimeout)
	defer d.putTimer(timer)
	for {
		ended := false
		select {
		case <-p.done:
			ended = true
		case <-ctx.Done():
			ended = true
		case <-d.life.Open().Done():
			return nil, driver.ErrClosed
		case <-timer.C:
		}
		p.mu.Lock()
		answers, err, doubt := slices.Clone(p.answers), p.err, p.doubt || p.pending > 0
		p.mu.Unlock()
		switch {
		case len(answers) >= d.quorum:
			return answers, nil
		case !ended:
			timer.Reset(d.options.NodeTimeout)
			continue
		case ctx.Err() != nil:
			err = ctx.Err()
		}
		if doubt {
			return nil, fmt.Errorf("%w: %w", driver.ErrUnknown, err)
		}
		return nil, err
	}
}

// weight implements task.
func (p *poll) weight() int { return 1 }

// command implements task.
func (p *poll) command(n *node, _ int64) (rueidis.Completed, bool) {
	return n.client.B().Eval().Script(p.script).Numkeys(1).Key(p.name).Arg(p.args...).Build(), true
}

// answer implements task.
func (p *poll) answer(n *node, result rueidis.RedisResult, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.answers = append(p.answers, result)
	} else {
		_, refused := rueidis.IsRedisErr(err)
		p.err = n.of(refusal(err))
		p.doubt = p.doubt || !refused && !errors.As(err, new(notSent))
	}
	if p.pending--; p.pending == 0 {
		close(p.done)
	}
}

// holding is the value that a majority of the nodes has.
type holding struct {
	value string // "" if there is none
	ttl   time.Duration
}

// holder returns the value of a name.
func (d *Driver) holder(ctx context.Context, name string) (holding, error) {
	answers, err := d.ask(ctx, inspectText, name)
	if err != nil {
		return holding{}, err
	}
	ttls := make(map[string][]int64) // by value
	for _, answer := range answers {
		pair, err := answer.ToArray()
		if err != nil || len(pair) != 2 {
			return holding{}, errAnswer
		}
		value, err := pair[0].ToString()
		ttl, notNumber := pair[1].AsInt64()
		if notNumber != nil {
			return holding{}, errAnswer
		}
		if err == nil { // a nil says that the node has no value
			ttls[value] = append(ttls[value], ttl)
		}
	}
	missing := len(d.nodes) - len(answers)
	for value, t := range ttls {
		if len(t) >= d.quorum {
			slices.SortFunc(t, func(a, b int64) int { return cmp.Compare(b, a) })
			return holding{value, time.Duration(max(t[d.quorum-1], 0)) * time.Millisecond}, nil
		}
		if len(t)+missing >= d.quorum {
			return holding{}, fmt.Errorf("%w: %d nodes did not answer, and %d have a value of %q", driver.ErrUnavailable, missing, len(t), name)
		}
	}
	return holding{}, nil
}

// Inspect implements driver.Inspector. A name is held if a majority of the nodes has the same value for it. TTL is until there is no such
// majority any more.
func (d *Driver) Inspect(ctx context.Context, name string) (driver.Status, error) {
	if err := d.life.Enter(); err != nil {
		return driver.Status{}, err
	}
	defer d.life.Leave()
	h, err := d.holder(ctx, name)
	if err != nil {
		return driver.Status{}, err
	}
	s := driver.Status{Held: h.value != "", TTL: h.ttl, Waiters: -1}
	s.Hold, _, _ = strings.Cut(h.value, attemptMark)
	if d.single() && isSeal(h.value) {
		s.Hold, s.Owner = "", "seal"
	}
	return s, nil
}

// ForceUnlock implements driver.ForceUnlocker. The holder learns the loss at its next renewal.
func (d *Driver) ForceUnlock(ctx context.Context, name string) error {
	if err := d.life.Enter(); err != nil {
		return err
	}
	defer d.life.Leave()
	h, err := d.holder(ctx, name)
	switch {
	case err != nil:
		return err
	case h.value == "":
		return driver.ErrNotHeld
	case d.single() && isSeal(h.value):
		return driver.ErrSealed
	}
	if _, err = d.ask(ctx, releaseText, name, h.value, channel(name)); errors.Is(err, driver.ErrClosed) {
		return fmt.Errorf("%w: %w", err, driver.ErrUnknown)
	}
	if err == nil {
		_, _ = d.ask(ctx, removedText, removalChannel(name))
	}
	return err
}

// removedText tells holders that ForceUnlock removed their holds. Its key is the
// channel: redlock nodes are in no cluster.
const removedText = "return redis.call('PUBLISH', KEYS[1], '')"

// removalChannel is a channel of no other name: a name has no NUL.
func removalChannel(name string) string { return channel(name) + "\x00removed" }

// WatchRemoval implements driver.RemovalWatcher. The channel has no waiters, so a
// holder that listens counts as none.
func (l *lease) WatchRemoval(renew func()) (stop func()) {
	stops := make([]func(), len(l.driver.ears))
	for i, e := range l.driver.ears {
		stops[i] = e.Watch(removalChannel(l.request.Name), renew)
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}
