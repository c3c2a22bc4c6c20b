package redisson

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/linked"
)

// Pauses between requests to end a hold that failed.
const (
	firstRetry = 20 * time.Millisecond
	lastRetry  = 500 * time.Millisecond
)

// lease is one hold: a field of the hash at the lock's name.
type lease struct {
	linked.Links[lease] // in Driver.leases

	driver    *Driver
	request   *driver.Request
	expires   atomic.Int64 // on the driver's clock
	first     uint64
	tokens    int32
	markKnown bool // the grant said whether the name is marked
	marked    bool

	mu        sync.Mutex
	phase     phase
	contended bool
	renewing  int32 // renewals that were sent and not answered
	shortest  int64 // the shortest TTL among these
	lasts     int64 // until when the hold can last if every request to renew it is carried out
	doubtedAt int64 // when the first unanswered request to release the hold was begun
}

// phase is how far the end of a lease has come.
type phase int8

const (
	held    phase = iota
	ending        // Release was called: never renewed again
	doubted       // a request to release the hold was not answered
	removed       // by the cleaner after a Release that failed
	over
)

func (d *Driver) newLease(r *driver.Request, at int64, first uint64, tokens int) *lease {
	l := &lease{driver: d, request: r, first: first, tokens: int32(tokens), lasts: at + int64(r.TTL)}
	l.expires.Store(l.lasts)
	return l
}

// Tokens implements driver.Lease.
func (l *lease) Tokens() (first uint64, n int) { return l.first, int(l.tokens) }

// Expires implements driver.Lease.
func (l *lease) Expires() time.Time { return l.driver.epoch.Add(time.Duration(l.expires.Load())) }

// Contended implements driver.ContentionReporter.
func (l *lease) Contended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.contended
}

// Release implements driver.Lease. It repeats failed requests for as long as ctx and the hold last.
func (l *lease) Release(ctx context.Context) error {
	l.mu.Lock()
	switch l.phase {
	case held:
		l.phase = ending
	case removed:
		l.phase = over
		l.mu.Unlock()
		return nil
	case over:
		l.mu.Unlock()
		return driver.ErrNotHeld
	}
	limit := l.lasts + int64(late)
	l.mu.Unlock()
	l.driver.beginRelease(l)
	defer l.driver.life.Leave()

	again, left, err := l.release(ctx)
	for wait := firstRetry; again; wait = min(2*wait, lastRetry) {
		if !l.driver.life.Sleep(ctx, wait) || l.driver.now() > limit {
			break
		}
		again, left, err = l.release(ctx)
	}
	if err == nil || errors.Is(err, driver.ErrNotHeld) {
		return err
	}
	if !left {
		l.leaveToCleaner()
	}
	if !errors.Is(err, driver.ErrUnknown) {
		err = fmt.Errorf("%w: %w", driver.ErrUnknown, err)
	}
	return err
}

// release asks once to end the hold. After a failure, again says that it makes sense to ask again, and left that the request was left
// on its way.
func (l *lease) release(ctx context.Context) (again, left bool, _ error) {
	d := l.driver
	own, begun := d.own(l.request), d.now()
	o := d.newOp(l.request, l)
	if err, doubt := d.carryOut(ctx, o, nil); doubt {
		l.doubt(begun)
		return false, true, err
	} else if err != nil {
		return false, false, err
	}
	told, err := o.first, o.err
	d.putOp(o)
	if err == nil {
		return false, false, l.released(told, min(own, d.own(l.request)))
	}
	if d.overwritten(ctx, l.request, err) {
		return false, false, l.released(-1, 0)
	}
	err, doubt := fault(ctx, l.request.Name, err)
	if doubt {
		l.doubt(begun)
	}
	return transient(err) && ctx.Err() == nil, false, err
}

// doubt notes that a request to release the hold, begun at some time, may have been carried out.
func (l *lease) doubt(begun int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.phase == ending {
		l.phase, l.doubtedAt = doubted, begun
	}
}

// leaveToCleaner leaves the end of the hold to the cleaner.
func (l *lease) leaveToCleaner() {
	l.mu.Lock()
	g := l.ghost()
	l.mu.Unlock()
	g.lease = l
	l.driver.ghosts.Add(g)
}

// ghost returns what the cleaner has to know about the hold. It is called with mu held.
func (l *lease) ghost() *ghost {
	r := l.request
	return &ghost{name: r.Name, hold: r.Hold, mode: r.Mode, permits: r.Permits, until: l.lasts + int64(late), granted: true}
}

// released takes an answer to a request to release the hold. Own is how many of the message's receivers were subscriptions of this driver.
//
// In Redisson every release leaves a key behind for a while, by which a repeat is recognized. Here a repeat that
// finds nothing counts as the success of the unanswered request before, if that request was begun before the hold could have
// expired: so the path that everybody takes has nothing to write, or to clean up.
func (l *lease) released(told int64, own int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.phase
	l.phase = over
	switch {
	case told >= 0:
		l.contended = l.request.Mode == driver.Read || l.driver.contended(told, own) // a Read that left other readers told nobody
		return nil
	case before == removed, before == doubted && l.doubtedAt < l.expires.Load():
		l.contended = true
		return nil
	}
	return driver.ErrNotHeld
}

// cleaned is released for an answer to the cleaner: the next call of Release, if there is one, returns the outcome.
func (l *lease) cleaned(told int64) {
	if l.released(told, 0) == nil {
		l.mu.Lock()
		l.phase = removed
		l.mu.Unlock()
	}
}

// Renew implements driver.Lease.
func (l *lease) Renew(ctx context.Context, ttl time.Duration) error {
	if ttl == 0 {
		return l.ask(ctx)
	}
	d := l.driver
	client, err := d.nodeOf(ctx, l.request.Name)
	if err != nil {
		return err
	}
	r, ok := l.beginRenewal(d.now(), ttl)
	if !ok {
		return driver.ErrNotHeld
	}
	c := l.renewCall(ttl)
	results, acks := d.evalAll(ctx, client, []call{c}, d.options.WaitReplicas)
	answer, err := results[0].ToString()
	if err == nil && len(answer) != 1 {
		err = errAnswer
	}
	if err != nil {
		return l.failRenewal(ctx, r, err)
	}
	if err := l.endRenewal(r, answer[0], acks); err != nil {
		return err
	}
	if ttl < backstop && r.at+int64(ttl) < r.before {
		d.tellShortened(ctx, l.request)
	}
	return nil
}

// ask asks whether the server still has the hold, and changes nothing.
func (l *lease) ask(ctx context.Context) error {
	l.mu.Lock()
	phase := l.phase
	l.mu.Unlock()
	if phase != held {
		return driver.ErrNotHeld
	}
	has, err := l.driver.has(ctx, l.request)
	if err == nil && !has {
		return l.gone()
	}
	return err
}

// has asks whether the server has a hold. A key of another kind has none.
func (d *Driver) has(ctx context.Context, r *driver.Request) (bool, error) {
	b := d.client.B()
	commands := []rueidis.Completed{b.Hexists().Key(r.Name).Field(fieldOf(r.Mode, r.Hold)).Build()}
	switch r.Mode {
	case driver.Permit:
		commands[0] = b.Zmscore().Key(endsKey(r.Name)).Member(permitMembers(r.Hold, r.Permits)...).Build()
	case driver.Read:
		commands = append(commands, b.Pttl().Key(timeoutKey(r.Mode, r.Name, r.Hold)).Build())
	}
	results := d.doMulti(ctx, d.client, commands)
	for _, result := range results {
		if err := result.Error(); isWrongType(err) {
			return false, nil
		} else if err != nil {
			err, _ = fault(ctx, r.Name, err)
			return false, err
		}
	}
	if r.Mode == driver.Permit {
		ends, err := results[0].ToArray()
		if err != nil {
			return false, errAnswer
		}
		return !slices.ContainsFunc(ends, func(end rueidis.RedisMessage) bool { return end.IsNil() }), nil
	}
	for i, absent := range []int64{0, -2}[:len(results)] {
		if answer, err := results[i].ToInt64(); err != nil {
			return false, errAnswer
		} else if answer == absent {
			return false, nil
		}
	}
	return true, nil
}

// overwritten reports whether a request failed because another user wrote
// something else to the key of a hold. The error may also be about a key that
// belongs to the lock, such as a queue: then the server still has the hold.
func (d *Driver) overwritten(ctx context.Context, r *driver.Request, err error) bool {
	if !isWrongType(err) {
		return false
	}
	has, err := d.has(ctx, r)
	return err == nil && !has
}

// gone notes that the server does not have the hold, which is held as far as the driver knows.
func (l *lease) gone() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget()
	return driver.ErrNotHeld
}

// forget ends a lease whose hold is gone. The caller holds mu.
func (l *lease) forget() {
	if l.phase == held {
		l.phase = over
		if l.request.Mode == driver.Permit { // some of its permits may be left
			l.driver.ghosts.Add(l.ghost())
		}
		l.driver.forget(l)
	}
}

// renewCall is the renewal of one lease.
func (l *lease) renewCall(ttl time.Duration) call {
	if l.request.Mode == driver.Permit {
		return call{permitRenewScript, permitKeys(l.request.Name, nil), l.renewArgs(nil, ttl)}
	}
	return call{renewScript, []string{l.request.Name}, l.renewArgs(nil, ttl)}
}

// renewArgs adds the arguments of the renew script, three in all modes.
func (l *lease) renewArgs(args []string, ttl time.Duration) []string {
	r := l.request
	if r.Mode == driver.Permit {
		return append(permitArgs(r.Hold, r.Permits, args), l.driver.milliseconds(ttl))
	}
	return append(args, fieldOf(r.Mode, r.Hold), l.driver.milliseconds(ttl), timeoutKey(r.Mode, r.Name, r.Hold))
}

// replicaAnswer is the answer of the renew script on a replica.
const replicaAnswer = 'r'

// renewal is a request to renew a lease.
type renewal struct {
	at, ttl int64 // when the request was sent, and the TTL that it asks for
	before  int64 // lease.expires before the request
}

// beginRenewal notes that a renewal is about to be sent, unless the lease is over. From here on the hold may end as early as this
// renewal says, whatever its outcome.
func (l *lease) beginRenewal(at int64, ttl time.Duration) (renewal, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := renewal{at, int64(ttl), l.expires.Load()}
	if l.phase != held || at >= r.before {
		return r, false
	}
	if l.renewing == 0 || r.ttl < l.shortest {
		l.shortest = r.ttl
	}
	l.renewing++
	l.lasts = max(l.lasts, at+r.ttl)
	l.expires.Store(min(r.before, at+r.ttl))
	return r, true
}

// endRenewal takes the server's answer. Renewals that overlap may have been carried out in any order, and an unanswered renewal at
// any time, so the shortest of them counts.
func (l *lease) endRenewal(r renewal, answer byte, acks int) error {
	d := l.driver
	l.mu.Lock()
	defer l.mu.Unlock()
	end := r.at + min(r.ttl, l.shortest)
	l.renewing--
	switch {
	case answer == '0':
		l.forget()
		return driver.ErrNotHeld
	case answer == 'p':
		return fmt.Errorf("%w: HEXISTS or PEXPIRE of key %q", fs.ErrPermission, l.request.Name)
	case answer == replicaAnswer:
		return fmt.Errorf("%w: the server is a replica, which renews no locks", driver.ErrUnavailable)
	case answer != '1':
		return fmt.Errorf("%w: key %q cannot be renewed", driver.ErrUnavailable, l.request.Name)
	case acks < d.options.WaitReplicas:
		return d.notReplicated(acks)
	}
	expires := l.expires.Load()
	if d.now() >= expires {
		return fmt.Errorf("%w: the answer came after the end of the lease", driver.ErrUnknown)
	}
	l.expires.Store(max(expires, end))
	return nil
}

// failRenewal takes the error of a request.
func (l *lease) failRenewal(ctx context.Context, r renewal, err error) error {
	if l.driver.overwritten(ctx, l.request, err) {
		return l.gone()
	}
	err, doubt := fault(ctx, l.request.Name, err)
	if doubt {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	expires := l.expires.Load()
	if l.renewing--; l.renewing == 0 && expires == r.at+r.ttl && l.driver.now() < expires {
		l.expires.Store(max(expires, r.before)) // the renewal was not carried out, so it ends nothing earlier
	}
	return err
}
