package redisson

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redistopic"
)

// Prefixes of the keys in which Redisson's fair lock keeps its waiters.
const (
	queuePrefix = "redisson_lock_queue"
	timesPrefix = "redisson_lock_timeout"
)

// aloneFor is lines.alone of a driver.
const aloneFor = 50 * time.Millisecond

// departIn is how long a caller that gives up waits for the server to confirm that its place in the queue, or its intent to write, is gone.
const departIn = 50 * time.Millisecond

// scripts are the scripts that differ between kinds of locks.
type scripts struct{ acquire, release, force, batch *script }

var (
	plainScripts = scripts{acquireScript, releaseScript, forceScript, batchScript}
	fairScripts  = scripts{fairAcquireScript, fairReleaseScript, fairForceScript, fairBatchScript}
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
	case o.place != nil && o.place.queued:
		how = "again"
	}
	return d.tellArgs(r.Name, append(args, r.Hold, d.milliseconds(r.TTL), how))
}

// fairReleaseArgs adds the arguments of the fair release script: for holds that the cleaner ends, or for one with an heir, if there is one, and
// with what its run has left in the queue.
func (d *Driver) fairReleaseArgs(name string, o *op, args []string, holds ...string) []string {
	args = d.tellArgs(name, args)
	end := len(args) + 5
	served, behind := "", ""
	if o != nil {
		served = strings.Join(o.served, "\n")
	}
	if o != nil && o.heir != nil {
		r := o.heir.request
		if args = append(args, r.Hold, d.milliseconds(r.TTL)); o.tokens > 0 {
			args = d.tokenArgs(args, r, o.tokens)
		}
		behind = strings.Join(holdsOf(o.behind), "\n")
	}
	for len(args) < end {
		args = append(args, "")
	}
	return append(append(args, served, behind), holds...)
}

// prepare is called when an op is about to be sent: an attempt for a fair lock enters its line, and a release gets its heir.
func (d *Driver) prepare(o *op) {
	switch {
	case !d.options.Fair || o.request.Mode != driver.Exclusive:
	case o.lease == nil && o.place != nil && !o.place.queued:
		d.lines.enter(o.place)
	case o.lease != nil && o.heir == nil && d.options.WaitReplicas == 0:
		o.served = d.lines.servedBy(o.lease)
		if o.heir, o.behind = d.lines.chooseHeir(o.request.Name); o.heir != nil && d.options.Fence != FenceNone {
			o.tokens = min(max(o.heir.request.Events.Tokens(), 1)+len(o.behind), maxTokens)
		}
	}
}

// inherit takes the answer to a release of a fair lock to who is next, if it is an attempt of this driver.
func (d *Driver) inherit(o *op) {
	if o.err == nil && len(o.served) > 0 {
		d.lines.takenOut(o.lease)
	}
	if p := o.heir; p != nil {
		o.heir = nil
		var l *lease
		var r *run
		if o.err == nil && o.fence > 0 {
			l = d.grantedLease(p.request, o.sent, o.fence, o.n, o.tokens > 0)
			r = l.beginRun(o.sent, o.behind[:o.follow])
		}
		d.lines.inherit(p, l, r)
		if l != nil {
			runtime.Gosched() // the heir goes first
		}
	}
	switch {
	case o.next != "":
		d.lines.wake(o.request.Name, o.next)
	case o.lease != nil && o.err == nil && o.first < 0:
		d.lines.wake(o.request.Name, "") // a request before, whose answer was lost, may have given the lock to an heir
	}
}

// abandon has the cleaner take holds out of the queue of a name.
func (d *Driver) abandon(name string, holds []string) {
	for _, hold := range holds {
		d.ghosts.Add(&ghost{name: name, hold: hold, mode: driver.Exclusive, until: d.now() + int64(late), granted: true, place: true})
	}
}

// readFairRelease takes an answer of the fair release script that is more than a number: told, and the hold of who is first and was not
// told, or the grant of the heir, and how many behind the heir are its run.
func (o *op) readFairRelease(answer []rueidis.RedisMessage) (err error) {
	if len(answer) != 2 && len(answer) != 4 {
		return errAnswer
	}
	if o.first, err = answer[0].ToInt64(); err != nil {
		return err
	}
	if len(answer) == 2 {
		o.next, err = answer[1].ToString()
		return err
	}
	o.fence, err = answer[1].ToInt64()
	n, nErr := answer[2].ToInt64()
	follow, followErr := answer[3].ToInt64()
	if o.n, o.follow = int(n), int(follow); err != nil || nErr != nil || followErr != nil || o.fence < 1 || n < 1 || n > maxTokens ||
		follow < 0 || follow > int64(len(o.behind)) {
		return errAnswer
	}
	return nil
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

// acquireInOrder asks for a fair lock, and waits for its turn.
func (d *Driver) acquireInOrder(ctx context.Context, r *driver.Request) (*lease, error) {
	if d.ghosts.Full() {
		return nil, fmt.Errorf("%w: %d places in queues are still to be given back", driver.ErrUnavailable, maxGhosts)
	}
	p := newPlace(r)
	l, refused, err := d.try(ctx, r, p, "")
	if l == nil && err == nil {
		p.queued = true
		r.Events.Waiting()
		l, err = d.awaitTurn(ctx, p, refused)
	}
	if l = d.lines.leave(p, l, d.now()); l != nil {
		return l, nil
	}
	if !p.queued || errors.Is(err, driver.ErrUnknown) { // an unknown outcome is a ghost already
		return nil, err
	}
	return nil, d.depart(r, err)
}

// awaitTurn asks again whenever it may be the attempt's turn, until a request or the release of another hold of the driver has it granted.
// Where all in front are of this driver, such a release will tell, and the attempt does not listen for messages at first.
func (d *Driver) awaitTurn(ctx context.Context, p *place, refused obstacle) (l *lease, err error) {
	r, left := p.request, pause(refused.left)
	var t *redistopic.Topic
	var told <-chan struct{} // the values of t
	defer func() {
		if t != nil { // nobody joins the topic again
			t.LeaveForGood()
		}
	}()
	timer := time.NewTimer(left)
	defer timer.Stop()
	alone := d.lines.alone
	if amongOwn := d.lines.await(p, d.now()); left > alone && amongOwn {
		timer.Reset(alone)
	} else {
		t = d.listenInQueue(r)
		told = t.Wake
	}
	for {
		select {
		case <-p.wake:
		case <-told:
		case <-timer.C:
			if t == nil { // from when the server has confirmed this on, the attempt asks
				t = d.listenInQueue(r)
				told = t.Wake
				timer.Reset(left - alone)
				continue
			}
		case <-ctx.Done():
		case <-d.life.Open().Done():
		}
		var ask bool
		switch l, ask = d.lines.grantOrAsk(p, d.now()); {
		case l != nil:
			return l, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
		case d.life.Open().Err() != nil:
			return nil, driver.ErrClosed
		case !ask:
			continue
		}
		l, refused, err = d.try(ctx, r, p, "")
		switch {
		case slotMoves(err): // nothing was done, and the place in the queue is kept
			left = moving/2 + rand.N(moving/2)
		case err != nil && err == ctx.Err(): // not sent: the last answer is still that somebody holds the lock
			return nil, fmt.Errorf("%w: %w", driver.ErrLocked, err)
		case l != nil || err != nil: // nobody else grants the attempt anything: the cleaner may be about to end its hold
			return l, err
		default:
			left = pause(refused.left)
		}
		d.lines.answered(p)
		if t == nil { // the attempt was woken before its turn
			t = d.listenInQueue(r)
			told = t.Wake
		}
		timer.Reset(left)
	}
}

// listenInQueue listens for messages. In the queue each waiter has a channel of its own.
func (d *Driver) listenInQueue(r *driver.Request) *redistopic.Topic {
	return d.topics.JoinChannel(prefixName(channelPrefix, r.Name)+":"+r.Hold, int(r.Mode))
}

// queues reports whether a request that is not granted gets a place in the queue of a fair lock.
func (d *Driver) queues(r *driver.Request) bool {
	return d.options.Fair && r.Mode == driver.Exclusive && !r.NoWait
}

// depart gives back what a waiter without a grant has at the server, its place in the queue of the fair lock or its intent to write, and
// returns err. Callers that leave together do so by few requests of the cleaner.
func (d *Driver) depart(r *driver.Request, err error) error {
	gone := make(chan struct{})
	d.ghosts.Add(&ghost{name: r.Name, hold: r.Hold, mode: r.Mode, until: d.now() + int64(r.TTL+late), granted: true, place: d.queues(r), gone: gone})
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
	list, err := d.doMulti(ctx, d.client, []rueidis.Completed{d.client.B().Lrange().Key(key).Start(0).Stop(-1).Build()})[0].AsStrSlice()
	if err != nil {
		err, _ = fault(ctx, name, err)
		return nil, err
	}
	return list, nil
}
